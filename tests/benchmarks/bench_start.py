"""Processor time of a start: of `statflight ls` beside a bare client that reads the same flights, and of a server
beside a bare one that opens a DuckDB file. Processes are interleaved; processor time changes little with other work.

`python -m pytest tests/benchmarks/bench_start.py -m benchmark -s`; STATFLIGHT_BENCH_STARTS (9) of each.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

import pytest

from tests.flight_server.live_server import STATFLIGHT, serving

pytestmark = pytest.mark.benchmark

STARTS = int(os.environ.get("STATFLIGHT_BENCH_STARTS", "9"))
LS_SECONDS = 0.3
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
