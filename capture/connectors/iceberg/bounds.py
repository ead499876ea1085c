"""Decodes bounds of columns from Iceberg manifests to values, with their exactness."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from capture.connectors.iceberg.schema import IcebergLeaf
from store.logical_types import to_arrow

TRUNCATED = 16
"""Iceberg's default `truncate(16)`, in code points of a string and bytes of a binary value."""

_DAY_US = 86_400_000_000
# Types whose bounds are plain numbers.
_STORED: Mapping[type, np.dtype[Any]] = {
    IntegerType: np.dtype("<i4"), DateType: np.dtype("<i4"), LongType: np.dtype("<i8"),
    TimestampType: np.dtype("<i8"), TimestamptzType: np.dtype("<i8"), FloatType: np.dtype("<f4"),
    DoubleType: np.dtype("<f8"),
}  # fmt: skip
_INT, _LONG = struct.Struct("<i"), struct.Struct("<q")

Decoder = Callable[[bytes | None], tuple[Any, bool]]


def decoder(leaf: IcebergLeaf, cut: int, *, upper: bool) -> Decoder:
    """Creates a decoder of bounds, from bytes to a value in pyiceberg's form and its exactness.

    Args:
        leaf: The column. Bounds have its type or the one it was promoted from.
        cut: Length from which a string or binary bound may have been truncated.
        upper: True for upper bounds.
    """
    whole = {IntegerType: _INT, DateType: _INT, LongType: _LONG}.get(type(leaf.type))

    def decoded(raw: bytes | None) -> tuple[Any, bool]:
        if raw is None:
            return None, False
        if whole is not None and len(raw) == whole.size:
            return whole.unpack(raw)[0], True
        return _decoded(bytes(raw), leaf, cut, upper)

    return decoded


def _decoded(raw: bytes, leaf: IcebergLeaf, cut: int, upper: bool) -> tuple[Any, bool]:
    type = leaf.type
    try:
        if isinstance(type, StringType):
            text = raw.decode()
            return text, len(text) < cut
        if isinstance(type, BinaryType | FixedType):
            # A truncated upper bound loses trailing 0xFF bytes when it is incremented, so any length may be truncated.
            whole = len(raw) == len(type) <= cut if isinstance(type, FixedType) else False
            return raw, whole or (len(raw) < cut and not upper)
        if (
            isinstance(type, TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType)
            and len(raw) == 4
        ):
            return from_bytes(DateType(), raw) * _DAY_US, True
        value = from_bytes(type, raw)
        if isinstance(type, TimestampNanoType | TimestamptzNanoType):
            micros, rest = divmod(value, 1000)
            return micros + (1 if upper and rest else 0), not rest
        if isinstance(type, FloatType | DoubleType) and value != value:
            return None, False  # old writers wrote NaN, which is not a bound
        return value, True
    except (ValueError, TypeError, ArithmeticError, struct.error):
        return None, False


def decode_all(raw: pa.Array, leaf: IcebergLeaf, cut: int) -> tuple[pa.Array, pa.Array] | None:
    """Decodes bounds of one column in many files at once, with a mask of exact ones; None if `decoder` is needed."""
    if isinstance(leaf.type, StringType):
        try:
            texts = raw.cast(pa.string())
        except pa.ArrowInvalid:
            return None
        return texts, pc.fill_null(pc.less(pc.utf8_length(texts), cut), False)
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


def cut_length(properties: dict[str, str], name: str) -> int:
    """Length from which a bound of the column may be truncated, the minimum of all relevant table properties."""
    modes = (properties.get(f"write.metadata.metrics.column.{name}"), properties.get("write.metadata.metrics.default"))
    lengths = [int(mode[9:-1]) for mode in modes if mode and mode.startswith("truncate(") and mode[9:-1].isdigit()]
    return min([TRUNCATED, *lengths])
