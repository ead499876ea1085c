"""Lakes that can no longer be inspected: their current statistics are not EXACT until they return."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from adbc_driver_flightsql import dbapi as flight_sql
from deltalake import write_deltalake

from tests.flight_server.live_server import STATFLIGHT, Client, eventually, serving

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for name in ("t", "other"):
        (tmp_path / "lake" / name).mkdir(parents=True)
        pq.write_table(ROWS, tmp_path / "lake" / name / "1.parquet")
    return tmp_path / "lake"


@pytest.fixture
def client(tmp_path: Path, lake: Path) -> Iterator[Client]:
    (tmp_path / "server").mkdir()
    with serving(tmp_path / "server", "--workers", 1, "--watch-seconds", 1) as server, server.connect() as client:
        client.timeout = 120
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake), "discover": True})
        column = {"kind": "COLUMN", "column_id": 1}
        client.act(
            "capture",
            {
                "requests": [
                    {"table": f"lake.default.{table}", "snapshot": "current", "target": target, "mode": "SYNC"}
                    for table in ("t", "other")
                    for target in ({"kind": "TABLE"}, column)
                ]
            },
        )
        yield client


def labels(client: Client, flight: str, **options: Any) -> dict[str, tuple[str, str]]:
    rows = client.read({"table": flight, "snapshot": "current", **options}).to_pylist()
    return {row["table_name"]: (row["freshness"], row["usable_for"]) for row in rows}


def about(client: Client, flight: str, of: str) -> dict[str, Any]:
    return {row[of]: (row["state"], row["last_error"]) for row in client.read({"table": flight}).to_pylist()}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([STATFLIGHT, *command], capture_output=True, text=True, timeout=60)


SURE, UNSURE = ("EXACT", "PRUNING"), ("STALE", "PLANNING")
FLIGHTS = ("stats.tables", "stats.columns", "stats.files", "stats.file_columns")


def test_statistics_of_a_lake_that_is_gone_are_stale_until_it_returns(client, lake):
    both = {flight: {"t": SURE, "other": SURE} for flight in FLIGHTS}

    def held() -> dict[str, Any]:
        return {flight: labels(client, flight) for flight in FLIGHTS}

    eventually(lambda: held() == both)  # a look that ends late takes the label EXACT from rows until it has ended
    ticket = client.info({"table": "stats.columns", "snapshot": "current"}).endpoints[0].ticket
    lake.rename(lake.with_name("away"))
    eventually(lambda: labels(client, "stats.columns") == {})
    for flight in FLIGHTS:
        assert labels(client, flight) == {}
        assert labels(client, flight, allow_stale=True) == {"t": UNSURE, "other": UNSURE}, flight
    assert client.get(ticket).num_rows == 0, "a ticket for current statistics promises no more than a new one"
    eventually(lambda: about(client, "sys.connectors", "catalog")["lake"][0] == "FAILING")
    state, reason = about(client, "sys.tables", "table_name")["t"]
    assert (state, "does not exist" in reason) == ("FAILING", True)
    since = {row["table_name"]: row["checked_at"] for row in client.read({"table": "sys.tables"}).to_pylist()}
    lake.with_name("away").rename(lake)
    eventually(lambda: held() == both)
    rows = client.read({"table": "sys.tables"}).to_pylist()
    assert all(row["checked_at"] > since[row["table_name"]] and row["state"] == "ACTIVE" for row in rows)


def test_one_unreadable_file_concerns_its_table_alone(client, lake):
    snapshot = client.read({"table": "stats.tables", "snapshot": "current"}).to_pylist()[0]["snapshot_id"]
    (lake / "t" / "2.parquet").write_bytes(b"no footer here")
    eventually(lambda: labels(client, "stats.columns") == {"other": SURE})
    assert labels(client, "stats.columns", allow_stale=True) == {"t": UNSURE, "other": SURE}
    captured = {row["snapshot_id"] for row in client.read({"table": "stats.tables"}).to_pylist()}
    exact = [labels(client, "stats.columns", snapshot=id_) for id_ in captured | {snapshot}]
    assert {"t": SURE} in exact, "the former snapshot by its id is what it was"
    assert about(client, "sys.connectors", "catalog")["lake"] == ("ACTIVE", None)
    column = {"kind": "COLUMN", "column_id": 1}
    question = {"table": "lake.default.t", "snapshot": "current", "target": column, "mode": "ASYNC"}
    (answer,) = client.act("resolve", {"requests": [question]})
    assert answer["outcome"] != "HIT", answer


def test_a_data_file_that_is_gone_shows_wherever_the_table_does(client, tmp_path):
    from deltalake import write_deltalake

    root = tmp_path / "delta"
    write_deltalake(str(root / "d"), ROWS)
    (path,) = (root / "d").glob("*.parquet")
    path.rename(tmp_path / "away.parquet")
    client.act("register_connector", {"catalog": "delta", "format": "delta", "uri": str(root), "discover": True})

    def capture(*targets: dict[str, Any]) -> list[dict[str, Any]]:
        request = {"table": "delta.default.d", "snapshot": "current", "mode": "SYNC"}
        return client.act("capture", {"requests": [request | {"target": target} for target in targets]})

    _, column = capture({"kind": "TABLE"}, {"kind": "COLUMN", "column_id": 1})
    assert (column["outcome"], column["attributes"]["files_gone"]) == ("DEGRADED", 1)
    state, reason = about(client, "sys.tables", "table_name")["d"]
    assert (state, "no such file" in reason) == ("FAILING", True)
    assert labels(client, "stats.tables", allow_stale=True)["d"] == UNSURE
    shown = run("ls", "delta", "--server", client.uri)
    assert "no such file" in shown.stdout, shown
    checked = run("check", "delta.default.d", "--rule", "row_count >= 1", "--strict", "--server", client.uri)
    assert checked.returncode != 0, checked
    (tmp_path / "away.parquet").rename(path)
    (column,) = capture({"kind": "COLUMN", "column_id": 1})
    assert column["outcome"] == "CAPTURED", column
    assert about(client, "sys.tables", "table_name")["d"] == ("ACTIVE", None)
    assert labels(client, "stats.columns")["d"] == SURE
    assert run("check", "delta.default.d", "--rule", "row_count >= 1", "--server", client.uri).returncode == 0


def test_a_table_that_is_created_again_is_captured_at_once(tmp_path):
    """Before anything else has discovered it, by an action and by a statement of SQL."""
    path = tmp_path / "lake" / "t"
    asked = {"table": "lake.default.t", "snapshot": "current", "target": {"kind": "TABLE"}, "mode": "SYNC"}
    with serving(tmp_path, "--workers", 1, "--watch-seconds", 0) as server, server.connect() as client:
        client.timeout = 120
        write_deltalake(path, ROWS)
        client.act("register_connector", {"catalog": "lake", "format": "delta", "uri": str(path.parent)})
        client.act("discover", {"catalog": "lake"})
        shutil.rmtree(path)
        write_deltalake(path, ROWS.slice(1))
        (outcome,) = client.act("capture", {"requests": [asked]})
        assert outcome["outcome"] == "CAPTURED", outcome
        assert client.read({"table": "stats.tables"})["row_count"].to_pylist() == [2]
        shutil.rmtree(path)
        for at in range(3):
            write_deltalake(path, ROWS.slice(at, 1), mode="append")
        with flight_sql.connect(server.uri, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("ANALYZE lake.default.t")
            assert cursor.fetchall()[0][:4] == ("lake.default.t", 2, ["a"], 3)
