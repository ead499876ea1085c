"""Sizes at joins and unestimated filters, read from a plan's text; needs no JVM."""

from __future__ import annotations

import pytest

from capture.spark.plans import Operator, Plan


def plan(*operators: tuple[int, str, str, int]) -> Plan:
    return Plan(tuple(Operator(depth, kind, text, None, size) for depth, kind, text, size in operators), (), "")


def test_join_inputs_are_the_sizes_at_the_nearest_join():
    found = plan(
        (0, "Aggregate", "Aggregate [c]", 1),
        (1, "Join", "Join Inner", 900),
        (2, "Project", "Project [a]", 20),
        (3, "LogicalRelation", "Scan t", 700),
        (2, "Join", "Join LeftAnti", 800),
        (3, "LogicalRelation", "Scan u", 50),
        (3, "Filter", "Filter (b = 1)", 30),
        (4, "LogicalRelation", "Scan t", 600),
    ).join_inputs
    assert found == {("Scan t", "Project [a]"): 20, ("Scan u",): 50, ("Scan t", "Filter (b = 1)"): 30}
    assert plan((0, "Filter", "Filter (b = 1)", 30), (1, "LogicalRelation", "Scan t", 600)).join_inputs == {}


@pytest.mark.parametrize(
    ("condition", "estimated"),
    [
        ("(isnotnull(a) AND (a < 3))", True),
        ("((a IN (1,2) OR NOT (b = x)) AND isnotnull(min(c)))", True),
        ("(isnotnull(a) AND isnotnull(b…", True),
        ("(isnotnull(a) AND Contains(a, green))", False),
        ("(substring(a, 1, 2) IN (13,31))", False),
        ("(isnotnull(a) AND a LIKE %x%y)", False),
        ("(a > scalar-subquery [])", False),
        ("(cast(a as int) = 3)", False),
    ],
)
def test_filters_on_calculated_values_are_not_estimated(condition, estimated):
    text = f"Filter {condition}"
    assert plan((0, "Filter", text, 1), (1, "Filter", text, 1)).unestimated_filters == ([] if estimated else [text])
