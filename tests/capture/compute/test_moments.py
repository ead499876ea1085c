"""Mean and standard deviation, of values and of parts, against the statistics module."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.compute.moments import merge, moments

VALUES = st.lists(st.floats(-1e9, 1e9) | st.integers(-(10**12), 10**12).map(float), max_size=40)


def expected(values: list[float]) -> tuple[object, object]:
    scale = max(map(abs, values), default=0.0)
    mean = pytest.approx(statistics.fmean(values), rel=1e-9, abs=max(1e-12 * scale, 1e-290)) if values else None
    deviation = (
        pytest.approx(statistics.stdev(values), rel=1e-6, abs=max(1e-9 * scale, 1e-140)) if len(values) > 1 else None
    )
    return mean, deviation


def moments_of(values: list[float]) -> tuple[float | None, float | None]:
    distinct, counts = np.unique(np.array(values, np.float64), return_counts=True)
    return moments(distinct, counts)


@given(VALUES)
def test_moments_of_values_agree_with_the_statistics_module(values):
    assert moments_of(values) == expected(values)


@given(st.lists(VALUES, max_size=6))
def test_merged_moments_agree_with_the_statistics_module(parts):
    whole = [value for part in parts for value in part]
    assert merge((len(part), *moments_of(part)) for part in parts) == expected(whole)


def test_standard_deviation_is_precise_far_from_zero():
    values = [1e15 + i % 10 for i in range(1000)]
    assert moments_of(values)[1] == pytest.approx(statistics.stdev(i % 10 for i in range(1000)), rel=1e-9)


def test_large_values_do_not_overflow():
    mean, deviation = moments_of([1e308, 1.2e308, -1e308])
    assert (mean, deviation) == (pytest.approx(4e307), pytest.approx(1.216552506059644e308))
    assert merge([(3, mean, deviation), (1, 1e308, None)])[0] == pytest.approx(5.5e307)


@pytest.mark.parametrize(("values", "mean"), [([math.inf, 1.0], math.inf), ([-math.inf, 1.0], -math.inf),
                                              ([math.inf, -math.inf], None)])  # fmt: skip
def test_mean_of_infinities_is_infinite_or_unknown(values, mean):
    assert moments_of(values) == (mean, None)
    assert merge([(1, value, None) for value in values]) == (mean, None)


def test_merge_with_unknown_moments_of_a_part_is_unknown():
    assert merge([(3, 1.0, 0.5), (2, None, None)]) == (None, None)
    assert merge([(3, 1.0, 0.5), (0, None, None)]) == (1.0, 0.5)
    assert merge([(3, 1.0, 0.5), (2, 1.0, None)]) == (1.0, None)
