"""Sketches of frequent items, as in Misra-Gries.

From exact counts the largest are kept, less the largest count left out, which becomes the sketch's offset. A value's
count lies within [weight, weight + offset]; with nothing left out it is exact.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.sketches.format import no_sketch
from store.sketches.murmur3 import Longs

FREQUENT_LG: Final = 8  # size of the hash map the sketch claims, base 2 logarithm; three quarters of it are used
FREQUENT_ITEMS_KEPT: Final = 3 << (FREQUENT_LG - 2)


class FrequentItem(NamedTuple):
    """A value and its count; the true count is within [lower, upper]."""

    value: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    lower: int
    upper: int


def heaviest(counts: Longs, keep: int = FREQUENT_ITEMS_KEPT) -> tuple[Longs, int]:
    """Places of the values to keep, greatest count first, and the greatest count left out (0 when none is).

    Args:
        counts: How often each value occurs, of shape (values,).
        keep: How many to keep.

    Returns:
        Places in `counts`, and a count.
    """
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
    """The sketch of `total` values in which item i occurs weights[i] to weights[i] + offset times, others ≤ offset.

    Args:
        weights: Lower limits of their counts.
        total: The number of values altogether.
        offset: The greatest error of a weight.
    """
    if not total:
        return struct.pack("<BBBBBBxx", 1, 1, 10, FREQUENT_LG, 3, 5)
    pairs = sorted([(-w, i) for i, w in zip(items, weights, strict=True) if w > 0])
    texts = [item.encode() for _, item in pairs]
    size = max(3, (len(pairs) * 4 // 3).bit_length())
    head = struct.pack("<BBBBBxxxIIQQ", 4, 1, 10, max(FREQUENT_LG, size), size, len(pairs), 0, total, offset)
    lengths = np.array(list(map(len, texts)), "<u4").tobytes()
    body = [part for n, text in enumerate(texts) for part in (lengths[4 * n : 4 * n + 4], text)]
    return b"".join([head, np.array([-w for w, _ in pairs], "<u8").tobytes(), *body])


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
                raise no_sketch("frequent items", f"{len(data)} bytes that end too early")
            items.append(data[at + 4 : at + 4 + size].decode())
            at += 4 + size
    except (struct.error, ValueError) as trouble:
        raise no_sketch("frequent items", f"{len(data)} bytes: {trouble}") from None
    return dict(zip(items, weights, strict=True)), total, offset


def _frequent_head(data: bytes) -> tuple[int, int, int]:
    """The number of items in a serialized sketch, of how many values they are, and its offset."""
    try:
        longs, version, family, _, _, flags = struct.unpack_from("<BBBBBB", data)
        if family != 10 or version != 1:
            raise no_sketch("frequent items", f"family {family}, version {version}")
        if longs & 0x3F == 1 or flags & 5:
            return 0, 0, 0
        count, _, total, offset = struct.unpack_from("<IIQQ", data, 8)
    except struct.error as trouble:
        raise no_sketch("frequent items", f"{len(data)} bytes: {trouble}") from None
    if len(data) < 32 + 12 * count:
        raise no_sketch("frequent items", f"{len(data)} bytes that end too early")
    return count, total, offset


def merge_frequent(sketches: Sequence[bytes], keep: int = FREQUENT_ITEMS_KEPT) -> bytes:
    """The sketch of all values of all sketches.

    Args:
        sketches: Apache frequent-items bytes.
        keep: How many items the result keeps at the most.
    """
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
        raise no_sketch("frequent items", str(trouble)) from None
    return frequent(texts, weights.tolist(), total, offset)


def _all_items(sketches: Sequence[bytes]) -> tuple[pa.Array, Longs, int, int]:
    """The items of all sketches side by side and their weights, how many values they are of, the sum of the offsets.

    The i-th items of all sketches are found at once: a text says where the next one begins.
    """
    sketches_read: list[tuple[bytes, int]] = []
    total = offset = 0
    for data in sketches:
        count, seen, left_out = _frequent_head(data)
        total, offset = total + seen, offset + left_out
        if count:
            sketches_read.append((data, count))
    if not sketches_read:
        return pa.array([], pa.binary()), np.empty(0, np.int64), total, offset
    sketches_read.sort(key=lambda pair: -pair[1])
    counts: Longs = np.array([count for _, count in sketches_read])
    weights = np.concatenate([np.frombuffer(data, "<u8", count, 32) for data, count in sketches_read]).astype(np.int64)
    ends = np.cumsum([len(data) for data, _ in sketches_read])
    octets: npt.NDArray[np.uint8] = np.frombuffer(b"".join([*(data for data, _ in sketches_read), bytes(4)]), np.uint8)
    words: npt.NDArray[np.uint32] = np.ndarray((len(octets) - 3,), "<u4", octets, 0, (1,))  # one at every byte
    at = np.concatenate([[0], ends[:-1]]) + 32 + 8 * counts
    starts: Longs = np.zeros((len(sketches_read), int(counts[0])), np.int64)
    sizes = np.zeros_like(starts)
    # How many sketches have an i-th item.
    rows: Longs = len(sketches_read) - np.searchsorted(counts[::-1], np.arange(int(counts[0])), "right")
    for place, n in enumerate(rows.tolist()):
        here = at[:n]
        np.minimum(here, ends[:n], out=here)  # beyond its end a sketch is refused below
        size = words[here].astype(np.int64)
        starts[:n, place], sizes[:n, place] = here + 4, size
        here += 4 + size
    if (at > ends).any():
        raise no_sketch("frequent items", "an item that ends too late")
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
