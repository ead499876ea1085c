"""The parts of the `spark` home that need no JVM: bins, size estimates, locations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from capture.publishers.spark_catalog import estimated_bytes
from capture.publishers.spark_histograms import BINS, bins
from capture.publishers.spi import ColumnStatistics
from capture.spark.session_catalog import plain_location
from store.model import sketches


def column(values: np.ndarray, type: str = "INT", **changed: object) -> ColumnStatistics:
    ordered = np.sort(values).astype(np.float64)
    given = {
        "row_count": len(values),
        "null_count": 0,
        "ndv": float(len(np.unique(values))),
        "min": str(values.min()),
        "max": str(values.max()),
        "quantiles": sketches.kll(ordered),
    } | changed
    return ColumnStatistics(1, "x", type, **given)


def test_bins_span_the_bounds_and_share_the_rows():
    found = bins(column(np.arange(100) ** 2), discrete=True)
    assert len(found) == 100 and (found[0].low, found[-1].high) == (0.0, 9801.0)
    assert all(one.high == other.low for one, other in pairwise(found))
    assert len(bins(column(np.arange(10_000) ** 2), discrete=True)) == BINS


def test_a_frequent_value_has_bins_of_its_own():
    found = bins(column(np.array([5] * 990 + list(range(10, 20)))), discrete=True)
    assert sum(item.low == item.high == 5.0 for item in found) > 0.95 * len(found)
    assert found[-1].high == 19.0 and all(item.ndv >= 1 for item in found)


@pytest.mark.parametrize(
    "values",
    [np.arange(10_000), np.arange(10_000) * 4 + 1, np.arange(5000) % 50, np.array([3] * 100), np.arange(2)],
    ids=["key", "sparse key", "fifty values", "one value", "two rows"],
)
def test_evenly_spread_values_have_no_histogram(values):
    """Spark estimates a join of two columns with histograms without the filters before it."""
    assert bins(column(values), discrete=True) == []


def test_edges_outside_of_the_bounds_are_clipped():
    """Spark fails to plan a query when a histogram does not span just the bounds of its column."""
    found = bins(column(np.arange(100) ** 2 // 100, min="10", max="50"), discrete=True)
    assert found[0].low == 10.0 and found[-1].high == 50.0
    assert all(10.0 <= item.low <= item.high <= 50.0 for item in found)


@pytest.mark.parametrize(
    "changed",
    [
        {"min": None},
        {"max": None},
        {"quantiles": None},
        {"ndv": None},
        {"ndv": 0.0},
        {"type": "DOUBLE", "max": "Infinity"},
        {"type": "DOUBLE", "min": "NaN"},
        {"type": "STRING"},
    ],
    ids=str,
)
def test_unknown_or_infinite_values_and_texts_have_no_histogram(changed):
    assert bins(column(np.arange(100) ** 2, **changed), discrete=False) == []


@pytest.mark.parametrize(
    ("type", "low", "high", "expected"),
    [
        ("DATE", "1969-12-31", "1970-01-03", (-1.0, 2.0)),
        ("TIMESTAMPTZ", "1970-01-01T00:00:01Z", "1970-01-01T00:00:02.500Z", (1e6, 2.5e6)),
        ("DECIMAL(10,2)", "-1.5", "2.25", (-1.5, 2.25)),
        ("DATE", "0000-01-01", "1970-01-01", None),
    ],
)
def test_bounds_are_converted_to_doubles_as_in_spark(type, low, high, expected):
    found = bins(column(np.arange(100) ** 2, type, min=low, max=high), discrete=False)
    assert (found and (found[0].low, found[-1].high)) == (expected or [])


def test_size_estimate_equals_that_of_spark():
    wide = ColumnStatistics(1, "a", "INT", avg_width_bytes=8.0), ColumnStatistics(2, "b", "STRING", avg_width_bytes=2.5)
    assert estimated_bytes(10, wide) == 10 * (8 + 8 + 3 + 12)
    assert estimated_bytes(None, wide) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [("/lake/t", "file:/lake/t/"), ("file:///lake/a%20b", "/lake/a b"), ("s3a://b/t", "s3://b/t/")],
)
def test_spellings_of_one_location_are_equal(one, other):
    assert plain_location(one) == plain_location(other)
