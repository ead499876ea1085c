"""Mean and standard deviation, of values and of parts, against the statistics module."""

from __future__ import annotations

import math
import statistics
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.compute import kernels
from capture.compute.kernels import summarise
from capture.compute.moments import merge, moments
from store.model.logical_types import parse

VALUES = st.lists(st.floats(-1e9, 1e9) | st.integers(-(10**12), 10**12).map(float), max_size=40)


def expected(values: list[float]) -> tuple[object, object]:
    scale = max(map(abs, values), default=0.0)
    mean = pytest.approx(statistics.fmean(values), rel=1e-9, abs=max(1e-12 * scale, 5e-324)) if values else None
    deviation = (
        pytest.approx(statistics.stdev(values), rel=1e-6, abs=max(1e-9 * scale, 5e-324)) if len(values) > 1 else None
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


@pytest.mark.parametrize("unit", [1e-100, 1e-170, 1e-300, 1e-320])
def test_squares_of_small_values_do_not_underflow(unit):
    first, second = np.arange(1, 501) * unit, np.arange(501, 1001) * unit
    exact = statistics.stdev(map(Fraction, [*first.tolist(), *second.tolist()]))
    one, other = (moments(values, np.ones(500, np.int64)) for values in (first, second))
    whole = moments(np.concatenate([first, second]), np.ones(1000, np.int64))
    for _, stddev in (whole, merge([(500, *one), (500, *other)])):
        assert stddev == pytest.approx(exact, rel=1e-12, abs=5e-324)


def test_large_values_do_not_overflow():
    mean, deviation = moments_of([1e308, 1.2e308, -1e308])
    assert (mean, deviation) == (pytest.approx(4e307), pytest.approx(1.216552506059644e308))
    assert merge([(3, mean, deviation), (1, 1e308, None)])[0] == pytest.approx(5.5e307)


@pytest.mark.parametrize(
    ("values", "mean"), [([math.inf, 1.0], math.inf), ([-math.inf, 1.0], -math.inf), ([math.inf, -math.inf], None)]
)
def test_mean_of_infinities_is_infinite_or_unknown(values, mean):
    assert moments_of(values) == (mean, None)
    assert merge([(1, value, None) for value in values]) == (mean, None)


def test_merge_with_unknown_moments_of_a_part_is_unknown():
    assert merge([(3, 1.0, 0.5), (2, None, None)]) == (None, None)
    assert merge([(3, 1.0, 0.5), (0, None, None)]) == (1.0, 0.5)
    assert merge([(3, 1.0, 0.5), (2, 1.0, None)]) == (1.0, None)


def table_moments(values: list[int | Decimal], type_: pa.DataType, lt: str, times: int = 1) -> tuple[object, object]:
    partial = summarise(pa.chunked_array([pa.array(values, type_)]), parse(lt), times=times)
    return partial.mean, partial.stddev


@pytest.mark.parametrize(
    ("first", "type_", "lt"),
    [
        (2**62, pa.int64(), "BIGINT"),
        (-(2**63), pa.int64(), "BIGINT"),
        (2**53 + 1, pa.int64(), "BIGINT"),
        (10**17, pa.decimal128(18, 0), "DECIMAL(18,0)"),
        (10**37, pa.decimal128(38, 0), "DECIMAL(38,0)"),
        (10**50, pa.decimal256(60, 0), "DECIMAL(60,0)"),
        (2**192 - 500, pa.decimal256(60, 0), "DECIMAL(60,0)"),
        (-(10**37) - 500, pa.decimal128(38, 0), "DECIMAL(38,0)"),
        (2**64 - 500, pa.decimal128(38, 0), "DECIMAL(38,0)"),
    ],
)
def test_values_that_doubles_cannot_tell_apart_have_a_precise_deviation(first, type_, lt):
    of = int if lt == "BIGINT" else Decimal
    mean, deviation = table_moments([of(first + n) for n in range(1000)], type_, lt)
    assert deviation == pytest.approx(statistics.stdev(range(1000)), rel=1e-9)
    assert mean == pytest.approx(float(first + 500), rel=1e-15)
    assert table_moments([of(first)] * 9, type_, lt, times=2) == (float(first), 0.0)


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=2, max_size=20), st.integers(0, 38))
def test_moments_of_decimals_agree_with_the_statistics_module(values, scale):
    shown = [Decimal(value).scaleb(-scale, Context(prec=60)) for value in values]
    found = table_moments(shown, pa.decimal128(38, scale), f"DECIMAL(38,{scale})")
    assert found[1] == pytest.approx(float(statistics.stdev(map(Fraction, values)) / 10**scale), rel=1e-6)


def test_rounding_of_large_means_makes_the_merged_deviation_unknown():
    parts = [(500, 2.0**62, 144.5), (500, 2.0**62 + 1024, 144.5)]
    assert merge(parts) == (2.0**62 + 512, None)
    assert merge([(3, 2.0**62, 0.0), (4, 2.0**62, 0.0)]) == (2.0**62, None)
    assert merge([(3, 2.0**62, 0.0)]) == (2.0**62, 0.0)
    assert merge([(3, 2.0**62, 2.0**60), (4, 2.0**62, 2.0**60)])[1] is not None


@pytest.mark.parametrize(("values", "deviation"), [([2**62] * 2, 0.0), ([2**62, 2**62 + 1], None)])
def test_merged_deviation_of_one_large_value_is_zero(values, deviation):
    lt = parse("BIGINT")
    merged = kernels.merge([summarise(pa.chunked_array([pa.array([value])]), lt) for value in values], lt)
    assert (merged.mean, merged.stddev) == (2.0**62, deviation)
