"""Differences that the error of an estimate may be all of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flight_server.faces.present.comparison import changes


def change(statistic: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    sides = [
        SimpleNamespace(table=None, rows=[{"column_id": 1, "column_name": "a", **row}], schemas={"s"})
        for row in (old, new)
    ]
    return next(one.certain for one in changes(*sides) if one.statistic == statistic)


def ndv(value, low=None, high=None, **more):
    exact = {"ndv_exact": low is None and high is None and not more}
    return {"ndv": value, "ndv_lower": low, "ndv_upper": high} | exact | more


@pytest.mark.parametrize(
    ("old", "new", "certain"),
    [
        (ndv(10.0), ndv(11.0), True),
        (ndv(100.0, 95.0, 105.0), ndv(104.0, 99.0, 109.0), False),
        (ndv(100.0, 95.0, 105.0), ndv(105.0), False),
        (ndv(100.0, 95.0, 105.0), ndv(120.0, 110.0, 130.0), True),
        (ndv(5.0, row_count=10, null_count=2), ndv(9.0), True),
        (ndv(5.0, row_count=10, null_count=0), ndv(9.0), False),
        (ndv(None), ndv(9.0), True),
    ],
)
def test_distinct_values(old, new, certain):
    assert change("ndv", old, new) is certain and change("ndv", new, old) is certain


@pytest.mark.parametrize(
    ("statistic", "old", "new", "certain"),
    [
        ("min", ("3", True), ("4", True), True),
        ("min", ("3", False), ("4", False), False),
        ("min", ("3", True), ("4", False), True),  # no value is below 4 now, and 3 was one
        ("min", ("3", False), ("4", True), False),
        ("max", ("5", True), ("4", False), True),
        ("max", ("5", False), ("4", True), False),
        ("max", ("abd", False), ("abc", True), False),
    ],
)
def test_bounds(statistic, old, new, certain):
    rows = [{statistic: value, f"{statistic}_is_exact": exact} for value, exact in (old, new)]
    assert change(statistic, *rows) is certain


def test_a_sample_is_not_certain():
    assert change("null_count", {"null_count": 3, "row_groups_sampled": 2}, {"null_count": 4}) is False
    assert change("null_count", {"null_count": 3}, {"null_count": 4}) is True
