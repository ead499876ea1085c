"""The control plane: resolve and capture through a server with one worker. Prints p50 in milliseconds, and ratios.

`pytest tests/benchmarks/bench_control.py -m benchmark -s`, or run it as a script. STATFLIGHT_BENCH_TABLES is the number
of tables with queued jobs.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks.bench_small_tables import cpu_ms
from tests.flight_server.live_server import Client, serving

pytestmark = pytest.mark.benchmark

CLIENTS, TARGETS = 16, 1000


def p50(run: Callable[[], object], times: int = 50) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        taken.append((time.perf_counter() - started) * 1000)
    return statistics.median(taken)


def show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextmanager
def connected() -> Iterator[tuple[str, Client, Path]]:
    """A server with one worker, connected to a Delta lake: `small` of 10 rows, `files` of 100 files, `wide`."""
    from deltalake import write_deltalake

    with tempfile.TemporaryDirectory() as home:
        lake = Path(home) / "lake"
        rows = pa.table({"id": range(10), "name": [f"n{i}" for i in range(10)]})
        write_deltalake(lake / "small", rows)
        wide = {f"c{i}": range(10) for i in range(TARGETS)}
        write_deltalake(lake / "wide", pa.table(wide))
        for table in range(20):
            files = lake / f"files{table}"
            write_deltalake(files, rows)
            # one commit of 100 files
            from deltalake import DeltaTable
            from deltalake.transaction import AddAction

            adds = []
            stats = '{"numRecords": 10, "minValues": {"id": 0}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}'
            for number in range(99):
                part = files / f"part-{number}.parquet"
                pq.write_table(rows, part)
                adds.append(AddAction(part.name, part.stat().st_size, {}, int(time.time() * 1000), True, stats))
            DeltaTable(files).create_write_transaction(adds, "append", DeltaTable(files).schema(), [])
        with serving(Path(home), "--workers", 1) as server, server.connect() as client:
            client.act("register_connector", {"catalog": "lake", "format": "delta", "uri": str(lake)})
            client.act("discover", {"catalog": "lake"})
            yield server.uri, client, lake


def bench(uri: str, client: Client, lake: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    small = {"table": "lake.default.small"}
    client.act("capture", {"requests": [small]})
    empty = p50(lambda: client.act("resolve", {"requests": []}), 200)
    health = p50(lambda: client.act("health"), 200)
    hit = p50(lambda: client.act("resolve", {"requests": [small]}), 200)
    found |= {"empty": empty, "health": health, "hit": hit, "hit_ratio": hit / empty}
    show(f"empty action            {empty:8.2f} ms   health {health:.2f} ms")
    show(f"warm resolve HIT        {hit:8.2f} ms   {hit / empty:.2f} × an empty action (≤ 1.5)")

    warm = p50(lambda: client.act("capture", {"requests": [small]}), 30)
    found["warm_capture"] = warm
    show(f"warm capture, 10 rows   {warm:8.2f} ms   {warm / 150:.2f} × 150 ms")
    columns = [small] + [small | {"target": {"kind": "COLUMN", "column_id": i}} for i in (1, 2)]
    whole = p50(lambda: client.act("capture", {"requests": columns}), 30)
    found["warm_capture_columns"] = whole
    show(f"… with its columns      {whole:8.2f} ms   {whole / 150:.2f} × 150 ms")

    cold = []
    for table in range(20):
        request = {"table": f"lake.default.files{table}", "latency_budget_ms": 1000}
        started = time.perf_counter()
        (answer,) = client.act("resolve", {"requests": [request]})
        cold.append((time.perf_counter() - started) * 1000)
        assert answer["outcome"] == "CAPTURED", answer
    found["cold_resolve"] = statistics.median(cold)
    half = found["cold_resolve"]
    show(f"cold SYNC resolve       {half:8.2f} ms   {half / 250:.2f} × 250 ms (100 files; max {max(cold):.0f})")

    wide = "lake.default.wide"
    requests = [
        {"table": wide, "target": {"kind": "COLUMN", "column_id": i}, "kinds": ["NULL_COUNT"]}
        for i in range(1, TARGETS + 1)
    ]
    client.timeout = 120.0  # the log has statistics of 32 columns, the others are scanned
    assert {o["outcome"] for o in client.act("capture", {"requests": requests})} == {"CAPTURED"}
    one = p50(lambda: client.act("resolve", {"requests": requests}), 5)
    show(f"resolve of {TARGETS} targets  {one:8.2f} ms")
    found["resolve_1000"] = one
    wrong: list[object] = []

    def resolve_repeatedly() -> None:
        with Client(uri) as own_client:
            for _ in range(3):
                answers = own_client.act("resolve", {"requests": requests})
                if [a["record"] and a["record"]["column_id"] for a in answers] != list(range(1, TARGETS + 1)):
                    wrong.append({a["outcome"] for a in answers})

    threads = [threading.Thread(target=resolve_repeatedly) for _ in range(CLIENTS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    found["storm"] = took
    rate = CLIENTS * 3 * TARGETS / took
    show(f"{CLIENTS} clients × 3 × {TARGETS}   {took * 1000:8.0f} ms   {rate:,.0f} targets/s, {len(wrong)} wrong")
    assert not wrong, wrong[:3]
    return found


def drain(root: Path, tables: int, workers: int) -> None:
    """Times durable jobs of all tables of a lake, from the request to the end of the last one, and two discoveries."""
    lake, home = root / "lake", root / f"home{workers}"
    home.mkdir(parents=True)
    rows = io.BytesIO()
    pq.write_table(pa.table({f"c{c}": [(row * 7919 + c) % 503 for row in range(1000)] for c in range(10)}), rows)
    for number in range(tables):
        folder = lake / f"t{number:05}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "0.parquet").write_bytes(rows.getvalue())
    with serving(home, "--workers", workers) as server, server.connect() as client:
        client.timeout = 3600.0
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake)})
        discoveries = [timed(lambda: client.act("discover", {"catalog": "lake"})) for _ in range(2)]
        show(f"discover of {tables} tables: {discoveries[0]:.1f} s, unchanged {discoveries[1]:.1f} s (at most 5)")
        targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": i} for i in range(1, 11))]
        names = [f"lake.default.t{number:05}" for number in range(tables)]
        requests = [{"table": name, "target": target, "mode": "ASYNC"} for name in names for target in targets]
        server_pid = server.process.pid
        before = cpu_ms(server_pid)
        queued = timed(lambda: client.act("capture", {"requests": requests}))
        active = [{"column": "state", "op": "IN", "values": ["QUEUED", "WAITING", "RUNNING"]}]
        active_jobs = {"table": "sys.capture_jobs", "columns": ["job_id"], "predicates": active}

        def wait() -> None:
            while client.read(active_jobs).num_rows:
                time.sleep(0.5)

        drained = timed(wait)
        assert set(client.read({"table": "sys.capture_jobs"})["state"].to_pylist()) == {"SUCCEEDED"}
        cpu = (cpu_ms(server_pid) - before) / tables
        show(
            f"{tables} jobs, {workers} workers: queued in {queued:.1f} s, drained in {drained:.1f} s, which is"
            f" {drained * 1000 / tables:.1f} ms a job; CPU of the server {cpu:.1f} ms a job"
        )


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@pytest.mark.parametrize("workers", [2, 4])
def test_many_durable_jobs(tmp_path: Path, workers: int) -> None:
    drain(tmp_path, int(os.environ.get("STATFLIGHT_BENCH_TABLES", "5000")), workers)


def test_control_plane() -> None:
    with connected() as (uri, client, lake):
        bench(uri, client, lake)


if __name__ == "__main__":
    with connected() as parts:
        bench(*parts)
