"""Intervals within a budget: never more requests than it allows, never sooner than the shortest."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.core.control.intervals import DAY_SECONDS, intervals

WEIGHTS = st.lists(st.sampled_from([1.0, 2.0, 4.0]), max_size=30)
COSTS = st.floats(0.5, 20.0)


@given(WEIGHTS, COSTS, COSTS, st.floats(1.0, 3600.0), st.integers(1, 1_000_000))
def test_looks_stay_within_the_budget(weights, cost, listing, shortest, budget):
    found = intervals(weights, cost, listing, shortest, budget)
    assert all(seconds >= shortest for seconds in found)
    of_listing = max(found, default=max(shortest, listing * DAY_SECONDS / budget))
    if 1.0 not in weights and weights:  # the listing waits as long as a table of the weight 1
        of_listing = max(shortest, max(found) * max(weights))
    spent = sum(cost / seconds for seconds in found) + listing / of_listing
    assert spent * DAY_SECONDS <= budget * (1 + 1e-6)


@given(WEIGHTS, COSTS, COSTS, st.floats(1.0, 3600.0), st.integers(1, 1_000_000))
def test_a_greater_weight_is_never_looked_at_later(weights, cost, listing, shortest, budget):
    found = intervals(weights, cost, listing, shortest, budget)
    pairs = sorted(zip(weights, found, strict=True))
    assert all(a[1] >= b[1] - 1e-9 for a, b in pairwise(pairs))


def test_a_budget_that_suffices_changes_nothing():
    assert intervals([1.0, 4.0], 1.0, 1.0, 60.0, 3 * 1440) == [60.0, 60.0]
    assert intervals([1.0, 4.0], 1.0, 1.0, 60.0, None) == [60.0, 60.0]


def test_a_budget_is_spread_by_weight():
    (used, other) = intervals([4.0, 1.0], 1.0, 1.0, 60.0, 60)
    assert used == pytest.approx(other / 4) and (1 / used + 2 / other) * DAY_SECONDS == pytest.approx(60)
