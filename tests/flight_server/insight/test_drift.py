"""The distance of sketched distributions compared with the exact distance."""

from __future__ import annotations

import numpy as np
import pytest

from flight_server.insight.drift import distance
from store.model.sketches import kll


def exact_distance(a, b):
    points = np.union1d(a, b)
    shares = (np.searchsorted(np.sort(values), points, "right") / len(values) for values in (a, b))
    return float(np.max(np.abs(next(shares) - next(shares))))


@pytest.mark.parametrize("size", [50, 512, 20_000])
@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0, 9.0])
def test_exact_distance_is_within_the_error(size, shift):
    random = np.random.default_rng(size)
    a, b = random.normal(0, 1, size), random.normal(shift, 1, size)
    gap, error, *_ = distance(kll(np.sort(a)), kll(np.sort(b)))
    assert abs(gap - exact_distance(a, b)) <= error + 1e-12
    assert error == 0 if size <= 512 else 0 < error < 0.01


def test_distance_of_a_sketch_to_itself_is_0():
    data = kll(np.arange(10_000.0))
    assert distance(data, data).value == 0


@pytest.mark.parametrize("extreme", [1.7e308, np.inf])
def test_values_at_the_limits_of_doubles_have_a_distance(extreme):
    edges = np.repeat([-extreme, extreme], 5)
    assert distance(kll(edges), kll(edges)).value == 0
    assert distance(kll(np.full(9, extreme)), kll(np.full(9, -extreme))).value == 1


def test_distance_of_two_single_values_is_1():
    found = distance(kll(np.zeros(9)), kll(np.ones(9)))
    assert (found.shares, found.error, found.tails) == (1.0, 0.0, 1.0)


def test_distance_to_an_empty_sketch_is_unknown():
    assert distance(kll(np.empty(0)), kll(np.ones(3))) is None


def noise(size, seed):
    return np.sort(np.random.default_rng(seed).normal(100, 10, size))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [400, 20_000])
def test_outliers_drift_though_few_rows_moved(sign, size):
    moved = noise(size, 1)
    moved[: int(0.093 * size)] = sign * 4600
    found = distance(kll(noise(size, 1)), kll(np.sort(moved)))
    assert found.shares < 0.1 and 0.18 < found.tails == found.value
    assert found.beyond == (pytest.approx(0, abs=0.004), pytest.approx(0.093, abs=0.004))


@pytest.mark.parametrize("sign", [1, -1])
def test_three_percent_of_the_rows_far_out_are_more_than_a_tenth(sign):
    moved = noise(10_000, 1)
    moved[:300] = sign * 4600
    found = distance(kll(noise(10_000, 2)), kll(np.sort(moved)))
    assert 0.1 < found.tails == found.value < 0.13


@pytest.mark.parametrize("make", ["normal", "lognormal", "standard_cauchy", "exponential"])
def test_tails_of_one_distribution_agree(make):
    for seed in range(20):
        one, other = (np.sort(getattr(np.random.default_rng(100 * i + seed), make)(size=20_000)) for i in (1, 2))
        assert distance(kll(one), kll(other)).value < 0.03


def test_growth_of_a_key_is_not_an_outlier():
    assert distance(kll(np.arange(10_000.0)), kll(np.arange(10_500.0))).tails == 0


def test_unseen_rows_may_all_be_outliers():
    data = kll(noise(1000, 1))
    assert distance(data, data).most(0.1) == pytest.approx((0.1 / 2 / 0.95) ** 0.5 * 1.0, rel=0.01)
    assert distance(data, data).most(0.0) < 0.01
