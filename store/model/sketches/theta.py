"""Theta sketches: the k smallest distinct hashes of the values; theta is the (k + 1)-th smallest.

The union of sketches equals the sketch of all values, byte for byte, in whatever order they are merged.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from store.model.sketches.format import invalid_sketch
from store.model.sketches.murmur3 import Hashes
from store.model.sketches.theta_by_hand import bounds as bounds_by_hand
from store.model.sketches.theta_by_hand import common as common_by_hand
from store.model.sketches.theta_by_hand import read as read_by_hand

THETA_K: Final = 4096

_MAX_THETA: Final = (1 << 63) - 1
_THETA_STEP: Final = 1 << 15  # hashes compared with theta at once
_SEED_HASH: Final = 0x93CC  # of seed 9001
SEED_MARK: Final = struct.pack("<H", _SEED_HASH)
"""Bytes 6 and 7 of a sketch."""

_EMPTY, _COMPACT, _ORDERED, _READ_ONLY = 4, 8, 16, 2


class Theta(NamedTuple):
    """The state of a compact theta sketch: `hashes` are ascending, distinct and below `theta`."""

    theta: int
    hashes: Hashes
    empty: bool = False

    @property
    def exact(self) -> bool:
        """True if the sketch has every distinct hash, so that their number is exact."""
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
            # The first hashes determine a theta that excludes most of the others.
            fresh = hashes[start : start + (_THETA_STEP if self._theta != _MAX_THETA else 4 * self.k)]
            start += len(fresh)
            if self._theta != _MAX_THETA:
                fresh = fresh[fresh < self._theta]
            self._parts.append(fresh)
            self._pending += len(fresh)
            if self._pending >= 4 * self.k:
                self._trim()

    def state(self) -> Theta:
        """The sketch as it is now."""
        self._trim()
        return Theta(int(self._theta), self._parts[0] if self._parts else np.empty(0, np.uint64), self._empty)

    def serialize(self) -> bytes:
        """The sketch as Apache bytes."""
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
    """The compact sketch, of at most `k` hashes, of hashes: uint64, shape (n,), in any order and with repeats."""
    builder = ThetaBuilder(k)
    builder.update(hashes)
    return builder.serialize()


def write_theta(state: Theta) -> bytes:
    """The compact, ordered form, serial version 3, as Apache DataSketches writes it."""
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
    """The state of a serialized sketch.

    Raises:
        InvalidArgument: The bytes are not a theta sketch with seed 9001.
    """
    head = _read_head(data)
    if head is None:
        return _read_other_form(data)
    if head.empty:
        return Theta(_MAX_THETA, np.empty(0, np.uint64), True)
    hashes = np.frombuffer(data, "<u8", head.retained, 8 * head.longs).astype(np.uint64)
    return Theta(head.theta, hashes if head.ordered else np.sort(hashes))


class _Head(NamedTuple):
    """What a serialized sketch says before its hashes."""

    longs: int  # of 8 bytes each, before the hashes
    retained: int
    theta: int
    ordered: bool
    empty: bool


def _read_head(data: bytes) -> _Head | None:
    """The head of a serialized sketch; None if it is compressed or of an old library."""
    if len(data) < 8:
        raise invalid_sketch("theta", f"{len(data)} bytes")
    longs, version, family, flags, seed_hash = struct.unpack_from("<BBBxxBH", data)
    if version != 3 or family != 3:
        return None
    if flags & _EMPTY:
        return _Head(longs & 0x3F, 0, _MAX_THETA, ordered=True, empty=True)
    if seed_hash != _SEED_HASH:
        raise invalid_sketch("theta", f"a seed other than 9001 (seed hash {seed_hash:#x})")
    longs &= 0x3F
    count = 1 if longs == 1 else struct.unpack_from("<I", data, 8)[0] if len(data) >= 8 * longs else -1
    limit = struct.unpack_from("<Q", data, 16)[0] if longs > 2 and len(data) >= 24 else _MAX_THETA
    if not 1 <= longs <= 3 or count < 0 or len(data) < 8 * (longs + count):
        raise invalid_sketch("theta", f"{len(data)} bytes that end too early")
    if not limit:
        raise invalid_sketch("theta", "a theta of 0")
    return _Head(longs, count, limit, bool(flags & _ORDERED), empty=False)


def union(sketches: Sequence[bytes], k: int = THETA_K) -> bytes:
    """The sketch, of at most `k` hashes, of all values of Apache theta sketches."""
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
    """The sketch of the values common to all sketches; empty without sketches."""
    library = _datasketches()
    if library is not None and sketches:
        common = library.theta_intersection()
        for data in sketches:
            common.update(_by_library(library, data))
        return bytes(common.get_result().serialize())
    states = [read_theta(data) for data in sketches]
    if not states or any(state.empty for state in states):
        return write_theta(Theta(_MAX_THETA, np.empty(0, np.uint64), True))
    limit, hashes = common_by_hand([(state.theta, state.hashes) for state in states])
    return write_theta(Theta(limit, hashes, empty=limit == _MAX_THETA and not len(hashes)))


class Estimate(NamedTuple):
    """A number of distinct values with 95 % bounds; `exact` if the sketch has every distinct hash."""

    ndv: float
    lower: float
    upper: float
    exact: bool


def estimate(data: bytes) -> Estimate:
    """The NDV of a serialized sketch, with the library's bounds at two standard deviations."""
    retained, theta = _retained(data)
    if theta == _MAX_THETA:
        return Estimate(float(retained), float(retained), float(retained), True)
    library = _datasketches()
    if library is None:
        low, high = bounds_by_hand(retained, theta, 2)
        return Estimate(retained / (theta / 2**63), low, high, False)
    sketch = _by_library(library, data)
    return Estimate(sketch.get_estimate(), sketch.get_lower_bound(2), sketch.get_upper_bound(2), False)


def _retained(data: bytes) -> tuple[int, int]:
    """Number of hashes of a serialized sketch, and its theta, without its hashes where its head tells."""
    if (head := _read_head(data)) is not None:
        return head.retained, head.theta
    state = read_theta(data)
    return len(state.hashes), state.theta


def theta_bounds(data: bytes, deviations: float) -> tuple[float, float]:
    """The numbers of distinct values that agree with a serialized sketch; its count twice if it is exact.

    Of n values each is below theta with the probability theta. A number agrees if what the sketch retains lies within
    so many standard deviations of the binomial distribution, n theta ± deviations √(n theta (1 - theta)).
    """
    state = read_theta(data)
    retained = len(state.hashes)
    if state.exact:
        return float(retained), float(retained)
    share = state.theta / 2**63
    spread = deviations * math.sqrt(share * (1 - share))
    reach = math.sqrt(spread * spread + 4 * share * retained)
    low, high = ((reach + side * spread) / (2 * share) for side in (-1, 1))
    return max(low * low, float(retained)), high * high


def _distinct(hashes: Hashes) -> Hashes:
    """The distinct hashes, ascending; without zero, which the library uses for empty slots."""
    hashes.sort()  # vectorized, several times faster than np.unique
    return hashes[np.concatenate([hashes[:1] != 0, hashes[1:] != hashes[:-1]])]


@cache
def _datasketches() -> Any | None:
    """The package, if it is installed: it has no wheels for Python 3.14."""
    try:
        import datasketches
    except ImportError:
        return None
    return datasketches


def _by_library(library: Any, data: bytes) -> Any:
    """The library's compact sketch; the same errors as `read_theta`."""
    try:
        return library.compact_theta_sketch.deserialize(data)
    except (RuntimeError, ValueError, IndexError, MemoryError) as error:
        raise invalid_sketch("theta", str(error)) from None


def _read_other_form(data: bytes) -> Theta:
    """A sketch that is compressed or of an old library."""
    library = _datasketches()
    if library is None:
        limit, found, empty = read_by_hand(data)
        return Theta(limit, np.sort(found), empty)
    sketch = _by_library(library, data)
    hashes = np.sort(np.fromiter(sketch, np.uint64, sketch.num_retained))
    return Theta(int(sketch.theta64), hashes, bool(sketch.is_empty()))
