"""A table of many files captured from its log by a server with one worker, under other writes: how long the capture
takes, what it costs both processes, how long other puts wait, the space that it takes, and how long a scan is planned.

`python -m pytest tests/benchmarks/bench_capture_listing.py -m benchmark -s`; STATFLIGHT_BENCH_FILES (30000) files of
STATFLIGHT_BENCH_COLUMNS (100) columns each. STATFLIGHT_BENCH_LAKE is a directory that keeps the log for the next run.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pyarrow as pa
import pytest

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
        where = f"c0 BETWEEN {FILES * 500} AND {FILES * 500 + 2000}"
        plan = {"scan": "lake.default.t", "where": where, "columns": ["c0"]}
        seconds = []
        for _ in range(PLANS):
            began = time.perf_counter()
            kept = client.read(plan).num_rows
            seconds.append(time.perf_counter() - began)
            assert 0 < kept < 10
        typical, best = (1000 * each for each in (statistics.median(seconds), min(seconds)))
        lines.append(f"planned in {typical:.0f} ms (median), {best:.0f} ms at best, first {1000 * seconds[0]:.0f} ms")
    with capsys.disabled():
        print(f"\n{FILES} files × {COLUMNS} columns, load {os.getloadavg()[0]:.0f}\n  " + "\n  ".join(lines))
