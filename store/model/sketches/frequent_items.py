"""Frequent-items sketches (Misra-Gries).

A sketch keeps the largest of exact counts, reduced by the largest count left out, which is its offset. A value's count
is within [weight, weight + offset]; if nothing was left out it is exact.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.model.sketches.format import invalid_sketch
from store.model.sketches.murmur3 import Longs

FREQUENT_LG: Final = 8  # binary logarithm of the declared size of the hash map, of which three quarters are used
FREQUENT_ITEMS_KEPT: Final = 3 << (FREQUENT_LG - 2)
_FEW: Final = 8  # sketches that are merged faster by a plain loop


class FrequentItem(NamedTuple):
    """A value and its count; the true count is within [lower, upper]."""

    value: str
    count: int  # type: ignore[assignment]  # shadows tuple.count, which is not used
    lower: int
    upper: int


def heaviest(counts: Longs, keep: int = FREQUENT_ITEMS_KEPT) -> tuple[Longs, int]:
    """Indices of the values with the greatest counts, greatest first, and the greatest count left out, 0 if none is.

    Args:
        counts: Count of each value, shape (values,).
        keep: Most values to keep.
    """
    if len(counts) <= keep:
        return np.argsort(-counts, kind="stable"), 0
    offset = _ranked(counts, keep)
    places = np.flatnonzero(counts > offset)
    return places[np.argsort(-counts[places], kind="stable")], offset


def _ranked(counts: Longs, rank: int) -> int:
    """The (rank + 1)-th greatest of more than `rank` positive counts."""
    # It is usually small, so a few passes that find a power of two above it are faster than sorting.
    limit = 1
    while np.count_nonzero(counts > limit) > rank:
        limit *= 2
    if limit == 1:
        return 1
    high = counts[counts > limit // 2]
    return int(np.partition(high, len(high) - rank - 1)[len(high) - rank - 1])


def frequent(items: Sequence[bytes], weights: Sequence[int], total: int, offset: int) -> bytes:
    """The sketch of `total` values in which item i occurs weights[i] to weights[i] + offset times, others ≤ offset.

    Args:
        items: Texts in UTF-8.
        weights: Lower limits of their counts.
        offset: Greatest error of a weight.
    """
    if not total:
        return struct.pack("<BBBBBBxx", 1, 1, 10, FREQUENT_LG, 3, 5)
    pairs = sorted([(-w, i) for i, w in zip(items, weights, strict=True) if w > 0])
    size = max(3, (len(pairs) * 4 // 3).bit_length())
    head = struct.pack("<BBBBBxxxIIQQ", 4, 1, 10, max(FREQUENT_LG, size), size, len(pairs), 0, total, offset)
    weighed = struct.pack(f"<{len(pairs)}Q", *[-w for w, _ in pairs])
    return b"".join([head, weighed, *[len(item).to_bytes(4, "little") + item for _, item in pairs]])


def read_frequent(data: bytes) -> tuple[dict[str, int], int, int]:
    """Item → weight, the total number of values, and the offset.

    Raises:
        InvalidArgument: The bytes are not a frequent-items sketch.
    """
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
                raise invalid_sketch("frequent items", f"{len(data)} bytes that end too early")
            items.append(data[at + 4 : at + 4 + size].decode())
            at += 4 + size
    except (struct.error, ValueError) as error:
        raise invalid_sketch("frequent items", f"{len(data)} bytes: {error}") from None
    return dict(zip(items, weights, strict=True)), total, offset


def _frequent_head(data: bytes) -> tuple[int, int, int]:
    """The number of items of a serialized sketch, its total number of values, and its offset."""
    try:
        longs, version, family, _, _, flags = struct.unpack_from("<BBBBBB", data)
        if family != 10 or version != 1:
            raise invalid_sketch("frequent items", f"family {family}, version {version}")
        if longs & 0x3F == 1 or flags & 5:
            return 0, 0, 0
        count, _, total, offset = struct.unpack_from("<IIQQ", data, 8)
    except struct.error as error:
        raise invalid_sketch("frequent items", f"{len(data)} bytes: {error}") from None
    if len(data) < 32 + 12 * count:
        raise invalid_sketch("frequent items", f"{len(data)} bytes that end too early")
    return count, total, offset


def merge_frequent(sketches: Sequence[bytes], keep: int = FREQUENT_ITEMS_KEPT) -> bytes:
    """The sketch of all values of Apache frequent-items sketches, of at most `keep` items."""
    items, weights, total, offset = (_few_items if len(sketches) <= _FEW else _all_items)(sketches)
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
    texts = items.to_pylist()
    try:
        b"\n".join(texts).decode()
    except UnicodeDecodeError as error:
        raise invalid_sketch("frequent items", str(error)) from None
    return frequent(texts, weights.tolist(), total, offset)


def _few_items(sketches: Sequence[bytes]) -> tuple[pa.Array, Longs, int, int]:
    """As `_all_items`, whose steps take as long for two sketches as for many."""
    read = [read_frequent(data) for data in sketches]
    items = pa.array([item for weights, _, _ in read for item in weights], pa.large_binary())
    numbers: Longs = np.array([weight for weights, _, _ in read for weight in weights.values()], np.int64)
    return items, numbers, sum(total for _, total, _ in read), sum(offset for _, _, offset in read)


def _all_items(sketches: Sequence[bytes]) -> tuple[pa.Array, Longs, int, int]:
    """The items of all sketches and their weights, concatenated; the total number of values; the sum of the offsets.

    The i-th items of all sketches are located in one vectorized step, since the length of a text gives the position of
    the next one.
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
    words: npt.NDArray[np.uint32] = np.ndarray((len(octets) - 3,), "<u4", octets, 0, (1,))  # word at each byte
    at = np.concatenate([[0], ends[:-1]]) + 32 + 8 * counts
    starts: Longs = np.zeros((len(sketches_read), int(counts[0])), np.int64)
    sizes = np.zeros_like(starts)
    # The number of sketches that have an i-th item.
    rows: Longs = len(sketches_read) - np.searchsorted(counts[::-1], np.arange(int(counts[0])), "right")
    for place, n in enumerate(rows.tolist()):
        here = at[:n]
        np.minimum(here, ends[:n], out=here)  # a sketch that ends too early is refused below
        size = words[here].astype(np.int64)
        starts[:n, place], sizes[:n, place] = here + 4, size
        here += 4 + size
    if (at > ends).any():
        raise invalid_sketch("frequent items", "an item that ends beyond the data")
    real = np.arange(starts.shape[1]) < counts[:, None]
    first, size = starts[real], sizes[real]
    offsets = np.concatenate([[0], np.cumsum(size)])
    texts = octets[np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], size)]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
    return pa.Array.from_buffers(pa.large_binary(), len(size), buffers), weights, total, offset


def frequent_items(data: bytes, limit: int | None = None) -> list[FrequentItem]:
    """The items, most frequent first, at most `limit`; `count` is the library's estimate, the upper limit."""
    weights, _, offset = read_frequent(data)
    ranked = sorted(weights.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
    return [FrequentItem(item, weight + offset, weight, weight + offset) for item, weight in ranked]
