"""Freshness: the row that answers for a snapshot, its label and its uses; from DuckDB and from memory."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from flight_server.auth.principal import ANONYMOUS
from flight_server.reads.slice_cache import SliceCache
from flight_server.wire import tickets
from tests.flight_server.serving import app_in, command, put, read, rows

TOLD = ("column_id", "snapshot_id", "freshness")


@contextmanager
def histories(directory, cache_bytes):
    """An app whose tables have columns captured at some of four snapshots, under two schemas."""
    with app_in(directory) as made:
        made.scanner.slices = SliceCache(cache_bytes)
        captured = {  # column → snapshot → schema hash it was captured under
            1: {1: "h"},
            2: {1: "h", 2: "h"},
            3: {1: "g"},
            4: {3: "h", 1: "h"},
            5: {4: "h"},
            6: {1: "h", 2: "g"},
            7: {1: None},
        }
        for snapshot in (1, 2, 3, 4):
            here = [
                rows("t", snapshot, [column], schema_hash=captured[column][snapshot], completeness="COMPLETE")
                for column in captured
                if snapshot in captured[column]
            ]
            put(made, [row for part in here for row in part])
        put(made, rows("unknown", 1, [1], schema_hash=None))
        put(made, rows("unknown", 2, [2], schema_hash=None))
        yield made


@pytest.fixture(scope="module", params=[0, 64 << 20], ids=["out of DuckDB", "out of memory"])
def app(tmp_path_factory, request):
    with histories(tmp_path_factory.mktemp("fresh"), request.param) as made:
        yield made


@pytest.fixture(scope="module", params=[0, 64 << 20], ids=["out of DuckDB", "out of memory"])
def few(tmp_path_factory, request):
    """An app to which no other test adds tables: all of them are read, one by one, many times."""
    with histories(tmp_path_factory.mktemp("few"), request.param) as made:
        put(made, rows("whole", 1, [1, 2], schema_hash="h") + rows("whole", 2, [1, 2], schema_hash="h"))
        yield made


def test_a_float_whose_nans_are_unknown_prunes_nothing(app):
    kinds = {1: {"logical_type": "DOUBLE", "nan_count": None}, 2: {"logical_type": "DOUBLE", "nan_count": 0},
             3: {"logical_type": "INT", "nan_count": None}}  # fmt: skip
    given = [rows("nans", 1, [column], completeness="COMPLETE", **kind)[0] for column, kind in kinds.items()]
    put(app, given)
    for more in ({}, {"snapshot": "current"}, {"snapshot": 1}, {"snapshot": "current"}):
        found = read(app, command("nans", columns=["usable_for"], **more))
        assert found["usable_for"].to_pylist() == ["PLANNING", "PRUNING", "PRUNING"], more


def told(app, table="t", **more):
    found = None
    for _ in range(3):  # what is asked again comes out of memory
        read_now = read(app, command(table, **more)).select(TOLD).to_pylist()
        assert found in (None, read_now)
        found = read_now
    return {(row["column_id"], row["snapshot_id"]): row["freshness"] for row in found}


OF_THE_SAME_SCHEMA = {
    (1, 1): "INHERITED",
    (2, 2): "INHERITED",  # the newest
    (4, 3): "EXACT",
    (6, 1): "INHERITED",  # not the newer one, which is of another schema
    (7, 1): "INHERITED",  # of its snapshot's schema, having none of its own
}


def test_older_rows_answer_only_under_the_same_schema(app):
    assert told(app, snapshot=3) == OF_THE_SAME_SCHEMA


def test_stale_rows_answer_where_they_are_allowed(app):
    assert told(app, snapshot=3, allow_stale=True) == OF_THE_SAME_SCHEMA | {(3, 1): "STALE"}


def test_newer_rows_never_answer(app):
    assert told(app, snapshot=1) == {(c, 1): "EXACT" for c in (1, 2, 3, 4, 6, 7)}
    assert (5, 4) not in told(app, snapshot=3, allow_stale=True)
    assert told(app, snapshot="current")[5, 4] == "EXACT"


def test_stored_rows_are_exact_at_the_current_snapshot_alone(app):
    stored = told(app)
    assert stored.pop((5, 4)) == "EXACT"
    assert len(stored) == 9 and set(stored.values()) == {"STALE"}


def test_an_unknown_schema_is_not_the_same_schema(app):
    assert told(app, "unknown", snapshot=2) == {(2, 2): "EXACT"}
    assert told(app, "unknown", snapshot=2, allow_stale=True) == {(1, 1): "STALE", (2, 2): "EXACT"}


def test_files_are_not_inherited_once_those_of_the_snapshot_are_known(app):
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "f", "schema_hash": "h"}
    for snapshot, paths in ((1, ("a", "b")), (3, ("b",))):
        put(app, [key | {"snapshot_id": snapshot, "file_path": path} for path in paths], "stats.files")
    put(app, [key | {"snapshot_id": 2, "row_count": 1}], "stats.tables")

    def files(**more):
        found = read(app, command("f", "stats.files", **more)).to_pylist()
        return {row["file_path"]: row["freshness"] for row in found}

    assert files(snapshot=2) == {"a": "INHERITED", "b": "INHERITED"}
    assert files(snapshot=3) == {"b": "EXACT"}


@pytest.mark.parametrize(
    ("more", "asked", "expected"),
    [
        ({"completeness": "COMPLETE"}, {"snapshot": 1}, "PRUNING"),
        ({"completeness": "COMPLETE", "row_groups_sampled": 0}, {"snapshot": 1}, "PRUNING"),
        ({"completeness": "COMPLETE", "row_groups_sampled": 3}, {"snapshot": 1}, "PLANNING"),
        ({"completeness": "PARTIAL"}, {"snapshot": 1}, "PLANNING"),
        ({"completeness": "UNAVAILABLE"}, {"snapshot": 1}, "PLANNING"),
        ({"completeness": None}, {"snapshot": 1}, "PLANNING"),
        ({"completeness": "COMPLETE"}, {"snapshot": 2}, "PLANNING"),  # inherited
        ({"completeness": "COMPLETE"}, {}, "PLANNING"),  # stale
        # a bound that is not exact is outside of the values: files are still left out rightly
        ({"completeness": "COMPLETE", "min_is_exact": False, "max_is_exact": False}, {"snapshot": 1}, "PRUNING"),
    ],
)
def test_only_exact_and_complete_rows_are_for_pruning(app, more, asked, expected):
    name = f"u{len(app.catalog.tables())}"
    put(app, rows(name, 1, [1], schema_hash="h", **more))
    put(app, rows(name, 2, [2], schema_hash="h"))
    (row,) = (row for row in read(app, command(name, **asked)).to_pylist() if row["column_id"] == 1)
    assert row["usable_for"] == expected


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("snapshot", [1, 2, 3, 4, "current"])
def test_all_tables_at_a_snapshot_are_each_as_read_alone(few, snapshot, stale):
    """Tables with records of every target, of some, of snapshots newer than the current one; pinned or not."""
    asked = {"snapshot": snapshot, "allow_stale": stale, "columns": ["table_name", *TOLD, "usable_for"]}
    names = [table.table_name for table in few.catalog.tables()]
    alone = [row for name in names for row in read(few, command(name, **asked)).to_pylist()]
    pinned = few.scanner.pin(tickets.of_ticket(command(**asked)), ANONYMOUS)
    for found in (read(few, command(**asked)), read(few, command(**asked)),
                  few.scanner.table(pinned, ANONYMOUS)):  # fmt: skip
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, alone))
    held = few.scanner.pin(tickets.of_ticket(command(snapshot="current", **{
        key: value for key, value in asked.items() if key != "snapshot"})), ANONYMOUS)  # fmt: skip
    before = sorted(map(str, few.scanner.table(held, ANONYMOUS).to_pylist()))
    late = few.catalog.find(("lake", "s", "late"))
    put(few, rows("late", 9 + (0 if late is None else late.current_snapshot_id), [1]))
    after = sorted(map(str, few.scanner.table(held, ANONYMOUS).to_pylist()))
    assert set(after) - set(before) == set(before) - set(after) == set() and after == before
