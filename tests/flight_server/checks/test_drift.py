"""The distance of distributions against the exact one."""

from __future__ import annotations

import numpy as np
import pytest

from flight_server.checks.drift import distance
from store.sketches import kll


def exact(a, b):
    points = np.union1d(a, b)
    shares = (np.searchsorted(np.sort(values), points, "right") / len(values) for values in (a, b))
    return float(np.max(np.abs(next(shares) - next(shares))))


@pytest.mark.parametrize("size", [50, 512, 20_000])
@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0, 9.0])
def test_the_error_encloses_the_exact_distance(size, shift):
    random = np.random.default_rng(size)
    a, b = random.normal(0, 1, size), random.normal(shift, 1, size)
    gap, error = distance(kll(np.sort(a)), kll(np.sort(b)))
    assert abs(gap - exact(a, b)) <= error + 1e-12
    assert error == 0 if size <= 512 else 0 < error < 0.01


def test_the_same_sketch_has_no_distance():
    data = kll(np.arange(10_000.0))
    assert distance(data, data)[0] == 0


def test_one_value_against_another_is_the_whole_way():
    assert distance(kll(np.zeros(9)), kll(np.ones(9))) == (1.0, 0.0)


def test_nothing_has_no_distance():
    assert distance(kll(np.empty(0)), kll(np.ones(3))) is None
