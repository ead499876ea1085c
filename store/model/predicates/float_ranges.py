"""Ranges of floats that enclose bounds of numbers, dates and times: what a plan compares before it reads any text.

A bound is a number in the order of its type: itself, the days of a date, the microseconds of a time. It is rounded
outwards to a float, a lower one down and an upper one up, so that a value outside of the range is outside of the
bounds, too. Where a bound is not known, or values may be outside of it as a NaN is, the range has no end on that side.

A literal is rounded towards the range that it is compared with. So what is certain of the range is certain of the
bounds, and everything else is left to these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.model import bounds
from store.model.logical_types import FLOATING, NUMERIC, Kind, LogicalType
from store.model.predicates.bounds import KEYS, readings, rows_by_kind
from store.model.predicates.literals import Scalar
from store.model.predicates.tree import Op

LOW: Final = "low_float"
HIGH: Final = "high_float"
"""Names of the columns with the ends of ranges, which have no nulls."""

ENDLESS: Final = {LOW: "'-Infinity'::FLOAT", HIGH: "'Infinity'::FLOAT"}
"""Name → SQL of the end where no bound is known."""

_BOUNDS: Final = ("min", "max", "logical_type")
_BELOW: Final = frozenset({Op.EQ, Op.IN, Op.LT, Op.LTE})  # true only of rows whose low bound is not above a literal
_ABOVE: Final = frozenset({Op.EQ, Op.IN, Op.GT, Op.GTE})

_Floats: TypeAlias = npt.NDArray[np.float32]
_Doubles: TypeAlias = npt.NDArray[np.float64]


def with_ranges(rows: pa.Table) -> pa.Table:
    """Rows of columns of files with the columns `LOW` and `HIGH` (float32); other rows, and those of which no bound is
    known, as they are.

    Args:
        rows: Rows of a flight with canonical bounds, or of another one.
    """
    if not set(_BOUNDS) <= set(rows.column_names):
        return rows
    low, high = (np.full(rows.num_rows, end, np.float32) for end in (-np.inf, np.inf))
    for kind, numbers in rows_by_kind(rows["logical_type"].combine_chunks()).items():
        if kind in NUMERIC:
            own = _taken(
                rows.select([name for name in (*_BOUNDS[:2], "nan_count") if name in rows.column_names]), numbers
            )
            low[numbers], high[numbers] = _ranges(own, LogicalType(kind))
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return rows
    return rows.append_column(LOW, pa.array(low)).append_column(HIGH, pa.array(high))


def _taken(rows: pa.Table, numbers: npt.NDArray[np.int64]) -> pa.Table:
    """Rows by their numbers, which ascend; not copied if they are neighbours."""
    first, last = int(numbers[0]), int(numbers[-1])
    return rows.slice(first, len(numbers)) if last - first + 1 == len(numbers) else rows.take(pa.array(numbers))


def _ranges(rows: pa.Table, lt: LogicalType) -> tuple[_Floats, _Floats]:
    """The ends of the ranges of rows of one kind."""
    low, high = (_rounded(_numbers(rows[name], lt), upper=name == "max") for name in ("min", "max"))
    if lt.kind in FLOATING:  # a NaN satisfies conditions that no value within the bounds does
        is_counted = "nan_count" in rows.column_names
        counted = rows["nan_count"].combine_chunks() if is_counted else pa.nulls(rows.num_rows, pa.int64())
        is_unsure = pc.fill_null(pc.not_equal(counted, 0), True).to_numpy(zero_copy_only=False)
        low[is_unsure], high[is_unsure] = -np.inf, np.inf
    return low, high


def _numbers(texts: pa.ChunkedArray, lt: LogicalType) -> _Doubles:
    """Bounds as the doubles nearest to them; NaN where they are unknown, or not canonical."""
    try:
        found = texts.combine_chunks().cast(pa.float64()) if lt.kind in _PLAIN else bounds.sort_keys(texts, lt)
    except pa.ArrowInvalid:
        return np.full(len(texts), np.nan)
    numbers: _Doubles = found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    numbers[found.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return numbers


_PLAIN: Final = frozenset({Kind.INT, Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE})


def _rounded(numbers: _Doubles, *, upper: bool) -> _Floats:
    """Floats that are not above the numbers, or not below them; endless where they are NaN."""
    end = np.float32(np.inf if upper else -np.inf)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded: _Floats = np.nextafter(numbers.astype(np.float32), end)
    rounded[np.isnan(rounded)] = end
    return rounded


def may_sql(op: Op, values: Sequence[Scalar], type: LogicalType | None, row: str) -> str:
    """SQL that is false only where no row of a file can satisfy a comparison, by the range of its column; never null.

    Args:
        values: The literals, which the type reads.
        type: That of the column, which is the row's too.
        row: Name of a row with the columns `LOW` and `HIGH`.
    """
    if type is None or type.kind not in NUMERIC or op not in _BELOW | _ABOVE:
        return "TRUE"
    read = [_number(reading, type) for value in values for reading in readings(value, type)]
    if not read or not all(map(math.isfinite, read)):
        return "TRUE"
    terms = []
    if op in _BELOW:
        terms.append(f"{row}.{LOW} <= {_float_sql(max(read), upper=True)}")
    if op in _ABOVE:
        terms.append(f"{row}.{HIGH} >= {_float_sql(min(read), upper=False)}")
    return f"({' AND '.join(terms)})"


def _number(reading: Any, type: LogicalType) -> float:
    """The double nearest to a literal of the type's sort key."""
    if type.kind is Kind.DECIMAL:
        return float(KEYS[type.kind].coarse(reading)[0])
    if type.kind is Kind.DATE:
        return float(bounds.sort_keys(pa.array([reading]), type)[0].as_py())
    try:
        return float(reading)
    except OverflowError:
        return math.inf


def _float_sql(number: float, *, upper: bool) -> str:
    (rounded,) = _rounded(np.array([number]), upper=upper).tolist()
    return f"'{rounded!r}'::FLOAT" if math.isfinite(rounded) else f"'{'' if upper else '-'}Infinity'::FLOAT"
