"""Labels of tables at which the next look is overdue."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.core.app import App
from store.catalog.deadlines import Deadlines
from store.model.targets import Target
from tests.flight_server.serving import app_in, put, read, rows

CURRENT, STORED, STALE_TOO = {"snapshot": "current"}, {}, {"snapshot": "current", "allow_stale": True}
OVERDUE = "sometimes"


@pytest.fixture
def app() -> Iterator[App]:
    with app_in() as app:
        for name in (OVERDUE, "never"):
            put(app, rows(name, 1, range(1, 4)))
        app.catalog.deadlines.set_intervals({app.catalog.get(f"lake.s.{OVERDUE}").table_key: 60.0})
        yield app


def labels(app: App, fields: dict, **more: object) -> dict[str, set[tuple[str, str]]]:
    """Table → freshness and usability of its rows."""
    columns = ["table_name", "freshness", "usable_for"]
    found = read(app, json.dumps({"table": "stats.columns", "columns": columns, **fields, **more}).encode())
    told: dict[str, set[tuple[str, str]]] = {}
    for row in found.to_pylist():
        told.setdefault(row["table_name"], set()).add((row["freshness"], row["usable_for"]))
    return told


@pytest.mark.parametrize("where", [None, OVERDUE], ids=["all tables", "one"])
@pytest.mark.parametrize("fields", [STORED, CURRENT, STALE_TOO], ids=["stored", "current", "stale too"])
def test_nothing_is_exact_once_a_look_is_overdue(app, fields, where):
    names = {} if where is None else {"table_catalog": "lake", "table_schema": "s", "table_name": where}
    predicates = [{"column": name, "op": "EQ", "values": [text]} for name, text in names.items()]
    for _ in range(3):  # from the database, then from a cache
        assert labels(app, fields, predicates=predicates)[OVERDUE] == {("INHERITED", "PLANNING")}
    if where is None:
        assert {label for label, _ in labels(app, fields)["never"]} == {"EXACT"}


def test_a_look_makes_it_exact_again_at_once(app):
    key = app.catalog.get(f"lake.s.{OVERDUE}").table_key
    assert labels(app, STORED)[OVERDUE] == {("INHERITED", "PLANNING")}
    app.catalog.deadlines.load([(key, 1e12, 60.0)])
    assert {label for label, _ in labels(app, STORED)[OVERDUE]} == {"EXACT"}


def test_no_record_of_an_overdue_table_answers_resolve(app):
    table = app.catalog.get(f"lake.s.{OVERDUE}")
    wanted = [(table.table_key, 1, Target.column(1))]
    assert app.records.find(wanted) == [None]
    app.catalog.deadlines.load([(table.table_key, 1e12, 60.0)])
    assert app.records.find(wanted)[0] is not None
    app.catalog.deadlines.load([(table.table_key, 0.0, 60.0)])
    assert app.records.find(wanted) == [None]


def test_deadlines_follow_looks_once_they_are_committed():
    now = itertools.count(1000)
    deadlines = Deadlines(lambda: float(next(now)))
    deadlines.load([(1, 990.0, 5.0), (2, 990.0, None), (3, None, 5.0)])
    assert deadlines.over() == {1, 3} and not deadlines.is_over(2)
    deadlines.check([1, 3], datetime.fromtimestamp(1e6, UTC))
    assert deadlines.is_over(1)
    deadlines.publish()
    assert deadlines.over() == frozenset() and not deadlines.is_over(3)
    assert deadlines.differing({1: 5.0, 2: 7.0, 3: None}) == {2: 7.0, 3: None}
    assert deadlines.unlimited([1, 2, 3]) == [2]


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("time"), st.integers(0, 20), st.none()),
        st.tuples(st.just("look"), st.integers(1, 4), st.integers(-15, 0)),
        st.tuples(st.just("interval"), st.integers(1, 4), st.sampled_from([None, 3.0, 10.0])),
    ),
    max_size=30,
)


@given(CHANGES)
def test_what_is_over_is_what_each_table_says(changes):
    clock = [1000.0]
    deadlines = Deadlines(lambda: clock[0])
    deadlines.load((key, 990.0, 12.0) for key in (1, 2, 3))
    for kind, number, value in changes:
        if kind == "time":
            clock[0] += number
        elif kind == "look":
            deadlines.check([number], datetime.fromtimestamp(clock[0] + value, UTC))
            deadlines.publish()
        else:
            deadlines.set_intervals({number: value})
        assert deadlines.over() == {key for key in range(1, 5) if deadlines.is_over(key)}
