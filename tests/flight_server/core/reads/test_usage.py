"""Read counts by table and column; auto-analyze reviews that queue jobs and record decisions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_server.core.app import App
from flight_server.core.auth.principal import ALL_SCOPES, ANONYMOUS, Principal
from flight_server.core.config import Settings
from flight_server.core.wire.scan_request import of_json
from store.catalog.discovery import Discovery
from store.history import validation
from store.model.schemas import FLIGHTS
from store.stats_store import Put
from tests.store.empty_store import place_for_database

COLUMNS = [["a", "INT", True, None], ["b", "INT", True, None]]


@pytest.fixture
def app() -> Iterator[App]:
    app = App(Settings(db=place_for_database()))
    app.database.write(lambda c: app.catalog.connectors.put(c, "lake", "delta", "file:///nowhere", {}))
    yield app
    app.close()


def discover(app: App, snapshot_id: int = 1, schema_hash: str = "h", name: str = "t") -> None:
    found = {
        "schema": "s",
        "name": name,
        "table_id": f"id of {name}",
        "location": "x",
        "schema_hash": schema_hash,
        "schemas": {schema_hash: COLUMNS},
        "current_snapshot_id": snapshot_id,
        "live_snapshot_ids": [snapshot_id],
        "snapshots": [
            {
                "snapshot_id": snapshot_id,
                "ordinal": snapshot_id,
                "schema_hash": schema_hash,
                "parent_snapshot_id": None,
                "sequence_number": None,
                "committed_at": None,
                "operation": None,
            },
        ],
    }
    app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "delta", [found]))


def put(app: App, flight: str, *rows: dict[str, Any]) -> None:
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
    table = pa.Table.from_pylist([key | row for row in rows])
    app.store.put([Put(flight, validation.prepare(FLIGHTS[flight], table))])


def read(app: App, caller: Principal = ANONYMOUS, **where: Any) -> None:
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"} | where
    predicates = [{"column": c, "op": "EQ", "values": [v]} for c, v in key.items()]
    app.usage.read(of_json({"table": "stats.columns", "predicates": predicates}), caller)


def usage(app: App) -> dict[str | None, int]:
    rows = app.database.rows("SELECT column_name, reads FROM column_usage WHERE last_read_at IS NOT NULL")
    assert len(rows) == len(dict(rows))
    return dict(rows)


def test_reads_are_counted_by_column(app):
    discover(app)
    for _ in range(3):
        read(app, column_name="a")
    read(app, column_id=1)
    read(app)
    assert usage(app) == {}
    app.usage.flush(0)
    assert usage(app) == {"a": 4, None: 1}
    read(app, column_name="b")
    read(app)
    app.usage.flush(0)
    assert usage(app) == {"a": 4, "b": 1, None: 2}
    key = app.catalog.get("lake.s.t").table_key
    assert app.usage.of([key]) == {key: {"a": 4, "b": 1}}


def test_reads_of_unknown_columns_and_tables_are_not_counted(app):
    discover(app)
    read(app, column_name="nonsense")
    read(app, table_name="other")
    app.usage.read(of_json({"table": "stats.columns"}), ANONYMOUS)
    app.usage.read(of_json({"table": "sys.snapshots"}), ANONYMOUS)
    app.usage.flush(0)
    assert usage(app) == {}


def test_reads_of_callers_who_do_not_see_the_table_are_not_counted(app):
    discover(app)
    read(app, Principal("p", ALL_SCOPES, ("lake.other.*",)), column_name="a")
    app.usage.flush(0)
    assert usage(app) == {}
    read(app, Principal("p", ALL_SCOPES, ("lake.s.*",)), column_name="a")
    app.usage.flush(0)
    assert usage(app) == {"a": 1}


def decisions(app: App) -> list[tuple[str, str, str]]:
    return app.database.rows("SELECT target_kind, outcome, detail FROM capture_decisions ORDER BY decided_at, 1 DESC")


def jobs(app: App) -> list[str]:
    return [targets for (targets,) in app.database.rows("SELECT targets FROM jobs ORDER BY queued_at")]


def set_policy(app: App, policy: str) -> None:
    lake = app.catalog.connectors.get("lake")
    app.database.write(lambda c: app.catalog.connectors.put(c, "lake", lake["format"], lake["uri"], {"policy": policy}))


def review(app: App, policy: str = "min_interval=0s") -> list[str]:
    set_policy(app, policy)
    table = app.catalog.get("lake.s.t")
    return app.auto.review("lake", [table])


def end_jobs(app: App) -> None:
    app.database.write(lambda c: c.execute("UPDATE jobs SET state = 'SUCCEEDED'"))


def test_review_of_many_tables_takes_two_transactions(app, monkeypatch):
    for name in "tuv":
        discover(app, name=name)
    set_policy(app, "on")
    tables, written, write = [app.catalog.get(f"lake.s.{name}") for name in "tuv"], [], app.database.write
    monkeypatch.setattr(app.database, "write", lambda run: written.append(run) or write(run))
    ids = app.auto.review("lake", tables)
    queued = app.database.rows("SELECT job_id, table_name FROM jobs")
    assert sorted(ids) == sorted(str(job_id) for job_id, _ in queued) and {name for _, name in queued} == {*"tuv"}
    assert len(decisions(app)) == 6
    assert len(written) == 2  # the decisions, and the jobs


@pytest.mark.parametrize("failing", [1, 2], ids=["decisions", "jobs"])
def test_failed_write_of_a_review_is_repeated_by_the_next_review(app, monkeypatch, failing):
    discover(app)
    set_policy(app, "min_interval=1h")
    tables, writes, write = [app.catalog.get("lake.s.t")], [], app.database.write

    def run(work: Any) -> Any:
        writes.append(work)
        if len(writes) == failing:
            raise OSError("the disk is full")
        return write(work)

    monkeypatch.setattr(app.database, "write", run)
    with pytest.raises(OSError, match="full"):
        app.auto.review("lake", tables)
    assert jobs(app) == []
    assert len(app.auto.review("lake", tables)) == 2 == len(jobs(app))


def test_policy_off_records_no_decision(app):
    discover(app)
    assert review(app, "off") == [] and review(app, "other.*: on") == []
    assert decisions(app) == []


def test_new_table_is_queued_and_repeated_decisions_are_not_stored(app):
    discover(app)
    assert len(review(app)) == 2
    assert len(jobs(app)) == 2
    assert decisions(app) == [
        ("TABLE", "QUEUED", "now, because: the snapshot is new"),
        ("COLUMN", "QUEUED", "now, because: never captured"),
    ]
    for _ in range(3):
        assert review(app) == []
    assert [d[2] for d in decisions(app)[2:]] == ["not now, because: a job of the table is active"] * 2


def test_fresh_table_queues_no_job(app):
    discover(app)
    put(app, "stats.tables", {"snapshot_id": 1, "row_count": 10})
    scanned = {"snapshot_id": 1, "logical_type": "INT", "producer": "ENGINE_COMPUTED"}
    put(app, "stats.columns", scanned | {"column_id": 1}, scanned | {"column_id": 2})
    assert review(app) == [] and jobs(app) == []
    assert {d[2] for d in decisions(app)} == {"not now, because: captured at the current snapshot"}


def test_changed_fraction_counts_the_rows_of_new_files(app):
    discover(app)
    file = {"file_format": "PARQUET", "file_content": "DATA", "size_bytes": 1}
    put(app, "stats.files", {"snapshot_id": 1, "file_path": "f1", "row_count": 95} | file)
    put(app, "stats.tables", {"snapshot_id": 1, "row_count": 95})
    scanned = {
        "snapshot_id": 1,
        "logical_type": "INT",
        "producer": "ENGINE_COMPUTED",
        "captured_at": datetime.now(UTC),
    }
    put(app, "stats.columns", scanned | {"column_id": 1}, scanned | {"column_id": 2})
    discover(app, 2)
    assert len(review(app, "max_age=9000d, min_interval=0s")) == 1
    end_jobs(app)
    put(app, "stats.tables", {"snapshot_id": 2, "row_count": 100})
    put(
        app,
        "stats.files",
        {"snapshot_id": 2, "file_path": "f1", "row_count": 95} | file,
        {"snapshot_id": 2, "file_path": "f2", "row_count": 5} | file,
    )
    assert review(app, "max_age=9000d, min_interval=0s") == []
    assert decisions(app)[-1][2] == "not now, because: little changed (5%, of 10%)"
    assert len(review(app, "changed=5%, min_interval=0s, max_age=9000d")) == 1
    assert decisions(app)[-1][2] == "now, because: enough rows changed (5%, of 5%)"


def test_changed_fraction_counts_the_rows_of_removed_files(app):
    discover(app)
    file = {"file_format": "PARQUET", "file_content": "DATA", "size_bytes": 1}
    files = [file | {"file_path": f"f{n}", "row_count": 50} for n in range(2)]
    put(app, "stats.files", *({"snapshot_id": 1} | f for f in files))
    scanned = {"snapshot_id": 1, "logical_type": "INT", "producer": "ENGINE_COMPUTED", "captured_at": datetime.now(UTC)}
    put(app, "stats.columns", scanned | {"column_id": 1}, scanned | {"column_id": 2})
    discover(app, 2)
    put(app, "stats.tables", {"snapshot_id": 2, "row_count": 50})
    put(app, "stats.files", {"snapshot_id": 2} | files[0])
    assert len(review(app)) == 1
    assert decisions(app)[-1][2] == "now, because: enough rows changed (50%, of 10%)"


def test_min_interval_delays_scans_but_not_new_snapshots(app):
    discover(app)
    assert len(review(app, "on")) == 2
    end_jobs(app)
    assert review(app, "on") == []  # both were tried just now and stored nothing
    assert [d[2] for d in decisions(app)[2:]] == ["not now, because: tried a short while ago"] * 2
    discover(app, 2)
    assert len(review(app, "on")) == 1
    assert decisions(app)[-2:] == [
        ("TABLE", "QUEUED", "now, because: the snapshot is new"),
        ("COLUMN", "NOT_NOW", "not now, because: tried a short while ago"),
    ]


def test_each_snapshot_has_its_own_decision(app):
    discover(app)
    scanned = {"snapshot_id": 1, "logical_type": "INT", "producer": "ENGINE_COMPUTED", "captured_at": datetime.now(UTC)}
    put(app, "stats.columns", scanned | {"column_id": 1}, scanned | {"column_id": 2})
    for snapshot_id in (2, 3):
        discover(app, snapshot_id)
        put(app, "stats.tables", {"snapshot_id": snapshot_id, "row_count": 1})
        review(app)
        review(app)
    rows = app.database.rows(
        "SELECT snapshot_id, detail FROM capture_decisions WHERE target_kind = 'COLUMN' ORDER BY decided_at"
    )
    assert rows == [(n, "not now, because: not known how much changed, and not old yet") for n in (2, 3)]


def test_decisions_are_remembered_across_a_restart(app):
    discover(app)
    review(app)
    review(app)
    before = len(decisions(app))
    app.close()
    restarted = App(Settings(db=Path(app.database.path)))
    try:
        review(restarted)
        assert len(decisions(restarted)) == before
    finally:
        restarted.close()
