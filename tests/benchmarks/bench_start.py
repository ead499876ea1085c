"""Processor time of a start: of `statflight ls` beside a bare client that reads the same flights, of a server beside a
bare one that opens a DuckDB file, and of `show PATH` beside the capture of the same file by a running server.
Processes are interleaved; processor time changes little with other work.

`python -m pytest tests/benchmarks/bench_start.py -m benchmark -s`; STATFLIGHT_BENCH_STARTS (9) of each.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks.bench_plans import cpu_seconds
from tests.flight_server.live_server import STATFLIGHT, serving

pytestmark = pytest.mark.benchmark

STARTS = int(os.environ.get("STATFLIGHT_BENCH_STARTS", "9"))
LS_SECONDS = 0.3
SHOW_START_SECONDS = 0.5
CLIENT = """
import json, sys
import pyarrow.flight as flight
with flight.connect(sys.argv[1]) as client:
    for name in ("information_schema.tables", "stats.tables", "sys.tables"):
        client.do_get(flight.Ticket(json.dumps({"table": name}).encode())).read_all().to_pylist()
"""
SERVER = """
import signal, sys
import duckdb
import pyarrow.flight as flight
database = duckdb.connect(sys.argv[1])
server = flight.FlightServerBase("grpc://127.0.0.1:0")
print("listening", flush=True)
server.serve()
"""


def processor_seconds(command: list[object], is_server: bool = False) -> float:
    """Processor time of a process; a server is ended as soon as it listens."""
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if is_server:
            assert process.stdout.readline().startswith(b"listening")
            process.terminate()
        process.stdout.read()
        _, process.returncode, used = os.wait4(process.pid, 0)
    assert is_server or process.returncode == 0
    return used.ru_utime + used.ru_stime


def test_starts(tmp_path):
    with serving(tmp_path) as server:
        clients = {
            "statflight ls": [STATFLIGHT, "ls", "--server", server.uri],
            "bare client": [sys.executable, "-c", CLIENT, server.uri],
            "statflight --help": [STATFLIGHT, "--help"],
        }
        used = {name: [] for name in clients}
        for _ in range(STARTS):
            for name, command in clients.items():
                used[name].append(processor_seconds(command))
    new = tmp_path / "new"
    new.mkdir()
    servers = {
        "statflight serve": [STATFLIGHT, "serve", "--port", 0, "--workers", 0, "--db", new / "ours.duckdb"],
        "bare server": [sys.executable, "-c", SERVER, new / "bare.duckdb"],
    }
    used |= {name: [] for name in servers}
    for _ in range(STARTS):
        for name, command in servers.items():
            used[name].append(processor_seconds(command, is_server=True))
    medians = {name: statistics.median(each) for name, each in used.items()}
    print("\nprocessor seconds: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in medians.items()))
    print(
        f"ls / bare client {medians['statflight ls'] / medians['bare client']:.2f},"
        f" serve / bare server {medians['statflight serve'] / medians['bare server']:.2f}"
    )
    assert medians["statflight ls"] <= LS_SECONDS


def write_table(directory: Path, rows: int = 100_000) -> Path:
    """A table of one file with numbers and texts."""
    random = np.random.default_rng(1)
    texts = [f"v{number % 1000}" for number in range(rows)]
    columns = {"id": np.arange(rows), "x": random.normal(size=rows), "s": texts, "d": random.integers(0, 50, rows)}
    directory.mkdir(parents=True)
    pq.write_table(pa.table(columns), directory / "x.parquet")
    return directory / "x.parquet"


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [pid, *(below for child in children for below in tree(child))]


def test_show_of_a_path(tmp_path):
    """Beside the server's and its worker's part of the capture, a client's start and end are counted for both."""
    paths = [write_table(tmp_path / "lake" / f"t{number}") for number in range(STARTS + 1)]
    shown, captured = [], []
    with serving(tmp_path, "--workers", 1, tmp_path / "lake", "--watch-seconds", 0) as server:
        for number, path in enumerate(paths):  # the first one warms the worker
            before = sum(map(cpu_seconds, tree(server.process.pid)))
            name = f"lake.default.t{number}"
            client = processor_seconds([STATFLIGHT, "capture", name, "--server", server.uri])
            captured.append(client + sum(map(cpu_seconds, tree(server.process.pid))) - before)
            shown.append(processor_seconds([STATFLIGHT, "show", path]))
    capture, show = (statistics.median(each[1:]) for each in (captured, shown))
    print(f"\nprocessor seconds: capture by a running server {capture:.2f}, show PATH {show:.2f}")
    print(f"show PATH - 1.2 * capture = {show - 1.2 * capture:.2f}")
    assert show <= 1.2 * capture + SHOW_START_SECONDS
