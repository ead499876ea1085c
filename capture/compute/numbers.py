"""Converts Arrow columns of numbers, dates and times to NumPy arrays in storage form, and counts distinct values.

Storage form: integers of any width, days (int32), microseconds (int64), unscaled decimals that fit 64 bits. All input
is without nulls.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from capture.compute import decimals
from store.model.logical_types import Kind, LogicalType
from store.model.sketches.murmur3 import Longs

_COUNTED_ROWS: Final = 512  # below, sorting is as fast as counting
_COUNT_STEP: Final = 1 << 15
_UNITS: Final = {"s": 1_000_000, "ms": 1000}  # microseconds
_MAX_LONG: Final = (1 << 63) - 1

_STORED: Final = {
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}


def flat(values: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Joins the chunks of a column, not all empty, to one NumPy array, shape (n,); a single one is not copied."""
    parts = [chunk.to_numpy(zero_copy_only=False) for chunk in values.chunks if len(chunk)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def integers(values: pa.ChunkedArray, lt: LogicalType) -> npt.NDArray[np.integer[Any]]:
    """The storage form of integers and dates, shape (n,): INT in its stored width, DATE as days (int32)."""
    given = values.type
    if lt.kind is Kind.INT:
        return flat(values if pa.types.is_integer(given) else values.cast(pa.int64()))
    return _view(values if given == pa.date32() else values.cast(pa.date32()), pa.int32())


def instants(values: pa.ChunkedArray, lt: LogicalType) -> tuple[Longs, Longs | None]:
    """Converts TIME, TIMESTAMP and TIMESTAMPTZ, in any unit, to microseconds and a remainder.

    Returns:
        Microseconds, rounded down, shape (n,), and remainders, shape (n,), or None if all are 0. The remainder is the
        nanoseconds within the microsecond. For an instant beyond 64 bits of microseconds, the first array has the
        nearest representable value and the remainder is the original value.
    """
    wanted = _STORED[lt.kind]
    if not (pa.types.is_time if lt.kind is Kind.TIME else pa.types.is_timestamp)(values.type):
        values = values.cast(wanted)
    unit = values.type.unit
    if pa.types.is_time32(values.type):
        values = values.cast(wanted)
        unit = "us"
    ticks: Longs = _view(values, pa.int64())
    if unit == "us":
        return ticks, None
    if unit == "ns":
        micros, beyond = ticks // 1000, ticks % 1000
    else:
        factor = _UNITS[unit]
        most = _MAX_LONG // factor
        inside = np.clip(ticks, -most, most)
        micros, beyond = inside * factor, np.where(inside == ticks, 0, ticks)
        micros[ticks > most], micros[ticks < -most] = _MAX_LONG, -_MAX_LONG
    return micros, beyond if beyond.any() else None


def floats(values: pa.ChunkedArray, lt: LogicalType) -> npt.NDArray[np.floating[Any]]:
    """The storage form of floats: a copy in the type's precision, shape (n,), with -0.0 as 0.0."""
    wide = np.float32 if lt.kind is Kind.FLOAT else np.float64
    given = flat(values if pa.types.is_floating(values.type) else values.cast(pa.from_numpy_dtype(wide)))
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return np.add(given, 0, dtype=wide)


def to_arrow(values: npt.NDArray[Any], lt: LogicalType) -> pa.Array:
    """Converts values in storage form, shape (n,), to an Arrow array of the type; decimals that fit 64 bits."""
    if lt.kind is Kind.DECIMAL:
        return decimals.to_arrow(values.view(np.uint64)[:, None], lt)
    array = pa.array(values)
    return array.view(_STORED[lt.kind]) if lt.kind in _STORED else array


def count_integers(values: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.integer[Any]], Longs]:
    """Counts distinct integers, with a counter per value if their range is small, else by sorting.

    Args:
        values: Shape (n,), at least one.

    Returns:
        The distinct values, ascending, shape (d,), and their counts, shape (d,).
    """
    count = len(values)
    if _is_ascending(values):
        return runs(values)
    if count >= _COUNTED_ROWS:
        low = values.min()
        span = int(values.max()) - int(low) + 1
        if span <= 2 * count:
            counts = _count_range(values, low, span)
            places = np.flatnonzero(counts)
            return places.astype(values.dtype) + low, counts[places]  # overflow wraps to the correct value
    return runs(np.sort(values))


def _count_range(values: npt.NDArray[np.integer[Any]], low: np.integer[Any], span: int) -> Longs:
    # Counters that fit the CPU cache are updated slice by slice, without a copy of the column.
    step = _COUNT_STEP if span <= _COUNT_STEP else len(values)
    counts: Longs = np.zeros(span, np.int64)
    for start in range(0, len(values), step):
        counts += np.bincount(_above(values[start : start + step], low), minlength=span)
    return counts


def runs(ordered: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Longs]:
    """The distinct values of an ascending array, shape (n,), in its order, and their counts, shape (d,) each."""
    fresh: npt.NDArray[np.bool_] = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=fresh[1:])
    starts = np.flatnonzero(fresh)
    ends: Longs = np.append(starts[1:], len(ordered))
    return ordered[starts], ends - starts


def _is_ascending(values: npt.NDArray[np.integer[Any]]) -> bool:
    """True for ascending values, as in key columns; checks a prefix first."""
    return all(bool((part[1:] >= part[:-1]).all()) for part in (values[:_COUNTED_ROWS], values))


def _above(values: npt.NDArray[np.integer[Any]], low: np.integer[Any]) -> Longs:
    """Differences to the least value as int64, since they may overflow a narrower type."""
    return (values - low).view(np.int64) if values.dtype.itemsize == 8 else np.subtract(values, low, dtype=np.int64)


def _view(values: pa.ChunkedArray, type: pa.DataType) -> npt.NDArray[Any]:
    return flat(pa.chunked_array([chunk.view(type) for chunk in values.chunks], type))
