"""Bounds and null counts out of the statistics of a Delta log, column by column.

Timestamps are cut to milliseconds, so an upper bound is moved up by one and neither is exact; decimals of more than 15
digits went through a double and are widened, of more than 18 they are dropped; strings of 32 characters or 61 bytes and
more may be cut; a column widened from float to double has the text of a float in the log and that float in older files;
everything is inexact in a file with deleted rows. There are no NaN counts, and bounds of floats skip NaN.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.logical_types import Kind, LogicalType, to_arrow

CUT_STRING: Final = 32  # characters; the log's strings are cut there
CUT_BYTES: Final = 61  # the Rust writers cut before a character that would end beyond 64 bytes
_DOUBTFUL: Final = "[" + "".join(f"\\x{{{plane:X}0000}}-\\x{{{plane:X}FFFF}}" for plane in range(1, 16, 2)) + "]"
"""Characters that may be misread: deltalake puts escaped surrogates of an even plane into the plane below."""
EXACT_DIGITS: Final = 15  # decimals that survive a double
WIDENED_DIGITS: Final = 18  # beyond, what deltalake makes of the double may be anything
_TICK: Final = 1000  # µs: the log's timestamps are cut to milliseconds
_WIDE: Final = Context(prec=60)


def of_partition(values: pa.Array, rows: pa.Array | None) -> dict[str, Any]:
    """A partition column has one value per file, or is all null there."""
    nulls = pc.if_else(pc.is_null(values), rows, pa.scalar(0, pa.int64()))
    columns = {"null_count": nulls, "lower_exact": True, "upper_exact": True}
    if pa.types.is_floating(values.type):
        nan = pc.fill_null(pc.is_nan(values), False)
        columns["nan_count"] = pc.if_else(nan, rows, pa.scalar(0, pa.int64()))
        values = _numbers(values)
    return columns | {"lower": values, "upper": values}


def of_log(
    kind: LogicalType,
    nulls: pa.Array | None,
    lower: pa.Array | None,
    upper: pa.Array | None,
    rows: pa.Array | None,
    records: pa.Array | None,
    tight: pa.Array,
    *,
    exact: bool = True,
    was_float: bool = False,
) -> dict[str, Any]:
    """Null counts and bounds of the log, in the sense that rows deleted since leave them.

    Args:
        kind: The column's type.
        nulls: Null counts of each file, from the log.
        lower: Least values, from the log.
        upper: Greatest values, from the log.
        rows: Live rows of each file.
        records: Rows of each file, deleted ones included.
        tight: Which files lost no row and have statistics that the log does not call wide.
        exact: Whether any bound may be exact.
        was_float: Whether some files hold a DOUBLE column as 32-bit floats.
    """
    columns: dict[str, Any] = {}
    all_tight = pc.all(tight).as_py()
    if nulls is not None:
        columns["null_count"] = nulls if all_tight else of_live_rows(nulls, rows, records, tight)
    if not kind.orderable:
        return columns
    for side, values, outwards in (("lower", lower, _down), ("upper", upper, _up)):
        if values is not None:
            columns[side], attained = outwards(values, kind)
            if was_float and kind.kind is Kind.DOUBLE:
                columns[side], same = _of_floats(columns[side], upwards=side == "upper")
                attained = pc.and_(attained, same)
            columns[f"{side}_exact"] = False if not exact else attained if all_tight else pc.and_(attained, tight)
    return columns


def of_live_rows(nulls: pa.Array, rows: pa.Array | None, records: pa.Array | None, tight: pa.Array) -> pa.Array:
    """Null counts of the live rows: how many of the deleted ones were null is known where none or all are."""
    nothing = pa.scalar(None, pa.int64())
    none_or_all = pc.if_else(pc.equal(nulls, 0), nulls, nothing)
    if records is not None:
        all_null = pc.fill_null(pc.equal(nulls, records), False)
        none_or_all = pc.if_else(all_null, rows, none_or_all)
    return pc.if_else(tight, nulls, none_or_all)


def _down(values: pa.Array, kind: LogicalType) -> tuple[pa.Array, pa.Array]:
    return _bounds(values, kind, upwards=False)


def _up(values: pa.Array, kind: LogicalType) -> tuple[pa.Array, pa.Array]:
    return _bounds(values, kind, upwards=True)


def _bounds(values: pa.Array, kind: LogicalType, *, upwards: bool) -> tuple[pa.Array, pa.Array]:
    """The log's bounds moved outwards as far as they may be off, and where they are exact."""
    sure = pa.repeat(True, len(values))
    match kind.kind:
        case Kind.STRING:
            whole = pc.and_(pc.less(pc.utf8_length(values), CUT_STRING), pc.less(pc.binary_length(values), CUT_BYTES))
            doubtful = pc.match_substring_regex(values, _DOUBTFUL)
            if upwards and pc.any(doubtful).as_py():
                values = pc.if_else(doubtful, pa.array(map(_next_plane, values.to_pylist()), pa.string()), values)
            return values, pc.fill_null(pc.and_(whole, pc.invert(doubtful)), False)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            ticks = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
            rest = pc.subtract(ticks, pc.multiply(pc.divide(ticks, _TICK), _TICK))
            cut = pc.fill_null(pc.equal(rest, 0), True)
            if upwards:
                room = pc.less(ticks, np.iinfo(np.int64).max - _TICK)
                ticks = pc.if_else(pc.and_(cut, pc.fill_null(room, False)), pc.add(ticks, _TICK), ticks)
            return ticks.cast(to_arrow(kind)), pc.invert(cut)
        case Kind.DECIMAL:
            digits = kind.precision or 0
            if digits <= EXACT_DIGITS:
                return values, sure
            wide = _widened(values, kind, upwards) if digits <= WIDENED_DIGITS else pa.nulls(len(values), values.type)
            return wide, pa.repeat(False, len(values))
        case Kind.FLOAT | Kind.DOUBLE:
            return _numbers(values), sure
        case Kind.INT | Kind.DATE | Kind.BOOLEAN:
            return values, sure
    return values, pa.repeat(False, len(values))


def _of_floats(values: pa.Array, *, upwards: bool) -> tuple[pa.Array, pa.Array]:
    """Doubles of which some are the decimal text of a 32-bit float: such a file holds the float next to the text.

    Returns the values moved outwards as far as that float, and where nothing was moved.
    """
    logged = np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = logged.astype(np.float32).astype(np.float64)
    # a float has at most nine digits as text, and a limit; whatever has more is a double
    texts = [
        bool(np.isfinite(there)) and float(f"{here:.9g}") == here for here, there in zip(logged, floats, strict=True)
    ]
    numbers = np.where(texts, floats, logged)
    moved = (np.maximum if upwards else np.minimum)(logged, numbers)
    return pa.array(moved, pa.float64(), mask=np.isnan(logged)), pa.array(numbers == logged)


def _next_plane(value: str | None) -> str | None:
    """A text with each doubtful character moved to the plane it may come from, which is above."""
    if value is None:
        return None
    return "".join(chr(ord(c) + 0x10000) if ord(c) >> 16 & 1 else c for c in value)


def _numbers(values: pa.Array) -> pa.Array:
    """Without NaN: bounds are about numbers."""
    return pc.if_else(pc.fill_null(pc.is_nan(values), False), pa.scalar(None, values.type), values)


def _widened(values: pa.Array, kind: LogicalType, upwards: bool) -> pa.Array:
    """Decimals that went through a double: four units in its last place, and one in their own."""
    step = Decimal(1).scaleb(-(kind.scale or 0))
    limit = Decimal(10) ** ((kind.precision or 0) - (kind.scale or 0)) - step
    sign, rounding = (1, ROUND_CEILING) if upwards else (-1, ROUND_FLOOR)

    def widened(value: Decimal | None) -> Decimal | None:
        if value is None:
            return None
        moved = value + sign * (_WIDE.multiply(abs(value), Decimal(2) ** -50) + step)
        return max(-limit, min(limit, moved.quantize(step, rounding, _WIDE)))

    return pa.array([widened(value) for value in values.to_pylist()], to_arrow(kind))
