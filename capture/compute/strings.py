"""Statistics of strings and binary values: each chunk becomes entries (rows or dictionary values) with their hashes.

Values are counted by their 63-bit hash: values with equal hashes count as one, as in the theta sketch.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from capture.compute.numbers import runs
from capture.compute.partial import Frame, Partial
from capture.compute.shared_steps import Kernel, Step, printed
from store.model import sketches
from store.model.logical_types import Kind, LogicalType
from store.model.sketches import ThetaBuilder, murmur3
from store.model.sketches.murmur3 import Hashes, Longs

_MAX_ITEM_BYTES: Final = 1024  # longer values are left out of the most common values
_STEP: Final = 1 << 16
_SMALL: Final = 1 << 12  # total entries up to which dictionaries are unified
_BUCKETS: Final = 1 << 16
_MANY: Final = 1 << 17  # values from which finding frequent ones before sorting is faster


@dataclass(frozen=True, slots=True)
class _Entries:
    """Values of a chunk with hashes, lengths in bytes and counts (None: each occurs once), all of shape (n,)."""

    values: pa.Array
    hashes: Hashes
    lengths: Longs
    counts: Longs | None


def summarise(values: pa.ChunkedArray, frame: Frame) -> Kernel:
    """The kernel of at least one string or binary value, without nulls; dictionaries included."""
    lt, times = frame.lt, frame.times
    chunks = []
    for chunk in _joined(values).chunks:
        if len(chunk):
            texts, counts = _counted(chunk)
            hashes = yield Step(_hashed, texts, _hashed)
            chunks.append(_Entries(texts, hashes, _lengths(texts), counts))
    low = high = None
    if lt.orderable:
        ends = yield printed(_as_kind(_outermost(chunks), lt), lt)
        low, high = ends.to_pylist()
    width = sum(int(c.lengths.sum() if c.counts is None else c.lengths @ c.counts) for c in chunks)
    longest = max(int(c.lengths.max()) for c in chunks)
    mcv, floor = None, 1
    if frame.wanted.frequent:
        distinct, totals, floor, rows = _crowded(chunks) or _grouped(chunks)
        mcv = yield from _frequent(chunks, distinct, totals * times, frame, floor * times, rows)
    if floor:
        builder = ThetaBuilder()
        for chunk in chunks:
            builder.update(chunk.hashes)
        theta = builder.serialize()
    else:
        theta = sketches.theta(distinct[: sketches.THETA_K + 2])  # one more, since a hash of 0 is never kept
    return Partial(
        frame.rows, frame.nulls, None, low, high, width_sum=width * times, width_max=longest, theta=theta, mcv=mcv
    )


def row_hashes(values: pa.ChunkedArray) -> Hashes:
    """Hashes each row of strings or binary values without nulls, shape (n,)."""
    parts = []
    for chunk in values.chunks:
        if pa.types.is_dictionary(chunk.type):
            parts.append(_hashed(_binary(chunk.dictionary))[chunk.indices.to_numpy()])
        else:
            parts.append(_hashed(_binary(chunk)))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _joined(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Unifies the dictionaries of the row groups if they are small."""
    if not pa.types.is_dictionary(values.type) or sum(len(chunk.dictionary) for chunk in values.chunks) > _SMALL:
        return values
    return pa.chunked_array([values.combine_chunks()], values.type)


def _counted(chunk: pa.Array) -> tuple[pa.Array, Longs | None]:
    """The values of a chunk, and how often each occurs; None if each is a row."""
    if not pa.types.is_dictionary(chunk.type):
        return _binary(chunk), None
    counts = np.bincount(chunk.indices.to_numpy(), minlength=len(chunk.dictionary))
    values = _binary(chunk.dictionary)
    if not counts.all():  # entries used only by deleted rows or another slice
        values, counts = values.filter(pa.array(counts > 0)), counts[counts > 0]
    return values, counts


def _binary(values: pa.Array) -> pa.Array:
    """Casts to a type whose values are contiguous in one buffer."""
    known = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if any(fits(values.type) for fits in known) or pa.types.is_fixed_size_binary(values.type):
        return values
    return values.cast(pa.large_string())


def _hashed(values: pa.Array) -> Hashes:
    """The hash of each value."""
    return murmur3.hash_bytes(np.frombuffer(values.buffers()[-1] or b"", np.uint8), _offsets(values))


def _lengths(values: pa.Array) -> Longs:
    """The length in bytes of each value."""
    offsets = _offsets(values)
    return offsets[1:] - offsets[:-1]


def _offsets(values: pa.Array) -> Longs:
    """Offsets of the values in the last buffer, and the end of the last value; shape (n + 1,)."""
    count = len(values)
    if pa.types.is_fixed_size_binary(values.type):
        size = values.type.byte_width
        return np.arange(values.offset, values.offset + count + 1) * size
    large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    kind = np.dtype(np.int64 if large else np.int32)
    starts = np.frombuffer(values.buffers()[1], kind, count + 1, kind.itemsize * values.offset)
    return starts.astype(np.int64, copy=False)


def _outermost(chunks: Sequence[_Entries]) -> list[bytes]:
    """The least and the greatest value."""
    ends = [pc.min_max(chunk.values) for chunk in chunks]
    return [min(_octets(end["min"]) for end in ends), max(_octets(end["max"]) for end in ends)]


def _octets(value: pa.Scalar) -> bytes:
    buffer = value.as_buffer()  # as_py would decode a string
    return b"" if buffer is None else bytes(buffer)


def _as_kind(octets: list[bytes], lt: LogicalType) -> pa.Array:
    if lt.kind in (Kind.STRING, Kind.JSON):
        return pa.array([value.decode() for value in octets], pa.string())
    return pa.array(octets, pa.binary(16) if lt.kind is Kind.UUID else pa.binary())


_Groups: TypeAlias = tuple[Hashes, Longs, int, Longs | None]
"""Distinct hashes, ascending, and their counts; how often any other value occurs at most; of a single chunk perhaps an
entry for each hash."""


def _crowded(chunks: Sequence[_Entries]) -> _Groups | None:
    """The groups of values that may occur more than `floor` times.

    Rows are distributed to buckets by some bits of their hashes. A bucket with more than `floor` rows may contain a
    frequent value; values in other buckets occur at most `floor` times.

    Returns:
        None for few values, for dictionaries, or if many rows are in crowded buckets.
    """
    count = sum(len(chunk.hashes) for chunk in chunks)
    if count < _MANY or any(chunk.counts is not None for chunk in chunks):
        return None
    low_bits = [(chunk.hashes & np.uint64(_BUCKETS - 1)).view(np.int64) for chunk in chunks]
    rows: Longs = sum((np.bincount(bits, minlength=_BUCKETS) for bits in low_bits), np.zeros(_BUCKETS, np.int64))
    usual = count / _BUCKETS
    floor = math.ceil(usual + 6 * math.sqrt(usual))
    crowded = rows > floor
    if rows[crowded].sum() > count // 8:
        return None
    hashes = np.concatenate([chunk.hashes[crowded.take(bits)] for chunk, bits in zip(chunks, low_bits, strict=True)])
    hashes.sort()
    return *runs(hashes), floor, None


def _grouped(chunks: Sequence[_Entries]) -> _Groups:
    """The groups of all values."""
    hashes = np.concatenate([chunk.hashes for chunk in chunks])
    if all(chunk.counts is None for chunk in chunks) and (len(chunks) > 1 or len(hashes) > _SMALL):
        hashes.sort()
        return *runs(hashes), 0, None
    counts = np.concatenate([np.ones(len(c.hashes), np.int64) if c.counts is None else c.counts for c in chunks])
    order = np.argsort(hashes)
    hashes = hashes[order]
    first = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
    return hashes[first], np.add.reduceat(counts[order], first), 0, order[first] if len(chunks) == 1 else None


def _frequent(
    chunks: Sequence[_Entries], distinct: Hashes, totals: Longs, frame: Frame, floor: int, rows: Longs | None
) -> Generator[Step, Any, bytes]:
    """Computes the sketch of the most common values, given their groups."""
    heavy, offset = sketches.heaviest(totals)
    offset = max(offset, floor)
    heavy = heavy[totals[heavy] > offset]
    if rows is not None:
        octets = _listed(chunks[0].values.take(pa.array(rows[heavy])))
    else:
        heavy = np.sort(heavy)
        most_common = _first_of(chunks, distinct[heavy])
        octets = [value for value, _ in most_common]
        heavy = heavy[[place for _, place in most_common]] if most_common else heavy[:0]
    weights = totals[heavy]
    fits = np.array([len(value) <= _MAX_ITEM_BYTES for value in octets], np.bool_)
    if not fits.all():
        offset = max(offset, int(weights[~fits].max()))
    kept = np.flatnonzero(fits & (weights > offset))
    items = [octets[at] for at in kept.tolist()]
    if frame.lt.kind in (Kind.STRING, Kind.JSON):
        b"\n".join(items).decode()  # refuses what is not UTF-8
    else:
        texts = yield printed(_as_kind(items, frame.lt), frame.lt)
        items = [text.encode() for text in texts.to_pylist()]
    return sketches.frequent(items, (weights[kept] - offset).tolist(), frame.count, offset)


def _first_of(chunks: Sequence[_Entries], wanted: Hashes) -> list[tuple[bytes, int]]:
    """One value for each of the ascending hashes, with the index of its hash."""
    firsts: list[tuple[bytes, int]] = []
    missing: npt.NDArray[np.bool_] = np.ones(len(wanted), np.bool_)
    for chunk in chunks:
        for start in range(0, len(chunk.hashes), _STEP):
            if not missing.any():
                return firsts
            rows, places = _matches(chunk.hashes[start : start + _STEP], wanted)
            fresh = missing[places]
            rows, places = rows[fresh], places[fresh]
            places, first = np.unique(places, return_index=True)
            missing[places] = False
            firsts += zip(_listed(chunk.values.take(pa.array(start + rows[first]))), places.tolist(), strict=True)
    return firsts


def _listed(values: pa.Array) -> list[bytes]:
    """Strings or binary values as bytes."""
    octets: list[bytes] = values.cast(
        pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary()
    ).to_pylist()
    return octets


def _matches(hashes: Hashes, wanted: Hashes) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Rows whose hash is among the ascending `wanted`, and the indexes of these hashes."""
    # A bitmap of the low bits filters most rows before the search.
    low_bits: npt.NDArray[np.bool_] = np.zeros(1 << 14, np.bool_)
    low_bits[wanted & np.uint64(0x3FFF)] = True
    rows = np.flatnonzero(low_bits[hashes & np.uint64(0x3FFF)])
    places = np.minimum(np.searchsorted(wanted, hashes[rows]), len(wanted) - 1)
    same = wanted[places] == hashes[rows]
    return rows[same], places[same]
