"""Memory of a server with many rows: after they are put, while they are scanned, and at rest.

STATFLIGHT_BENCH_MEMORY_ROWS: rows of stats.columns (default 10 000 000), put in streams of 500 000, one for each
snapshot of 10 000 tables of 50 columns.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.benchmarks.bench_catalog import rows
from tests.benchmarks.bench_store import put, serving

pytestmark = pytest.mark.benchmark

ROWS = int(os.environ.get("STATFLIGHT_BENCH_MEMORY_ROWS", "10000000"))
TABLES, COLUMNS = 10_000, 50
MAX_BYTES = 1_500_000_000
SCANS = {
    "all current rows": {"snapshot": "current"},
    "all stored rows, 3 columns": {"columns": ["table_name", "column_name", "ndv"]},
    "a filter over all stored rows": {"predicates": [{"column": "ndv", "op": "GT", "values": [980]}]},
    "all stored rows": {},
}


def server_of(db: Path) -> Path:
    """The directory under /proc of the process that serves a database."""
    children = (path.read_text().split() for path in Path("/proc/self/task").glob("*/children"))
    for process in (Path("/proc", pid) for pids in children for pid in pids):
        if str(db).encode() in (process / "cmdline").read_bytes().split(b"\0"):
            return process
    raise AssertionError(f"no process serves {db}")


def resident_bytes(process: Path) -> int:
    """Physical memory of a process."""
    return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def scan(client: flight.FlightClient, command: dict[str, object]) -> int:
    """Number of rows of a scan of stats.columns; keeps none in memory."""
    reader, count = client.do_get(flight.Ticket(json.dumps({"table": "stats.columns"} | command).encode())), 0
    while True:
        try:
            count += reader.read_chunk().data.num_rows
        except StopIteration:
            return count


def test_memory_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATFLIGHT_MAX_STREAM_BYTES", str(1 << 40))  # all rows are more than an answer has by default
    with serving(db := tmp_path / "m.duckdb") as client:
        server, peaks = server_of(db), {}

        def record(phase: str) -> None:
            peaks[phase] = max(resident_bytes(server), peaks.get(phase, 0))

        def watch(phase: str, work: object) -> float:
            started = time.perf_counter()
            with ThreadPoolExecutor(1) as pool:
                done = pool.submit(work)  # type: ignore[arg-type]
                while not done.done():
                    record(phase)
                    time.sleep(0.05)
                done.result()
            print(f"{phase}: {peaks[phase] / 1e6:,.0f} MB at most, {time.perf_counter() - started:.1f} s", flush=True)
            return time.perf_counter() - started

        snapshots = max(1, ROWS // (TABLES * COLUMNS))

        def load() -> None:
            for snapshot in range(1, snapshots + 1):
                # batches as a client sends them, each snapshot with other content
                counts = put(client, "stats.columns", _rows_of(snapshot))
                assert counts["created"] == TABLES * COLUMNS

        print()
        watch("puts", load)
        for name, command in SCANS.items():
            watch(name, lambda command=command: scan(client, command))  # type: ignore[misc]
        watch("at rest, 10 s later", lambda: time.sleep(10))
        assert scan(client, {"columns": []} | {"limit": 1}) == 1
    assert max(peaks.values()) <= MAX_BYTES, peaks


def _rows_of(snapshot: int) -> pa.Table:
    keys = ("freshness", "usable_for")
    table = rows(snapshot, tables=TABLES, columns=COLUMNS, shift=snapshot)
    return table.drop_columns([name for name in keys if name in table.column_names])
