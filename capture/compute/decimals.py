"""Decimals: unscaled values as one, two or four 64-bit words, lowest first, as in Arrow's buffers."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.model import logical_types
from store.model.logical_types import LogicalType
from store.model.sketches.murmur3 import Longs

Words: TypeAlias = npt.NDArray[np.uint64]
"""Shape (n, k); the sign is in the last word."""

_FITTING_DIGITS: Final = 18  # decimals of so many digits fit one word


def words(values: pa.ChunkedArray, lt: LogicalType) -> Words:
    """The words of decimals of any width, without nulls, at the scale of the type, shape (n, k): one if all fit it.

    Raises:
        pyarrow.ArrowInvalid: A value does not fit the type.
    """
    wanted, given = logical_types.to_arrow(lt), values.type
    is_small = pa.types.is_decimal32(given) or pa.types.is_decimal64(given)
    if is_small and given.scale == wanted.scale:
        integers = pa.int32() if given.bit_width == 32 else pa.int64()
        parts = [chunk.view(integers).to_numpy() for chunk in values.chunks]
        return np.concatenate(parts, dtype=np.int64).view(np.uint64)[:, None]
    if not pa.types.is_decimal(given) or (given.scale, given.bit_width) != (wanted.scale, wanted.bit_width):
        values = values.cast(wanted)
    count = values.type.bit_width // 64
    buffers = [(chunk.buffers()[1], chunk.offset, len(chunk)) for chunk in values.chunks if len(chunk)]
    parts = [np.frombuffer(data, np.uint64, count * rows, 8 * count * at) for data, at, rows in buffers]
    found = np.concatenate(parts).reshape(-1, count) if parts else np.empty((0, count), np.uint64)
    fits = values.type.precision <= _FITTING_DIGITS or (found[:, 1:].view(np.int64) == _signs(found[:, :1])).all()
    return np.ascontiguousarray(found[:, :1]) if fits else found


def count(values: Words) -> tuple[Words, Longs]:
    """The distinct values, shape (n, k), ascending, shape (d, k), and their counts, shape (d,)."""
    *lower, top = values.T
    order = np.lexsort((*lower, top.view(np.int64)))
    values = values[order]
    first = np.flatnonzero(np.concatenate([[True], (values[1:] != values[:-1]).any(axis=1)])[: len(values)])
    return values[first], np.diff(np.append(first, len(values)))


def to_arrow(values: Words, lt: LogicalType) -> pa.Array:
    """Converts words, shape (n, k), to an Arrow array of n decimals."""
    type = logical_types.to_arrow(lt)
    above = [_signs(values).view(np.uint64)] * (type.bit_width // 64 - values.shape[1])
    data = np.ascontiguousarray(np.concatenate([values, *above], axis=1))
    return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(data)])


def doubles(values: Words, lt: LogicalType) -> npt.NDArray[np.float64]:
    """The values, shape (n, k), as doubles at the scale of the type, shape (n,), for quantiles and moments."""
    # Convert the magnitude: the words of a small negative value are large and nearly cancel.
    negative = values[:, -1].view(np.int64) < 0
    magnitude = _unsigned(np.where(negative[:, None], ~values, values))
    return np.where(negative, -magnitude - 1, magnitude) / 10.0 ** (lt.scale or 0)


def above_first(values: Words) -> tuple[int, npt.NDArray[np.float64]]:
    """The first unscaled value, and the distance of each from it, of ascending values, shape (n, k), shape (n,)."""
    distances = np.empty_like(values)
    borrow: npt.NDArray[np.uint64] = np.zeros(len(values), np.uint64)
    for at, word in enumerate(values.T):
        distances[:, at] = word - word[0] - borrow
        borrow = ((word < word[0]) | ((word == word[0]) & (borrow > 0))).astype(np.uint64)
    return int.from_bytes(values[0].tobytes(), "little", signed=True), _unsigned(distances)


def _unsigned(values: Words) -> npt.NDArray[np.float64]:
    """Unsigned values as doubles."""
    units = 2.0 ** (64 * np.arange(values.shape[1]))
    return np.einsum("ij,j->i", values.astype(np.float64), units)  # not `@`: BLAS starts threads


def _signs(values: Words) -> npt.NDArray[np.int64]:
    """The word that goes on above each value, shape (n, 1)."""
    return values[:, -1:].view(np.int64) >> 63
