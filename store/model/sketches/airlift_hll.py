"""HyperLogLog sketches in the bytes of Trino's airlift library, from NumPy arrays.

A sketch has 4096 buckets (p = 12). A value's bucket is the top 12 bits of its hash; the bucket stores the greatest
number of leading zeros of the other 52 bits, plus one. The dense form (version 2): `03`, `0c`, the smallest bucket
value as baseline, 2048 bytes with the 4-bit difference of each bucket to it (even buckets in the high nibble), then the
overflows, buckets whose difference is above 15: their number (uint16, little-endian), their positions (ascending), the
excess of each.

The hash is Trino's XX_HASH_64 operator of the type: xxHash64 with seed 0 over eight little-endian bytes, or over the
bytes of a VARCHAR or VARBINARY.

| type | hashed |
|---|---|
| BIGINT and shorter, DATE | the number; days since the epoch |
| DOUBLE, REAL | its bits, a REAL's sign-extended; -0.0 as 0.0 and one NaN |
| DECIMAL up to 18 digits | the unscaled value; wider: high and low 64 bits hashed separately, combined by XOR |
| TIMESTAMP | microseconds since the epoch; with time zone: milliseconds, rounded down |
| BOOLEAN | 1 or 0 |
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.model.logical_types import Kind, parse, to_arrow

Hashes: TypeAlias = npt.NDArray[np.uint64]

PRECISION: Final = 12
BUCKETS: Final = 1 << PRECISION
_SPARSE, _DENSE = 2, 3
_SPARSE_BITS: Final = 26  # bits of a hash in a sparse entry
_DENSE_BYTES: Final = 3 + BUCKETS // 2 + 2
_MAX_DELTA: Final = 15

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_LANES: Final = (0x60EA27EEADC0B5D6, int(_P2), 0, 0x61C8864E7A143579)  # _P1 + _P2, _P2, 0, -_P1
_WIDTH_64: Final = 18  # digits of a decimal that fit 64 bits


def supports(logical_type: str) -> bool:
    """True if `hash_values` takes values of a logical type."""
    return parse(logical_type).kind in _HASHED


class HyperLogLog:
    """A sketch under construction."""

    def __init__(self) -> None:
        self._registers: npt.NDArray[np.uint8] = np.zeros(BUCKETS, np.uint8)

    def add(self, hashes: Hashes) -> None:
        """Adds hashes, shape (n,)."""
        if not len(hashes):
            return
        buckets = (hashes >> np.uint64(64 - PRECISION)).astype(np.int64)
        rest = hashes << np.uint64(PRECISION)
        # the position of the first set bit is a double's exponent; integers below 2^53 are exact as doubles
        top = (rest >> np.uint64(PRECISION)).astype(np.float64)
        _, exponents = np.frexp(top)  # 0 for 0
        values = (64 - PRECISION - exponents + 1).astype(np.uint8)
        np.maximum.at(self._registers, buckets, values)

    def merge(self, other: HyperLogLog) -> None:
        """Adds all values of another sketch."""
        np.maximum(self._registers, other._registers, out=self._registers)

    @classmethod
    def read(cls, data: bytes) -> HyperLogLog:
        """A sketch from its dense bytes.

        Raises:
            ValueError: The bytes are not a dense sketch of 4096 buckets.
        """
        if len(data) < _DENSE_BYTES or data[:2] != bytes([_DENSE, PRECISION]):
            raise ValueError("must be a dense sketch of 4096 buckets")
        packed = np.frombuffer(data, np.uint8, BUCKETS // 2, 3)
        sketch = cls()
        sketch._registers[0::2], sketch._registers[1::2] = packed >> np.uint8(4), packed & np.uint8(15)
        count = int.from_bytes(data[_DENSE_BYTES - 2 : _DENSE_BYTES], "little")
        if len(data) != _DENSE_BYTES + 3 * count:
            raise ValueError("must have as many overflows as their number states")
        buckets = np.frombuffer(data, "<u2", count, _DENSE_BYTES)
        if count and int(buckets.max()) >= BUCKETS:
            raise ValueError("must have overflows of existing buckets only")
        sketch._registers[buckets] += np.frombuffer(data, np.uint8, count, _DENSE_BYTES + 2 * count)
        sketch._registers += np.uint8(data[2])
        return sketch

    def estimate(self) -> float:
        """The estimated number of distinct values, by Ertl's improved estimator (arXiv 1702.01284)."""
        count, most = BUCKETS, 64 - PRECISION
        counts = np.bincount(self._registers, minlength=most + 2)[: most + 2]
        z = count * _tau(1 - counts[most + 1] / count)
        for value in range(most, 0, -1):
            z = 0.5 * (z + counts[value])
        z += count * _sigma(counts[0] / count)
        return float(count * count / (2 * math.log(2)) / z) if math.isfinite(z) else 0.0

    def serialize(self) -> bytes:
        """The dense form: 2053 bytes and three for each overflow."""
        baseline = int(self._registers.min())
        deltas = self._registers - np.uint8(baseline)
        over = np.flatnonzero(deltas > _MAX_DELTA)
        low = np.minimum(deltas, _MAX_DELTA)
        packed = (low[0::2] << np.uint8(4)) | low[1::2]
        return b"".join(
            [
                bytes([_DENSE, PRECISION, baseline]),
                packed.tobytes(),
                len(over).to_bytes(2, "little"),
                over.astype("<u2").tobytes(),
                (deltas[over] - np.uint8(_MAX_DELTA)).tobytes(),
            ]
        )


def estimate(data: bytes) -> float:
    """The estimated number of distinct values of a serialized sketch, dense or sparse.

    Raises:
        ValueError: The bytes are not a sketch.
    """
    if data[:2] == bytes([_SPARSE, PRECISION]) and len(data) >= 4:
        count = int.from_bytes(data[2:4], "little")
        if len(data) != 4 + 4 * count:
            raise ValueError("must have as many entries as their number states")
        space = float(1 << _SPARSE_BITS)
        return space * math.log(space / (space - count))
    return HyperLogLog.read(data).estimate()


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z, y = z + x * y, y + y
    return z


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before, y = math.sqrt(x), z, y / 2
        z -= (1 - x) ** 2 * y
    return z / 3


def hash_values(values: pa.Array, logical_type: str) -> Hashes:
    """The hash of each value of a logical type that is not null, in no particular order.

    Raises:
        ValueError: The type is not supported.
    """
    type = parse(logical_type)
    if type.kind not in _HASHED:
        raise ValueError(f"{logical_type} has no hash")
    if pa.types.is_dictionary(values.type):
        values = values.dictionary if values.null_count == 0 else values.cast(values.type.value_type)
    values = values.drop_null()
    if type.kind in (Kind.STRING, Kind.BINARY):
        return hash_bytes(values)
    values = values.cast(to_arrow(type))
    match type.kind:
        case Kind.BOOLEAN:
            return hash_longs(values.to_numpy(zero_copy_only=False).astype(np.int64))
        case Kind.FLOAT:
            floats = values.to_numpy(zero_copy_only=False) + np.float32(0)
            bits = np.where(np.isnan(floats), np.int32(0x7FC00000), floats.view(np.int32))
            return hash_longs(bits.astype(np.int64))
        case Kind.DOUBLE:
            doubles = values.to_numpy(zero_copy_only=False) + 0.0
            return hash_longs(np.where(np.isnan(doubles), np.int64(0x7FF8000000000000), doubles.view(np.int64)))
        case Kind.DECIMAL:
            words = _words(values)
            return (
                hash_longs(words[:, 0])
                if (type.precision or 0) <= _WIDTH_64
                else (hash_longs(words[:, 1]) ^ hash_longs(words[:, 0]))
            )
        case Kind.DATE:
            return hash_longs(values.cast(pa.int32()).to_numpy().astype(np.int64))
        case Kind.TIMESTAMPTZ:
            return hash_longs(np.floor_divide(values.cast(pa.int64()).to_numpy(), 1000))
        case _:
            return hash_longs(values.cast(pa.int64()).to_numpy())


_HASHED: Final = frozenset(
    {
        Kind.BOOLEAN,
        Kind.INT,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.STRING,
        Kind.BINARY,
        Kind.DATE,
        Kind.TIMESTAMP,
        Kind.TIMESTAMPTZ,
    }
)


def hash_longs(values: npt.NDArray[np.int64]) -> Hashes:
    """xxHash64 of the eight little-endian bytes of each number, shape (n,)."""
    words = np.ascontiguousarray(values).view(np.uint64)
    state: Hashes = np.full(len(words), int(_P5) + 8, np.uint64)
    return _avalanche(_mix_word(state, words))


def hash_bytes(values: pa.Array) -> Hashes:
    """xxHash64 of each string or byte string, without nulls; in no particular order."""
    if not len(values):
        return np.zeros(0, np.uint64)
    binary = values.cast(pa.large_binary())
    sizes = pc.binary_length(binary).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary)]
    buffer = binary.buffers()[2]
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)
    hashes = []
    for size in np.unique(sizes):
        starts = offsets[sizes == size]
        step = max(1, (1 << 24) // max(int(size), 1))
        blocks = (starts[at : at + step, None] + np.arange(size) for at in range(0, len(starts), step))
        hashes += [_hash_block(data[block]) for block in blocks]
    return np.concatenate(hashes)


def _hash_block(rows: npt.NDArray[np.uint8]) -> Hashes:
    """xxHash64 of byte strings of equal length, shape (n, length)."""
    count, size = rows.shape
    at = 0
    state: Hashes
    if size >= 32:
        lanes = [np.full(count, start, np.uint64) for start in _LANES]
        while at + 32 <= size:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], _word(rows, at + 8 * lane, 8))
            at += 32
        state = _rotl(lanes[0], 1) + _rotl(lanes[1], 7) + _rotl(lanes[2], 12) + _rotl(lanes[3], 18)
        for lane in lanes:
            state = (state ^ _round(np.zeros(count, np.uint64), lane)) * _P1 + _P4
    else:
        state = np.full(count, _P5, np.uint64)
    state = state + np.uint64(size)
    while at + 8 <= size:
        state = _mix_word(state, _word(rows, at, 8))
        at += 8
    if at + 4 <= size:
        state = _rotl(state ^ (_word(rows, at, 4) * _P1), 23) * _P2 + _P3
        at += 4
    while at < size:
        state = _rotl(state ^ (rows[:, at].astype(np.uint64) * _P5), 11) * _P1
        at += 1
    return _avalanche(state)


def _word(rows: npt.NDArray[np.uint8], at: int, size: int) -> Hashes:
    word: npt.NDArray[Any] = np.ascontiguousarray(rows[:, at : at + size]).view(f"<u{size}")[:, 0]
    return word.astype(np.uint64)


def _mix_word(state: Hashes, words: Hashes) -> Hashes:
    return _rotl(state ^ _round(np.zeros(len(words), np.uint64), words), 27) * _P1 + _P4


def _round(state: Hashes, words: Hashes) -> Hashes:
    return _rotl(state + words * _P2, 31) * _P1


def _rotl(words: Hashes, bits: int) -> Hashes:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _avalanche(state: Hashes) -> Hashes:
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


def _words(values: pa.Array) -> npt.NDArray[np.int64]:
    """Low and high 64 bits of the unscaled values of decimal128, shape (n, 2)."""
    words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)
    return words[values.offset : values.offset + len(values)]
