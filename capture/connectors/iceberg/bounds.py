"""Decodes bounds of columns from Iceberg manifests to values, with their exactness, and finds those that a partition
implies: a day, a month, the same first characters.

Writers cut bounds of strings and binary values to a length that the table's properties had when they wrote, which no
metadata records: such a bound encloses, and whether it is attained is unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from capture.connectors.iceberg.schema import NANOS, IcebergLeaf, typed_array
from store.model.logical_types import Kind, LogicalType, to_arrow

_DAY_US = 86_400_000_000
# Types whose bounds are plain numbers.
_STORED: Mapping[type, np.dtype[Any]] = {
    IntegerType: np.dtype("<i4"),
    DateType: np.dtype("<i4"),
    LongType: np.dtype("<i8"),
    TimestampType: np.dtype("<i8"),
    TimestamptzType: np.dtype("<i8"),
    FloatType: np.dtype("<f4"),
    DoubleType: np.dtype("<f8"),
}


def decoded(raws: Sequence[pa.Array], leaf: IcebergLeaf, *, upper: bool) -> tuple[pa.Array, pa.Array]:
    """Decodes bounds of columns of one type in many files, with a mask of exact ones (null: unknown).

    Args:
        raws: For each column bytes of its type, or of the one it was promoted from.
        leaf: One of the columns; all leaves of Iceberg have an order.

    Returns:
        Values and mask, those of a column after those of another.
    """
    raw = pa.concat_arrays(raws)
    if (at_once := _decoded_at_once(raw, leaf)) is not None:
        return at_once
    if len(raws) > 1:
        each = [decoded([raw], leaf, upper=upper) for raw in raws]
        type = to_arrow(leaf.logical)
        return pa.concat_arrays([side.cast(type) for side, _ in each]), pa.concat_arrays([exact for _, exact in each])
    values = [(None, False) if value is None else _decoded(value, leaf, upper) for value in raw.to_pylist()]
    return typed_array([value for value, _ in values], leaf.logical), pa.array([e for _, e in values], pa.bool_())


def _decoded(raw: bytes, leaf: IcebergLeaf, upper: bool) -> tuple[Any, bool | None]:
    type = leaf.type
    try:
        if isinstance(type, StringType):
            return raw.decode(), None
        if isinstance(type, BinaryType):
            return raw, None
        if isinstance(type, FixedType):
            return raw, len(raw) == len(type) or None
        if isinstance(type, TimestampType | TimestamptzType | NANOS) and len(raw) == 4:
            return from_bytes(DateType(), raw) * _DAY_US, True
        value = from_bytes(type, raw)
        if isinstance(type, NANOS):
            micros, rest = divmod(value, 1000)
            return micros + (1 if upper and rest else 0), not rest
        if isinstance(type, FloatType | DoubleType) and value != value:
            return None, False  # old writers wrote NaN, which is not a bound
        return value, True
    except (ValueError, TypeError, ArithmeticError, struct.error):
        return None, False


def _decoded_at_once(raw: pa.Array, leaf: IcebergLeaf) -> tuple[pa.Array, pa.Array] | None:
    """The same for bounds that Arrow can read; None if there are others."""
    if isinstance(leaf.type, StringType):
        try:
            texts = raw.cast(pa.string())
        except pa.ArrowInvalid:
            return None
        return texts, pa.nulls(len(texts), pa.bool_())
    stored = _STORED.get(type(leaf.type))
    if stored is None:
        return None
    missing = pc.is_null(raw).to_numpy(zero_copy_only=False)
    whole = pc.fill_null(raw, bytes(stored.itemsize)) if missing.any() else raw
    if not pc.all(pc.equal(pc.binary_length(whole), stored.itemsize)).as_py():
        return None
    numbers = np.frombuffer(b"" if not len(whole) else whole.buffers()[2], stored)[whole.offset :][: len(whole)]
    if stored.kind == "f":
        missing = missing | np.isnan(numbers)  # old writers wrote NaN, which is not a bound
    values = pa.array(numbers, mask=missing)
    if isinstance(leaf.type, DateType | TimestampType | TimestamptzType):
        values = values.cast(to_arrow(leaf.logical))
    return values, pa.repeat(True, len(raw))


# Partition transforms.

_UNITS: Final[dict[type, Any]] = {YearTransform: "Y", MonthTransform: "M", DayTransform: "D", HourTransform: "h"}
_INSTANTS: Final = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMPTZ})
_FAR: Final = 2_920_000  # days from 1970 to which ranges are derived, in either direction; some 8,000 years


def span(transform: Transform[Any, Any], value: Any, type: LogicalType, bits: int = 64) -> tuple[Any, Any] | None:
    """The least and the greatest value that a transform maps to a partition value.

    Args:
        value: The partition value, not null.
        bits: Width of the column's integers, 32 or 64.

    Returns:
        Values of the column, days or microseconds since 1970 for dates and times; the greatest is None where the type
        has none. None if the transform does not keep the order of the column.
    """
    if isinstance(transform, TruncateTransform):
        return _truncated(transform.width, value, type, bits)
    unit: Any = next((unit for kind, unit in _UNITS.items() if isinstance(transform, kind)), None)
    if unit is None or not isinstance(value, int) or type.kind not in {*_INSTANTS, Kind.DATE}:
        return None
    # Writers used to round times before 1970 up, so that zero and negative values may be of the unit before too.
    first = np.datetime64(value - 1 if value <= 0 else value, unit)
    after = np.datetime64(value + 1, unit)
    if not all(abs(int(side.astype("datetime64[D]").astype(np.int64))) < _FAR for side in (first, after)):
        return None
    precision = "D" if type.kind is Kind.DATE else "us"
    low, high = (int(side.astype(f"datetime64[{precision}]").astype(np.int64)) for side in (first, after))
    return low, high - 1


_JAVA_INT: Final = 32  # bits of the width of a truncation, and of a column's integers before they were promoted


def _truncated(width: int, value: Any, type: LogicalType, bits: int) -> tuple[Any, Any] | None:
    """The range of a truncated value; None where the arithmetic of a writer may have overflowed, so that the partition
    value has nothing to do with the values."""
    match type.kind:
        case Kind.INT if isinstance(value, int):
            if 2 * width > 1 << (_JAVA_INT - 1):  # a remainder plus the width wraps around
                return None
            return _multiple(width, value, range(-(1 << (bits - 1)), 1 << (bits - 1)))
        case Kind.DECIMAL if isinstance(value, Decimal):
            scale, digits = type.scale or 0, type.precision or 0
            unscaled = value.scaleb(scale, _WIDE)
            if unscaled != unscaled.to_integral_value(context=_WIDE):
                return None
            found = _multiple(width, int(unscaled), range(1 - 10**digits, 10**digits))
            return None if found is None else (value, Decimal(found[1]).scaleb(-scale, _WIDE))
        case Kind.STRING if isinstance(value, str):
            return value, None if len(value.encode(errors="surrogatepass")) >= width else value
        case Kind.BINARY if isinstance(value, bytes):
            return value, None if len(value) >= width else value
    return None


_WIDE: Final = Context(prec=80)


def _multiple(width: int, value: int, limits: range) -> tuple[int, int] | None:
    """The `width` integers from `value` on; None if it is no multiple of the width (it wrapped around), or they go
    beyond the type's limits."""
    low, high = value, value + width - 1
    return (low, high) if value % width == 0 and low in limits and high in limits else None
