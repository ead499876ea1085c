"""Bounds and null counts of a column from the statistics of a Delta log.

* Timestamps are truncated to milliseconds: upper bounds are moved up by one, and no bound is exact.
* Decimals of more than 15 digits were written through a double: bounds are widened. Beyond 18 digits they are dropped.
* Strings of at least 32 characters or 61 bytes may be truncated.
* If a column was widened from float to double, the log may have the text of a float, and the file that float.
* In files with deleted rows no bound is exact.
* There are no NaN counts, and bounds of floats skip NaN.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.file_columns import live_counts, numbers
from store.model.logical_types import Kind, LogicalType, to_arrow

CUT_STRING: Final = 32  # characters at which strings are truncated
CUT_BYTES: Final = 61  # Rust writers truncate before a character that would end beyond 64 bytes
EXACT_DIGITS: Final = 15  # digits up to which a double represents a decimal exactly
WIDENED_DIGITS: Final = 18  # digits beyond which bounds are not used
_TICK: Final = 1000  # µs; resolution of the log's timestamps
_WIDE: Final = Context(prec=60)


def log_facts(
    kind: LogicalType,
    nulls: pa.Array | None,
    lower: pa.Array | None,
    upper: pa.Array | None,
    rows: pa.Array | None,
    records: pa.Array | None,
    tight: pa.Array,
    *,
    was_float: bool = False,
) -> dict[str, Any]:
    """Arguments of `file_columns.column_rows` for a column, from the log and adjusted for deleted rows.

    Args:
        nulls: Null counts in the log, one per file.
        lower: Least values in the log, one per file.
        upper: Greatest values in the log, one per file.
        rows: Live rows, one per file.
        records: Rows including deleted ones, one per file.
        tight: True for files without deleted rows whose statistics are not marked as wide.
        was_float: Whether some files store a DOUBLE column as 32-bit floats.
    """
    columns: dict[str, Any] = {}
    all_tight = pc.all(tight).as_py()
    if nulls is not None:
        columns["null_count"] = live_counts(nulls, rows, records, tight)
    if not kind.orderable:
        return columns
    for side, values, upwards in (("lower", lower, False), ("upper", upper, True)):
        if values is not None:
            columns[side], attained = _bounds(values, kind, upwards=upwards)
            if was_float and kind.kind is Kind.DOUBLE:
                columns[side], same = _of_floats(columns[side], upwards=upwards)
                attained = pc.and_(attained, same)
            columns[f"{side}_exact"] = attained if all_tight else pc.and_(attained, tight)
    return columns


def _bounds(values: pa.Array, kind: LogicalType, *, upwards: bool) -> tuple[pa.Array, pa.Array]:
    """Bounds moved outwards by their possible error, and a mask of exact ones."""
    all_true = pa.repeat(True, len(values))
    match kind.kind:
        case Kind.STRING:
            whole = pc.and_(pc.less(pc.utf8_length(values), CUT_STRING), pc.less(pc.binary_length(values), CUT_BYTES))
            return values, pc.fill_null(whole, False)
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
                return values, all_true
            wide = _widened(values, kind, upwards) if digits <= WIDENED_DIGITS else pa.nulls(len(values), values.type)
            return wide, pa.repeat(False, len(values))
        case Kind.FLOAT | Kind.DOUBLE:
            return numbers(values), all_true
        case Kind.INT | Kind.DATE | Kind.BOOLEAN:
            return values, all_true
    return values, pa.repeat(False, len(values))


def _of_floats(values: pa.Array, *, upwards: bool) -> tuple[pa.Array, pa.Array]:
    """Doubles, those that may be the text of a 32-bit float moved outwards to it, and a mask of unchanged ones."""
    logged = np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = logged.astype(np.float32).astype(np.float64)
    # a float's text has at most nine digits; a number with more digits is a double
    texts = [
        bool(np.isfinite(there)) and float(f"{here:.9g}") == here for here, there in zip(logged, floats, strict=True)
    ]
    numbers = np.where(texts, floats, logged)
    moved = (np.maximum if upwards else np.minimum)(logged, numbers)
    return pa.array(moved, pa.float64(), mask=np.isnan(logged)), pa.array(numbers == logged)


def _widened(values: pa.Array, kind: LogicalType, upwards: bool) -> pa.Array:
    """Widens bounds that were written through a double, by four units in its last place and one in their own."""
    step = Decimal(1).scaleb(-(kind.scale or 0))
    limit = Decimal(10) ** ((kind.precision or 0) - (kind.scale or 0)) - step
    sign, rounding = (1, ROUND_CEILING) if upwards else (-1, ROUND_FLOOR)

    def widened(value: Decimal | None) -> Decimal | None:
        if value is None:
            return None
        moved = value + sign * (_WIDE.multiply(abs(value), Decimal(2) ** -50) + step)
        return max(-limit, min(limit, moved.quantize(step, rounding, _WIDE)))

    return pa.array([widened(value) for value in values.to_pylist()], to_arrow(kind))
