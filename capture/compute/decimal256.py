"""Decimals of more than 38 digits: unscaled values of four 64-bit words, the lowest first, as Arrow keeps them."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store import logical_types
from store.logical_types import MAX_DECIMAL128, LogicalType
from store.sketches import murmur3
from store.sketches.murmur3 import Hashes, Longs

Words: TypeAlias = npt.NDArray[np.uint64]
"""Shape (values, 4); the last word carries the sign."""

_BYTES: Final = 32
_WORD_VALUES: Final = 2.0 ** (64 * np.arange(4))


def is_wide(lt: LogicalType) -> bool:
    return (lt.precision or 0) > MAX_DECIMAL128


def words(values: pa.ChunkedArray, lt: LogicalType) -> Words:
    """The words of values without nulls.

    Raises:
        pyarrow.ArrowInvalid: A value has other digits than the type.
    """
    chunks = [chunk for chunk in values.cast(logical_types.to_arrow(lt)).chunks if len(chunk)]
    parts = [np.frombuffer(c.buffers()[1], np.uint64, 4 * len(c), _BYTES * c.offset).reshape(-1, 4) for c in chunks]
    return np.concatenate(parts) if parts else np.empty((0, 4), np.uint64)


def count(found: Words) -> tuple[Words, Longs]:
    """The distinct values, ascending, and how often each occurs."""
    order = np.lexsort((found[:, 0], found[:, 1], found[:, 2], found[:, 3].view(np.int64)))
    found = found[order]
    first = np.flatnonzero(np.concatenate([[True], (found[1:] != found[:-1]).any(axis=1)])[: len(found)])
    return found[first], np.diff(np.append(first, len(found)))


def to_arrow(found: Words, lt: LogicalType) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(found))
    return pa.Array.from_buffers(logical_types.to_arrow(lt), len(found), [None, data])


def doubles(found: Words, lt: LogicalType) -> npt.NDArray[np.float64]:
    """The values as doubles, which is what quantiles are of."""
    # Of the magnitude: the words of a small negative value are large ones that nearly cancel.
    negative = found[:, 3].view(np.int64) < 0
    magnitude = np.where(negative[:, None], ~found, found).astype(np.float64) @ _WORD_VALUES
    return np.where(negative, -magnitude - 1, magnitude) / 10.0 ** (lt.scale or 0)


def hashes(found: Words) -> Hashes:
    """The unscaled value in the fewest big-endian two's complement bytes: Iceberg's form."""
    octets: npt.NDArray[np.uint8] = found[:, ::-1].astype(">u8").view(np.uint8).reshape(-1, _BYTES)
    sign = np.where(octets[:, 0] >= 128, 255, 0).astype(np.uint8)
    differs = octets != sign[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), _BYTES - 1)
    # A byte that would read as the other sign needs one of the sign before it.
    other = (octets[np.arange(len(octets)), first] ^ sign) >= 128
    starts = first - other
    offsets: Longs = np.concatenate([[0], np.cumsum(_BYTES - starts)]).astype(np.int64)
    return murmur3.hash_bytes(octets[np.arange(_BYTES) >= starts[:, None]], offsets)
