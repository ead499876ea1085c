"""Histograms as bars: frequent values become spikes, other rows are spread between the bounds.

`stats.histograms` is equi-depth: a bucket's rows lie above its lower bound and up to its upper one. A value that would
fill several buckets ends a single deep one, so most rows of a deep bucket lie at its upper bound. NDV and the most
common values refine this; all other rows are spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple

from flight_server.core.views.numbers import brief

Row = Mapping[str, Any]
BLOCKS = " ▁▂▃▄▅▆▇█"
SKETCHED_BUCKETS = 32  # a bucket has 1/32 of the rows, more if a frequent value fills it
DEEP = 1.5  # depth above which a bucket surely ends in a frequent value
_WHOLE = frozenset({"INT", "DATE", "BOOLEAN"})  # types whose values lie one unit apart
_UNITS = 8  # units per bar above which bars may cut through a unit: the error no longer shows
_LEAST_BUCKETS = 6  # of which the tails are cut
_INFINITE = frozenset({"Infinity", "-Infinity"})
_SAFE = 2.0**53  # integers up to here are exact as floats


class Bar(NamedTuple):
    """Rows between two points of the number line, both included when `is_value` (one value) or of a whole type.

    Attributes:
        is_tail: True for the first or the last bar if it is as wide as all others together, or wider.
    """

    low: float
    high: float
    rows: float
    is_value: bool = False
    is_tail: bool = False


def position(text: str | None, logical_type: str) -> float | None:
    """A bound as a point on the number line; None for a type without one."""
    if text is None:
        return None
    kind = logical_type.partition("(")[0]
    try:
        if kind in ("INT", "FLOAT", "DOUBLE", "DECIMAL"):
            number = float(text)
            return number if math.isfinite(number) else None
        if kind == "BOOLEAN":
            return float(text == "true")
        if kind == "DATE":
            return float(date.fromisoformat(text).toordinal())
        if kind == "TIME":
            moment = time.fromisoformat(text)
            return timedelta(
                hours=moment.hour, minutes=moment.minute, seconds=moment.second, microseconds=moment.microsecond
            ).total_seconds()
        if kind.startswith("TIMESTAMP"):
            instant = datetime.fromisoformat(text)
            return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        pass
    return None


def text_at(point: float, logical_type: str) -> str:
    """A point of the number line as a short label of an axis."""
    kind = logical_type.partition("(")[0]
    try:
        if kind == "BOOLEAN":
            return "true" if point >= 0.5 else "false"
        if kind == "DATE":
            return date.fromordinal(round(point)).isoformat()
        if kind == "TIME":
            return f"{datetime.fromtimestamp(point, UTC):%H:%M:%S}"
        if kind.startswith("TIMESTAMP"):
            instant = datetime.fromtimestamp(point, UTC)
            return f"{instant:%Y-%m-%d}" if instant.time() == time() else f"{instant:%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""
    return brief(point)


def bars(
    buckets: Sequence[Row],
    logical_type: str,
    bins: int,
    ndv: float | None = None,
    common: Iterable[Row] = (),
    *,
    cut_tails: bool = False,
) -> list[Bar]:
    """The rows of an equi-depth histogram as at most `bins` bars.

    Args:
        buckets: Rows of `stats.histograms` of one column, in order.
        ndv: The number of distinct values; None if unknown.
        common: Rows of `stats.most_common_values` of the column.
        cut_tails: An outermost bucket that is wider than what lies between the two becomes one bar, so that few
            outliers do not press all other rows into one.

    Returns:
        A bar for each value if there are few; otherwise bars of equal width, in whole units for integers and dates,
        and tails that are cut; nothing for a type without a number line. Infinite values are left out (`infinite` has
        them).
    """
    buckets = [row for row in buckets if not {row["lower"], row["upper"]} & _INFINITE]
    ranges = _ranges(buckets, logical_type)
    if not ranges:
        return []
    start, end = min(low for low, _ in ranges), max(high for _, high in ranges)
    if not math.isfinite(end - start):
        return []
    depths = [row["row_count"] or 0.0 for row in buckets]
    frequent = _frequent(common, logical_type)
    spikes, spreads = _masses(ranges, depths, ndv, frequent)
    whole = logical_type.partition("(")[0] in _WHOLE and max(abs(start), abs(end)) < _SAFE
    if ndv is not None and ndv <= len(frequent) <= bins:  # all values are known
        spikes, spreads = frequent, []
    if cut_tails and (spreads or len(spikes) > bins):
        cuts = _long_tails(ranges)
        if cuts != (None, None):
            return _cut_bars((start, end), cuts, bins, spikes, spreads, whole)
    return _linear_bars(start, end, bins, spikes, spreads, whole)


def _linear_bars(
    start: float, end: float, bins: int, spikes: Mapping[float, float], spreads: Sequence[_Spread], whole: bool
) -> list[Bar]:
    """Bars of equal width, or one for each value."""
    if whole:
        return _unit_bars(start, end, bins, spikes, spreads)
    if not spreads and len(spikes) <= bins:
        return _value_bars(spikes)
    return _equal_bars(start, end, bins, spikes, spreads)


def _long_tails(ranges: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """The upper bound of the first bucket and the lower one of the last, each if the bucket is wider than what lies
    between them; None otherwise."""
    (start, low), (high, end) = ranges[0], ranges[-1]
    body = high - low
    if len(ranges) < _LEAST_BUCKETS or body <= 0:
        return None, None
    return (low if low - start > body else None), (high if end - high > body else None)


def _cut_bars(
    ends: tuple[float, float],
    cuts: tuple[float | None, float | None],
    bins: int,
    spikes: Mapping[float, float],
    spreads: Sequence[_Spread],
    whole: bool,
) -> list[Bar]:
    """A bar for each tail, and bars of equal width for what lies between. A value at a cut lies between."""
    unit = 1.0 if whole else 0.0
    low, high = (end if cut is None else cut for end, cut in zip(ends, cuts, strict=True))
    between = {point: rows for point, rows in spikes.items() if low <= point <= high}
    body = [spread for spread in spreads if spread[0] >= low and spread[1] <= high]
    first = low + unit if whole and cuts[0] is not None and low not in between else low  # spreads begin above a cut
    shown = _linear_bars(first, high, bins - sum(cut is not None for cut in cuts), between, body, whole)
    if cuts[0] is not None:
        shown.insert(0, Bar(ends[0], first - unit, _rows_below(low, spikes, spreads), is_tail=True))
    if cuts[1] is not None:
        shown.append(Bar(high + unit, ends[1], _rows_above(high, spikes, spreads), is_tail=True))
    return shown


def _rows_below(cut: float, spikes: Mapping[float, float], spreads: Sequence[_Spread]) -> float:
    single = sum(rows for point, rows in spikes.items() if point < cut)
    return single + sum(rows for _, upper, rows, _ in spreads if upper <= cut)


def _rows_above(cut: float, spikes: Mapping[float, float], spreads: Sequence[_Spread]) -> float:
    single = sum(rows for point, rows in spikes.items() if point > cut)
    return single + sum(rows for lower, _, rows, _ in spreads if lower >= cut)


def _ranges(buckets: Sequence[Row], logical_type: str) -> list[tuple[float, float]]:
    """The bounds of buckets as points of the number line; empty if one of them has none."""
    ranges: list[tuple[float, float]] = []
    last, high = None, None
    for row in buckets:
        low = high if row["lower"] == last else position(row["lower"], logical_type)  # a bucket begins where one ends
        last, high = row["upper"], position(row["upper"], logical_type)
        if low is None or high is None:
            return []
        ranges.append((low, high))
    return ranges


def _value_bars(spikes: Mapping[float, float]) -> list[Bar]:
    """A bar for each value."""
    return [Bar(point, point, rows, True) for point, rows in sorted(spikes.items())]


def _unit_bars(
    start: float, end: float, bins: int, spikes: Mapping[float, float], spreads: Sequence[_Spread]
) -> list[Bar]:
    """Bars of a type whose values lie one unit apart, each of whole units."""
    units = end - start + 1
    if units > _UNITS * bins:
        if not spreads and len(spikes) <= bins:
            return _value_bars(spikes)
        points = {point + 0.5: rows for point, rows in spikes.items()}  # a value covers the unit that starts at it
        shifted = [(low if holds else low + 1, high + 1, rows, holds) for low, high, rows, holds in spreads]
        equal = _equal_bars(start, end + 1, bins, points, shifted)
        return [Bar(math.ceil(bar.low), min(math.ceil(bar.high) - 1, end), bar.rows) for bar in equal]
    width = math.ceil(units / bins)
    count = math.ceil(units / width)
    spans = [(start + place * width, min(start + (place + 1) * width - 1, end)) for place in range(count)]
    return _whole_bars(spans, width, spikes, spreads)


def infinite(buckets: Iterable[Row]) -> float | None:
    """The number of infinite values, estimated; None if there are none."""
    counts = [row["row_count"] or 0.0 for row in buckets if row["upper"] in _INFINITE and row["lower"] == row["upper"]]
    return sum(counts) if counts else None


def _frequent(common: Iterable[Row], logical_type: str) -> dict[float, float]:
    """Position of a frequent value → number of rows surely at it."""
    counts: dict[float, float] = {}
    for row in common:
        point = position(row["value"], logical_type)
        sure = row.get("count_lower")
        sure = row["count"] if sure is None else sure
        if point is not None and sure:
            counts[point] = float(sure)
    return counts


_Spread = tuple[float, float, float, bool]  # low, high, rows, True if rows may lie at low


def _masses(
    ranges: Sequence[tuple[float, float]], depths: Sequence[float], ndv: float | None, frequent: Mapping[float, float]
) -> tuple[dict[float, float], list[_Spread]]:
    """Splits a histogram into rows at single values and rows spread between two values."""
    share = sum(depths) / SKETCHED_BUCKETS
    points = {ranges[0][0], *(high for _, high in ranges)}
    discrete = ndv is not None and 0 < ndv <= len(points)
    spikes: dict[float, float] = {}
    spreads: list[_Spread] = []

    def spike(point: float, rows: float) -> None:
        if rows > 0:
            spikes[point] = spikes.get(point, 0.0) + rows

    for place, ((low, high), depth) in enumerate(zip(ranges, depths, strict=True)):
        if low == high:
            spike(high, depth)
            continue
        rest = depth
        if discrete:
            if place == 0:  # the only bucket that includes its lower bound
                at_low = min(frequent.get(low, 1.0), depth / 2)
                spike(low, at_low)
                rest -= at_low
            spike(high, rest)
            continue
        inside = _frequent_within(frequent, low, high, place == 0) if frequent else {}
        if depth > DEEP * share:
            inside[high] = max(inside.get(high, 0.0), depth - share)
        for point, rows in sorted(inside.items(), key=lambda item: -item[1]):
            taken = min(rows, rest)
            spike(point, taken)
            rest -= taken
        if rest > 0:
            spreads.append((low, high, rest, place == 0))
    return spikes, spreads


def _frequent_within(frequent: Mapping[float, float], low: float, high: float, holds_low: bool) -> dict[float, float]:
    """The frequent values of a bucket."""
    return {point: rows for point, rows in frequent.items() if low < point <= high or (holds_low and point == low)}


def _whole_bars(
    spans: Sequence[tuple[float, float]], width: int, spikes: Mapping[float, float], spreads: Iterable[_Spread]
) -> list[Bar]:
    """Bars over values one unit apart; a spread excludes its lower bound, except the first."""
    start, heights = spans[0][0], [0.0] * len(spans)
    for point, rows in spikes.items():
        heights[min(int((point - start) // width), len(spans) - 1)] += rows
    for low, high, rows, holds_low in spreads:
        least = low if holds_low else low + 1
        units = high - least + 1
        first, last = (min(int((edge - start) // width), len(spans) - 1) for edge in (least, high))
        for place in range(first, last + 1):
            inside = min(high, spans[place][1]) - max(least, spans[place][0]) + 1
            heights[place] += rows * inside / units
    return [Bar(low, high, rows, low == high) for (low, high), rows in zip(spans, heights, strict=True)]


def _equal_bars(
    start: float, end: float, bins: int, spikes: Mapping[float, float], spreads: Iterable[_Spread]
) -> list[Bar]:
    heights = [0.0] * bins
    step = (end - start) / bins
    if step <= 0:
        return [Bar(start, end, sum(spikes.values()) + sum(rows for _, _, rows, _ in spreads), True)]

    def place_of(point: float) -> int:
        return min(max(int((point - start) / step), 0), bins - 1)

    for point, rows in spikes.items():
        heights[place_of(point)] += rows
    for low, high, rows, _ in spreads:
        first, last = place_of(low), place_of(high)
        rest = rows
        for place in range(first, last):  # the last bar gets what is left, so that rounding loses no row
            inside = start + (place + 1) * step - max(low, start + place * step)
            part = min(max(rows * (inside / (high - low)), 0.0), rest)
            heights[place] += part
            rest -= part
        heights[last] += rest
    return [Bar(start + place * step, start + (place + 1) * step, rows) for place, rows in enumerate(heights)]


def sparkline(heights: Sequence[float | None]) -> str:
    """Block characters scaled from zero to the greatest value; nonzero values are always visible."""
    top = max((height for height in heights if height is not None), default=0.0)
    if top <= 0:
        return ""
    return "".join(
        "·" if height is None else BLOCKS[math.ceil(max(height, 0.0) / top * (len(BLOCKS) - 1))] for height in heights
    )
