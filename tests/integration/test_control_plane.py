"""The queue and its workers under SIGKILL: nothing queued is lost, nothing captured is published twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flight_server.live_server import STATFLIGHT, Client, serving

WITHIN = 45.0


def eventually(probe: Callable[[], Any], within: float = WITHIN) -> Any:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if found := probe():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not so within {within} s")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for table in range(4):
        (tmp_path / "lake" / f"t{table}").mkdir(parents=True)
        pq.write_table(pa.table({"a": range(10)}), tmp_path / "lake" / f"t{table}" / "f.parquet")
    return tmp_path / "lake"


def connect(client: Client, lake: Path) -> None:
    client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake)})
    client.act("discover", {"catalog": "lake"})


def rows(client: Client, flight: str) -> list[dict[str, Any]]:
    return client.get({"table": flight}).to_pylist()


@contextlib.contextmanager
def killable(directory: Path, *flags: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a group of its own, killed with its workers at the end."""
    command = [STATFLIGHT, "serve", "--db", directory / "stats.duckdb", "--port", "0", *map(str, flags)]
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().split()[-1]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_thousand_queued_jobs_survive_a_kill(tmp_path, lake):
    with killable(tmp_path, "--workers", 0) as (_, uri), Client(uri) as client:
        connect(client, lake)
        snapshots = {row["table_name"]: row["snapshot_id"] for row in rows(client, "sys.snapshots")}

        def queue(table: str) -> None:
            for column in range(1, 251):
                target = {"kind": "COLUMN", "column_id": column}
                request = {"table": f"lake.default.{table}", "snapshot": snapshots[table], "target": target}
                client.act("capture", {"requests": [request | {"mode": "ASYNC"}]})

        threads = [threading.Thread(target=queue, args=(table,)) for table in snapshots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with serving(tmp_path, "--workers", 0) as server, server.connect() as client:
        jobs = rows(client, "sys.capture_jobs")
        assert len({job["job_id"] for job in jobs}) == 1000
        assert {job["state"] for job in jobs} == {"QUEUED"}


SLOW_WORKER = """
import sys, time
from flight_server.worker import Server, Worker
from capture.registry import Registry
from capture.engines.native import NativeEngine
class Slow(NativeEngine):
    def capture_batch(self, requests, sink):
        results = super().capture_batch(requests, sink)
        sys.stdout.write("captured\\n"); sys.stdout.flush()
        time.sleep(60)
        return results
Worker(Server(sys.argv[1], None), Registry([Slow()])).run(["job", "light"])
"""


def test_a_killed_workers_job_finishes_on_another_and_is_published_once(tmp_path, lake):
    environment = {"STATFLIGHT_LEASE_SECONDS": "2"}
    with serving(tmp_path, "--workers", 0, env=environment) as server, server.connect() as client:
        connect(client, lake)
        command = [sys.executable, "-c", SLOW_WORKER, server.uri]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as slow:
            (queued,) = client.act("capture", {"requests": [{"table": "lake.default.t0", "mode": "ASYNC"}]})
            assert slow.stdout is not None and slow.stdout.readline() == "captured\n"
            slow.kill()
        assert rows(client, "stats.tables") == []
        worker = subprocess.Popen([STATFLIGHT, "worker", "--server", server.uri], stderr=subprocess.DEVNULL)
        try:
            (job,) = eventually(lambda: [j for j in client.act("get_job", {"job_id": queued["job_id"]})
                                         if j["state"] == "SUCCEEDED"])  # fmt: skip
        finally:
            worker.terminate()
            worker.wait(20)
        assert job["attempts"] == 2 and not job["degraded"]
        (row,) = rows(client, "stats.tables")
        assert row["row_count"] == 10
        target = {"table": "lake.default.t0", "snapshot": row["snapshot_id"], "target": {"kind": "TABLE"}}
        (meta,) = client.act("stats_meta", target)
        assert meta["generation"]
        captured = [d for d in rows(client, "sys.capture_decisions") if d["outcome"] == "CAPTURED"]
        assert len(captured) == 1


def test_a_worker_outlives_its_server(tmp_path, lake):
    with killable(tmp_path, "--workers", 0) as (_, uri), Client(uri) as client:
        connect(client, lake)
        worker = subprocess.Popen([STATFLIGHT, "worker", "--server", uri], stderr=subprocess.DEVNULL)
        (queued,) = client.act("capture", {"requests": [{"table": "lake.default.t1", "mode": "ASYNC"}]})
        eventually(lambda: client.act("get_job", {"job_id": queued["job_id"]})[0]["state"] == "SUCCEEDED")
    try:
        time.sleep(0.5)
        assert worker.poll() is None
        with serving(tmp_path, "--workers", 0, "--port", uri.rpartition(":")[2]) as server, server.connect() as client:
            request = {"table": "lake.default.t2", "mode": "ASYNC"}
            (queued,) = client.act("capture", {"requests": [request]})
            eventually(lambda: client.act("get_job", {"job_id": queued["job_id"]})[0]["state"] == "SUCCEEDED")
    finally:
        worker.terminate()
        worker.wait(20)


def test_auto_analyze_needs_one_line(tmp_path, lake):
    (tmp_path / "statflight.toml").write_text('auto_analyze = "min_interval=0s"\nauto_analyze_seconds = 1\n')
    with serving(tmp_path, "--workers", 1) as server, server.connect() as client:
        connect(client, lake)
        eventually(lambda: {r["table_name"] for r in rows(client, "stats.columns") if r["ndv"] is not None} >= {
            "t0", "t1", "t2", "t3"})  # fmt: skip
        jobs = len(rows(client, "sys.capture_jobs"))
        decisions = [json.dumps([d["table_name"], d["target_kind"], d["detail"]])
                     for d in rows(client, "sys.capture_decisions") if d["engine_id"] == "policy"]  # fmt: skip
        assert any("not now, because" in d for d in decisions)
        time.sleep(3)
        assert len(rows(client, "sys.capture_jobs")) == jobs  # what is fresh is not captured again
        # a changed table is seen on the schedule
        pq.write_table(pa.table({"a": range(10)}), lake / "t0" / "g.parquet")
        eventually(lambda: [r for r in rows(client, "stats.tables") if r["row_count"] == 20])
