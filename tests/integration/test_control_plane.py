"""The job queue with killed workers and servers and failing engines: no job is lost, no capture published twice."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.engines.native.engine import NativeEngine
from capture.registry import Registry
from capture.spi import Capabilities, CaptureEngine, CaptureRequest, CaptureResult, Outcome, Sink
from flight_server.client.connection import Connection
from flight_server.worker.loop import ROLES, Worker
from store.model.targets import Target, TargetKind
from tests.flight_server.live_server import STATFLIGHT, Client, eventually, serving

WITHIN = 45.0
TABLES = ("t0", "t1", "t2", "t3")


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


def test_queued_jobs_survive_a_killed_server(tmp_path, lake):
    with serving(tmp_path, "--workers", 0) as server, server.connect() as client:
        connect(client, lake)
        snapshots = {row["table_name"]: row["snapshot_id"] for row in rows(client, "sys.snapshots")}

        def queue(table: str) -> None:
            for column in range(1, 51):
                target = {"kind": "COLUMN", "column_id": column}
                request = {"table": f"lake.default.{table}", "snapshot": snapshots[table], "target": target}
                client.act("capture", {"requests": [request | {"mode": "ASYNC"}]})

        threads = [threading.Thread(target=queue, args=(table,)) for table in snapshots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.kill()
    with serving(tmp_path, "--workers", 0) as server, server.connect() as client:
        jobs = rows(client, "sys.capture_jobs")
        assert len({job["job_id"] for job in jobs}) == 200
        assert {job["state"] for job in jobs} == {"QUEUED"}


SLOW_WORKER = """
import sys, time
from flight_server.client.connection import Connection
from flight_server.worker.loop import Worker
from capture.registry import Registry
from capture.engines.native.engine import NativeEngine
class Slow(NativeEngine):
    def capture_batch(self, requests, sink):
        results = super().capture_batch(requests, sink)
        sys.stdout.write("captured\\n"); sys.stdout.flush()
        time.sleep(60)
        return results
worker = Worker(Connection(sys.argv[1], None), Registry([Slow()]))
worker.start([["job", "light"]])
worker.stopping.wait()
"""


def test_job_of_a_killed_worker_is_finished_by_another_and_published_once(tmp_path, lake):
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
            (job,) = eventually(
                lambda: [j for j in client.act("get_job", {"job_id": queued["job_id"]}) if j["state"] == "SUCCEEDED"]
            )
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


def test_worker_reconnects_to_a_restarted_server(tmp_path, lake):
    with serving(tmp_path, "--workers", 0) as server, server.connect() as client:
        connect(client, lake)
        worker = subprocess.Popen([STATFLIGHT, "worker", "--server", server.uri], stderr=subprocess.DEVNULL)
        (queued,) = client.act("capture", {"requests": [{"table": "lake.default.t1", "mode": "ASYNC"}]})
        eventually(lambda: client.act("get_job", {"job_id": queued["job_id"]})[0]["state"] == "SUCCEEDED")
        server.kill()
    port = server.uri.rpartition(":")[2]
    try:
        time.sleep(0.5)
        assert worker.poll() is None
        with serving(tmp_path, "--workers", 0, "--port", port) as server, server.connect() as client:
            request = {"table": "lake.default.t2", "mode": "ASYNC"}
            (queued,) = client.act("capture", {"requests": [request]})
            eventually(lambda: client.act("get_job", {"job_id": queued["job_id"]})[0]["state"] == "SUCCEEDED")
    finally:
        worker.terminate()
        worker.wait(20)


def test_auto_analyze_captures_new_and_changed_tables_only(tmp_path, lake):
    (tmp_path / "statflight.toml").write_text('auto_analyze = "min_interval=0s"\nauto_analyze_seconds = 1\n')
    with serving(tmp_path, "--workers", 1) as server, server.connect() as client:
        connect(client, lake)
        eventually(
            lambda: (
                {r["table_name"] for r in rows(client, "stats.columns") if r["ndv"] is not None}
                >= {"t0", "t1", "t2", "t3"}
            )
        )
        # of the next run of the policy, a second later
        eventually(
            lambda: [
                d
                for d in rows(client, "sys.capture_decisions")
                if d["engine_id"] == "policy" and "not now, because" in d["detail"]
            ]
        )
        jobs = len(rows(client, "sys.capture_jobs"))  # a run that was under way may have judged by older rows
        time.sleep(3)
        assert len(rows(client, "sys.capture_jobs")) == jobs  # fresh tables are not captured again
        # a later run captures a changed table
        pq.write_table(pa.table({"a": range(10)}), lake / "t0" / "g.parquet")
        eventually(lambda: [r for r in rows(client, "stats.tables") if r["row_count"] == 20])


# Engines that break the contract, lakes that disappear, and workers that compete.


@contextlib.contextmanager
def working(uri: str, *engines: CaptureEngine, roles: Sequence[Sequence[str]] = ROLES) -> Iterator[Worker]:
    """A worker in threads of this process."""
    worker = Worker(Connection(uri, None), Registry(engines))
    worker.start(roles)
    try:
        yield worker
    finally:
        worker.stopping.set()


class Engine:
    """An engine for columns with the results of `compute(requests)`."""

    id, priority = "made-up", 1
    capabilities = Capabilities({TargetKind.COLUMN: frozenset()})

    def __init__(self, compute: Callable[[Sequence[CaptureRequest]], list[CaptureResult]]):
        self.compute = compute

    def supports(self, request: CaptureRequest) -> str:
        return self.capabilities.mismatch(request)

    def capture_batch(self, requests: Sequence[CaptureRequest], sink: Sink) -> list[CaptureResult]:
        return self.compute(requests)


def captured(requests: Sequence[CaptureRequest]) -> list[CaptureResult]:
    return [CaptureResult(Outcome.CAPTURED, "made-up", "", {}, r.target, r.table) for r in requests]


def of_column(table: str, column: int = 1, **more: Any) -> dict[str, Any]:
    return {"table": f"lake.default.{table}", "target": Target.column(column).to_json()} | more


def job(client: Client, job_id: str, *states: str) -> dict[str, Any]:
    """Waits for a job to be in one of these states, and returns it."""
    return eventually(
        lambda: next((j for j in client.act("get_job", {"job_id": job_id}) if j["state"] in states), None)
    )


BREACHES: dict[str, tuple[Callable[[Sequence[CaptureRequest]], list[CaptureResult]], str]] = {
    "raises": (lambda requests: [][1], "capture failed: IndexError"),
    "too few": (lambda requests: captured(requests)[1:], "capture failed: 1 results for 2 requests"),
    "wrong order": (lambda requests: captured(requests)[::-1], "capture failed: the result is for another target"),
    "another snapshot": (
        lambda requests: captured([replace(r, table=replace(r.table, snapshot_id=1)) for r in requests]),
        "capture failed: the result is for another table or snapshot",
    ),
}


def test_engine_that_breaks_the_contract_fails_its_job_without_retry(tmp_path, lake):
    engine = Engine(captured)
    with serving(tmp_path, "--workers", 0) as server, server.connect() as client, working(server.uri, engine):
        connect(client, lake)
        for table, (breach, (engine.compute, detail)) in zip(TABLES, BREACHES.items(), strict=True):
            requests = [of_column(table, 1), of_column(table, 2)]
            outcomes = client.act("capture", {"requests": requests})
            assert [(o["outcome"], o["detail"]) for o in outcomes] == [("DEGRADED", detail)] * 2, breach
            answers = client.act("resolve", {"requests": [a | {"latency_budget_ms": 10_000} for a in requests]})
            assert [(a["outcome"], a["detail"]) for a in answers] == [("FAILED", detail)] * 2, breach
            (follow_up,) = [each for each in rows(client, "sys.capture_jobs") if each["table_name"] == table]
            ended = job(client, follow_up["job_id"], "FAILED")  # a retry would break it again
            assert (ended["message"], ended["attempts"]) == (detail, 1), breach
        assert rows(client, "stats.columns") == []


@pytest.mark.parametrize("removed", ["connector", "lake"])
def test_job_of_a_removed_lake_fails_or_waits_with_a_message(tmp_path, lake, removed):
    with serving(tmp_path, "--workers", 0) as server, server.connect() as client:
        with working(server.uri, roles=[("control",)]):
            connect(client, lake)
            (queued,) = client.act("capture", {"requests": [{"table": "lake.default.t0", "mode": "ASYNC"}]})
            if removed == "connector":
                client.act("drop_connector", {"catalog": "lake"})
            else:
                shutil.rmtree(lake)
        with working(server.uri, NativeEngine(), roles=[("job",)]):
            ended = job(client, queued["job_id"], "FAILED", "WAITING")
            assert ended["message"], ended
            if removed == "connector":
                assert (ended["state"], ended["message"]) == ("FAILED", 'no connector "lake"; register it first')
            assert client.act("cancel_job", {"job_id": queued["job_id"]})[0]["state"] in ("FAILED", "CANCELLED")


def test_concurrent_equal_misses_share_one_capture(tmp_path, lake):
    """The capture takes long enough for all concurrent clients to join it."""
    calls: list[int] = []

    class Slow(NativeEngine):
        def capture_batch(self, requests, sink):
            calls.append(len(requests))
            time.sleep(2)
            return super().capture_batch(requests, sink)

    with serving(tmp_path, "--workers", 0) as server, server.connect() as client, working(server.uri, Slow()):
        connect(client, lake)
        body = {"requests": [{"table": "lake.default.t0", "latency_budget_ms": 10_000}]}
        outcomes: list[str] = []

        def resolve() -> None:
            with Client(server.uri) as own_client:
                outcomes.append(own_client.act("resolve", body)[0]["outcome"])

        threads = [threading.Thread(target=resolve) for _ in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 100 and set(outcomes) <= {"CAPTURED", "HIT"}
        assert calls == [1]


def test_concurrent_resolves_return_the_record_of_each_target(tmp_path):
    many = range(1, 1001)
    table = {"table_catalog": "c", "table_schema": "s", "table_name": "wide", "snapshot_id": 1}
    wide = [table | {"column_id": i, "column_name": f"c{i}", "logical_type": "INT", "row_count": i} for i in many]
    with serving(tmp_path, "--workers", 0) as server, server.connect() as client:
        client.put("stats.columns", pa.Table.from_pylist(wide))
        body = {"requests": [{"table": "c.s.wide", "target": Target.column(i).to_json()} for i in many]}
        records: list[list[Any]] = []

        def resolve() -> None:
            with Client(server.uri) as own_client:
                answers = own_client.act("resolve", body)
                records.append([(a["outcome"], a["record"]["column_id"], a["record"]["row_count"]) for a in answers])

        threads = [threading.Thread(target=resolve) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert records == [[("HIT", i, i) for i in many]] * 16


@contextlib.contextmanager
def long_scans(directory: Path, lake: Path) -> Iterator[tuple[Client, threading.Event]]:
    """A server whose scans of columns last until the event is set."""
    release = threading.Event()

    def scan(requests: Sequence[CaptureRequest]) -> list[CaptureResult]:
        release.wait(WITHIN)
        return captured(requests)

    with (
        serving(directory, "--workers", 0) as server,
        server.connect() as client,
        working(server.uri, Engine(scan), NativeEngine()),
    ):
        connect(client, lake)
        eventually(lambda: rows(client, "sys.engines"))
        yield client, release


def test_small_jobs_are_not_starved_by_long_scans(tmp_path, lake):
    with long_scans(tmp_path, lake) as (client, release):
        long = [client.act("capture", {"requests": [of_column(t, mode="ASYNC")]})[0] for t in TABLES[:3]]
        job(client, long[0]["job_id"], "RUNNING")
        (small,) = client.act("capture", {"requests": [{"table": "lake.default.t3", "mode": "ASYNC"}]})
        job(client, small["job_id"], "SUCCEEDED")  # while the scans run
        states = [client.act("get_job", {"job_id": scan["job_id"]})[0]["state"] for scan in long]
        assert sorted(states) == ["QUEUED", "QUEUED", "RUNNING"]
        release.set()
        for scan in long:
            job(client, scan["job_id"], "SUCCEEDED")


def test_resolve_of_a_table_completes_during_long_scans(tmp_path, lake):
    with long_scans(tmp_path, lake) as (client, release):
        for table in TABLES[:3]:  # more than there are threads for scans
            (answer,) = client.act("resolve", {"requests": [of_column(table, latency_budget_ms=50)]})
            assert answer["outcome"] == "TIMEOUT"
        table = {"table": "lake.default.t3", "latency_budget_ms": 5000}
        answers = client.act("resolve", {"requests": [of_column("t3", latency_budget_ms=50), table]})
        assert [a["outcome"] for a in answers] == ["TIMEOUT", "CAPTURED"], answers
        assert answers[1]["record"]["row_count"] == 10
        release.set()


def test_workers_share_the_queue_with_one_job_per_table_at_a_time(tmp_path, lake):
    """Each job runs once, and no two of one table run concurrently."""
    lock = threading.Lock()
    running: list[str] = []
    done: list[tuple[str, int]] = []
    concurrent: list[tuple[str, ...]] = []

    def capture(requests: Sequence[CaptureRequest]) -> list[CaptureResult]:
        with lock:
            running.append(requests[0].table.name)
            concurrent.append(tuple(running))
        time.sleep(0.1)
        with lock:
            running.remove(requests[0].table.name)
            done.extend((r.table.name, r.target.column_id or 0) for r in requests)
        return captured(requests)

    with serving(tmp_path, "--workers", 0) as server, server.connect() as client:
        with working(server.uri, roles=[("control",)]):
            connect(client, lake)
        targets = [(table, column) for table in TABLES for column in range(1, 6)]
        queued = [client.act("capture", {"requests": [of_column(t, c, mode="ASYNC")]})[0] for t, c in targets]
        engine = Engine(capture)
        with working(server.uri, engine, roles=[("job",)]), working(server.uri, engine, roles=[("job",)] * 2):
            ended = [job(client, each["job_id"], "SUCCEEDED") for each in queued]
    assert sorted(done) == sorted(targets) and {each["attempts"] for each in ended} == {1}
    assert all(len(set(tables)) == len(tables) for tables in concurrent)
    assert max(map(len, concurrent)) > 1


def test_follow_up_job_reads_only_the_files_that_failed(tmp_path):
    from deltalake import write_deltalake

    path = tmp_path / "lake" / "t"
    for start in (0, 10, 20):
        write_deltalake(path, pa.table({"a": range(start, start + 10)}), mode="append")
    bad, *good = sorted(path.glob("*.parquet"))
    content = bad.read_bytes()
    bad.write_bytes(content[:-1] + b"?")
    with serving(tmp_path, "--workers", 1) as server, server.connect() as client:
        client.act("register_connector", {"catalog": "lake", "format": "delta", "uri": str(tmp_path / "lake")})
        client.act("discover", {"catalog": "lake"})
        (queued,) = client.act("capture", {"requests": [of_column("t", mode="ASYNC")]})
        first = job(client, queued["job_id"], "SUCCEEDED")
        assert first["degraded"] and bad.name in first["message"], first
        (row,) = rows(client, "stats.columns")
        assert (row["row_count"], row["completeness"], row["usable_for"]) == (30, "PARTIAL", "PLANNING")
        assert (row["rows_scanned"], row["ndv_upper"]) == (20, 30.0)
        bad.write_bytes(content)
        for file in good:  # a second read of these would fail
            file.write_bytes(b"damaged")
        rest = job(client, first["message"].rpartition(" ")[2], "SUCCEEDED")
        assert not rest["degraded"], rest
        (row,) = rows(client, "stats.columns")
        assert (row["row_count"], row["ndv"], row["min"], row["max"]) == (30, 30.0, "0", "29")
        assert (row["completeness"], row["files_scanned"]) == ("COMPLETE", 3)
