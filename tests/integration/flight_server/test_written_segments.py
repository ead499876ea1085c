"""Rows of files that a worker writes as segments: visible by the commit alone, and nothing is left of those of a killed
server or of a lost lease."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.duckdb.segment_files import Written
from store.segment_making import SegmentMaker
from tests.flight_server.live_server import LiveServer, eventually, serving
from tests.integration.store_server import KEY, Client, make_lake

CELLS = {"STATFLIGHT_SEGMENT_CELLS": "3"}
FLIGHT = "stats.file_columns"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_lake(tmp_path / "s.db", "t")
    return tmp_path


def serve(directory: Path, **env: str) -> Any:
    return serving(directory, "--db", directory / "s.db", env=CELLS | env)


def rows(count: int = 5) -> pa.Table:
    row = KEY | {"snapshot_id": 1, "column_id": 1, "column_name": "id", "logical_type": "INT", "row_count": 3}
    return pa.Table.from_pylist([row | {"file_path": f"f{n}", "min": str(n), "max": "9"} for n in range(count)])


def lease(client: Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """A lease, and the body that names it."""
    request = {"table": "c.s.t", "snapshot": 1, "target": {"kind": "TABLE"}, "mode": "ASYNC"}
    client.act("capture", requests=[request])
    held = client.act("lease_job", worker_id="w", kinds=["job", "light"], wait_seconds=10)
    return held, {name: held[name] for name in ("job_id", "lease_token")}


def hand_over(client: Client, key: dict[str, Any]) -> Path:
    """Writes rows as a worker does, and hands them over; returns the file."""
    place = client.act("segment_place", **key)
    maker = SegmentMaker.open(place["directory"], place["owner"])
    assert maker is not None
    assert SegmentMaker.open(place["directory"], "another") is None
    written = maker.make(FLIGHT, rows(), checked=False).written
    assert written is not None
    assert client.act("add_segment", **key, **body(written)) == {"job_id": key["job_id"], "received": 5}
    return Path(place["directory"], written.name)


def body(written: Written) -> dict[str, Any]:
    file = {"file": written.name, "digest": written.digest, "size_bytes": written.size_bytes}
    return file | {"table": FLIGHT, "snapshot_id": 1, "rows": written.row_count, "extra": True}


def finish(client: Client, key: dict[str, Any]) -> str:
    outcome = {"outcome": "CAPTURED", "engine_id": "e", "snapshot_id": 1, "storage_id": "table"}
    return client.act("finish_job", **key, outcomes=[outcome])["state"]


def listed(server: LiveServer) -> list[str]:
    return sorted(Client(server.uri).get(FLIGHT, columns=["min"])["min"].to_pylist())


def test_rows_are_visible_by_the_commit_and_stay_where_they_were_written(directory):
    with serve(directory) as server:
        client = Client(server.uri)
        held, key = lease(client)
        assert held["payload"]["segment_cells"] == 3
        file = hand_over(client, key)
        assert listed(server) == []
        assert finish(client, key) == "SUCCEEDED"
        assert listed(server) == list("01234")
        again, key = lease(client)
        with pytest.raises(pa.ArrowException, match="is a segment already"):
            client.act("add_segment", **key, **body(Written(file.name, "0" * 64, 1, 5)))
        assert again and pq.read_metadata(file).num_rows == 5
    with serve(directory) as server:
        assert listed(server) == list("01234")


def test_nothing_is_left_of_what_a_killed_server_was_handed(directory):
    with serve(directory) as server:
        file = hand_over(Client(server.uri), lease(Client(server.uri))[1])
        assert file.exists()
        server.kill()
    with serve(directory) as server:
        eventually(lambda: not file.exists())
        assert listed(server) == []


def test_files_of_a_lost_lease_are_deleted(directory):
    with serve(directory, STATFLIGHT_LEASE_SECONDS="1") as server:
        client = Client(server.uri)
        _, key = lease(client)
        file = hand_over(client, key)
        eventually(lambda: not file.exists())
        with pytest.raises(pa.ArrowException, match="LEASE_LOST"):
            finish(client, key)
        assert listed(server) == []


def test_file_that_is_missing_or_of_another_snapshot_is_refused(directory):
    with serve(directory) as server:
        client = Client(server.uri)
        _, key = lease(client)
        about = body(Written(f"{0:032}.parquet", "0" * 64, 9, 5))
        with pytest.raises(pa.ArrowException, match="is missing"):
            client.act("add_segment", **key, **about)
        with pytest.raises(pa.ArrowException, match="snapshot_id: is not of this lease"):
            client.act("add_segment", **key, **(about | {"snapshot_id": 7}))
