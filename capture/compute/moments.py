"""Mean and sample standard deviation, from values with counts or from the moments of parts.

They are None if undefined: no values, fewer than two for the deviation, infinities of both signs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from store.model.sketches.murmur3 import Longs

Moments: TypeAlias = tuple[float | None, float | None]
"""Mean and sample standard deviation."""

_LARGE: Final = 1e100  # magnitudes whose squares and sums may overflow are scaled first, as those that may underflow
EXACT: Final = 2.0**53
"""Magnitude up to which doubles tell integers apart."""

_NONE: Final[Moments] = (None, None)


def moments(values: npt.NDArray[np.float64], counts: Longs) -> Moments:
    """Mean and sample standard deviation of values, shape (n,), no NaN, by positive counts; None if undefined."""
    if not len(values):
        return _NONE
    largest = float(max(values.max(), -values.min()))
    if not math.isfinite(largest):
        with np.errstate(invalid="ignore"):
            return _number(float(values[~np.isfinite(values)].sum())), None
    if _is_scaled(largest):
        mean, deviation = moments(values / largest, counts)
        return _number((mean or 0.0) * largest), None if deviation is None else _finite(deviation * largest)
    weights, count = counts.astype(np.float64), int(counts.sum())
    mean = _dot(values, weights) / count
    deviations = values - mean
    rest = _dot(deviations, weights) / count  # rounding error of the mean
    deviations *= deviations
    squares = _dot(deviations, weights) - count * rest * rest
    return mean + rest, _deviation(squares, count)


def moments_from(origin: int, offsets: npt.NDArray[np.float64], counts: Longs, scale: int) -> Moments:
    """The moments of integers or decimals that doubles cannot tell apart, by their distances from one of them.

    Args:
        origin: An unscaled value.
        offsets: Unscaled values minus `origin`, shape (n,).
        counts: Number of occurrences of each value, shape (n,), positive.
        scale: Number of decimal digits after the point.
    """
    mean, deviation = moments(offsets, counts)
    unit = 10.0**scale
    return None if mean is None else (origin + mean) / unit, None if deviation is None else deviation / unit


def merge(parts: Iterable[tuple[int, float | None, float | None]]) -> Moments:
    """Merges the moments of parts.

    Args:
        parts: Number of values, mean and standard deviation of each part.

    Returns:
        Mean and sample standard deviation, each None if undefined. The deviation is None, too, if the parts lie so far
        from zero that the rounding of their means hides it.
    """
    filled = [part for part in parts if part[0]]
    known_parts = [(n, mean, deviation) for n, mean, deviation in filled if mean is not None]
    if not filled or len(known_parts) < len(filled):
        return _NONE
    if len(filled) == 1:
        return filled[0][1:]
    infinite = [mean for _, mean, _ in known_parts if not math.isfinite(mean)]
    if infinite:
        return _number(sum(infinite)), None
    largest = max(max(abs(mean), deviation or 0.0) for _, mean, deviation in known_parts)
    if _is_scaled(largest):
        return _scaled_back(merge((n, mean / largest, d and d / largest) for n, mean, d in known_parts), largest)
    return _merged(known_parts)


def _scaled_back(small: Moments, largest: float) -> Moments:
    """The moments of values from those of the values divided by `largest`."""
    mean, deviation = small
    return _finite((mean or 0.0) * largest), None if deviation is None else _finite(deviation * largest)


def _merged(parts: Sequence[tuple[int, float, float | None]]) -> Moments:
    """Merges moments whose squares are within the range of doubles, by the distances of the means."""
    count, first = sum(n for n, _, _ in parts), parts[0][1]
    mean = first + math.fsum(n * (own - first) for n, own, _ in parts) / count
    is_unknown = any(n > 1 and deviation is None for n, _, deviation in parts)
    deviation = None if is_unknown else _deviation(_squares(parts, mean), count)
    return known((mean, deviation), [own for _, own, _ in parts])


def _squares(parts: Sequence[tuple[int, float, float | None]], mean: float) -> float:
    """The sum of the squared distances of all values from their mean."""
    within = ((n - 1) * (deviation or 0.0) ** 2 for n, _, deviation in parts)
    between = (n * (own - mean) ** 2 for n, own, _ in parts)
    return math.fsum(inner + outer for inner, outer in zip(within, between, strict=True))


def known(found: Moments, values: Iterable[float]) -> Moments:
    """The moments, without a deviation that the rounding of large different values or means to doubles may hide."""
    largest = max(map(abs, values))
    mean, stddev = found
    hidden = stddev is not None and largest > EXACT and stddev < 1024 * math.ulp(largest)
    return mean, None if hidden else stddev


def _is_scaled(largest: float) -> bool:
    """True if the squares of values up to `largest` may leave the range of doubles."""
    return largest > _LARGE or 0 < largest < 1 / _LARGE


def _dot(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> float:
    """Sum of products without BLAS, whose threads busy-wait and whose number changes the rounding."""
    return float(np.einsum("i,i", values, weights))


def _deviation(squares: float, count: int) -> float | None:
    return _finite(math.sqrt(max(squares, 0.0) / (count - 1))) if count > 1 else None


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
