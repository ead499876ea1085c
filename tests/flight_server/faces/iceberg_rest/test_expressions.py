"""Conditions of Iceberg's filters: what they keep, and what they must not exclude."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time

import pytest
from pyiceberg import expressions as ice
from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest

from flight_server.faces.iceberg_rest.expressions import columns_of, condition
from store.model.errors import InvalidArgument
from store.model.logical_types import parse
from store.model.predicates.plain_conditions import Column
from store.model.predicates.tree import And, Leaf, Not, Op, Or

TYPES = {
    "id": "INT",
    "word": "STRING",
    "day": "DATE",
    "at": "TIMESTAMPTZ",
    "clock": "TIME",
    "bytes": "BINARY",
    "ratio": "DOUBLE",
    "local": "TIMESTAMP",
    "other": None,
}


def find(name: str) -> Column:
    if name not in TYPES:
        raise InvalidArgument(f"no column {name}")
    type = TYPES[name]
    return Column(1, name, None if type is None else parse(type))


def sent(expression: ice.BooleanExpression):
    """The condition of an expression as pyiceberg sends it."""
    body = PlanTableScanRequest(filter=expression).model_dump_json(by_alias=True, exclude_none=True)
    return condition(json.loads(body).get("filter"), find)


def leaf(name: str, op: str, *values) -> Leaf:
    return Leaf(name, Op(op), values)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (ice.EqualTo("id", 5), leaf("id", "EQ", 5)),
        (ice.In("id", {5}), leaf("id", "EQ", 5)),
        (
            ice.And(ice.LessThan("id", 5), ice.GreaterThanOrEqual("id", 1), ice.IsNull("word")),
            And((leaf("id", "LT", 5), leaf("id", "GTE", 1), leaf("word", "IS_NULL"))),
        ),
        (
            ice.Not(ice.Or(ice.LessThan("id", 5), ice.NotNull("word"))),
            And((Not(leaf("id", "LT", 5)), leaf("word", "IS_NULL"))),
        ),
        (ice.NotEqualTo("id", 5), Or((Not(leaf("id", "EQ", 5)), leaf("id", "IS_NULL")))),
        (ice.Not(ice.NotEqualTo("id", 5)), leaf("id", "EQ", 5)),
        (ice.StartsWith("word", "ab"), And((leaf("word", "GTE", "ab"), leaf("word", "LT", "ac")))),
        (ice.StartsWith("word", "a\U0010ffff"), And((leaf("word", "GTE", "a\U0010ffff"), leaf("word", "LT", "b")))),
        (ice.StartsWith("word", "\ud7ff"), And((leaf("word", "GTE", "\ud7ff"), leaf("word", "LT", "\ue000")))),
        (ice.EqualTo("day", date(2026, 1, 2)), leaf("day", "EQ", "2026-01-02")),
        (ice.EqualTo("at", datetime(2026, 1, 2, tzinfo=UTC)), leaf("at", "EQ", "2026-01-02T00:00:00Z")),
        (ice.EqualTo("clock", time(1, 2, 3)), leaf("clock", "EQ", "01:02:03.000000")),
        (ice.EqualTo("day", -719_162), leaf("day", "EQ", "0001-01-01")),
        (ice.EqualTo("day", date(53, 6, 19)), leaf("day", "EQ", "0053-06-19")),
        (ice.EqualTo("at", -62_135_596_799_999_999), leaf("at", "EQ", "0001-01-01T00:00:00.000001Z")),
        (ice.EqualTo("local", datetime(987, 1, 2)), leaf("local", "EQ", "0987-01-02T00:00:00")),
        (ice.AlwaysFalse(), False),
        (ice.Not(ice.AlwaysFalse()), True),
    ],
)
def test_conditions(expression, expected):
    assert sent(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        ice.IsNaN("ratio"),
        ice.NotNaN("ratio"),
        ice.EqualTo("bytes", b"a"),
        ice.EqualTo("other", 5),
        ice.EqualTo("ratio", float("inf")),
        ice.StartsWith("id", "5"),
    ],
    ids=str,
)
def test_what_is_undecided_keeps_every_file_also_when_negated(expression):
    assert sent(expression) is sent(ice.Not(expression)) is True
    assert sent(ice.And(expression, ice.EqualTo("id", 5))) == leaf("id", "EQ", 5)
    assert sent(ice.Or(expression, ice.EqualTo("id", 5))) is True
    assert sent(ice.Not(ice.And(expression, ice.EqualTo("id", 5)))) is True


@pytest.mark.parametrize(
    ("term", "value"),
    [
        ("day", 2_932_897),
        ("day", "+10000-01-01"),
        ("day", "-0001-12-31"),
        ("local", 1 << 62),
        ("clock", -1),
        ("clock", 86_400_000_000),
        ("local", "+10000-01-01T00:00:00"),
        ("at", "+10000-01-01T07:59:59.999999+00:00"),
    ],
)
def test_times_that_no_literal_has_keep_every_file(term, value):
    comparison = {"type": "lt", "term": term, "value": value}
    assert condition(comparison, find) is condition({"type": "not", "child": comparison}, find) is True


def test_too_many_values_are_undecided():
    many = ice.In("id", set(range(65_537)))
    assert sent(many) is sent(ice.Not(many)) is True


def test_a_transform_is_undecided_and_its_column_known():
    def bucket(column):
        return {"type": "eq", "term": {"type": "transform", "transform": "bucket[4]", "term": column}, "value": 1}

    assert condition(bucket("id"), find) is condition({"type": "not", "child": bucket("id")}, find) is True
    with pytest.raises(InvalidArgument, match="no column nosuch"):
        condition(bucket("nosuch"), find)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        [],
        "yes",
        {},
        {"type": "xor"},
        {"type": "and", "left": True},
        {"type": "eq", "term": "id"},
        {"type": "eq", "term": 5, "value": 5},
        {"type": "in", "term": "id", "values": 5},
        {"type": "is-null", "term": {}},
        {"type": "eq", "term": "nosuch", "value": 1},
        {"type": "is-nan", "term": "nosuch"},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_wrong_filters_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        condition(wrong, find)


def test_a_filter_nested_too_deeply_is_refused():
    filter: dict = {"type": "eq", "term": "id", "value": 1}
    for _ in range(5_000):
        filter = {"type": "not", "child": filter}
    with pytest.raises(InvalidArgument, match="too deeply"):
        condition(filter, find)


def test_a_filter_of_too_many_parts_keeps_every_file():
    filter: dict = {"type": "eq", "term": "id", "value": 0}
    level = [{"type": "eq", "term": "id", "value": i} for i in range(8192)]
    while len(level) > 1:
        level = [{"type": "or", "left": a, "right": b} for a, b in zip(level[::2], level[1::2], strict=True)]
    assert condition(level[0], find) is True and condition(filter, find) == leaf("id", "EQ", 0)


def test_names_in_a_filter():
    part = {"type": "not", "child": {"type": "eq", "term": {"type": "transform", "transform": "day", "term": "at"}}}
    assert columns_of({"type": "and", "left": part, "right": {"type": "is-null", "term": "id"}}) == {"at", "id"}
    assert columns_of(True) == columns_of({"term": 5}) == set()
