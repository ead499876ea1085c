"""A wide table, and small ones: what each column costs, and what each capture costs however little it reads.

10,000 columns of mixed types × 1,000 rows: processor and wall time of a capture of everything, of one from metadata,
and of `statflight show`, and the size of the database. Tables of 8 columns: the time of a capture, of the same files
decoded by pyarrow, and of DuckDB's SUMMARIZE, interleaved. Kernels of short columns that share steps, and one after the
other.
`python -m pytest tests/benchmarks/bench_wide.py -m benchmark -s`; STATFLIGHT_BENCH_COLUMNS (10000) sets how many.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute import kernels
from store.model import logical_types
from tests.benchmarks.bench_small_tables import cpu_ms
from tests.flight_server.live_server import STATFLIGHT, Client, LiveServer, eventually, serving

pytestmark = pytest.mark.benchmark

COLUMNS = int(os.environ.get("STATFLIGHT_BENCH_COLUMNS", "10000"))
ROWS = 1000
ROUNDS = 9
_METADATA = ["ROW_COUNT", "NULL_COUNT", "MIN_MAX"]


def mixed(columns: int, rows: int) -> pa.Table:
    """Columns of ten kinds in turn: half of them have few values, a third only different ones."""
    rng = np.random.default_rng(1)

    def texts(numbers: npt.NDArray[Any]) -> pa.Array:
        return pa.array([f"value {number}" for number in numbers.tolist()])

    kinds: Sequence[Callable[[], pa.Array]] = [
        lambda: pa.array(rng.integers(0, 10**9, rows)),
        lambda: pa.array(rng.normal(0, 1, rows)),
        lambda: pa.array(rng.integers(0, 2, rows).astype(bool)),
        lambda: pa.array(rng.integers(0, 20, rows).astype(np.int32)),
        lambda: texts(rng.integers(0, 12, rows)),
        lambda: texts(rng.integers(0, 300, rows)),
        lambda: pa.array(rng.integers(18_000, 18_365, rows).astype(np.int32)).cast(pa.date32()),
        lambda: pa.array(np.round(rng.random(rows), 2), mask=rng.random(rows) < 0.1),
        lambda: pa.array(rng.integers(0, 10**15, rows)).cast(pa.timestamp("us")),
        lambda: pa.array(rng.poisson(3, rows), mask=rng.random(rows) < 0.5),
    ]
    return pa.table({f"c{number:05}": kinds[number % len(kinds)]() for number in range(columns)})


class Lake:
    """Tables of a lake that a server with one worker captures."""

    def __init__(self, root: Path, server: LiveServer, tables: dict[str, pa.Table]):
        self.client, self.files = server.connect(), {}
        self.client.timeout = 900.0
        server_pid = server.process.pid
        children = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split()
        self.pids = [server_pid, *map(int, children)]
        for name, rows in tables.items():
            self.files[name] = root / name / "0.parquet"
            self.files[name].parent.mkdir(parents=True)
            pq.write_table(rows, self.files[name])
        lake = {"catalog": "lake", "format": "parquet", "uri": str(root)}
        eventually(lambda: self.client.act("register_connector", lake), ignoring=(pa.ArrowException,))
        self.client.act("discover", {"catalog": "lake"})

    def capture(self, name: str, columns: int, kinds: Sequence[str] = ()) -> None:
        about = {"table": f"lake.default.{name}", "snapshot": "current"}
        requests: list[dict[str, Any]] = [about | {"target": {"kind": "TABLE"}}]
        about |= {"kinds": list(kinds)} if kinds else {}
        requests += [about | {"target": {"kind": "COLUMN", "column_id": i}} for i in range(1, columns + 1)]
        outcomes = self.client.act("capture", {"requests": requests})
        assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}

    def measured(self, action: Callable[[], Any]) -> str:
        """Wall time in seconds, and processor time of the server and of its worker."""
        before, began = [cpu_ms(pid) for pid in self.pids], time.perf_counter()
        action()
        took = time.perf_counter() - began
        server, *workers = (cpu_ms(pid) - then for pid, then in zip(self.pids, before, strict=True))
        return f"{took:.2f} s (processor: server {server / 1000:.2f}, worker {sum(workers) / 1000:.2f})"


def shown(client: Client, *options: str) -> str:
    """Runs `statflight show` of the wide table: wall time in seconds, processor time of the command, lines printed."""
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [STATFLIGHT, "show", "lake.default.wide", "--server", client.uri, *options]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return f"{took:.2f} s (processor {processor:.2f}, {printed.count(chr(10))} lines)"


@pytest.mark.parametrize("kinds", [_METADATA, []], ids=["metadata", "everything"])
def test_wide_table(tmp_path, capsys, kinds):
    home = tmp_path / "home"
    home.mkdir()
    with serving(home, "--workers", 1) as server:
        lake = Lake(tmp_path / "lake", server, {"wide": mixed(COLUMNS, ROWS)})
        captured = lake.measured(lambda: lake.capture("wide", COLUMNS, kinds))
        show: list[str] = []
        serving_it = lake.measured(lambda: show.append(shown(lake.client)))
        again = shown(lake.client)
        size = lake.files["wide"].stat().st_size
    database = (home / "stats.duckdb").stat().st_size
    with capsys.disabled():
        print(f"\n{COLUMNS} columns × {ROWS} rows, {size / 1e6:.0f} MB, {'everything' if not kinds else 'metadata'}:")
        print(f"  captured in {captured}\n  show {show[0]}, with the server {serving_it}; again {again}")
        print(f"  database {database / 1e6:.1f} MB")


def decode(path: Path) -> None:
    pq.ParquetFile(path).read(use_threads=False)


@pytest.mark.parametrize("rows", [1000, 150_000])
def test_small_table(tmp_path, capsys, rows):
    """Wall milliseconds of captures, one after the other, each of another table of 8 columns."""
    home = tmp_path / "home"
    home.mkdir()
    tables = {f"t{number}": mixed(8, rows) for number in range(ROUNDS + 1)}
    connection = duckdb.connect(config={"threads": 1})
    with serving(home, "--workers", 1) as server:
        lake = Lake(tmp_path / "lake", server, tables)
        took: dict[str, list[float]] = {"capture": [], "decode": [], "SUMMARIZE": []}
        used: dict[str, list[float]] = {"server": [], "worker": []}
        for name, path in lake.files.items():
            steps: dict[str, Callable[[], Any]] = {
                "capture": lambda name=name: lake.capture(name, 8),
                "decode": lambda path=path: decode(path),
                "SUMMARIZE": lambda path=path: connection.execute(f"SUMMARIZE FROM '{path}'").fetchall(),
            }
            before = [cpu_ms(pid) for pid in lake.pids]
            for step, action in steps.items():
                began = time.perf_counter()
                action()
                took[step].append((time.perf_counter() - began) * 1000)
                if step == "capture":
                    now = [cpu_ms(pid) for pid in lake.pids]
                    used["server"].append(now[0] - before[0])
                    used["worker"].append(sum(now[1:]) - sum(before[1:]))
    medians = {step: statistics.median(times[1:]) for step, times in took.items()}
    means = {process: statistics.mean(times[1:]) for process, times in used.items()}
    with capsys.disabled():
        print(f"\n{rows} rows × 8 columns: " + ", ".join(f"{step} {ms:.1f} ms" for step, ms in medians.items()))
        print("  processor of a capture: " + ", ".join(f"{process} {ms:.0f} ms" for process, ms in means.items()))
        print(f"  capture / SUMMARIZE {medians['capture'] / medians['SUMMARIZE']:.1f}")


def test_columns_together(capsys):
    """Processor milliseconds of the kernels of 250 columns, those that share steps interleaved with single ones."""
    rows = mixed(250, ROWS)
    columns = []
    for name in rows.column_names:
        lt = logical_types.from_arrow(rows[name].type)
        assert lt is not None
        columns.append(kernels.Values(rows[name], lt))
    steps: dict[str, Callable[[], list[Any]]] = {
        "together": lambda: kernels.summarise_each(columns),
        "alone": lambda: [kernels.summarise(values, lt) for values, lt, _ in columns],
    }
    assert steps["together"]() == steps["alone"]()
    took: dict[str, list[float]] = {step: [] for step in steps}
    for _ in range(ROUNDS):
        for step, action in steps.items():
            began = time.process_time()
            action()
            took[step].append((time.process_time() - began) * 1000)
    medians = {step: statistics.median(times) for step, times in took.items()}
    with capsys.disabled():
        print("\n250 columns: " + ", ".join(f"{step} {ms:.0f} ms" for step, ms in medians.items()))
        print(f"  together / alone {medians['together'] / medians['alone']:.2f}")
