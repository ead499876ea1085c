"""Estimates of what a condition leaves: certain limits of rows, columns of the kept files, and what is cached."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.planning.estimates import Estimator
from flight_server.planning.plan_request import condition_of
from store.model.errors import NotCaptured
from store.model.predicates import tree
from store.model.targets import Target
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "completeness": "COMPLETE"}
ID = {"column_id": 1, "column_name": "id", "logical_type": "INT"}
X = {"column_id": 2, "column_name": "x", "logical_type": "DOUBLE"}


def with_files(app):
    """File i has ids from 10 i to 10 i + 9 and two nulls beside them; x is from 0 to 1, with two nulls and a NaN."""
    files = [KEY | {"file_path": f"f{i}", "row_count": 12, "size_bytes": 100} for i in range(3)]
    put(app, [file | {"file_content": "DATA"} for file in files], "stats.files")
    rows = [file | ID | {"min": str(10 * i), "max": str(10 * i + 9), "nan_count": None} for i, file in enumerate(files)]
    rows += [file | X | {"min": "0.0", "max": "1.0", "nan_count": 1} for file in files]
    counted = [{name: row[name] for name in row if name != "size_bytes"} | {"null_count": 2} for row in rows]
    put(app, counted, "stats.file_columns")


@pytest.fixture
def app():
    with app_in(fill=with_files) as app:
        yield app


def estimate(app, where: str | None = None, columns: list[str] | None = None) -> dict[str, Any]:
    node: tree.Node | None = condition_of(where)
    found = app.parts["planning"].estimator.estimate(app.catalog.get("lake.s.t"), node, columns, "current").body
    assert json.loads(json.dumps(found)) == found
    return found


def limits(app, where: str | None = None) -> tuple[int, int]:
    count = estimate(app, where)["row_count"]
    assert count["low"] <= count["estimate"] <= count["high"]
    return count["low"], count["high"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, (36, 36)),
        ("id IS NULL", (6, 6)),
        ("id IS NOT NULL", (30, 30)),
        ("id >= 0", (30, 30)),  # as many as there are values
        ("id >= 10 AND id < 20", (10, 10)),
        ("NOT (id < 10)", (20, 20)),
        ("id = 15", (0, 10)),
        ("id > 100", (0, 0)),
        ("id < 10 OR id IS NULL", (14, 16)),
        ("x <= 1", (27, 27)),  # a NaN is not below a number to any reader
        ("x >= 0", (27, 30)),  # to some it is above
        ("NOT (x > 2)", (27, 30)),  # to some it compares with nothing
    ],
)
def test_limits_of_rows_are_certain(app, where, expected):
    assert limits(app, where) == expected


def test_nulls_are_those_of_the_kept_files(app):
    found = estimate(app, "id = 15")
    assert (found["files"], found["files_all"], found["bytes_to_read"]) == (1, 3, 100)
    assert found["columns"]["x"] == {"null_count": {"estimate": 2, "low": 2, "high": 2}, "ndv": None}
    assert set(estimate(app, "id = 15", ["ID"])["columns"]) == {"id"}
    assert estimate(app, "id > 100")["columns"]["id"]["ndv"] == {"estimate": 0, "low": 0, "high": 0}


def test_a_commit_changes_the_next_estimate(app):
    assert limits(app, "id = 15") == (0, 10)
    more = KEY | {"file_path": "later", "file_content": "DATA", "row_count": 5, "size_bytes": 100}
    put(app, [more], "stats.files")
    assert limits(app, "id = 15") == (0, 15)
    nulls = estimate(app, "id = 15")["columns"]["id"]["null_count"]
    assert (nulls["low"], nulls["high"]) == (2, 7)


def test_a_file_whose_rows_are_not_known_takes_the_limit_away(app):
    put(app, [KEY | {"file_path": "uncounted", "file_content": "DATA"}], "stats.files")
    count = estimate(app)["row_count"]
    assert (count["low"], count["high"]) == (36, None)
    assert estimate(app)["bytes_to_read"] is None


def test_without_files_there_is_no_estimate():
    def with_rows(app):
        put(app, [KEY | {"row_count": 5}], "stats.tables")

    with app_in(fill=with_rows) as app, pytest.raises(NotCaptured):
        estimate(app)


# What is cached.

FILES = st.integers(0, 4).map(lambda at: f"f{at}")
CONDITIONS = (
    None,
    "id = 15",
    "id < 12 OR x > 0.5",
    "NOT (id IN (3, 14) AND x IS NOT NULL)",
    f"id IN ({', '.join(map(str, range(5, 40, 2)))})",
    "x <= 0.5",
)


@st.composite
def of_a_file(draw):
    """Rows of a file and of its columns, of which some is not known."""
    path, rows = draw(FILES), draw(st.none() | st.integers(0, 12))
    file = KEY | {"file_path": path, "row_count": rows, "size_bytes": draw(st.none() | st.just(100))}
    low = draw(st.integers(0, 40))
    counts = {"null_count": draw(st.none() | st.integers(0, rows or 0)), "nan_count": None}
    of_id = KEY | ID | {"file_path": path, "row_count": rows} | counts | {"min": str(low), "max": str(low + 9)}
    of_x = (
        KEY | X | {"file_path": path, "row_count": rows} | counts | {"min": "0.0", "max": draw(st.sampled_from("0 1"))}
    )
    return file | {"file_content": "DATA"}, [of_id, of_x | {"max": "1.0", "nan_count": draw(st.none() | st.just(0))}]


CHANGES = st.one_of(of_a_file(), FILES.map(Target.file), st.just("replace"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5)
@given(changes=st.lists(st.tuples(CHANGES, st.sampled_from(CONDITIONS)), min_size=1, max_size=5))
def test_what_is_cached_is_what_is_stored(app, changes):
    """After every put and delete, estimates equal those that read everything anew, and have the files of a scan."""
    part, table = app.parts["planning"], app.catalog.get("lake.s.t")
    for change, where in changes:
        if isinstance(change, Target):
            app.store.delete(table, 1, change)
        elif change == "replace":
            put(
                app,
                [KEY | {"file_path": "f0", "file_content": "DATA", "row_count": 12}],
                "stats.files",
                "replace_snapshot",
            )
        else:
            put(app, [change[0]], "stats.files")
            put(app, change[1], "stats.file_columns")
        node = condition_of(where)
        found = part.estimator.estimate(table, node, None, "current").body
        assert found == Estimator(part.planner).estimate(table, node, None, "current").body
        assert found["files"] == part.planner.plan(table, node, None, "current").files.num_rows
