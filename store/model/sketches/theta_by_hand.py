"""Theta sketches without the `datasketches` package, which has no wheels for Python 3.14 and later.

Intersections, bounds and the forms that other writers make: compressed (serial version 4) and of old libraries (1, 2).
Results equal the package's, by property tests.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from store.model.sketches.format import invalid_sketch
from store.model.sketches.murmur3 import Hashes

_MAX_THETA: Final = (1 << 63) - 1
_SEED_HASH: Final = 0x93CC
_EMPTY: Final = 4
_NORMAL_ABOVE: Final = 120  # hashes; with more, the binomial distribution is taken as normal
_ALMOST_ALL: Final = 1 - 1e-5  # share of hashes; with more, not even one value is likely to be missing


def common(parts: Sequence[tuple[int, Hashes]]) -> tuple[int, Hashes]:
    """The theta and the hashes, ascending, that sketches have in common.

    Args:
        parts: Of each sketch theta and distinct hashes of shape (n,); at least one.
    """
    theta = min(part for part, _ in parts)
    kept = parts[0][1]
    for _, hashes in parts[1:]:
        kept = np.intersect1d(kept, hashes, assume_unique=True)
    return theta, np.sort(kept[kept < np.uint64(theta)])


def bounds(retained: int, theta: int, deviations: int) -> tuple[float, float]:
    """The least and the greatest number of distinct values of a sketch in estimation mode.

    Args:
        retained: Number of hashes below theta.
        theta: In units of 2^-63; above 0.
        deviations: Standard deviations of a normal distribution; what lies beyond is the risk taken on each side.
    """
    share = theta / 2**63
    estimate = retained / share
    if share == 1:
        low = high = float(retained)
    elif retained > _NORMAL_ABOVE:
        low, high = _normal(retained, share, deviations)
    elif share > _ALMOST_ALL:
        low, high = float(retained), float(retained + 1)
    else:
        low, high = _binomial(retained, share, deviations)
    return max(float(retained), min(estimate, low)), max(estimate, high)


def _normal(retained: int, share: float, deviations: int) -> tuple[float, float]:
    """Numbers n whose expectation n share ± 1/2 is so many deviations √(n share (1 - share)) from `retained`."""
    width = deviations * math.sqrt((1 - share) / share)

    def solved(side: int) -> float:
        near = (retained + side / 2) / share
        return near + width * width / 2 + side * width / 2 * math.sqrt(width * width + 4 * near) + side / 2

    return solved(-1), solved(1)


def _binomial(retained: int, share: float, deviations: int) -> tuple[float, float]:
    """The ends outside of which `retained` of n hashes is less likely than the risk."""
    risk = math.erfc(deviations / math.sqrt(2)) / 2
    low = _last(lambda n: 1 - _at_most(retained - 1, n, share) <= risk, max(retained - 1, 0)) if retained else 0
    high = _last(lambda n: _at_most(retained, n, share) > risk, retained) + 1
    return float(low), float(high)


def _at_most(count: int, n: int, share: float) -> float:
    """The probability that at most `count` of `n` hashes are below theta."""
    if count >= n:
        return 1.0
    hits = np.arange(count + 1)
    missed = float(n) - hits
    ways = np.concatenate([[0.0], np.cumsum(np.log(missed[:-1] / hits[1:]))])  # logarithms
    return float(np.exp(ways + hits * math.log(share) + missed * math.log1p(-share)).sum())


def _last(holds: Callable[[int], bool], low: int) -> int:
    """The greatest number for which `holds`, which holds at `low` and from some number on no more."""
    step = 1
    while holds(low + step):
        low, step = low + step, 2 * step
    while step > 1:
        step = (step + 1) // 2
        if holds(low + step):
            low += step
    return low


def read(data: bytes) -> tuple[int, Hashes, bool]:
    """Theta, the hashes in the order of the bytes, and true if nothing was counted, of serial version 1, 2 or 4.

    Args:
        data: At least 8 bytes.

    Raises:
        InvalidArgument: The bytes are not a compact theta sketch with seed 9001.
    """
    longs, version, family = data[0], data[1], data[2]
    if family != 3 or version not in (1, 2, 4):
        raise invalid_sketch("theta", f"family {family} of serial version {version}")
    if version != 1 and (seed_hash := struct.unpack_from("<H", data, 6)[0]) != _SEED_HASH:
        raise invalid_sketch("theta", f"a seed other than 9001 (seed hash {seed_hash:#x})")
    try:
        return _compressed(data) if version == 4 else _of_old_library(data, 3 if version == 1 else longs)
    except (struct.error, ValueError):
        raise invalid_sketch("theta", f"{len(data)} bytes that end too early") from None


def _of_old_library(data: bytes, longs: int) -> tuple[int, Hashes, bool]:
    if not 1 <= longs <= 3:
        raise invalid_sketch("theta", f"a preamble of {longs} longs")
    count = struct.unpack_from("<I", data, 8)[0] if longs > 1 else 0
    theta = struct.unpack_from("<Q", data, 16)[0] if longs > 2 else _MAX_THETA
    hashes = np.frombuffer(data, "<u8", count, 8 * longs).astype(np.uint64) if count else np.empty(0, np.uint64)
    return theta, hashes, not count and theta == _MAX_THETA


def _compressed(data: bytes) -> tuple[int, Hashes, bool]:
    """Ascending hashes as differences of so many bits each, the highest bit first."""
    longs, bits, width, flags = data[0], data[3], data[4], data[5]
    if flags & _EMPTY:
        return _MAX_THETA, np.empty(0, np.uint64), True
    start = 8 * longs
    theta = struct.unpack_from("<Q", data, 8)[0] if longs > 1 else _MAX_THETA
    count = int.from_bytes(data[start : start + width], "little")
    packed = np.frombuffer(data, np.uint8, (count * bits + 7) // 8, start + width)
    each = np.unpackbits(packed)[: count * bits].reshape(count, bits)
    steps: Any = np.zeros((count, 64), np.uint8)
    steps[:, 64 - bits :] = each
    return theta, np.cumsum(np.packbits(steps, axis=1).view(">u8").ravel().astype(np.uint64), dtype=np.uint64), False
