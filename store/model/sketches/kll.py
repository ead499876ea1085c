"""KLL sketches of doubles: quantiles and histograms.

Instead of the library's random choices, a level of weight 2^i is a systematic sample of the sorted values. The rank
error of a sketch of n values is at most n / k (half a step of at most 2n / k); a merge of such sketches has at most
twice that error.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from store.model.sketches.format import invalid_sketch
from store.model.sketches.murmur3 import Longs

KLL_K: Final = 512

Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The state of a KLL sketch: retained `values`, ascending, each standing for `weights` of the n values."""

    values: Doubles
    weights: Longs
    low: float
    high: float

    @property
    def count(self) -> int:
        """The number of values in the sketched data."""
        return int(self.weights.sum())


def kll(values: Doubles, counts: Longs | None = None, k: int = KLL_K) -> bytes:
    """The sketch of values.

    Args:
        values: float64, shape (n,), ascending, without NaN.
        counts: Number of occurrences of each, int64, shape (n,); None for one each.
        k: Accuracy; a greater k is more accurate and larger.
    """
    if not len(values):
        return struct.pack("<BBBBHBx", 2, 1, 15, 1, k, 8)
    cumulative = np.arange(1, len(values) + 1) if counts is None else np.cumsum(counts)
    return _write_kll(values, cumulative, float(values[0]), float(values[-1]), k)


def merge_kll(sketches: Sequence[bytes], k: int = KLL_K, seed: int | None = None) -> bytes:
    """The sketch of all values of all sketches.

    Args:
        sketches: Apache KLL bytes.
        seed: Chooses which values stand for their neighbours, so that the rank errors of many sketches made with
            different seeds cancel out; None takes the middle ones.
    """
    states = [state for state in map(_parse_kll, sketches) if state is not None]
    if not states:
        return kll(np.empty(0), k=k)
    values = np.concatenate([state.values for state in states])
    sizes = [size for state in states for size in state.sizes]
    weights: Longs = np.repeat([1 << level for state in states for level in range(len(state.sizes))], sizes)
    order = np.argsort(values)  # need not be stable: the order of equal values does not matter
    low, high = min(state.low for state in states), max(state.high for state in states)
    return _write_kll(values[order], np.cumsum(weights[order]), low, high, k, seed)


def kll_step(data: bytes) -> tuple[int, int]:
    """The k of a serialized sketch, and how many values each item of its top level stands for."""
    k = int.from_bytes(data[4:6], "little")
    return k, 1 if len(data) < 20 else 1 << (data[18] - 1)


def read_kll(data: bytes) -> Quantiles | None:
    """The state of a serialized sketch of doubles; None if it is empty.

    Raises:
        InvalidArgument: The bytes are not a KLL sketch of doubles.
    """
    if (state := _parse_kll(data)) is None:
        return None
    weights: Longs = np.repeat(1 << np.arange(len(state.sizes)), state.sizes)
    order = np.argsort(state.values, kind="stable")
    return Quantiles(state.values[order], weights[order], state.low, state.high)


class _Levels(NamedTuple):
    """A KLL sketch in its serialized order: values level by level, and the size of each level."""

    values: Doubles
    sizes: Sequence[int]
    low: float
    high: float


def _parse_kll(data: bytes) -> _Levels | None:
    try:
        _, version, family, flags, _ = struct.unpack_from("<BBBBH", data)
        if family != 15 or version not in (1, 2):
            raise invalid_sketch("KLL", f"family {family}, version {version}")
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
    except (struct.error, ValueError) as error:
        raise invalid_sketch("KLL", f"{len(data)} bytes: {error}") from None
    if values is None or not levels:
        raise invalid_sketch("KLL", f"{len(data)} bytes, not a whole number of doubles in levels")
    sizes = [stop - start for start, stop in zip(starts, [*starts[1:], starts[0] + len(values)], strict=True)]
    if min(sizes) < 0 or levels > 61:
        raise invalid_sketch("KLL", "levels out of order")
    if (total := sum(size << level for level, size in enumerate(sizes))) != count:
        raise invalid_sketch("KLL", f"weights of {total} for {count} values")
    if not (len(values) and low <= float(values.min()) and float(values.max()) <= high):
        raise invalid_sketch("KLL", f"values that are not between its minimum {low} and maximum {high}")
    return _Levels(values, sizes, low, high)


def quantiles(data: bytes, ranks: Sequence[float]) -> list[float]:
    """Quantiles of a KLL sketch at ranks from 0 to 1, one value for each; empty for an empty sketch."""
    if (state := read_kll(data)) is None:
        return []
    return [float(value) for value in _at_ranks(state, np.asarray(ranks, np.float64))]


def histogram(data: bytes, buckets: int) -> list[tuple[float, float, float]]:
    """Equi-depth buckets (lower, upper, number of values); upper bounds and the first lower bound are inclusive.

    A value that would fill several buckets ends only one, so there may be fewer buckets than requested. Infinite values
    have a bucket of their own, at either end.
    """
    if (state := read_kll(data)) is None:
        return []
    if not np.isfinite(state.values).all() or not math.isfinite(state.high - state.low):
        return _around_infinity(state, buckets)
    return _buckets(state, buckets)


def _around_infinity(state: Quantiles, buckets: int) -> list[tuple[float, float, float]]:
    is_finite = np.isfinite(state.values)
    found: list[tuple[float, float, float]] = []
    if is_finite.any():
        values = state.values[is_finite]
        low = state.low if math.isfinite(state.low) else float(values[0])
        high = state.high if math.isfinite(state.high) else float(values[-1])
        found = _buckets(Quantiles(values, state.weights[is_finite], low, high), buckets)
    for end, place in ((-math.inf, 0), (math.inf, len(found) + 1)):
        if (rows := float(state.weights[state.values == end].sum())) or end in (state.low, state.high):
            found.insert(place, (end, end, rows))  # no rows: the sketch has dropped those few
    return found


def _buckets(state: Quantiles, buckets: int) -> list[tuple[float, float, float]]:
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


def _write_kll(values: Doubles, cumulative: Longs, low: float, high: float, k: int, seed: int | None = None) -> bytes:
    """Serializes ascending values with their cumulative counts as a sketch with at most k items in its top level."""
    random = None if seed is None else np.random.default_rng(seed)

    def within(level: int) -> int:
        """The place of the value that stands for a step of 2^level values."""
        return (1 << level) >> 1 if random is None else int(random.integers(1 << level))

    count = int(cumulative[-1])
    if count == 1:
        return struct.pack("<BBBBHBxd", 2, 2, 15, 2 | 4, k, 8, low)
    top = max(count // k, 1).bit_length() - 1
    top += (count >> top) > k
    # Steps of 2^top values, each represented by one value; the rest in steps of decreasing powers of two.
    steps = count >> top
    of_steps = (np.arange(steps) << top) + within(top)
    rest: list[int] = []
    sizes = [steps]
    done = steps << top
    for level in range(top - 1, -1, -1):
        size = (count >> level) & 1
        rest[:0] = [done + within(level)] * size
        sizes.insert(0, size)
        done += size << level
    ranks = np.concatenate([np.array(rest, np.int64), of_steps])
    items = values[cumulative.searchsorted(ranks, "right")]
    levels = top + 1
    starts = accumulate(sizes[:-1], initial=_kll_capacity(k, levels) - len(items))
    head = struct.pack(f"<BBBBHBxQHBx{levels}Idd", 5, 1, 15, 2, k, 8, count, k, levels, *starts, low, high)
    return head + items.astype("<f8", copy=False).tobytes()


def _kll_capacity(k: int, levels: int) -> int:
    """The capacity of a sketch with so many levels: k on top, two thirds of the level above on others, at least 8."""
    total = 0
    for depth in range(levels):
        total += max(8, (((k << 1 << depth) // 3**depth) + 1) >> 1)
    return total
