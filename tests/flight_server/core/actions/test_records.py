"""Actions on stored records: `expire`, `delete_stats`, and `merge_sketches`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from flight_server.core.actions import ACTIONS, Call
from flight_server.core.auth.principal import ALL_SCOPES, ANONYMOUS, Principal
from flight_server.core.wire.scan_request import of_command
from flight_server.core.wire.tickets import of_ticket, to_ticket
from store.catalog.discovery import Discovery
from store.model import sketches
from store.model.columns import KLL, THETA
from store.model.errors import InvalidArgument, NotFound
from store.model.sketches import murmur3
from store.model.targets import Target
from tests.flight_server.serving import app_in, command, put, read, rows

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}


def with_table(app):
    put(app, [KEY | {"column_id": 1, "column_name": "c1", "logical_type": "INT", "row_count": 2000}])


@pytest.fixture
def app():
    with app_in(fill=with_table) as app:
        yield app


def sketch(target: Target, values: range, **params: Any) -> dict[str, Any]:
    data = sketches.theta(np.unique(murmur3.hash_longs(np.array(values, np.int64))))
    named = {"target_kind": str(target.kind), "storage_id": target.storage_id, "column_id": 1}
    return (
        KEY
        | named
        | {
            "file_path": target.file_path,
            "role": "NDV",
            "sketch_type": THETA,
            "data": data,
            "params": json.dumps(params),
        }
    )


def merge(app, **more: Any) -> list[dict[str, Any]]:
    body = {"table": "lake.s.t", "snapshot": 1, "column": "c1"} | more
    call = Call(app, Principal("p", ALL_SCOPES), "", lambda: False)
    return list(ACTIONS["merge_sketches"].run(call, json.dumps(body).encode()))


def test_sketch_of_a_sample_is_merged_only_with_allow_partial(app):
    put(app, [sketch(Target.column(1), range(200), completeness="PARTIAL", rows=2000, rows_seen=200)], "stats.sketches")
    with pytest.raises(InvalidArgument, match="is of a sample") as raised:
        merge(app)
    assert raised.value.code == "PARTIAL_SKETCH"
    (result,) = merge(app, allow_partial=True)
    assert result["ndv"] == 200


def test_file_sketches_are_preferred_to_the_sketch_of_a_sample(app):
    put(app, [sketch(Target.column(1), range(200), completeness="PARTIAL")], "stats.sketches")
    put(app, [KEY | {"file_path": f"f{n}", "row_count": 500} for n in range(2)], "stats.files")
    put(app, [sketch(Target.file(f"f{n}"), range(n * 500, n * 500 + 500)) for n in range(2)], "stats.sketches")
    assert merge(app)[0]["ndv"] == 1000


@pytest.mark.parametrize("of_another_snapshot", [False, True])
def test_sketches_of_files_that_may_not_be_all_are_merged_only_with_allow_partial(app, of_another_snapshot):
    """A capture of some partitions of an earlier snapshot stores their sketches, and not the files of the snapshot."""
    put(app, [KEY | {"schema_hash": "h", "snapshot_id": snapshot} for snapshot in (1, 2)], "stats.tables")
    if of_another_snapshot:
        put(app, [KEY | {"file_path": "f0", "row_count": 500, "schema_hash": "h"}], "stats.files")
    put(app, [sketch(Target.file("f0"), range(500)) | {"snapshot_id": 2}], "stats.sketches")
    with pytest.raises(InvalidArgument, match="of 1 files are stored, and there may be others") as raised:
        merge(app, snapshot=2)
    assert raised.value.code == "PARTIAL_SKETCH"
    (result,) = merge(app, snapshot=2, allow_partial=True)
    assert (result["ndv"], result["exact"]) == (500, False)


def test_sketches_of_some_files_are_merged_only_with_allow_partial(app):
    files = [KEY | {"file_path": f"f{n}", "file_content": "DATA", "row_count": 500 * (n < 3)} for n in range(4)]
    put(app, files, "stats.files")
    put(app, [sketch(Target.file(f"f{n}"), range(n * 500, n * 500 + 500)) for n in range(2)], "stats.sketches")
    with pytest.raises(InvalidArgument, match="1 of 3 files have no theta sketch") as raised:
        merge(app)
    assert raised.value.code == "PARTIAL_SKETCH"
    (result,) = merge(app, allow_partial=True)
    assert (result["ndv"], result["exact"]) == (1000, False)
    put(app, [sketch(Target.file("f2"), range(1000, 1500))], "stats.sketches")
    (result,) = merge(app)
    assert (result["ndv"], result["exact"], result["freshness"]) == (1500, True, "EXACT")


@pytest.mark.parametrize("of_a_sample", [False, True])
def test_sketch_of_an_earlier_snapshot_is_inherited_and_not_exact(app, of_a_sample):
    params = {"completeness": "PARTIAL"} if of_a_sample else {}
    put(app, [sketch(Target.column(1), range(200), **params)], "stats.sketches")
    own = merge(app, allow_partial=of_a_sample)[0]
    assert (own["exact"], own["snapshot_id"], own["freshness"]) == (not of_a_sample, 1, "EXACT")
    schema = {"schema_hash": "h"}
    for snapshot in (1, 2):
        put(app, [KEY | schema | {"snapshot_id": snapshot, "row_count": 2000}], "stats.tables")
    (later,) = merge(app, snapshot=2, allow_partial=of_a_sample)
    assert (later["ndv"], later["exact"], later["snapshot_id"], later["freshness"]) == (200, False, 1, "INHERITED")
    other = {"with": {"table": "lake.s.t", "snapshot": 2, "column": "c1"}}
    (both,) = merge(app, allow_partial=of_a_sample, **other)
    assert not both["exact"] and not both["union"]["exact"] and both["union"]["ndv"] == 200


# Deleting.

NAME = "lake.s.t"


def with_lake(app):
    """An Iceberg table with live snapshots 3 and 4 and expired 1 and 2; columns of all, files of 1 and 3."""
    found = {
        "schema": "s",
        "name": "t",
        "table_id": "id",
        "location": "x",
        "schema_hash": "h",
        "schemas": {"h": [["c1", "INT", True, 1], ["c2", "INT", True, 2]]},
        "current_snapshot_id": 4,
        "snapshots": [
            {
                "snapshot_id": s,
                "ordinal": s,
                "parent_snapshot_id": None,
                "sequence_number": s,
                "committed_at": None,
                "operation": None,
                "schema_hash": "h",
            }
            for s in (1, 2, 3, 4)
        ],
    }
    for live in ([1, 2, 3, 4], [3, 4]):
        discovered = found | {"live_snapshot_ids": live}
        app.database.write(
            lambda connection, discovered=discovered: Discovery(app.catalog).store(
                connection, "lake", "iceberg", [discovered]
            )
        )
    for snapshot in (1, 2, 3, 4):
        put(app, rows("t", snapshot, [1, 2]))
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
    for snapshot, paths in ((1, "ab"), (3, "bc")):
        put(app, [key | {"snapshot_id": snapshot, "file_path": path} for path in paths], "stats.files")


@pytest.fixture
def lake():
    with app_in(fill=with_lake) as app:
        yield app


def act(app, name: str, **body: Any) -> list[Any]:
    call = Call(app, Principal("admin", ALL_SCOPES), "", lambda: False)
    return list((ACTIONS | app.parts.actions)[name].run(call, json.dumps(body).encode()))


def stored(app, flight: str = "stats.columns", target: str = "column_id") -> set[tuple[int, Any]]:
    # results are cached by command, and this process has one app per test
    found = read(app, command("t", flight, query_id=str(app.settings.db.parent))).to_pylist()
    return {(row["snapshot_id"], row[target]) for row in found}


def test_a_read_at_a_snapshot_that_is_unknown_or_has_expired_is_refused(lake):
    """The read names one table or all of them, and a ticket may be from before; a read of no row is not refused."""
    put(lake, rows("other", 3, [1]))
    commands = [command(name, snapshot=1) for name in ("t", None)]
    tickets = [to_ticket(lake.scanner.pin(of_command(data), ANONYMOUS)).ticket for data in commands]
    for data in (*commands, *tickets):
        assert read(lake, data).num_rows == 2
    act(lake, "expire", dry_run=False)
    for data in (*commands, *tickets[1:], *(command(name, snapshot=99) for name in ("t", None))):
        with pytest.raises(NotFound, match=r"(table \"lake.s.t\" has no|none of 2 tables has) snapshot (1|99)"):
            read(lake, data)
    assert read(lake, command("other", snapshot=3)).num_rows == 1
    nothing = {"column": "column_id", "op": "EQ", "values": [9]}
    assert read(lake, command("t", snapshot=4, filter=nothing)).num_rows == 0
    assert read(lake, command("absent", snapshot=99)).num_rows == 0, "no table is asked for"


@pytest.mark.parametrize("flight", ["stats.columns", "stats.files", "stats.quantiles"])
def test_a_ticket_about_many_tables_is_gone_once_the_rows_of_one_have_expired(flight):
    """Neither a table without statistics nor one that inherits them loses any."""
    names = ("t", "heir", "never")

    def discover(app, current):
        found = [
            {
                "schema": "s",
                "name": name,
                "table_id": name,
                "location": "x",
                "schema_hash": "h",
                "schemas": {"h": [["c1", "INT", True, 1]]},
                "current_snapshot_id": current,
                "live_snapshot_ids": [current],
                "snapshots": [
                    {
                        "snapshot_id": s,
                        "ordinal": s,
                        "parent_snapshot_id": None,
                        "sequence_number": s,
                        "committed_at": None,
                        "operation": None,
                        "schema_hash": "h",
                    }
                    for s in {1, current}
                ],
            }
            for name in names
        ]
        app.database.write(lambda connection: Discovery(app.catalog).store(connection, "lake", "iceberg", found))

    def capture(app, name, snapshot):
        key = {"table_name": name, "snapshot_id": snapshot}
        quantiles = {"role": "QUANTILES", "sketch_type": KLL, "data": sketches.kll(np.arange(9.0))}
        put(app, [KEY | key | {"column_id": 1, "column_name": "c1", "logical_type": "INT", "schema_hash": "h"}])
        put(app, [KEY | key | {"file_path": "f", "schema_hash": "h"}], "stats.files")
        put(app, [sketch(Target.column(1), range(9)) | quantiles | key], "stats.sketches")

    with app_in() as app:
        discover(app, 1)
        capture(app, "t", 1)
        capture(app, "heir", 1)
        request = of_ticket(command(None, flight, snapshot="current"))
        pinned = of_ticket(to_ticket(app.scanner.pin(request, ANONYMOUS)).ticket)

        def tables():
            return sorted(app.scanner.table(pinned, ANONYMOUS)["table_name"].to_pylist())

        before = tables()
        discover(app, 2)
        act(app, "expire", dry_run=False)
        assert tables() == before and set(before) == {"heir", "t"}
        capture(app, "t", 2)
        act(app, "expire", dry_run=False)
        with pytest.raises(NotFound, match=r'"lake\.s\.t" at snapshot 1 expired since') as raised:
            tables()
        assert raised.value.code == "GONE"


def test_expire_is_a_dry_run_unless_disabled(lake):
    before = stored(lake)
    for body in ({}, {"table": NAME}, {"table": NAME, "dry_run": True}):
        assert act(lake, "expire", **body) == [{"table": NAME, "snapshots": [1, 2], "dry_run": True}]
    assert stored(lake) == before and len(before) == 8
    assert act(lake, "expire", dry_run=False) == [{"table": NAME, "snapshots": [1, 2], "dry_run": False}]
    assert stored(lake) == {(s, c) for s in (3, 4) for c in (1, 2)}
    assert stored(lake, "stats.files", "file_path") == {(3, "b"), (3, "c")}
    assert act(lake, "expire", dry_run=False) == [{"table": NAME, "snapshots": [], "dry_run": False}]


def test_expire_keeps_what_newer_snapshots_inherit(lake):
    def served(flight):
        return read(lake, command("t", flight, snapshot="current")).to_pylist()

    act(lake, "delete_stats", table=NAME)
    put(lake, rows("t", 1, [2]))
    put(lake, rows("t", 2, [1]))
    put(lake, [row | {"ndv": None} for row in rows("t", 4, [1])])
    before = served("stats.columns")
    freshness = {row["column_id"]: (row["freshness"], row["distribution_freshness"]) for row in before}
    assert freshness == {1: ("EXACT", "INHERITED"), 2: ("INHERITED", "INHERITED")}
    assert act(lake, "expire", dry_run=False) == [{"table": NAME, "snapshots": [], "dry_run": False}]
    assert served("stats.columns") == before
    for snapshot in (3, 4):
        put(lake, rows("t", snapshot, [1, 2]))
    assert act(lake, "expire", dry_run=False) == [{"table": NAME, "snapshots": [1, 2], "dry_run": False}]
    assert len(served("stats.columns")) == 2


def test_expire_keeps_the_sketches_that_newer_snapshots_inherit(lake):
    act(lake, "delete_stats", table=NAME)
    put(lake, rows("t", 4, [1, 2]))
    put(lake, [sketch(Target.column(1), range(200))], "stats.sketches")
    before = merge(lake, snapshot=4)
    assert (before[0]["ndv"], before[0]["snapshot_id"], before[0]["freshness"]) == (200, 1, "INHERITED")
    assert act(lake, "expire", dry_run=False) == [{"table": NAME, "snapshots": [], "dry_run": False}]
    assert merge(lake, snapshot=4) == before


def test_expire_ignores_tables_that_were_not_discovered(lake):
    put(lake, rows("external", 1, [1]))
    put(lake, rows("external", 2, [1]))
    assert act(lake, "expire", table="lake.s.external") == [
        {"table": "lake.s.external", "snapshots": [], "dry_run": True}
    ]


def test_delete_stats_of_a_target_a_snapshot_and_a_table(lake):
    column = {"kind": "COLUMN", "column_id": 1}
    assert act(lake, "delete_stats", table=NAME, snapshot=2, target=column) == [{"deleted": 1}]
    assert (2, 1) not in stored(lake) and len(stored(lake)) == 7
    assert act(lake, "delete_stats", table=NAME, target=column) == [{"deleted": 3}]
    assert {c for _, c in stored(lake)} == {2}
    assert act(lake, "delete_stats", table=NAME, snapshot="current") == [{"deleted": 1}]
    file = {"kind": "FILE", "file_path": "b"}
    assert act(lake, "delete_stats", table=NAME, snapshot=3, target=file) == [{"deleted": 1}]
    assert stored(lake, "stats.files", "file_path") == {(1, "a"), (1, "b"), (3, "c")}
    assert act(lake, "delete_stats", table=NAME) == [{"deleted": 6}]
    assert stored(lake) == set() == stored(lake, "stats.files", "file_path")
    assert act(lake, "delete_stats", table=NAME) == [{"deleted": 0}]


def test_delete_stats_of_an_unknown_snapshot_or_table_is_not_found(lake):
    with pytest.raises(NotFound, match="no snapshot 77"):
        act(lake, "delete_stats", table=NAME, snapshot=77)
    with pytest.raises(NotFound, match="no table"):
        act(lake, "delete_stats", table="lake.s.none")


@pytest.mark.parametrize("measure", ["rows", "drift"])
def test_expect_of_a_measure_that_is_not_learned_lists_those_that_are(app, measure):
    with pytest.raises(InvalidArgument, match="of a table are row_count, size_bytes, commit_gap, of a column null_fr"):
        act(app, "expect", table="lake.s.t", measure=measure, snapshot="current")
