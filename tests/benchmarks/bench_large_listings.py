"""A listing of many files under other writes: the longest wait of another put, the disk that it takes, how soon a
cancelled one is gone, and how long the same listing takes again. Waits are printed with those of an idle server before.

`python -m pytest tests/benchmarks/bench_large_listings.py -m benchmark -s`; STATFLIGHT_BENCH_FILES (30000) files of 100
columns each; 300000 take 300,000 × 100 rows.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.benchmarks import store_data
from tests.benchmarks.bench_large_tables import peak_mb
from tests.flight_server.live_server import LiveServer, serving
from tests.integration.store_server import KEY, Client, make_lake

pytestmark = pytest.mark.benchmark

FILES = int(os.environ.get("STATFLIGHT_BENCH_FILES", "30000"))
COLUMNS, BLOCK = 100, 500  # BLOCK files in each call of the worker
FLIGHT = "stats.file_columns"


def block(first: int, files: int) -> pa.Table:
    """Rows of some files, as long and varied as real ones."""
    rows = store_data.file_columns(0, files * COLUMNS // store_data.COLUMNS, seed=first)
    ids = np.tile(np.arange(1, COLUMNS + 1), files)
    named = KEY | {"snapshot_id": 1}
    values = {name: pa.repeat(value, rows.num_rows) for name, value in named.items()} | {
        "file_path": store_data.paths(0, np.arange(first, first + files)).take(
            pa.array(np.repeat(np.arange(files), COLUMNS))
        ),
        "column_id": pa.array(ids),
        "column_name": pa.array([f"column_{i}" for i in range(COLUMNS + 1)]).take(pa.array(ids)),
    }
    for name, value in values.items():
        rows = rows.set_column(rows.column_names.index(name), name, value)
    return rows


class Others(threading.Thread):
    """Small puts of other tables, one after the other; measures each, and the disk after it."""

    def __init__(self, server: LiveServer):
        super().__init__(daemon=True)
        self.server, self.seconds, self.disk, self.ended = server, [0.0], 0, threading.Event()

    def run(self) -> None:
        client = Client(self.server.uri)
        while not self.ended.wait(0.02):
            row = pa.Table.from_pylist(
                [KEY | {"table_name": "other", "snapshot_id": 1, "row_count": len(self.seconds)}]
            )
            began = time.perf_counter()
            client.put("stats.tables", row, "upsert")
            self.seconds.append(time.perf_counter() - began)
            self.disk = max(self.disk, sum(f.stat().st_size for f in self.server.log.parent.iterdir()))

    def figures(self) -> str:
        took = sorted(self.seconds)
        return f"median {1000 * took[len(took) // 2]:.0f} ms, longest {took[-1]:.2f} s of {len(took)}"


@contextlib.contextmanager
def others(server: LiveServer) -> Iterator[Others]:
    thread = Others(server)
    thread.start()
    yield thread
    thread.ended.set()
    thread.join()


def lease(client: Client, target: int) -> dict[str, Any]:
    request = {"table": "c.s.t", "snapshot": 1, "target": {"kind": "COLUMN", "column_id": target}, "mode": "ASYNC"}
    client.act("capture", requests=[request])
    return client.act("lease_job", worker_id="w", kinds=["job"], wait_seconds=10)


def put_blocks(client: Client, held: dict[str, Any], files: int) -> None:
    key = {name: held[name] for name in ("job_id", "lease_token")}
    for first in range(0, files, BLOCK):
        client.act("renew_lease", **key)
        client.put(FLIGHT, block(first, min(BLOCK, files - first)), draft=held["lease_token"], extra=True)


def finish(client: Client, held: dict[str, Any]) -> str:
    outcomes = [{"outcome": "CAPTURED", "engine_id": "e", "snapshot_id": 1, "storage_id": "table"}]
    return client.act("finish_job", job_id=held["job_id"], lease_token=held["lease_token"], outcomes=outcomes)["state"]


def count(client: Client) -> int:
    return client.get(FLIGHT, columns=["column_id"]).num_rows


def test_nobody_waits_for_a_large_listing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_lake(tmp_path / "s.db", "t")
    lines = []
    with serving(tmp_path, "--db", tmp_path / "s.db") as server:
        client = Client(server.uri)
        with others(server) as idle:
            time.sleep(5)
        for name in ("first", "again"):  # again: all rows are compared with those of the listing
            with others(server) as meanwhile:
                held = lease(client, 1 if name == "first" else 2)
                began = time.perf_counter()
                put_blocks(client, held, FILES)
                put = time.perf_counter() - began
                assert finish(client, held) == "SUCCEEDED"
                took = time.perf_counter() - began
            size = (tmp_path / "s.db").stat().st_size / 1e6
            lines.append(
                f"{name}: {took:.0f} s, {took - put:.2f} s of it after the last row; other puts {meanwhile.figures()};"
                f" {meanwhile.disk / 1e6:.0f} MB of disk at most, {size:.0f} MB after it"
            )
        assert count(client) == FILES * COLUMNS
        held = lease(client, 3)
        ended: list[BaseException] = []
        rows = threading.Thread(target=_ended, args=(server, held, ended))
        rows.start()
        time.sleep(5)
        began = time.perf_counter()
        client.act("cancel_job", job_id=held["job_id"])
        rows.join()
        lines.append(f"cancelled among its rows: refused after {time.perf_counter() - began:.1f} s ({ended})")
        lines.append(f"peak memory of the server {peak_mb(server.process.pid):.0f} MB; load {os.getloadavg()[0]:.0f}")
    with capsys.disabled():
        print(f"\n{FILES} files × {COLUMNS} columns; idle: other puts {idle.figures()}\n  " + "\n  ".join(lines))


def _ended(server: LiveServer, held: dict[str, Any], ended: list[BaseException]) -> None:
    try:
        put_blocks(Client(server.uri), held, 10**9)
    except pa.ArrowException as error:
        ended.append(error)
