"""Many small tables in one request, and one alone: milliseconds per table through a server with one worker, and CPU
time of the server and its worker per table, which other work on the machine changes little.

Tables of 1000 rows × 10 columns, of Parquet, Delta and Iceberg, compared with DuckDB's SUMMARIZE of the same files,
then once more after rows are appended to each.
`python -m pytest tests/benchmarks/bench_small_tables.py -m benchmark -s`; STATFLIGHT_BENCH_TABLES (200) sets how many.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.flight_server.live_server import Client, eventually, serving

pytestmark = pytest.mark.benchmark

TABLES = int(os.environ.get("STATFLIGHT_BENCH_TABLES", "200"))
ALONE = 5


def make(format: str, root: Path) -> Callable[[], None]:
    """Makes the tables; the result appends rows to each, a file."""
    rng = np.random.default_rng(1)
    root.mkdir()
    iceberg = SqlCatalog("lake", uri="sqlite:///:memory:", warehouse=f"file://{root}")
    if format == "iceberg":
        iceberg.create_namespace("default")

    def append() -> None:
        for number in range(TABLES):
            arrays = [
                rng.integers(0, 500, 1000),
                rng.random(1000),
                np.array([f"v{x}" for x in rng.integers(0, 300, 1000)]),
            ]
            rows = pa.table({f"c{i}": arrays[i % 3] for i in range(10)})
            directory = root / f"t{number:03}"
            if format == "delta":
                import deltalake

                deltalake.write_deltalake(str(directory), rows, mode="append")
            elif format == "iceberg":
                iceberg.create_table_if_not_exists(f"default.t{number:03}", rows.schema).append(rows)
            else:
                directory.mkdir(parents=True, exist_ok=True)
                pq.write_table(rows, directory / f"{len(list(directory.iterdir()))}.parquet")

    append()
    return append


def cpu_ms(pid: int) -> float:
    """Processor time of a process in milliseconds; Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def peak_mb(pid: int) -> float:
    """Peak memory of a process in MB; Linux."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def capture(client: Client, numbers: range) -> float:
    """Captures tables in one request; milliseconds per table."""
    requests = [
        {"table": f"lake.default.t{number:03}", "snapshot": "current", "target": target}
        for number in numbers
        for target in [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": i} for i in range(1, 11))]
    ]
    began = time.perf_counter()
    outcomes = client.act("capture", {"requests": requests})
    took = (time.perf_counter() - began) * 1000 / len(numbers)
    assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}
    return took


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_small_tables(tmp_path, capsys, format):
    append = make(format, tmp_path / "lake")
    (tmp_path / "home").mkdir()
    with serving(tmp_path / "home", "--workers", 1) as server:
        client = server.connect()
        lake = {"catalog": "lake", "format": format, "uri": str(tmp_path / "lake")}
        eventually(lambda: client.act("register_connector", lake), ignoring=(pa.ArrowException,))
        client.act("discover", {"catalog": "lake"})
        capture(client, range(1))
        alone = statistics.median(capture(client, range(number, number + 1)) for number in range(1, 1 + ALONE))
        server_pid = server.process.pid
        pids = [server_pid, *map(int, Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split())]

        def measured() -> str:
            """Captures most tables: milliseconds and CPU time per table."""
            before = sum(map(cpu_ms, pids[1:])), cpu_ms(server_pid)
            together = capture(client, range(1 + ALONE, TABLES))
            after = sum(map(cpu_ms, pids[1:])), cpu_ms(server_pid)
            of_worker, of_server = (
                (now - then) / (TABLES - 1 - ALONE) for now, then in zip(after, before, strict=True)
            )
            return (
                f"{together:.1f} ms a table of {TABLES} (CPU of server {of_server:.1f} ms, worker {of_worker:.1f} ms)"
            )

        first = measured()
        append()
        again = measured()
    files = sorted((tmp_path / "lake").rglob("*.parquet"))[:50]
    began = time.perf_counter()
    for file in files:
        duckdb.sql(f"SUMMARIZE FROM '{file}'").fetchall()
    summarize = (time.perf_counter() - began) * 1000 / len(files)
    with capsys.disabled():
        print(f"\n{format}: {alone:.0f} ms alone, {first}, after an append {again}; SUMMARIZE {summarize:.1f} ms")
