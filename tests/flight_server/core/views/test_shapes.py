"""Charts against the data they are drawn from, through the sketches of the histograms."""

from __future__ import annotations

import itertools
from datetime import date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.core.reads.computed import BUCKETS, _buckets
from flight_server.core.views import shapes
from flight_server.faces.present import charts
from store.model.sketches import kll


def bucket(low, high, rows):
    return {"lower": low, "upper": high, "row_count": rows}


def bars_of(values, kind, bins, ndv=None, common=(), **how):
    """Bars of a column with these numbers (days, microseconds), from its sketch."""
    ordered = np.sort(np.asarray(values, np.float64))
    about = {"logical_type": kind, "row_count": len(ordered), "null_count": 0, "nan_count": None}
    rows = _buckets({"data": kll(ordered), **about})
    return shapes.bars(rows, kind, bins, ndv, common, **how)


def test_sketched_buckets_match_the_histogram_flight():
    assert shapes.SKETCHED_BUCKETS == BUCKETS


@pytest.mark.parametrize("bins", [10, 40])
@pytest.mark.parametrize("ndv", [6.0, None])
def test_six_days_of_equal_size_are_six_equal_bars(bins, ndv):
    first = (date(2026, 3, 1) - date(1970, 1, 1)).days
    found = bars_of(np.repeat(np.arange(first, first + 6), 60_000), "DATE", bins, ndv)
    assert [shapes.text_at(bar.low, "DATE") for bar in found] == [f"2026-03-0{day}" for day in range(1, 7)]
    assert [bar.rows for bar in found] == pytest.approx([60_000] * 6, rel=0.02)
    if ndv is not None:
        assert shapes.sparkline([bar.rows for bar in found]) == "██████"


def test_days_without_rows_are_gaps():
    first = (date(2026, 3, 1) - date(1970, 1, 1)).days
    found = bars_of([first] * 500 + [first + 1] * 500 + [first + 6] * 1000, "DATE", 10, 3.0)
    assert shapes.sparkline([round(bar.rows, -2) for bar in found]) == "▄▄    █"


def test_rows_at_one_instant_are_a_spike_not_a_plateau():
    instant = datetime(2026, 3, 31) - datetime(1970, 1, 1)
    last = instant // timedelta(microseconds=1)
    values = [last - 30 * 86_400_000_000, *[last] * 1000]
    for ndv, common in ((2.0, ()), (None, [{"value": "2026-03-31T00:00:00", "count": 1000, "count_lower": 1000}])):
        found = bars_of(values, "TIMESTAMP", 10, ndv, common)
        assert found[-1].rows == pytest.approx(1000, abs=2)
        assert sum(bar.rows for bar in found[:-1]) == pytest.approx(1, abs=2)
    without_hints = bars_of(values, "TIMESTAMP", 10)  # at most one bucket of rows lies before it
    assert without_hints[-1].rows >= 1001 * (1 - 1 / BUCKETS) - 1


def test_frequent_value_among_many_stands_out():
    random = np.random.default_rng(3)
    values = np.concatenate([random.uniform(0, 100, 50_000), np.full(50_000, 42.0)])
    found = bars_of(values, "DOUBLE", 20)
    tallest = max(found, key=lambda bar: bar.rows)
    assert tallest.low <= 42 <= tallest.high and tallest.rows == pytest.approx(52_500, rel=0.05)
    others = [bar.rows for bar in found if bar is not tallest]
    assert max(others) < 6_000


def test_few_distinct_instants_have_a_bar_each():
    day = 86_400_000_000
    found = bars_of(np.repeat(np.array([0, 1, 5]) * day, 100), "TIMESTAMP", 10, 3.0)
    assert [(shapes.text_at(bar.low, "TIMESTAMP"), bar.is_value) for bar in found] == [
        ("1970-01-01", True),
        ("1970-01-02", True),
        ("1970-01-06", True),
    ]


@pytest.mark.parametrize(("low", "high", "bins"), [(1, 265, 10), (0, 12, 10), (-5, 4, 10), (0, 999, 40)])
def test_integer_bars_cover_whole_units(low, high, bins):
    values = np.repeat(np.arange(low, high + 1), 50)
    found = bars_of(values, "INT", bins)
    widths = [bar.high - bar.low + 1 for bar in found]
    is_narrow = high - low < 8 * bins
    assert len(found) <= bins and max(widths[:-1]) - min(widths[:-1]) <= (0 if is_narrow else 1)
    assert is_narrow or widths[-1] >= min(widths) - 1  # the last bar is not cut short
    for bar, width in zip(found, widths, strict=True):  # uniform data: equal density in every bin
        assert bar.rows == pytest.approx(50 * width, rel=0.35)


def test_booleans_have_two_bars():
    found = bars_of([0.0] * 30 + [1.0] * 70, "BOOLEAN", 10, 2.0)
    assert [(shapes.text_at(bar.low, "BOOLEAN"), round(bar.rows, -1)) for bar in found] == [("false", 30), ("true", 70)]


def test_shape_shows_density_not_depth():
    edges = [*range(17), *range(26, 170, 9)]  # half of the rows below 16, half above
    found = shapes.bars([bucket(str(a), str(b), 10.0) for a, b in itertools.pairwise(edges)], "DOUBLE", 10)
    assert found[0].rows > 5 * found[5].rows
    assert sum(bar.rows for bar in found) == pytest.approx(320)


def test_shape_of_one_value_is_one_bar():
    assert [bar.rows for bar in shapes.bars([bucket("7", "7", 9.0)], "INT", 4)] == [9.0]
    assert [bar.rows for bar in shapes.bars([bucket("0.5", "0.5", 9.0)], "DOUBLE", 4)] == [9.0]


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("DATE", "2026-01-01", "2026-12-31"),
        ("TIMESTAMP", "2026-01-01T00:00:00", "2026-01-01T00:00:01.5"),
        ("TIMESTAMPTZ", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("TIME", "00:00:00", "23:59:59.999999"),
        ("DECIMAL(10,2)", "-1.5", "2"),
        ("DOUBLE", "-1.0E7", "4.9E-324"),
        ("BOOLEAN", "false", "true"),
        ("INT", "-9223372036854775808", "9223372036854775807"),
    ],
)
def test_ordered_types_have_a_shape(kind, low, high):
    found = shapes.bars([bucket(low, high, 8.0)], kind, 4)
    assert sum(bar.rows for bar in found) == pytest.approx(8)
    assert shapes.text_at(found[0].low, kind) and shapes.text_at(found[-1].high, kind)


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("STRING", "a", "b"), ("DOUBLE", "0", "Infinity"), ("INT", "x", "1")]
)
def test_values_without_a_number_line_have_no_shape(kind, low, high):
    assert shapes.bars([bucket(low, high, 8.0)], kind, 4) == []


@given(
    st.lists(st.tuples(st.floats(-1e300, 1e300), st.floats(0, 1e9)), min_size=2, max_size=20),
    st.sampled_from(["DOUBLE", "INT"]),
    st.one_of(st.none(), st.floats(1, 30)),
)
def test_shape_preserves_the_row_count(points, kind, ndv):
    edges = sorted(round(point) if kind == "INT" else point for point, _ in points)
    buckets = [bucket(repr(a), repr(b), rows) for a, b, (_, rows) in zip(edges, edges[1:], points, strict=False)]
    found = shapes.bars(buckets, kind, 8, ndv)
    assert sum(bar.rows for bar in found) == pytest.approx(sum(row["row_count"] for row in buckets), rel=1e-6, abs=1e-6)
    assert all(bar.rows >= 0 for bar in found)


def test_sparkline_shows_the_smallest_bar_and_unknowns():
    assert shapes.sparkline([0.0, 0.001, 0.5, 1.0]) == " ▁▄█"
    assert shapes.sparkline([1.0, None, 2.0]) == "▄·█"
    assert shapes.sparkline([]) == shapes.sparkline([0.0]) == ""


def test_chart_escapes_its_labels():
    drawn = charts.line([("<b>", 1.0), ("\x1b[1m", None), ("c", 3.0)], '"><script>')
    assert "<b>" not in drawn and "<script>" not in drawn and "\x1b" not in drawn
    assert drawn.count("<circle") == 2 and drawn.count("M") >= 2


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1234, "1,234"), (12_345, "12.34k"), (62.2, "62.2"), (2.5e6, "2.5M"), (3e13, "30T")],
)
def test_label_of_an_axis(number, text):
    assert charts.axis(number) == text


# Long tails.

DAY = 86_400_000_000  # microseconds


@pytest.mark.parametrize(("kind", "unit"), [("DOUBLE", 1), ("INT", 1), ("DATE", 1), ("TIMESTAMP", DAY)])
@pytest.mark.parametrize(
    ("outliers", "tails"), [([], (0, 0)), ([90_000], (0, 1)), ([-90_000], (1, 0)), ([-90_000, 90_000], (1, 1))]
)
def test_outliers_are_in_two_end_bars(kind, unit, outliers, tails):
    """Without a cut all rows but these would be in one bar."""
    values = np.concatenate([np.repeat(np.arange(10_000, 12_000), 20), np.array(outliers, np.int64)]) * unit
    found = bars_of(values, kind, 30, 2002.0, cut_tails=True)
    body = [bar for bar in found if not bar.is_tail]
    assert (found[0].is_tail, found[-1].is_tail) == tuple(map(bool, tails)) and len(found) - len(body) == sum(tails)
    assert sum(bar.rows for bar in found) == pytest.approx(len(values))
    assert max(bar.rows for bar in body) < len(values) / 10 and min(bar.rows for bar in body) > 0
    assert all(bar.rows <= len(values) / BUCKETS * 1.1 for bar in found if bar.is_tail)
    assert (found[0].low, found[-1].high) == (
        shapes.position(shapes_text(values.min(), kind), kind),
        shapes.position(shapes_text(values.max(), kind), kind),
    )
    steps = [after.low - before.high for before, after in itertools.pairwise(found)]
    assert steps == pytest.approx([1.0 if kind in ("INT", "DATE") else 0.0] * len(steps), abs=1e-3)
    if outliers:
        linear = bars_of(values, kind, 30, 2002.0)
        assert max(bar.rows for bar in linear) > len(values) / 3 and not any(bar.is_tail for bar in linear)


def shapes_text(value, kind):
    if kind == "DATE":
        return (date(1970, 1, 1) + timedelta(days=int(value))).isoformat()
    if kind == "TIMESTAMP":
        return (datetime(1970, 1, 1) + timedelta(microseconds=int(value))).isoformat()
    return str(value)


def test_bulk_at_a_cut_is_between_the_tails():
    """Half of the rows at the value at which the first bucket ends."""
    values = np.concatenate([[-1e9], np.zeros(5_000), np.linspace(0, 100, 5_000)])
    found = bars_of(
        values, "DOUBLE", 20, 5_000.0, [{"value": "0.0", "count": 5_001, "count_lower": 5_001}], cut_tails=True
    )
    assert found[0].is_tail and found[0].rows < 400 and found[1].rows > 4_500
    assert sum(bar.rows for bar in found) == pytest.approx(len(values))


@pytest.mark.parametrize(
    "draw", [lambda random: random.normal(0, 1, 50_000), lambda random: random.uniform(0, 1, 50_000)]
)
def test_usual_distributions_have_no_long_tails(draw):
    found = bars_of(draw(np.random.default_rng(5)), "DOUBLE", 30, 50_000.0, cut_tails=True)
    assert len(found) == 30 and not any(bar.is_tail for bar in found)


@given(
    st.lists(st.integers(-(10**6), 10**6) | st.integers(0, 50), min_size=1, max_size=300),
    st.sampled_from(["INT", "DOUBLE"]),
    st.integers(3, 40),
)
def test_cut_bars_have_all_rows_in_order(values, kind, bins):
    found = bars_of(values, kind, bins, float(len(set(values))), cut_tails=True)
    assert sum(bar.rows for bar in found) == pytest.approx(len(values)) and len(found) <= bins
    assert all(bar.low <= bar.high for bar in found)
    assert all(before.high <= after.low for before, after in itertools.pairwise(found))
    assert not any(bar.is_tail for bar in found[1:-1])


def test_chart_marks_the_tails_and_names_both_of_their_ends():
    tails = [shapes.Bar(-900.0, -1.0, 2.0, is_tail=True), shapes.Bar(10.0, 9000.0, 3.0, is_tail=True)]
    drawn = charts.histogram([tails[0], *(shapes.Bar(i, i + 1, 50.0) for i in range(-1, 10)), tails[1]], "INT", "x")
    assert drawn.count('class="bar tail"') == drawn.count('class="cut"') == 2
    assert "-900 … -1<" in drawn and "10 … 9,000<" in drawn
    plain = charts.histogram([shapes.Bar(i, i + 1, 50.0) for i in range(10)], "INT", "x")
    assert "tail" not in plain and "cut" not in plain
