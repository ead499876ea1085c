"""The distance of sketched distributions compared with the exact distance."""

from __future__ import annotations

import numpy as np
import pytest

from flight_server.checks.drift import distance
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
    gap, error = distance(kll(np.sort(a)), kll(np.sort(b)))
    assert abs(gap - exact_distance(a, b)) <= error + 1e-12
    assert error == 0 if size <= 512 else 0 < error < 0.01


def test_distance_of_a_sketch_to_itself_is_0():
    data = kll(np.arange(10_000.0))
    assert distance(data, data)[0] == 0


def test_distance_of_two_single_values_is_1():
    assert distance(kll(np.zeros(9)), kll(np.ones(9))) == (1.0, 0.0)


def test_distance_to_an_empty_sketch_is_unknown():
    assert distance(kll(np.empty(0)), kll(np.ones(3))) is None
