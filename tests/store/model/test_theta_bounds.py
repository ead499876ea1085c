"""The numbers of distinct values that agree with a theta sketch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.model.sketches import Theta, theta, theta_bounds, write_theta
from tests.datasketches_package import datasketches


@given(st.integers(0, 2**63 - 1), st.integers(1, 100_000))
def test_true_number_is_within_five_deviations(seed, count):
    random = np.random.default_rng(seed)
    hashes = random.integers(1, 2**63, count, np.uint64)
    low, high = theta_bounds(theta(hashes, 1024), 5)
    assert low <= len(np.unique(hashes)) <= high


def test_bounds_are_those_of_the_library_at_its_deviations():
    data = theta(np.random.default_rng(3).integers(1, 2**63, 200_000, np.uint64))
    sketch = datasketches.compact_theta_sketch.deserialize(data)
    for deviations in (1, 2, 3):
        expected = sketch.get_lower_bound(deviations), sketch.get_upper_bound(deviations)
        assert theta_bounds(data, deviations) == pytest.approx(expected, rel=1e-3)


def test_exact_sketch_has_no_interval_and_an_empty_one_an_upper_end():
    assert theta_bounds(theta(np.arange(1, 10, dtype=np.uint64)), 5) == (9, 9)
    low, high = theta_bounds(write_theta(Theta(2**62, np.empty(0, np.uint64))), 5)
    assert low == 0 and 0 < high < 100
