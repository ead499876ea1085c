"""Captures of TPC-H tables, and of one of 200 columns, by a server with one worker: seconds until the last outcome.

Each is interleaved with DuckDB's SUMMARIZE of the same files and, with STATFLIGHT_BENCH_SPARK=1, with Spark's `ANALYZE
TABLE … FOR ALL COLUMNS`. The first capture of lineitem is the first large capture of its server. Also printed: CPU
seconds of the worker, which other work on the machine changes little, and its peak memory so far.
`python -m pytest tests/benchmarks/bench_large_tables.py -m benchmark -s`; STATFLIGHT_BENCH_SCALE (1) makes it smaller.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.benchmarks.bench_capture import wide
from tests.benchmarks.bench_small_tables import cpu_ms, peak_mb
from tests.flight_server.live_server import Client, eventually, serving

pytestmark = pytest.mark.benchmark

SCALE = os.environ.get("STATFLIGHT_BENCH_SCALE", "1")
WITH_SPARK = os.environ.get("STATFLIGHT_BENCH_SPARK") == "1"
ROUNDS = 5
TABLES = {"part": 1, "customer": 1, "orders": 4, "lineitem": 12}  # table → number of files


def generate(root: Path) -> None:
    generator = Path(sys.executable).with_name("tpchgen-cli")
    for table, parts in TABLES.items():
        command = [generator, "parquet", "-s", SCALE, "--tables", table, "--parts", str(parts), "--output-dir", root]
        subprocess.run(command, check=True, capture_output=True)
        if (root / f"{table}.parquet").exists():  # a lake's table is a directory
            (root / table).mkdir(exist_ok=True)
            (root / f"{table}.parquet").rename(root / table / "0.parquet")
    (root / "wide").mkdir()
    wide(root / "wide")


def capture(client: Client, table: str, columns: int) -> float:
    """Seconds of a capture of all columns that reads all files."""
    name = f"lake.default.{table}"
    with contextlib.suppress(pa.ArrowException):  # nothing is stored yet
        client.act("delete_stats", {"table": name})
    targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": i} for i in range(1, columns + 1))]
    began = time.perf_counter()
    outcomes = client.act("capture", {"requests": [{"table": name, "target": target} for target in targets]})
    took = time.perf_counter() - began
    assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}
    return took


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@contextlib.contextmanager
def analyzer(root: Path) -> Iterator[Callable[[str], Any] | None]:
    """Spark's ANALYZE of a table, in a warm session of all cores; None without Spark."""
    if not WITH_SPARK:
        yield None
        return
    from capture.spark.session import Spark

    with Spark().held() as session:
        spark = session()
        for table in (*TABLES, "wide"):
            spark.sql(f"CREATE TABLE bench_{table} USING parquet LOCATION '{root / table}'")
        try:
            yield lambda t: spark.sql(f"ANALYZE TABLE bench_{t} COMPUTE STATISTICS FOR ALL COLUMNS").collect()
        finally:
            for table in (*TABLES, "wide"):
                spark.sql(f"DROP TABLE bench_{table}")


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_large_tables(tmp_path, capsys):
    lake = tmp_path / "lake"
    lake.mkdir()
    generate(lake)
    columns = {table: len(duckdb.sql(f"FROM '{lake}/{table}/*.parquet'").columns) for table in (*TABLES, "wide")}
    lines = []
    with analyzer(lake) as analyze, serving(tmp_path, "--workers", 1) as server:
        client = server.connect()
        client.timeout = 600.0
        connector = {"catalog": "lake", "format": "parquet", "uri": str(lake)}
        eventually(lambda: client.act("register_connector", connector), ignoring=(pa.ArrowException,))
        client.act("discover", {"catalog": "lake"})
        first = capture(client, "lineitem", columns["lineitem"])
        (worker,) = children(server.process.pid)
        for table in columns:
            others = {"SUMMARIZE": lambda t=table: duckdb.sql(f"SUMMARIZE FROM '{lake}/{t}/*.parquet'").fetchall()}
            if analyze is not None:
                others["ANALYZE"] = lambda t=table: analyze(t)
            took: dict[str, list[float]] = {name: [] for name in ("capture", *others)}
            cpu = []
            for at in range(ROUNDS + 1):
                before = cpu_ms(worker)
                seconds = {"capture": capture(client, table, columns[table])}
                used = (cpu_ms(worker) - before) / 1000
                seconds |= {name: timed(action) for name, action in others.items()}
                if at:  # the first round warms up
                    cpu.append(used)
                    for name, value in seconds.items():
                        took[name].append(value)
            median = {name: statistics.median(values) for name, values in took.items()}
            ratios = "".join(f", {name} / capture {median[name] / median['capture']:.1f}" for name in others)
            worker_text = f"CPU of the worker {statistics.median(cpu):.2f} s, its peak memory {peak_mb(worker):.0f} MB"
            seconds_text = f"{median['capture']:.2f} s, best {min(took['capture']):.2f} s{ratios}"
            lines.append(f"{table}: {seconds_text}; {worker_text}")
        lines.append(f"lineitem, first large capture of a server: {first:.2f} s")
    with capsys.disabled():
        print(f"\nTPC-H SF{SCALE} through a server\n  " + "\n  ".join(lines))
