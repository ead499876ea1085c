"""Theta, KLL and frequent-items sketches: built from NumPy arrays, merged, read, and written in the bytes of
Apache DataSketches, which every other engine reads.

All three are deterministic functions of the values, so that capturing the same data twice gives the same bytes.

* **Theta** keeps the k smallest distinct hashes; theta is the (k + 1)-th smallest. A union is the sketch of the union,
  byte for byte, however the parts were grouped.
* **KLL**: instead of the library's coin flips, a level of weight 2^i is filled by a systematic sample of the sorted
  values. The rank error of a sketch of n values is at most n / k (half a step of at most 2n / k), that of a merge of
  such sketches at most twice that.
* **Frequent items** as in Misra-Gries: from exact counts the largest are kept, less the largest count left out, which
  becomes the sketch's offset. A value's count lies within [weight, weight + offset]; with nothing left out it is exact.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.errors import InvalidArgument
from store.hashing import Hashes, Longs

THETA_K: Final = 4096
KLL_K: Final = 512
FREQUENT_LG: Final = 8  # size of the hash map the sketch claims, base 2 logarithm; three quarters of it are used
FREQUENT_ITEMS_KEPT: Final = 3 << (FREQUENT_LG - 2)

_MAX_THETA: Final = (1 << 63) - 1
_THETA_STEP: Final = 1 << 15  # hashes compared with theta at once
_SEED_HASH: Final = 0x93CC  # of seed 9001
_EMPTY, _COMPACT, _ORDERED, _READ_ONLY = 4, 8, 16, 2

Doubles: TypeAlias = npt.NDArray[np.float64]


# Theta.


class Theta(NamedTuple):
    """The state of a compact theta sketch: `hashes` are ascending, distinct and below `theta`."""

    theta: int
    hashes: Hashes
    empty: bool = False

    @property
    def exact(self) -> bool:
        return self.theta == _MAX_THETA


class ThetaBuilder:
    """Collects hashes, in any order and with repeats, into the sketch of the k smallest."""

    def __init__(self, k: int = THETA_K):
        self.k = k
        self._theta = np.uint64(_MAX_THETA)
        self._parts: list[Hashes] = []
        self._pending = 0
        self._empty = True

    def update(self, hashes: Hashes) -> None:
        """Adds hashes of shape (n,), each below 2^63."""
        start = 0
        while start < len(hashes):
            self._empty = False
            # A first few tell a limit that keeps most of the others out.
            fresh = hashes[start : start + (_THETA_STEP if self._theta != _MAX_THETA else 4 * self.k)]
            start += len(fresh)
            if self._theta != _MAX_THETA:
                fresh = fresh[fresh < self._theta]
            self._parts.append(fresh)
            self._pending += len(fresh)
            if self._pending >= 4 * self.k:
                self._trim()

    def state(self) -> Theta:
        self._trim()
        return Theta(int(self._theta), self._parts[0] if self._parts else np.empty(0, np.uint64), self._empty)

    def serialize(self) -> bytes:
        return write_theta(self.state())

    def _trim(self) -> None:
        if not self._parts:
            return
        kept = _distinct(np.concatenate(self._parts))
        if len(kept) > self.k:
            self._theta = kept[self.k]
            kept = kept[: self.k].copy()
        self._parts, self._pending = [kept], len(kept)


def theta(hashes: Hashes, k: int = THETA_K) -> bytes:
    """The compact sketch of hashes of shape (n,)."""
    builder = ThetaBuilder(k)
    builder.update(hashes)
    return builder.serialize()


def write_theta(state: Theta) -> bytes:
    """The compact, ordered form, serial version 3, as the library itself writes it."""
    flags = _READ_ONLY | _COMPACT | _ORDERED
    count = len(state.hashes)
    if state.exact and not count and state.empty:
        return struct.pack("<BBBxxBH", 1, 3, 3, flags | _EMPTY, _SEED_HASH)
    body: bytes = state.hashes.astype("<u8").tobytes()
    if not state.exact:
        return struct.pack("<BBBxxBHIIQ", 3, 3, 3, flags, _SEED_HASH, count, 0, state.theta) + body
    if count == 1:
        return struct.pack("<BBBxxBH", 1, 3, 3, flags, _SEED_HASH) + body
    return struct.pack("<BBBxxBHII", 2, 3, 3, flags, _SEED_HASH, count, 0) + body


def read_theta(data: bytes) -> Theta:
    """The state of a serialized sketch; raises InvalidArgument when the bytes are none of seed 9001."""
    if len(data) < 8:
        raise _no_sketch("theta", f"{len(data)} bytes")
    longs, version, family, flags, seed_hash = struct.unpack_from("<BBBxxBH", data)
    if version != 3 or family != 3:  # compressed (4) or of an old library
        return _read_theta_by_library(data)
    if flags & _EMPTY:
        return Theta(_MAX_THETA, np.empty(0, np.uint64), True)
    if seed_hash != _SEED_HASH:
        raise _no_sketch("theta", f"a seed other than 9001 (seed hash {seed_hash:#x})")
    longs &= 0x3F
    count = 1 if longs == 1 else struct.unpack_from("<I", data, 8)[0] if len(data) >= 8 * longs else -1
    limit = struct.unpack_from("<Q", data, 16)[0] if longs > 2 and len(data) >= 24 else _MAX_THETA
    if not 1 <= longs <= 3 or count < 0 or len(data) < 8 * (longs + count):
        raise _no_sketch("theta", f"{len(data)} bytes that end too early")
    hashes = np.frombuffer(data, "<u8", count, 8 * longs).astype(np.uint64)
    return Theta(limit, hashes if flags & _ORDERED else np.sort(hashes))


def union(sketches: Sequence[bytes], k: int = THETA_K) -> bytes:
    """The sketch of all values of all sketches."""
    states = [state for state in map(read_theta, sketches) if not state.empty]
    if not states:
        return write_theta(Theta(_MAX_THETA, np.empty(0, np.uint64), True))
    limit = min(state.theta for state in states)
    hashes = _distinct(np.concatenate([state.hashes for state in states]))
    hashes = hashes[: np.searchsorted(hashes, np.uint64(limit))]
    if len(hashes) > k:
        limit, hashes = int(hashes[k]), hashes[:k]
    return write_theta(Theta(limit, hashes))


def intersection(sketches: Sequence[bytes]) -> bytes:
    """The sketch of the values that all sketches have; of no sketch at all it is empty."""
    states = [read_theta(data) for data in sketches]
    if not states or any(state.empty for state in states):
        return write_theta(Theta(_MAX_THETA, np.empty(0, np.uint64), True))
    limit = min(state.theta for state in states)
    hashes = states[0].hashes
    for state in states[1:]:
        hashes = np.intersect1d(hashes, state.hashes, assume_unique=True)
    hashes = hashes[: np.searchsorted(hashes, np.uint64(limit))]
    return write_theta(Theta(limit, hashes, not len(hashes) and limit == _MAX_THETA))


class Estimate(NamedTuple):
    """A number of distinct values with its limits at 95 %; `exact` when the sketch never left exact mode."""

    ndv: float
    lower: float
    upper: float
    exact: bool


def estimate(data: bytes) -> Estimate:
    """The NDV of a serialized sketch, with the library's own limits at two standard deviations."""
    state = read_theta(data)
    if state.exact:
        count = float(len(state.hashes))
        return Estimate(count, count, count, True)
    import datasketches

    sketch = datasketches.compact_theta_sketch.deserialize(data)
    return Estimate(sketch.get_estimate(), sketch.get_lower_bound(2), sketch.get_upper_bound(2), False)


def _distinct(hashes: Hashes) -> Hashes:
    """Ascending and once each; without zero, which marks an empty slot in the library and is never kept."""
    hashes.sort()  # vectorised, which makes it several times faster than np.unique
    return hashes[np.concatenate([hashes[:1] != 0, hashes[1:] != hashes[:-1]])]


def _read_theta_by_library(data: bytes) -> Theta:
    import datasketches

    try:
        sketch = datasketches.compact_theta_sketch.deserialize(data)
    except (RuntimeError, ValueError, IndexError, MemoryError) as trouble:
        raise _no_sketch("theta", str(trouble)) from None
    hashes = np.sort(np.fromiter(sketch, np.uint64, sketch.num_retained))
    return Theta(int(sketch.theta64), hashes, bool(sketch.is_empty()))


# KLL.


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The state of a KLL sketch: retained `values`, ascending, each standing for `weights` of the n values."""

    values: Doubles
    weights: Longs
    low: float
    high: float

    @property
    def count(self) -> int:
        return int(self.weights.sum())


def kll(values: Doubles, counts: Longs | None = None, k: int = KLL_K) -> bytes:
    """The sketch of ascending `values` without NaN, each occurring `counts` times (default once)."""
    if not len(values):
        return struct.pack("<BBBBHBx", 2, 1, 15, 1, k, 8)
    cumulative = np.arange(1, len(values) + 1) if counts is None else np.cumsum(counts)
    return _write_kll(values, cumulative, float(values[0]), float(values[-1]), k)


def merge_kll(sketches: Sequence[bytes], k: int = KLL_K) -> bytes:
    """The sketch of all values of all sketches."""
    states = [state for state in map(_parse_kll, sketches) if state is not None]
    if not states:
        return kll(np.empty(0), k=k)
    values = np.concatenate([state.values for state in states])
    sizes = [size for state in states for size in state.sizes]
    weights: Longs = np.repeat([1 << level for state in states for level in range(len(state.sizes))], sizes)
    order = np.argsort(values)  # not stable: equal values are one, whatever their weights
    low, high = min(state.low for state in states), max(state.high for state in states)
    return _write_kll(values[order], np.cumsum(weights[order]), low, high, k)


def read_kll(data: bytes) -> Quantiles | None:
    """The state of a serialized sketch of doubles, None of an empty one; raises InvalidArgument for other bytes."""
    if (state := _parse_kll(data)) is None:
        return None
    weights: Longs = np.repeat(1 << np.arange(len(state.sizes)), state.sizes)
    order = np.argsort(state.values, kind="stable")
    return Quantiles(state.values[order], weights[order], state.low, state.high)


class _Levels(NamedTuple):
    """A KLL sketch as it lies: values level by level, how many are in each."""

    values: Doubles
    sizes: Sequence[int]
    low: float
    high: float


def _parse_kll(data: bytes) -> _Levels | None:
    try:
        _, version, family, flags, _ = struct.unpack_from("<BBBBH", data)
        if family != 15 or version not in (1, 2):
            raise _no_sketch("KLL", f"family {family}, version {version}")
        if flags & 1:
            return None
        if version == 2 or flags & 4:
            (value,) = struct.unpack_from("<d", data, 8)
            return _Levels(np.array([value]), [1], value, value)
        count, _, levels = struct.unpack_from("<QHB", data, 8)
        starts = struct.unpack_from(f"<{levels}I", data, 20)
        at = 20 + 4 * levels
        low, high = struct.unpack_from("<dd", data, at)
        values = np.frombuffer(data, "<f8", -1, at + 16) if (len(data) - at) % 8 == 0 else None
    except (struct.error, ValueError) as trouble:
        raise _no_sketch("KLL", f"{len(data)} bytes: {trouble}") from None
    if values is None or not levels:
        raise _no_sketch("KLL", f"{len(data)} bytes, no whole number of doubles in levels")
    sizes = [stop - start for start, stop in zip(starts, [*starts[1:], starts[0] + len(values)], strict=True)]
    if min(sizes) < 0 or levels > 61:
        raise _no_sketch("KLL", "levels out of order")
    if (total := sum(size << level for level, size in enumerate(sizes))) != count:
        raise _no_sketch("KLL", f"weights of {total} for {count} values")
    return _Levels(values, sizes, low, high)


def quantiles(data: bytes, ranks: Sequence[float]) -> list[float]:
    """The values at ranks in [0, 1]; empty for a sketch of nothing."""
    if (state := read_kll(data)) is None:
        return []
    return [float(value) for value in _at_ranks(state, np.asarray(ranks, np.float64))]


def histogram(data: bytes, buckets: int) -> list[tuple[float, float, float]]:
    """Equi-depth buckets (lower, upper, values in them): the first holds its lower bound, each holds its upper bound.

    A value so frequent that it would fill several buckets ends one only, so there may be fewer than asked for.
    """
    if (state := read_kll(data)) is None:
        return []
    uppers = np.unique(_at_ranks(state, np.arange(1, buckets + 1) / buckets))
    cumulative = np.cumsum(state.weights)
    below = cumulative[np.searchsorted(state.values, uppers, "right") - 1].astype(np.float64)
    below[-1] = cumulative[-1]
    lowers = np.concatenate([[state.low], uppers[:-1]])
    depths = np.diff(np.concatenate([[0.0], below]))
    return [(float(a), float(b), float(n)) for a, b, n in zip(lowers, uppers, depths, strict=True)]


def _at_ranks(state: Quantiles, ranks: Doubles) -> Doubles:
    cumulative = np.cumsum(state.weights)
    places = np.searchsorted(cumulative, np.ceil(ranks * cumulative[-1]), "left")
    values = state.values[np.minimum(places, len(state.values) - 1)]
    values = np.where(ranks >= 1, state.high, values)
    return np.where(ranks <= 0, state.low, values)


def _write_kll(values: Doubles, cumulative: Longs, low: float, high: float, k: int) -> bytes:
    """Serializes ascending values of known cumulative counts as a sketch with at most k items in its top level."""
    count = int(cumulative[-1])
    if count == 1:
        return struct.pack("<BBBBHBxd", 2, 2, 15, 2 | 4, k, 8, low)
    top = max(count // k, 1).bit_length() - 1
    top += (count >> top) > k
    # Steps of 2^top values, each represented by its middle one; the rest at the end in steps that halve.
    steps = count >> top
    ranks = [(np.arange(steps) << top) + ((1 << top) >> 1)]
    sizes = [steps]
    done = steps << top
    for level in range(top - 1, -1, -1):
        size = (count >> level) & 1
        ranks.insert(0, np.array([done + ((1 << level) >> 1)] * size, np.int64))
        sizes.insert(0, size)
        done += size << level
    items = values[np.searchsorted(cumulative, np.concatenate(ranks), "right")]
    levels = top + 1
    starts = _kll_capacity(k, levels) - len(items) + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    head = struct.pack("<BBBBHBxQHBx", 5, 1, 15, 2, k, 8, count, k, levels)
    return b"".join(
        [head, starts.astype("<u4").tobytes(), struct.pack("<dd", low, high), items.astype("<f8").tobytes()]
    )


def _kll_capacity(k: int, levels: int) -> int:
    """The room of a sketch of so many levels: k on top, two thirds of the level above below it, at least 8."""
    total = 0
    for depth in range(levels):
        total += max(8, (((k << 1 << depth) // 3**depth) + 1) >> 1)
    return total


# Frequent items.


class FrequentItem(NamedTuple):
    """A value and its count; the true count is within [lower, upper]."""

    value: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    lower: int
    upper: int


def heaviest(counts: Longs, keep: int = FREQUENT_ITEMS_KEPT) -> tuple[Longs, int]:
    """Places of the values to keep, greatest count first, and the greatest count left out (0 when none is)."""
    if len(counts) <= keep:
        return np.argsort(-counts, kind="stable"), 0
    offset = _ranked(counts, keep)
    places = np.flatnonzero(counts > offset)
    return places[np.argsort(-counts[places], kind="stable")], offset


def _ranked(counts: Longs, rank: int) -> int:
    """The count that `rank` counts are greater than or equal to, of more than `rank` positive ones."""
    # Mostly it is small: a power of two above it is found by looking a few times, rather than by sorting.
    limit = 1
    while np.count_nonzero(counts > limit) > rank:
        limit *= 2
    if limit == 1:
        return 1
    high = counts[counts > limit // 2]
    return int(np.partition(high, len(high) - rank - 1)[len(high) - rank - 1])


def frequent(items: Sequence[str], weights: Sequence[int], total: int, offset: int) -> bytes:
    """The sketch of `total` values in which item i occurs weights[i] to weights[i] + offset times, others ≤ offset."""
    if not total:
        return struct.pack("<BBBBBBxx", 1, 1, 10, FREQUENT_LG, 3, 5)
    pairs = sorted(((w, i) for i, w in zip(items, weights, strict=True) if w > 0), key=lambda p: (-p[0], p[1]))
    texts = [item.encode() for _, item in pairs]
    size = max(3, (len(pairs) * 4 // 3).bit_length())
    head = struct.pack("<BBBBBxxxIIQQ", 4, 1, 10, max(FREQUENT_LG, size), size, len(pairs), 0, total, offset)
    body = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return b"".join([head, np.array([w for w, _ in pairs], "<u8").tobytes(), body])


def read_frequent(data: bytes) -> tuple[dict[str, int], int, int]:
    """Weights by item, values seen, and offset; raises InvalidArgument for other bytes."""
    count, total, offset = _frequent_head(data)
    if not count:
        return {}, total, offset
    try:
        weights = np.frombuffer(data, "<u8", count, 32).tolist()
        at = 32 + 8 * count
        items = []
        for _ in range(count):
            (size,) = struct.unpack_from("<I", data, at)
            if at + 4 + size > len(data):
                raise _no_sketch("frequent items", f"{len(data)} bytes that end too early")
            items.append(data[at + 4 : at + 4 + size].decode())
            at += 4 + size
    except (struct.error, ValueError) as trouble:
        raise _no_sketch("frequent items", f"{len(data)} bytes: {trouble}") from None
    return dict(zip(items, weights, strict=True)), total, offset


def _frequent_head(data: bytes) -> tuple[int, int, int]:
    """How many items a serialized sketch has, of how many values, and its offset."""
    try:
        longs, version, family, _, _, flags = struct.unpack_from("<BBBBBB", data)
        if family != 10 or version != 1:
            raise _no_sketch("frequent items", f"family {family}, version {version}")
        if longs & 0x3F == 1 or flags & 5:
            return 0, 0, 0
        count, _, total, offset = struct.unpack_from("<IIQQ", data, 8)
    except struct.error as trouble:
        raise _no_sketch("frequent items", f"{len(data)} bytes: {trouble}") from None
    if len(data) < 32 + 12 * count:
        raise _no_sketch("frequent items", f"{len(data)} bytes that end too early")
    return count, total, offset


def merge_frequent(sketches: Sequence[bytes], keep: int = FREQUENT_ITEMS_KEPT) -> bytes:
    """The sketch of all values of all sketches."""
    items, weights, total, offset = _all_items(sketches)
    if len(items):
        coded = items.dictionary_encode()
        items = coded.dictionary
        # Sums of doubles are exact up to 2^53 rows.
        weights = np.bincount(coded.indices.to_numpy(), weights.astype(np.float64)).astype(np.int64)
    if len(weights) > keep:
        last = len(weights) - 1 - keep
        purged = int(np.partition(weights, last)[last])
        kept = np.flatnonzero(weights > purged)
        items, weights = items.take(pa.array(kept)), weights[kept] - purged
        offset += purged
    try:
        texts = [item.decode() for item in items.to_pylist()]
    except UnicodeDecodeError as trouble:
        raise _no_sketch("frequent items", str(trouble)) from None
    return frequent(texts, weights.tolist(), total, offset)


def _all_items(sketches: Sequence[bytes]) -> tuple[pa.Array, Longs, int, int]:
    """The items of all sketches side by side and their weights, how many values they are of, the sum of the offsets.

    The i-th items of all sketches are found at once: a text says where the next one begins.
    """
    held: list[tuple[bytes, int]] = []
    total = offset = 0
    for data in sketches:
        count, seen, left_out = _frequent_head(data)
        total, offset = total + seen, offset + left_out
        if count:
            held.append((data, count))
    if not held:
        return pa.array([], pa.binary()), np.empty(0, np.int64), total, offset
    held.sort(key=lambda pair: -pair[1])
    counts: Longs = np.array([count for _, count in held])
    weights = np.concatenate([np.frombuffer(data, "<u8", count, 32) for data, count in held]).astype(np.int64)
    ends = np.cumsum([len(data) for data, _ in held])
    octets: npt.NDArray[np.uint8] = np.frombuffer(b"".join([*(data for data, _ in held), bytes(4)]), np.uint8)
    words: npt.NDArray[np.uint32] = np.ndarray((len(octets) - 3,), "<u4", octets, 0, (1,))  # one at every byte
    at = np.concatenate([[0], ends[:-1]]) + 32 + 8 * counts
    starts: Longs = np.zeros((len(held), int(counts[0])), np.int64)
    sizes = np.zeros_like(starts)
    # How many sketches have an i-th item.
    rows: Longs = len(held) - np.searchsorted(counts[::-1], np.arange(int(counts[0])), "right")
    for place, n in enumerate(rows.tolist()):
        here = at[:n]
        np.minimum(here, ends[:n], out=here)  # beyond its end a sketch is refused below
        size = words[here].astype(np.int64)
        starts[:n, place], sizes[:n, place] = here + 4, size
        here += 4 + size
    if (at > ends).any():
        raise _no_sketch("frequent items", "an item that ends too late")
    real = np.arange(starts.shape[1]) < counts[:, None]
    first, size = starts[real], sizes[real]
    offsets = np.concatenate([[0], np.cumsum(size)])
    texts = octets[np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], size)]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
    return pa.Array.from_buffers(pa.large_binary(), len(size), buffers), weights, total, offset


def frequent_items(data: bytes, limit: int | None = None) -> list[FrequentItem]:
    """The items, most frequent first; `count` is the library's estimate, the upper limit."""
    weights, _, offset = read_frequent(data)
    ranked = sorted(weights.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
    return [FrequentItem(item, weight + offset, weight, weight + offset) for item, weight in ranked]


def _no_sketch(kind: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"data: no {kind} sketch of Apache DataSketches: {what}")
