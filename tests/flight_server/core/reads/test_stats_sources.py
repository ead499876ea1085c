"""Freshness: the row chosen for a snapshot, its label and its uses; from DuckDB and from memory."""

from __future__ import annotations

from contextlib import contextmanager

import pyarrow as pa
import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.scope import ReadScope
from flight_server.core.reads.slice_cache import SliceCache
from flight_server.core.wire import tickets
from flight_server.core.wire.scan_request import ScanRequest
from store.model.freshness import STALE
from store.model.schemas import FLIGHTS
from tests.flight_server.serving import app_in, command, put, read, rows

FRESHNESS_COLUMNS = ("column_id", "snapshot_id", "freshness")


@contextmanager
def histories(cache_bytes):
    """An app whose tables have columns captured at some of four snapshots, under two schemas."""
    with app_in(fill=fill) as app:
        app.scanner.rows.slices = SliceCache(cache_bytes)
        yield app


def fill(app):
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
        put(app, [row for part in here for row in part])
    put(app, rows("unknown", 1, [1], schema_hash=None))
    put(app, rows("unknown", 2, [2], schema_hash=None))


@pytest.fixture(scope="module", params=[0, 64 << 20], ids=["from DuckDB", "from memory"])
def app(request):
    with histories(request.param) as app:
        yield app


@pytest.fixture(scope="module", params=[0, 64 << 20], ids=["from DuckDB", "from memory"])
def isolated_app(request):
    """An app to which no other test adds tables: its tests read every table, many times."""
    with histories(request.param) as app:
        put(app, rows("whole", 1, [1, 2], schema_hash="h") + rows("whole", 2, [1, 2], schema_hash="h"))
        yield app


def test_float_column_with_unknown_nan_count_is_not_for_pruning(app):
    kinds = {
        1: {"logical_type": "DOUBLE", "nan_count": None},
        2: {"logical_type": "DOUBLE", "nan_count": 0},
        3: {"logical_type": "INT", "nan_count": None},
    }
    given = [rows("nans", 1, [column], completeness="COMPLETE", **kind)[0] for column, kind in kinds.items()]
    put(app, given)
    for more in ({}, {"snapshot": "current"}, {"snapshot": 1}, {"snapshot": "current"}):
        found = read(app, command("nans", columns=["usable_for"], **more))
        assert found["usable_for"].to_pylist() == ["PLANNING", "PRUNING", "PRUNING"], more


def freshness_by_row(app, table="t", **more):
    found = None
    for _ in range(3):  # repeated reads come from memory
        read_now = read(app, command(table, **more)).select(FRESHNESS_COLUMNS).to_pylist()
        assert found in (None, read_now)
        found = read_now
    return {(row["column_id"], row["snapshot_id"]): row["freshness"] for row in found}


SAME_SCHEMA_AT_3 = {
    (1, 1): "INHERITED",
    (2, 2): "INHERITED",  # the newest
    (4, 3): "EXACT",
    (6, 1): "INHERITED",  # not the newer one, under another schema
    (7, 1): "INHERITED",  # without a hash of its own, under that of its snapshot
}


def test_older_rows_are_inherited_only_under_the_same_schema(app):
    assert freshness_by_row(app, snapshot=3) == SAME_SCHEMA_AT_3


def test_allow_stale_adds_rows_of_another_schema(app):
    assert freshness_by_row(app, snapshot=3, allow_stale=True) == SAME_SCHEMA_AT_3 | {(3, 1): "STALE"}


def test_rows_of_newer_snapshots_are_never_returned(app):
    assert freshness_by_row(app, snapshot=1) == {(c, 1): "EXACT" for c in (1, 2, 3, 4, 6, 7)}
    assert (5, 4) not in freshness_by_row(app, snapshot=3, allow_stale=True)
    assert freshness_by_row(app, snapshot="current")[5, 4] == "EXACT"


def test_stored_rows_are_exact_at_the_current_snapshot_only(app):
    stored = freshness_by_row(app)
    assert stored.pop((5, 4)) == "EXACT"
    assert len(stored) == 9 and set(stored.values()) == {"STALE"}


def test_unknown_schema_hash_is_never_the_same_schema(app):
    assert freshness_by_row(app, "unknown", snapshot=2) == {(2, 2): "EXACT"}
    assert freshness_by_row(app, "unknown", snapshot=2, allow_stale=True) == {(1, 1): "STALE", (2, 2): "EXACT"}


def test_files_are_inherited_until_the_snapshot_has_its_own(app):
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "f", "schema_hash": "h"}
    for snapshot, paths in ((1, ("a", "b")), (3, ("b",))):
        put(app, [key | {"snapshot_id": snapshot, "file_path": path} for path in paths], "stats.files")
    put(app, [key | {"snapshot_id": 2, "row_count": 1}], "stats.tables")

    def files(**more):
        found = read(app, command("f", "stats.files", **more)).to_pylist()
        return {row["file_path"]: row["freshness"] for row in found}

    assert files(snapshot=2) == {"a": "INHERITED", "b": "INHERITED"}
    assert files(snapshot=3) == {"b": "EXACT"}


USES = [
    ({"completeness": "COMPLETE"}, {"snapshot": 1}, "PRUNING"),
    ({"completeness": "COMPLETE", "row_groups_sampled": 0}, {"snapshot": 1}, "PRUNING"),
    ({"completeness": "COMPLETE", "row_groups_sampled": 3}, {"snapshot": 1}, "PLANNING"),
    ({"completeness": "PARTIAL"}, {"snapshot": 1}, "PLANNING"),
    ({"completeness": "UNAVAILABLE"}, {"snapshot": 1}, "PLANNING"),
    ({"completeness": None}, {"snapshot": 1}, "PLANNING"),
    ({"completeness": "COMPLETE"}, {"snapshot": 2}, "PLANNING"),  # inherited
    ({"completeness": "COMPLETE"}, {}, "PLANNING"),  # stale
    # an inexact bound is wider than the values, so pruning stays correct
    ({"completeness": "COMPLETE", "min_is_exact": False, "max_is_exact": False}, {"snapshot": 1}, "PRUNING"),
]


def test_only_exact_and_complete_rows_are_for_pruning(app):
    every = dict.fromkeys(name for more, _, _ in USES for name in more)
    given = [rows(f"use{at}", 1, [1], schema_hash="h", **every | more) for at, (more, _, _) in enumerate(USES)]
    put(app, [row for part in given for row in part])
    put(app, [row for at in range(len(USES)) for row in rows(f"use{at}", 2, [2], schema_hash="h")])
    for at, (more, selection, expected) in enumerate(USES):
        (row,) = (row for row in read(app, command(f"use{at}", **selection)).to_pylist() if row["column_id"] == 1)
        assert row["usable_for"] == expected, (more, selection)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("snapshot", [1, 3, "current"])
def test_scan_of_all_tables_equals_the_scans_of_each_table(isolated_app, snapshot, stale):
    """Tables with records of all targets, of some, or of newer snapshots; a pin excludes later puts."""
    selection = {
        "snapshot": snapshot,
        "allow_stale": stale,
        "columns": ["table_name", *FRESHNESS_COLUMNS, "usable_for"],
    }
    catalog = isolated_app.catalog
    names = [
        table.table_name
        for table in catalog.tables()
        if snapshot in ("current", *(known.snapshot_id for known in catalog.snapshots(table)))
    ]
    alone = [row for name in names for row in read(isolated_app, command(name, **selection)).to_pylist()]
    pinned = isolated_app.scanner.pin(tickets.of_ticket(command(**selection)), ANONYMOUS)
    for found in (
        read(isolated_app, command(**selection)),
        read(isolated_app, command(**selection)),
        isolated_app.scanner.table(pinned, ANONYMOUS),
    ):
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, alone))
    snapshot_pin = isolated_app.scanner.pin(
        tickets.of_ticket(
            command(snapshot="current", **{key: value for key, value in selection.items() if key != "snapshot"})
        ),
        ANONYMOUS,
    )
    before = sorted(map(str, isolated_app.scanner.table(snapshot_pin, ANONYMOUS).to_pylist()))
    late = isolated_app.catalog.find(("lake", "s", "late"))
    put(isolated_app, rows("late", 9 + (0 if late is None else late.current_snapshot_id), [1]))
    after = sorted(map(str, isolated_app.scanner.table(snapshot_pin, ANONYMOUS).to_pylist()))
    assert set(after) - set(before) == set(before) - set(after) == set() and after == before


@pytest.mark.parametrize("flight", ["stats.columns", "stats.tables"])
def test_current_and_ranked_rows_equal_the_ranking_of_all(app, flight):
    put(app, rows("mixed", 1, [1, 2, 3], schema_hash="g", completeness="COMPLETE"))
    put(app, rows("mixed", 2, [1, 2], schema_hash="h", ndv=None))  # their distributions are STALE
    put(app, rows("mixed", 3, [2, 4], schema_hash="h"))
    key = {"table_catalog": "lake", "table_schema": "s", "schema_hash": "g", "row_count": 5}
    put(app, [key | {"table_name": name, "snapshot_id": 1} for name in ("mixed", "t", "unknown")], "stats.tables")
    put(app, [key | {"table_name": "t", "snapshot_id": 4}], "stats.tables")

    def found(**scope):
        with app.database.reading() as cursor:
            given = ReadScope(allow_stale=True, **scope)
            batches = app.scanner.queries.start(cursor, ScanRequest(FLIGHTS[flight]), given)
            return sorted(map(str, pa.Table.from_batches(batches, FLIGHTS[flight].schema).to_pylist()))

    for keys in (None, [app.catalog.get("lake.s.mixed").table_key]):
        at_current = found(keys=keys, current=True)
        assert at_current == found(keys=keys, pins=app.catalog.entries.committed.current)
        assert STALE in str(at_current)
