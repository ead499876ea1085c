"""A table of many files captured from its log by a server with one worker, under other writes: how long the capture
takes, what it costs both processes, how long other puts wait, the space that it takes, and how long a scan is planned.
In turn with the plans DuckDB alone finds the same files in the same Parquet files, by the bounds of their column.

`python -m pytest tests/benchmarks/bench_capture_listing.py -m benchmark -s`; STATFLIGHT_BENCH_FILES (30000) files of
STATFLIGHT_BENCH_COLUMNS (100) columns each. STATFLIGHT_BENCH_LAKE is a directory that keeps the log for the next run.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flight_server.client.connection import Connection
from tests.benchmarks.bench_large_listings import others
from tests.benchmarks.bench_large_tables import children
from tests.benchmarks.bench_small_tables import cpu_ms, peak_mb
from tests.benchmarks.lake_data import delta_log
from tests.flight_server.live_server import eventually, serving

pytestmark = pytest.mark.benchmark

FILES = int(os.environ.get("STATFLIGHT_BENCH_FILES", "30000"))
COLUMNS = int(os.environ.get("STATFLIGHT_BENCH_COLUMNS", "100"))
SECONDS, PLANS = 1800.0, 9


def lake(tmp_path: Path) -> Path:
    """The directory of a lake that has the table `t`."""
    root = Path(os.environ.get("STATFLIGHT_BENCH_LAKE", tmp_path)) / f"{FILES}x{COLUMNS}"
    if not (root / "t").exists():
        delta_log(root / "t", FILES, COLUMNS)
    return root


def size_mb(*files: Path) -> float:
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


class Side:
    """How long something takes, and what it costs a process."""

    def __init__(self, name: str):
        self.name, self.ms, self.cpu = name, list[float](), list[float]()

    def run(self, call: Callable[[], int], pid: int) -> int:
        began, used = time.perf_counter(), cpu_ms(pid)
        found = call()
        self.ms.append(1000 * (time.perf_counter() - began))
        self.cpu.append(cpu_ms(pid) - used)
        return found

    def figures(self) -> str:
        typical, best, first = statistics.median(self.ms), min(self.ms), self.ms[0]
        return (
            f"{self.name} in {typical:.0f} ms (median), {best:.0f} ms at best, first {first:.0f} ms;"
            f" {statistics.median(self.cpu):.0f} ms of CPU"
        )


class Alone:
    """DuckDB over the segments that have bounds, without a server: files of which c0 may have a value of a range."""

    def __init__(self, directory: Path):
        self.side = Side("by DuckDB alone")
        names = [str(file) for file in directory.glob("*.parquet") if "column_id" in pq.read_schema(file).names]
        self._sql = f"SELECT file_path FROM read_parquet({names}) WHERE column_id = 1"
        self._connection = duckdb.connect()
        self._connection.execute("SET parquet_metadata_cache = true")

    def find(self, low: int, high: int) -> int:
        bounds = f"try_cast(max AS BIGINT) >= {low} AND try_cast(min AS BIGINT) <= {high}"
        return len(self._connection.execute(f"{self._sql} AND {bounds}").fetchall())


def rows_of(client: Connection, command: dict[str, Any]) -> int:
    return client.read(command).num_rows


def test_a_table_of_many_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, lines, database = lake(tmp_path), [], tmp_path / "stats.duckdb"
    with serving(tmp_path, "--workers", 1, "--watch-seconds", 0) as server:
        client = server.connect()
        client.timeout = SECONDS
        connector = {"catalog": "lake", "format": "delta", "uri": str(root)}
        eventually(lambda: client.act("register_connector", connector), ignoring=(pa.ArrowException,))
        client.act("discover", {"catalog": "lake"})
        (worker,) = children(server.process.pid)
        processes = {"worker": worker, "server": server.process.pid}
        before = {name: cpu_ms(pid) for name, pid in processes.items()}
        with others(server) as meanwhile:
            request = {"table": "lake.default.t", "target": {"kind": "TABLE"}}
            began = time.perf_counter()
            (outcome,) = client.act("capture", {"requests": [request]})
            took = time.perf_counter() - began
        assert outcome["outcome"] == "CAPTURED", outcome
        lines.append(f"captured in {took:.1f} s; other puts {meanwhile.figures()}")
        for name, pid in processes.items():
            lines.append(f"{name}: {(cpu_ms(pid) - before[name]) / 1000:.1f} s of CPU, peak {peak_mb(pid):.0f} MB")
        size = size_mb(database, database.with_name(f"{database.name}.wal"))
        beside = size_mb(*Path(f"{database}.segments").rglob("*"))
        lines.append(f"database {size:.0f} MB, segments {beside:.0f} MB")
        alone, planned = Alone(Path(f"{database}.segments")), Side("planned")
        for turn in range(PLANS):  # each with other literals, because plans are cached
            low = FILES * 500 + 1000 * turn
            plan = {"scan": "lake.default.t", "where": f"c0 BETWEEN {low} AND {low + 2000}", "columns": ["c0"]}
            kept = planned.run(functools.partial(rows_of, client, plan), server.process.pid)
            found = alone.side.run(functools.partial(alone.find, low, low + 2000), os.getpid())
            assert kept == found and 0 < kept < 10
        lines += [planned.figures(), alone.side.figures()]
    with capsys.disabled():
        print(f"\n{FILES} files × {COLUMNS} columns, load {os.getloadavg()[0]:.0f}\n  " + "\n  ".join(lines))
