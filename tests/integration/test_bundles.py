"""Many small tables in one request, through a server and its worker: a bad table or a lost worker affects no other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.flight_server.live_server import Client, LiveServer, eventually, serving

TABLES = 40


def lake(root: Path) -> Path:
    for number in range(TABLES):
        directory = root / "lake" / f"t{number:02}"
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"id": list(range(number + 1)), "name": ["x"] * (number + 1)}), directory / "0.parquet")
    return root / "lake"


@contextmanager
def discovered(directory: Path, *flags: object) -> Iterator[tuple[LiveServer, Client]]:
    """A server with one worker and the discovered tables of the lake, and its client."""
    connector = {"catalog": "lake", "format": "parquet", "uri": str(lake(directory))}
    (directory / "home").mkdir()
    with serving(directory / "home", "--workers", 1, *flags) as server, server.connect() as client:
        eventually(lambda: client.act("register_connector", connector), ignoring=(pa.ArrowException,))
        client.act("discover", {"catalog": "lake"})
        yield server, client


def test_corrupt_table_of_a_bundle_fails_alone(tmp_path):
    """Its pages are damaged after its footer was read; statistics and decisions of all others are stored."""
    with discovered(tmp_path) as (_, client):
        bad = tmp_path / "lake" / "t07" / "0.parquet"
        content = bad.read_bytes()
        bad.write_bytes(b"PAR1" + b"\xff" * 60 + content[64:])
        requests = [
            {"table": f"lake.default.t{number:02}", "target": target}
            for number in range(TABLES)
            for target in ({"kind": "TABLE"}, {"kind": "COLUMN", "column_id": 1})
        ]
        outcomes = client.act("capture", {"requests": requests})
        failed = {a["table"] for a, o in zip(requests, outcomes, strict=True) if o["outcome"] != "CAPTURED"}
        assert failed == {"lake.default.t07"}
        rows = client.get(
            {"table": "stats.columns", "predicates": [{"column": "column_name", "op": "EQ", "values": ["id"]}]}
        ).to_pylist()
        assert {row["table_name"]: row["ndv"] for row in rows if row["table_name"] != "t07"} == {
            f"t{number:02}": number + 1 for number in range(TABLES) if number != 7
        }
        decisions = client.get({"table": "sys.capture_decisions"}).to_pylist()
        assert {row["table_name"] for row in decisions} == {f"t{number:02}" for number in range(TABLES)}


def test_concurrent_requests_for_the_same_tables_both_complete(tmp_path):
    with discovered(tmp_path) as (_, client):
        requests = [
            {"table": f"lake.default.t{number:02}", "target": {"kind": "COLUMN", "column_id": 1}}
            for number in range(TABLES)
        ]
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(client.act, "capture", {"requests": requests}) for _ in range(2)]
            outcomes = [outcome["outcome"] for one in both for outcome in one.result()]
        assert outcomes == ["CAPTURED"] * (2 * TABLES)
        rows = client.get({"table": "stats.columns", "columns": ["table_name", "column_id"]}).to_pylist()
        names = [row["table_name"] for row in rows if row["column_id"] == 1]
        assert sorted(names) == sorted(f"t{number:02}" for number in range(TABLES))


def test_bundle_of_a_killed_worker_is_captured_by_its_successor(tmp_path):
    with discovered(tmp_path, "-o", "lease_seconds=2") as (server, client):
        server_pid = server.process.pid
        (worker,) = map(int, Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split())
        requests = [
            {"table": f"lake.default.t{number:02}", "target": {"kind": "COLUMN", "column_id": 1}}
            for number in range(TABLES)
        ]

        def started() -> bool:
            jobs = client.get({"table": "sys.capture_jobs"}).to_pylist()
            return sum(job["state"] == "RUNNING" for job in jobs) > 1

        with ThreadPoolExecutor(1) as pool:
            captured = pool.submit(client.act, "capture", {"requests": requests})
            eventually(started)
            os.kill(worker, signal.SIGKILL)
            outcomes = captured.result(timeout=60)
        assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}
