"""Captures of many tables read what is stored of them together, and find what a first capture finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capture.engines.compute.engine import ComputeEngine
from capture.engines.native.engine import NativeEngine
from capture.registry import Registry
from flight_server.client.connection import Connection
from flight_server.worker import stored_together
from flight_server.worker.loop import Worker
from tests.flight_server.live_server import serving

TABLES = 12
FILES = ("stats.file_columns", "stats.sketches")
MADE = ("snapshot_id", "captured_at", "refreshed_at", "table_id")  # differ between two captures of the same data


class Counting(Connection):
    """A worker's connection, with the flights that it has read."""

    def __init__(self, uri: str):
        super().__init__(uri, None)
        self.read: list[str] = []

    def get(self, ticket: Any, stream: Any = False) -> Any:
        self.read.append(ticket["table"])
        return super().get(ticket, stream)


def append(lake: Path) -> None:
    for number in range(TABLES):
        directory = lake / f"t{number:02}"
        directory.mkdir(parents=True, exist_ok=True)
        at = len(list(directory.iterdir())) * 100 + number
        rows = pa.table({"id": list(range(at, at + 100)), "name": [f"n{i % 7}" for i in range(100)]})
        pq.write_table(rows, directory / f"{at}.parquet")


def captured(home: Path, lake: Path, *, again: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """The statistics of all columns after a capture of all tables, with `again` after one of less data too, and what
    the worker has read for the last."""
    home.mkdir()
    with serving(home) as server:
        client, connection = server.connect(), Counting(server.uri)
        worker = Worker(connection, Registry([NativeEngine(), ComputeEngine()]))
        worker.start([("control",), ("sync",)])
        requests = [
            {"table": f"lake.default.t{number:02}", "target": target}
            for number in range(TABLES)
            for target in ({"kind": "TABLE"}, {"kind": "COLUMN", "column_id": 1}, {"kind": "COLUMN", "column_id": 2})
        ]
        try:
            client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake)})
            client.act("discover", {"catalog": "lake"})
            if again:
                client.act("capture", {"requests": requests})
                append(lake)
                connection.read.clear()
            outcomes = client.act("capture", {"requests": requests})
        finally:
            worker.stopping.set()
        assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}
        columns = client.get({"table": "stats.columns", "snapshot": "current"}).drop_columns(MADE)
        assert columns.num_rows == 2 * TABLES
        return sorted(columns.to_pylist(), key=repr), connection.read


def test_what_is_stored_of_small_tables_is_read_together(tmp_path, monkeypatch):
    append(tmp_path / "lake")
    together, read = captured(tmp_path / "a", tmp_path / "lake", again=True)
    assert sum(map(FILES.__contains__, read)) < 1.5 * TABLES
    first, _ = captured(tmp_path / "b", tmp_path / "lake", again=False)
    assert together == first
    monkeypatch.setattr(stored_together, "MAX_RESULTS", 1)
    alone, read = captured(tmp_path / "c", tmp_path / "lake", again=True)
    assert sum(map(FILES.__contains__, read)) >= 2 * TABLES
    assert alone != first  # it has appended rows
