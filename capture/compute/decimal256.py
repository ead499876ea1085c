"""Decimals of more than 38 digits: unscaled values as four 64-bit words, lowest first, as in Arrow's buffers."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.model import logical_types
from store.model.logical_types import MAX_DECIMAL128, LogicalType
from store.model.sketches import murmur3
from store.model.sketches.murmur3 import Hashes, Longs

Words: TypeAlias = npt.NDArray[np.uint64]
"""Shape (n, 4); the sign is in the last word."""

_BYTES: Final = 32
_WORD_VALUES: Final = 2.0 ** (64 * np.arange(4))


def is_wide(lt: LogicalType) -> bool:
    """True if decimals of the type need more than 128 bits, that is from 39 digits on."""
    return (lt.precision or 0) > MAX_DECIMAL128


def words(values: pa.ChunkedArray, lt: LogicalType) -> Words:
    """The words of decimals of any width, without nulls, at the scale of the type, shape (n, 4).

    Raises:
        pyarrow.ArrowInvalid: A value does not fit the type.
    """
    chunks = [chunk for chunk in values.cast(logical_types.to_arrow(lt)).chunks if len(chunk)]
    parts = [np.frombuffer(c.buffers()[1], np.uint64, 4 * len(c), _BYTES * c.offset).reshape(-1, 4) for c in chunks]
    return np.concatenate(parts) if parts else np.empty((0, 4), np.uint64)


def count(values: Words) -> tuple[Words, Longs]:
    """The distinct values, shape (n, 4), ascending, shape (d, 4), and their counts, shape (d,)."""
    order = np.lexsort((values[:, 0], values[:, 1], values[:, 2], values[:, 3].view(np.int64)))
    values = values[order]
    first = np.flatnonzero(np.concatenate([[True], (values[1:] != values[:-1]).any(axis=1)])[: len(values)])
    return values[first], np.diff(np.append(first, len(values)))


def to_arrow(values: Words, lt: LogicalType) -> pa.Array:
    """Converts words, shape (n, 4), to an Arrow array of n decimals."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(logical_types.to_arrow(lt), len(values), [None, data])


def doubles(values: Words, lt: LogicalType) -> npt.NDArray[np.float64]:
    """The values, shape (n, 4), as doubles at the scale of the type, shape (n,), for quantiles and moments."""
    # Convert the magnitude: the words of a small negative value are large and nearly cancel.
    negative = values[:, 3].view(np.int64) < 0
    words_as_doubles = np.where(negative[:, None], ~values, values).astype(np.float64)
    magnitude = np.einsum("ij,j->i", words_as_doubles, _WORD_VALUES)  # not `@`: BLAS starts threads
    return np.where(negative, -magnitude - 1, magnitude) / 10.0 ** (lt.scale or 0)


def hashes(values: Words) -> Hashes:
    """Hashes, shape (n,), of the unscaled values as minimal big-endian two's complement bytes, Iceberg's form.

    Args:
        values: Shape (n, 4).
    """
    octets: npt.NDArray[np.uint8] = values[:, ::-1].astype(">u8").view(np.uint8).reshape(-1, _BYTES)
    sign = np.where(octets[:, 0] >= 128, 255, 0).astype(np.uint8)
    differs = octets != sign[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), _BYTES - 1)
    # If the first byte has the wrong sign bit, one sign byte precedes it.
    other = (octets[np.arange(len(octets)), first] ^ sign) >= 128
    starts = first - other
    offsets: Longs = np.concatenate([[0], np.cumsum(_BYTES - starts)]).astype(np.int64)
    return murmur3.hash_bytes(octets[np.arange(_BYTES) >= starts[:, None]], offsets)
