"""MurmurHash3 x64 128 over NumPy arrays, the hash of theta sketches (seed 9001, upper half, `h1 >> 1`).

Every function returns uint64 hashes below 2^63, one per value. Values are hashed as Iceberg's single-value bytes:

| type | bytes |
|---|---|
| BOOLEAN | one, 0x00 or 0x01 |
| INT, TIME, TIMESTAMP, TIMESTAMPTZ | eight, little-endian |
| DATE, FLOAT | four, little-endian |
| DOUBLE | eight, little-endian; -0.0 as 0.0 and one NaN |
| DECIMAL | the fewest big-endian two's complement bytes of the unscaled value |
| STRING | UTF-8; BINARY, UUID: the bytes |

INT is always hashed as the eight bytes of an Iceberg long, also in columns of 32 bits and less, so that values of a
column promoted from int to long have equal hashes in old and new files, and a union counts them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import mmh3
import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]
Longs: TypeAlias = npt.NDArray[np.int64]

SEED: Final = 9001
CHUNK: Final = 65_536  # values hashed at once: with fewer, threads wait too often for the interpreter's lock
_CHUNK_BYTES: Final = 1 << 22
_LONG: Final = 1 << 14  # strings of more bytes are hashed one by one

_FEW_SIZES: Final = 16  # up to that range of lengths in blocks, selecting one length after the other beats sorting
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_F1, _F2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_A1, _A2, _FIVE = np.uint64(0x52DCE729), np.uint64(0x38495AB5), np.uint64(5)
_ONE, _33 = np.uint64(1), np.uint64(33)
_MAX_LONG: Final = (1 << 63) - 1

# Masks of the used bytes of the last, incomplete 16-byte block, by its length: for its first and its second word.
_FULL = (1 << 64) - 1
_MASK_1 = np.array([_FULL if n >= 8 else (1 << 8 * n) - 1 for n in range(16)], np.uint64)
_MASK_2 = np.array([(1 << 8 * (n - 8)) - 1 if n > 8 else 0 for n in range(16)], np.uint64)


def hash_longs(values: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> Hashes:
    """Hashes of 64-bit integers, shape (n,)."""
    return _by_chunk(values.view(np.uint64), lambda words: _short(words, 8))


def hash_ints(values: npt.NDArray[np.int32]) -> Hashes:
    """Hashes of 32-bit integers as four bytes, shape (n,); for dates as days since 1970."""
    return _by_chunk(values.view(np.uint32), lambda words: _short(words.astype(np.uint64), 4))


def hash_floats(values: npt.NDArray[np.float32]) -> Hashes:
    """Hashes of 32-bit floats, shape (n,)."""
    return hash_ints(_canonical(values).view(np.int32))


def hash_doubles(values: npt.NDArray[np.float64]) -> Hashes:
    """Hashes of 64-bit floats, shape (n,)."""
    return hash_longs(_canonical(values).view(np.uint64))


def hash_booleans(values: npt.NDArray[np.bool_]) -> Hashes:
    """Hashes of booleans, shape (n,)."""
    return _by_chunk(values, lambda words: _short(words.astype(np.uint64), 1))


def hash_decimals(unscaled: Longs) -> Hashes:
    """Hashes of decimals whose unscaled values fit 64 bits, shape (n,)."""
    return _by_chunk(unscaled, _decimals)


def hash_wide_decimals(words: Hashes) -> Hashes:
    """Hashes of decimals whose unscaled values are of k words, lowest first, shape (n, k) to shape (n,)."""
    return _by_chunk(words, _wide_decimals)


def hash_bytes(data: npt.NDArray[np.uint8], offsets: Longs) -> Hashes:
    """Hashes of n byte strings; the i-th is `data[offsets[i]:offsets[i + 1]]`, offsets of shape (n + 1,)."""
    count = len(offsets) - 1
    hashes: Hashes = np.empty(max(count, 0), np.uint64)
    start = 0
    while start < count:
        by_size = int(np.searchsorted(offsets, offsets[start] + _CHUNK_BYTES, "right")) - 1
        stop = min(count, start + CHUNK, max(by_size, start + 1))
        hashes[start:stop] = _strings(data, offsets[start:stop], np.diff(offsets[start : stop + 1]))
        start = stop
    return hashes


def combine(columns: list[Hashes], nulls: list[npt.NDArray[np.bool_] | None]) -> Hashes:
    """One hash per row of a group of columns; nulls differ from every value.

    The hashed bytes are two words per column: 0 and 0 for a null, the value's hash and 1 for a value.

    Args:
        columns: Hashes of each column, shape (n,).
        nulls: Mask of the nulls of each column, shape (n,); None if it has none.
    """
    words: list[Hashes] = []
    for hashes, null in zip(columns, nulls, strict=True):
        valid = np.ones(len(hashes), np.uint64) if null is None else (~null).astype(np.uint64)
        words += [hashes * valid, valid]
    length = 8 * len(words)
    return _by_rows(len(columns[0]), lambda rows: _words([word[rows] for word in words], length))


def _canonical(values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    values = values + values.dtype.type(0)  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan
    return values


def _by_chunk(values: npt.NDArray[np.generic], hashed: Callable[[npt.NDArray], Hashes]) -> Hashes:
    return _by_rows(len(values), lambda rows: hashed(values[rows]))


def _by_rows(count: int, hashed: Callable[[slice], Hashes]) -> Hashes:
    if count <= CHUNK:
        return hashed(slice(0, count))
    hashes: Hashes = np.empty(count, np.uint64)
    for rows in _slices(count):
        hashes[rows] = hashed(rows)
    return hashes


def _slices(count: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def _decimals(unscaled: Longs) -> Hashes:
    # A byte represents -128 … 127. m ≥ 0 has ⌊log2 m⌋ + 1 bits besides the sign; ~v has as many as a negative v.
    magnitude = unscaled ^ (unscaled >> 63)
    least, most = (int(m).bit_length() // 8 + 1 for m in (magnitude.min(initial=_MAX_LONG), magnitude.max(initial=0)))
    length: Hashes | np.uint64 = np.uint64(most)
    if least < most:  # a chunk of ordered values usually has one length
        sizes: npt.NDArray[np.uint8] = np.full(len(unscaled), least, np.uint8)
        for size in range(least, most):
            sizes += magnitude >= 1 << (8 * size - 1)
        length = sizes.astype(np.uint64)
    words = unscaled.byteswap().view(np.uint64)
    words >>= np.uint64(64) - np.uint64(8) * length
    return _short(words, length)


def _wide_decimals(words: Hashes) -> Hashes:
    octets: npt.NDArray[np.uint8] = words[:, ::-1].astype(">u8").view(np.uint8).reshape(len(words), -1)
    size = octets.shape[1]
    sign = np.where(octets[:, 0] >= 128, 255, 0).astype(np.uint8)
    differs = octets != sign[:, None]
    first = np.where(differs.any(axis=1), differs.argmax(axis=1), size - 1)
    # If the first byte has the wrong sign bit, one sign byte precedes it.
    starts = first - ((octets[np.arange(len(octets)), first] ^ sign) >= 128)
    offsets = np.concatenate([[0], np.cumsum(size - starts)])
    return hash_bytes(octets[np.arange(size) >= starts[:, None]], offsets)


def _strings(data: npt.NDArray[np.uint8], starts: Longs, lengths: Longs) -> Hashes:
    """The hashes of one chunk of byte strings."""
    long = np.flatnonzero(lengths > _LONG)
    if len(long):
        hashes: Hashes = np.empty(len(lengths), np.uint64)
        for row in long.tolist():
            hashes[row] = _alone(data[starts[row] : starts[row] + lengths[row]])
        others = np.flatnonzero(lengths <= _LONG)
        if len(others):
            hashes[others] = _strings(data, starts[others], lengths[others])
        return hashes
    order, above = _longest_first(lengths >> 4)
    if order is not None:
        starts, lengths = starts.take(order), lengths.take(order)
    rest = lengths & 15
    wide = int(rest.max()) > 8  # the last block of some string has more than one word
    rows = len(lengths)
    h1: Hashes = np.full(rows, SEED, np.uint64)
    h2, tail1, tail2 = h1.copy(), np.empty_like(h1), np.empty_like(h1) if wide else None
    for longer, (k1, k2) in zip(above, _loaded(data, starts, lengths, above, wide), strict=True):
        tail1[longer:rows] = k1[longer:]
        if tail2 is not None:
            tail2[longer:rows] = k2[longer:]
        if longer:
            _mix(h1[:longer], h2[:longer], k1[:longer], k2[:longer])
        rows = longer
    tail1 &= _MASK_1.take(rest)
    if tail2 is not None:
        tail2 &= _MASK_2.take(rest)
    hashes = _finish(h1, h2, tail1, tail2, lengths.view(np.uint64))
    if order is None:
        return hashes
    unsorted = np.empty_like(hashes)
    unsorted[order] = hashes
    return unsorted


def _longest_first(blocks: Longs) -> tuple[Longs | None, list[int]]:
    """An order of strings by descending number of whole blocks (None: the given order), and for each number of blocks,
    from 0 to the greatest, how many strings have more."""
    count, least, most = len(blocks), int(blocks.min()), int(blocks.max())
    if least == most:
        return None, [count] * most + [0]
    if most - least > _FEW_SIZES:
        kind = np.uint8 if most < 256 else np.uint16 if most < 65536 else np.uint64
        order = np.argsort((most - blocks).astype(kind), kind="stable")
        have_more: Longs = count - np.searchsorted(blocks[order[::-1]], np.arange(most + 1), "right")
        return order, have_more.tolist()
    small = (blocks - least).astype(np.uint8)
    groups = [np.flatnonzero(small == number) for number in range(most - least, -1, -1)]
    have_more = np.cumsum([0, *map(len, groups)])[-2::-1]
    return np.concatenate(groups), [count] * least + have_more.tolist()


def _loaded(
    data: npt.NDArray[np.uint8], starts: Longs, lengths: Longs, above: Sequence[int], wide: bool
) -> Iterator[tuple[Hashes, Hashes]]:
    """Yields the 16-byte blocks of all strings, as two words each: the first block of all strings, then the next block
    of the first `above[i]` strings. Bytes beyond the end of a string are undefined; so are the second words of the last
    block unless `wide`.

    Blocks are assembled from aligned words, which is several times faster than unaligned reads.
    """
    first, last = int(starts.min()), int((starts + lengths).max())
    whole = len(data) & ~7
    if last + 24 > whole or data.ctypes.data & 7:
        padded: Hashes = np.zeros(((last - first) >> 3) + 4, np.uint64)
        padded.view(np.uint8)[: last - first] = data[first:last]
        words, starts = padded, starts - first
    else:
        words = data[:whole].view(np.uint64)
    at, right = starts >> 3, (starts & 7).view(np.uint64) << np.uint64(3)
    left = np.uint64(64) - right  # a shift by all 64 leaves nothing
    aligned = not right.any()
    head = words.take(at, mode="clip")
    for number, longer in enumerate(above):
        if aligned and not longer and not wide:
            yield head, head
            continue
        middle = words[2 * number + 1 :].take(at, mode="clip")
        after = head if aligned and not longer else words[2 * number + 2 :].take(at, mode="clip")
        if aligned:
            yield head, middle
        else:
            yield head >> right | middle << left, middle >> right | after << left
        at, right, left, head = at[:longer], right[:longer], left[:longer], after[:longer]


def _alone(octets: npt.NDArray[np.uint8]) -> int:
    """The hash of one long string; a chunk has too few of them to vectorize."""
    return int(mmh3.hash64(octets.tobytes(), SEED, signed=False)[0]) >> 1


def _words(words: list[Hashes], length: int) -> Hashes:
    """Hashes of rows, each of an even number of words; `length` in bytes."""
    h1: Hashes = np.full(len(words[0]), SEED, np.uint64)
    h2 = h1.copy()
    for k1, k2 in zip(words[::2], words[1::2], strict=True):
        _mix(h1, h2, k1, k2)
    return _finish(h1, h2, None, None, np.uint64(length))


def _mix(h1: Hashes, h2: Hashes, k1: Hashes, k2: Hashes) -> None:
    """Mixes one 16-byte block into the states, in place."""
    h1 ^= _scrambled(k1, _C1, 31, _C2)
    _rotate(h1, 27)
    h1 += h2
    h1 *= _FIVE
    h1 += _A1
    h2 ^= _scrambled(k2, _C2, 33, _C1)
    _rotate(h2, 31)
    h2 += h1
    h2 *= _FIVE
    h2 += _A2


def _finish(h1: Hashes, h2: Hashes, k1: Hashes | None, k2: Hashes | None, length: Hashes | np.uint64) -> Hashes:
    """Mixes in the last block, whose unused bytes are zero, and the length, and finalizes; None is a word of zeros."""
    if k2 is not None:
        h2 ^= _scrambled(k2, _C2, 33, _C1)
    if k1 is not None:
        h1 ^= _scrambled(k1, _C1, 31, _C2)
    h1 ^= length
    h2 ^= length
    return _last_rounds(h1, h2)


def _short(words: Hashes, length: Hashes | np.uint64 | int) -> Hashes:
    """Hashes of values of at most eight bytes, given as words whose unused bytes are zero; `length` in bytes."""
    length = np.uint64(length) if isinstance(length, int) else length
    h1 = _scrambled(words, _C1, 31, _C2)
    h1 ^= np.uint64(SEED) ^ length
    return _last_rounds(h1, np.uint64(SEED) ^ length)


def _last_rounds(h1: Hashes, h2: Hashes | np.uint64) -> Hashes:
    h1 += h2
    h2 = h2 + h1
    _avalanche(h1)
    _avalanche(h2)
    h1 += h2
    h1 >>= _ONE
    return h1


def _avalanche(h: Hashes) -> None:
    h ^= h >> _33
    h *= _F1
    h ^= h >> _33
    h *= _F2
    h ^= h >> _33


def _scrambled(k: Hashes, first: np.uint64, by: int, second: np.uint64) -> Hashes:
    k = k * first
    _rotate(k, by)
    k *= second
    return k


def _rotate(values: Hashes, by: int) -> None:
    right = values >> np.uint64(64 - by)
    values <<= np.uint64(by)
    values |= right
