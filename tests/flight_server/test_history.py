"""Deleting statistics: `expire`, dry first, and `delete_stats`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flight_server.actions import ACTIONS, Call
from flight_server.auth.principal import ALL_SCOPES, Principal
from store.errors import NotFound
from tests.flight_server.serving import app_in, command, put, read, rows

NAME = "lake.s.t"


@pytest.fixture
def app(tmp_path):
    """An Iceberg table that once had the snapshots 1 to 4 and still has 3 and 4; columns of each, files of 1 and 3."""
    with app_in(tmp_path) as made:
        found = {
            "schema": "s", "name": "t", "table_id": "id", "location": "x", "schema_hash": "h",
            "schemas": {"h": [["c1", "INT", True, 1], ["c2", "INT", True, 2]]}, "current_snapshot_id": 4,
            "snapshots": [{"snapshot_id": s, "ordinal": s, "parent_snapshot_id": None, "sequence_number": s,
                           "committed_at": None, "operation": None, "schema_hash": "h"} for s in (1, 2, 3, 4)],
        }  # fmt: skip
        for live in ([1, 2, 3, 4], [3, 4]):
            told = found | {"live_snapshot_ids": live}
            made.database.write(
                lambda connection, told=told: made.catalog.discovery.store(connection, "lake", "iceberg", told, ())
            )
        for snapshot in (1, 2, 3, 4):
            put(made, rows("t", snapshot, [1, 2]))
        key = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
        for snapshot, paths in ((1, "ab"), (3, "bc")):
            put(made, [key | {"snapshot_id": snapshot, "file_path": path} for path in paths], "stats.files")
        yield made


def act(app, name: str, **body: Any) -> list[Any]:
    call = Call(app, Principal("admin", ALL_SCOPES), "", lambda: False)
    return list(ACTIONS[name].run(call, json.dumps(body).encode()))


def left(app, flight: str = "stats.columns", target: str = "column_id") -> set[tuple[int, Any]]:
    # answers are remembered by command, and this process has an app for each test
    found = read(app, command("t", flight, query_id=str(app.settings.db.parent))).to_pylist()
    return {(row["snapshot_id"], row[target]) for row in found}


def test_expire_tells_first_and_deletes_when_told_to(app):
    before = left(app)
    for body in ({}, {"table": NAME}, {"table": NAME, "dry_run": True}):
        assert act(app, "expire", **body) == [{"table": NAME, "snapshots": [1, 2], "dry_run": True}]
    assert left(app) == before and len(before) == 8
    assert act(app, "expire", dry_run=False) == [{"table": NAME, "snapshots": [1, 2], "dry_run": False}]
    assert left(app) == {(s, c) for s in (3, 4) for c in (1, 2)}
    assert left(app, "stats.files", "file_path") == {(3, "b"), (3, "c")}
    assert act(app, "expire", dry_run=False) == [{"table": NAME, "snapshots": [], "dry_run": False}]


def test_expire_leaves_tables_of_puts_alone(app):
    put(app, rows("external", 1, [1]))
    put(app, rows("external", 2, [1]))
    assert act(app, "expire", table="lake.s.external") == [
        {"table": "lake.s.external", "snapshots": [], "dry_run": True}
    ]


def test_delete_stats_of_a_target_of_a_snapshot_and_of_all(app):
    column = {"kind": "COLUMN", "column_id": 1}
    assert act(app, "delete_stats", table=NAME, snapshot=2, target=column) == [{"deleted": 1}]
    assert (2, 1) not in left(app) and len(left(app)) == 7
    assert act(app, "delete_stats", table=NAME, target=column) == [{"deleted": 3}]
    assert {c for _, c in left(app)} == {2}
    assert act(app, "delete_stats", table=NAME, snapshot="current") == [{"deleted": 1}]
    file = {"kind": "FILE", "file_path": "b"}
    assert act(app, "delete_stats", table=NAME, snapshot=3, target=file) == [{"deleted": 1}]
    assert left(app, "stats.files", "file_path") == {(1, "a"), (1, "b"), (3, "c")}
    assert act(app, "delete_stats", table=NAME) == [{"deleted": 6}]
    assert left(app) == set() == left(app, "stats.files", "file_path")
    assert act(app, "delete_stats", table=NAME) == [{"deleted": 0}]


def test_delete_stats_of_what_is_not_there(app):
    with pytest.raises(NotFound, match="no snapshot 77"):
        act(app, "delete_stats", table=NAME, snapshot=77)
    with pytest.raises(NotFound, match="no table"):
        act(app, "delete_stats", table="lake.s.none")
