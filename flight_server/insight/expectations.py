"""The range of the next value of a series, learned from the values before.

The centre is the median of the last 28 values, along a trend, and by weekday or hour of day, where
that halves the residuals. The scale is their median absolute deviation. A value is strange if it lies 3.5
deviations away *and* the change matters in itself. What is strange is not learned, however often it comes, until
someone calls it expected: the third such value on the same side makes it the new level. Tables that only grow are
judged by what they grow by, and those that grow in batches by their batches.

A pattern is judged only once it can be known. What is strange but like the value of its weekday or hour before is
unknown the first time and expected from then on; so are batches until there are enough of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple, TypeAlias

import numpy as np

LEAST: Final = 8  # values without which nothing is expected
WARM: Final = 21  # first values, which are learned however strange: weekends are, until a weekday has several
LIKE: Final = 28  # values that make the centre
WINDOW: Final = 112  # values that make the season and the scale
REPLAYED: Final = 56  # newest values that are judged; those before are taken as they are
STRANGE: Final = 3.5  # deviations
CHANGE: Final = 0.1  # of the level: smaller changes do not matter
FALSE_SHARE: Final = 0.01  # of all alarms of one run that may be false, by Benjamini and Hochberg
NEW_LEVEL: Final = 3  # expected strange values on one side that are a new level
_LEAST_GAPS: Final = 3  # pauses over a weekend, or without one, that are compared with each other
_PER_CLASS: Final = 2  # values of a weekday or hour without which it has no season
_MOST: Final = 0.85  # of the residuals: a weekend is more than the rest
_NEVER_FALLS: Final = 0.9  # share of the steps of a series that only grows which do not fall
_MOSTLY_FLAT: Final = 0.5  # share of the steps without a change from which a series grows in batches
_LIKE_CLASS: Final = 4  # newest values of a weekday or hour that a value is compared with
_UNSURE: Final = math.pi / 2  # variance of a median of n values, times n; a line's end has four times as much
_EFFICIENCY: Final = 0.37  # of the median absolute deviation, as an estimate of a deviation

Measure: TypeAlias = Callable[[float], float]


class Kind(NamedTuple):
    """The comparison of a measure's values: on a scale on which their noise is even, and against a level."""

    to: Measure
    back: Measure
    floor: Measure  # smallest deviation on that scale, by the centre on it
    level: Measure  # what a change must be a tenth of, by the expected value
    may_grow: bool = False
    least: float = -math.inf  # that a value can be
    most: float = math.inf


def _log(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value)


def _exp(value: float) -> float:
    return math.copysign(math.expm1(min(abs(value), 700.0)), value)


def _angle(share: float) -> float:
    return math.asin(math.sqrt(min(max(share, 0.0), 1.0)))


def _share(angle: float) -> float:
    return math.sin(min(max(angle, 0.0), math.pi / 2)) ** 2


COUNT: Final = Kind(_log, _exp, lambda _: 0.01, lambda value: max(abs(value), 1.0), may_grow=True, least=0.0)


def share(least: float) -> Kind:
    """Fractions, by the angle whose sine they are the square of: unlike a logit it has ends.

    Args:
        least: Smallest change that matters.
    """

    def level(value: float) -> float:
        return max(min(value, 1 - value), least / CHANGE)

    return Kind(_angle, _share, lambda _: 0.01, level, least=0.0, most=1.0)


def plain(spread: float) -> Kind:
    """Numbers such as means.

    Args:
        spread: Standard deviation of the column, which tells how far a mean must move to matter; 0 if unknown.
    """

    def level(value: float) -> float:
        return spread or abs(value) or 1.0

    return Kind(float, float, lambda centre: level(centre) / 100, level)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The range in which a value was expected.

    Attributes:
        low, high: Bounds of values that are not strange.
        z: Deviations between the value and the centre, as those of a normal distribution.
        strange: True if the value is outside of the bounds.
        count: Number of values that it was learned from.
        unknown: Why nothing can be expected yet; empty where it can.
    """

    low: float
    high: float
    z: float
    strange: bool
    count: int = 0
    unknown: str = ""

    @property
    def probability(self) -> float:
        """The probability of a value as far away."""
        return math.erfc(abs(self.z) / math.sqrt(2))


def expectations(
    values: Sequence[float], times: Sequence[datetime | None], kind: Kind, expected: Collection[int] = ()
) -> list[Expectation | None]:
    """Judges each value of a series by those before it.

    Args:
        values: Shape (n,), oldest first, all known.
        times: Time of each, shape (n,).
        expected: Places of values that someone has called expected.

    Returns:
        Shape (n,); None where too few values came before, or where they were not judged.
    """
    series = _Series.of(values, times, kind)
    found: list[Expectation | None] = [None] * len(values)
    history = list(range(series.start, max(len(values) - REPLAYED, series.start)))
    away: list[int] = []  # strange values that are expected, since the last that was not strange, all on one side
    was_above = False  # their side
    welcome: list[int] = []  # strange values that someone expects
    for place in range(len(history) + series.start, len(values)):
        if len(history) >= LEAST:
            model = _Model.of(series, history[-WINDOW:])
            one, point = model.judge(place), series.points[place]
            if one.strange and (alike := series.alike(place, history, model)):
                why = "" if alike >= _PER_CLASS else "a weekday or hour is known when it was seen twice before"
                one = replace(one, strange=False, unknown=why)
            is_away = one.strange
            near = STRANGE * model.scale
            if is_away and (place in expected or any(abs(point - series.points[i]) <= near for i in welcome[-LIKE:])):
                welcome.append(place)
                one = replace(one, strange=False)
            found[place] = one
            if is_away and place >= WARM:
                if one.strange:
                    continue  # what fails is not learned
                above = point > model.centre(place)
                if above != was_above:
                    away = []
                was_above = above
                away.append(place)
                if len(away) < NEW_LEVEL:
                    continue
                shift = median(series.points[i] - model.centre(i) for i in away)
                for i in history:
                    series.points[i] += shift  # the season and the scale stay
                history += away[:-1]
            away = []
        history.append(place)
    return found


def newest(
    values: Sequence[float], times: Sequence[datetime | None], kind: Kind, expected: Collection[int] = ()
) -> Expectation | None:
    """Judges the last value; as `expectations` does, but fast where it is not strange.

    Of a table that grows in batches a batch is judged by those before. A rise of one that never rose is no batch to be
    judged either, until it has been without one for long.
    """
    rises = _rises(values) if kind.may_grow else None
    if rises is not None:
        if values[-1] == values[-2]:
            return Expectation(values[-1], values[-1], 0.0, False, count=len(values) - 1)
        if len(rises) <= LEAST:
            why = f"batches are known when there are {LEAST}; there are {len(rises) - 1}"
            return Expectation(values[-1], values[-1], 0.0, False, count=len(values) - 1, unknown=why)
        places = {place: at for at, place in enumerate(rises)}
        return newest(
            [values[i] for i in rises],
            [times[i] for i in rises],
            kind,
            [places[i] for i in expected if i in places],
        )
    series = _Series.of(values, times, kind)
    history = list(range(series.start, len(values) - 1))
    if len(history) < LEAST:
        return None
    one = _Model.of(series, history[-WINDOW:]).judge(len(values) - 1)
    return expectations(values, times, kind, expected)[-1] if one.strange else one


def _rises(values: Sequence[float]) -> list[int] | None:
    """The places of a series that grows in batches at which it changes, the first and a changed last one included.

    Returns:
        None if it does not: if it falls, or changes most of the time, or has been flat for so long that it is.
    """
    if len(values) <= LEAST:
        return None
    steps = np.diff(np.asarray(values[-WINDOW:], np.float64))
    before = steps[:-1]
    has_batches = bool(np.any(before > 0)) or (len(before) < WARM and steps[-1] > 0)
    if not has_batches or np.mean(before >= 0) < _NEVER_FALLS or np.mean(before == 0) < _MOSTLY_FLAT:
        return None
    start = len(values) - len(steps) - 1
    return [start, *(start + 1 + int(place) for place in np.flatnonzero(steps))]


def most_are_false(probabilities: Sequence[float]) -> float:
    """The probability up to which alarms of one run are believed, after Benjamini and Hochberg.

    Args:
        probabilities: Those of all values judged in the run, strange or not.
    """
    ranked = sorted(probabilities)
    good = [p for rank, p in enumerate(ranked, 1) if p <= FALSE_SHARE * rank / len(ranked)]
    return good[-1] if good else 0.0


def longest_gap(times: Sequence[datetime], now: datetime) -> timedelta | None:
    """The time after the last of some commits from which the next is late; None while too few are known, or those of
    less than a day.

    Args:
        times: Times of the commits, ascending.
        now: The time; a pause over a weekend is compared with other such pauses.
    """
    gaps = [(after - before, _over_weekend(before, after)) for before, after in pairwise(times)]
    gaps = gaps[-WINDOW:]
    if len(gaps) < LEAST or times[-1] - times[0] < timedelta(days=1):
        return None
    weekend = _over_weekend(times[-1], now)
    like = [gap for gap, over in gaps if over == weekend]
    extra = timedelta(0)
    if len(like) < _LEAST_GAPS:
        like, extra = [gap for gap, _ in gaps], timedelta(days=2 if weekend else 0)
    return timedelta(seconds=1.5 * float(np.quantile([gap.total_seconds() for gap in like], 0.99))) + extra


def _over_weekend(start: datetime, end: datetime) -> bool:
    return any((start + timedelta(days=day)).weekday() >= 5 for day in range(min((end - start).days, 6) + 1)) or (
        end.weekday() >= 5
    )


def _grows(values: Sequence[float]) -> bool:
    """True if a series hardly ever falls, and mostly rises."""
    steps = np.diff(np.asarray(values[-WINDOW:], np.float64))
    return len(steps) >= LEAST and float(np.mean(steps >= 0)) >= _NEVER_FALLS and float(np.median(steps)) > 0


class _Series(NamedTuple):
    """A series on its even scale, and the weekday of each value, or the hour if several come a day."""

    points: list[float]
    values: Sequence[float]
    base: Sequence[float]  # what each value grew from
    classes: Sequence[int] | None
    start: int
    kind: Kind

    @classmethod
    def of(cls, values: Sequence[float], times: Sequence[datetime | None], kind: Kind) -> _Series:
        grows = kind.may_grow and _grows(values[:-1])
        base = [0.0, *values[:-1]] if grows else [0.0] * len(values)
        points = [kind.to(value - before) for value, before in zip(values, base, strict=True)]
        known = [time for time in times if time is not None]
        classes = None
        if len(known) == len(times) and len(known) > LEAST:
            daily = median((b - a).total_seconds() for a, b in pairwise(known)) > 12 * 3600
            classes = [time.weekday() if daily else time.hour for time in known]
        return cls(points, values, base, classes, int(grows), kind)

    def alike(self, place: int, history: Sequence[int], model: _Model) -> int:
        """The number of values of a place's weekday or hour that are like it, if most of the newest are; else 0."""
        if self.classes is None:
            return 0
        away = self.points[place] - model.centre(place)
        near = max(STRANGE * model.scale, abs(away) / 2)
        like = [i for i in history if self.classes[i] == self.classes[place]][-_LIKE_CLASS:]
        agree = sum(abs(away - (self.points[i] - model.centre(i))) <= near for i in like)
        return agree if 2 * agree >= len(like) else 0


class _Model(NamedTuple):
    """The model of a series: centre, trend, season and deviation."""

    series: _Series
    level: float
    slope: float  # per place
    origin: int  # place of `level`
    season: dict[int, float]
    scale: float
    learned_from: int

    @classmethod
    def of(cls, series: _Series, places: Sequence[int]) -> _Model:
        y = [series.points[i] for i in places]
        season: dict[int, float] = {}
        level, slope, deviation = _line(places, y)
        if series.classes is not None:
            rest: dict[int, list[float]] = {}
            for i, point in zip(places, y, strict=True):
                rest.setdefault(series.classes[i], []).append(point - slope * (i - places[-1]))
            for like in rest.values():
                like.sort()
            if len(rest) > 1 and min(map(len, rest.values())) >= _PER_CLASS:
                # a value is compared with the others of its class, or a class of few would seem to fit
                of_like = sorted(abs(v - _without(like, k)) for like in rest.values() for k, v in enumerate(like))
                apart = sorted(
                    abs(point - level - slope * (i - places[-1])) for i, point in zip(places, y, strict=True)
                )
                most = int(_MOST * len(y))
                if 2 * of_like[most] <= apart[most]:
                    season = {one: median(like) for one, like in rest.items()}
                    flat = [point - season[series.classes[i]] for i, point in zip(places, y, strict=True)]
                    level, slope, deviation = _line(places, flat)
                    deviation = max(deviation, median(of_like))
        unsure = math.sqrt(1 + _UNSURE * (4 if slope else 1) / min(len(places), LIKE))
        scale = max(1.4826 * deviation * unsure, series.kind.floor(level))
        return cls(series, level, slope, places[-1], season, scale, len(places))

    def centre(self, place: int) -> float:
        season = self.season.get(self.series.classes[place], 0.0) if self.season and self.series.classes else 0.0
        return self.level + self.slope * (place - self.origin) + season

    def judge(self, place: int) -> Expectation:
        base, centre, back = self.series.base[place], self.centre(place), self.series.kind.back
        freedom = _EFFICIENCY * self.learned_from
        z = _as_normal((self.series.points[place] - centre) / self.scale, freedom)
        reach, middle = self.scale * _from_normal(STRANGE, freedom), back(centre)
        matters = CHANGE * self.series.kind.level(middle)
        low, high = min(back(centre - reach), middle - matters), max(back(centre + reach), middle + matters)
        strange = not low <= self.series.values[place] - base <= high
        low, high = max(self.series.kind.least, base + low), min(self.series.kind.most, base + high)
        return Expectation(low, high, z, strange, count=self.learned_from)


def _without(ranked: Sequence[float], place: int) -> float:
    """The median of ascending values without one of them."""
    size = len(ranked) - 1
    low, high = (size - 1) // 2, size // 2
    return (ranked[low + (low >= place)] + ranked[high + (high >= place)]) / 2


_PAIRS: Final = {count: np.triu_indices(count, 1) for count in range(LEAST, LIKE + 1)}


def _line(places: Sequence[int], points: Sequence[float]) -> tuple[float, float, float]:
    """Level at the last place, slope, and median absolute deviation; a slope only where it fits clearly better."""
    late, at = points[-LIKE:], places[-LIKE:]
    level = median(late)
    x, y = np.asarray(at, np.float64), np.asarray(late)
    first, second = _PAIRS[len(late)]
    slope = float(np.median((y[second] - y[first]) / (x[second] - x[first])))
    rest = [point - slope * (place - at[-1]) for place, point in zip(at, late, strict=True)]
    along = median(rest)
    tilted = median(abs(point - along) for point in rest)
    if 2 * tilted <= median(abs(point - level) for point in late):
        return along, slope, tilted
    return level, 0.0, median(abs(point - level) for point in points)


def _as_normal(t: float, freedom: float) -> float:
    """A deviate of Student's distribution as one of the normal distribution, after Wallace."""
    size = math.sqrt(freedom * math.log1p(min(t * t / freedom, 1e12))) * (8 * freedom + 1) / (8 * freedom + 3)
    return math.copysign(size, t)


def _from_normal(z: float, freedom: float) -> float:
    """The inverse of `_as_normal`."""
    size = z * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(min(size * size / freedom, 50.0)))
