"""Choice between this process and Spark, by measured cost."""

from __future__ import annotations

import pytest

from capture.engines.compute.cost import Cost
from capture.engines.compute.engine import ComputeEngine


def prefers_spark(cost, cells, *, is_warm=True):
    return cells > cost.threshold(is_warm=is_warm)


@pytest.fixture
def cost():
    return Cost(local_rate=10e6, spark_rate=40e6, spark_seconds=1.0, start_seconds=8.0)


@pytest.mark.parametrize(("cells", "warm", "cold"), [
    (0, False, False), (13_000_000, False, False), (14_000_000, True, False), (93_000_000, True, False),
    (94_000_000, True, True),
])  # fmt: skip
def test_cold_session_is_preferred_only_if_it_outweighs_its_start(cost, cells, warm, cold):
    assert (prefers_spark(cost, cells), prefers_spark(cost, cells, is_warm=False)) == (warm, cold)


def test_measurements_move_the_crossover(cost):
    assert not prefers_spark(cost, 12_000_000)
    for _ in range(20):
        cost.learn_local(10_000_000, 2.0)  # this process is busy
    assert cost.local_rate == pytest.approx(5e6, rel=0.01)
    assert prefers_spark(cost, 12_000_000)
    for _ in range(40):
        cost.learn_spark(10_000_000, 11.0)  # and so is Spark
    assert cost.spark_rate == pytest.approx(1e6, rel=0.01)
    assert not prefers_spark(cost, 12_000_000)


def test_measurements_of_fixed_costs_are_ignored(cost):
    before = (cost.local_rate, cost.spark_rate)
    cost.learn_local(10, 0.1)
    cost.learn_spark(10, 1.9)
    assert (cost.local_rate, cost.spark_rate) == before


def test_unmeasured_rate_changes_with_the_measured_one(cost):
    before = cost.spark_rate / cost.local_rate
    for _ in range(20):
        cost.learn_local(10_000_000, 10.0)  # the machine is busy with something else
    assert cost.local_rate == pytest.approx(1e6, rel=0.05)
    assert cost.spark_rate / cost.local_rate == pytest.approx(before)
    cost.learn_spark(40_000_000, 11.0)  # Spark's is idle
    after = cost.spark_rate
    cost.learn_local(10_000_000, 100.0)
    assert cost.spark_rate == after > 4 * cost.local_rate


def test_spark_of_an_equal_rate_is_never_preferred():
    cost = Cost(local_rate=60e6, spark_rate=60e6)
    assert not any(prefers_spark(cost, 10**12, is_warm=is_warm) for is_warm in (True, False))


def test_cluster_is_assumed_to_be_faster_than_this_machine():
    alone, cluster = ComputeEngine("local[*]").cost, ComputeEngine("spark://10.0.0.1:7077").cost
    assert not prefers_spark(alone, 10**9) or alone.spark_rate > alone.local_rate
    assert prefers_spark(cluster, 10**9, is_warm=False)
