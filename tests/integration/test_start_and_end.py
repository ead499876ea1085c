"""Startup and shutdown of a server, as an operator sees them."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.client import StatsClient
from tests.flight_server.live_server import STATFLIGHT, eventually, serving


def start(directory: Path, *flags: object) -> subprocess.CompletedProcess[str]:
    command = [STATFLIGHT, "serve", "--db", directory / "new.duckdb", *map(str, flags)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("flag", ["--port", "--metrics-port", "--health-port"])
def test_port_in_use_is_a_one_line_error_and_leaves_no_file(tmp_path, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        others = [] if flag == "--port" else ["--port", 0]
        done = start(tmp_path, *others, flag, port)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"cannot listen on 127.0.0.1:{port}: address already in use" in line and f"{flag} 0 picks" in line
    assert list(tmp_path.iterdir()) == []


def test_address_of_another_machine_is_a_one_line_error(tmp_path):
    done = start(tmp_path, "--port", 0, "--host", "192.0.2.1", "--insecure")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and "cannot listen on 192.0.2.1:0" in line
    assert list(tmp_path.iterdir()) == []


def test_database_in_use_is_a_one_line_error(tmp_path):
    with serving(tmp_path):
        command = [STATFLIGHT, "serve", "--db", tmp_path / "stats.duckdb", "--port", "0"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and "another process holds it" in line


def test_json_log_is_all_json_and_shutdown_rejects_no_own_worker(tmp_path):
    flags = ("--workers", 1, "--log-format", "json", "--watch-seconds", 1)
    with serving(tmp_path, *flags) as server, server.connect() as client:
        eventually(lambda: client.get({"table": "sys.engines"}).num_rows)
        (tmp_path / "lake").mkdir()
        client.act("health")
    events = [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines()]
    assert all({"at", "level", "logger", "event"} <= set(event) for event in events)
    assert not [event for event in events if event.get("code") == "SHUTTING_DOWN"]


def test_networked_server_with_tokens_serves_tls_only(tmp_path):
    """Given only tokens, it generates a certificate."""
    (tmp_path / "tokens.toml").write_text(
        f'[[token]]\nname = "r"\nscopes = ["stats.read"]\nsha256 = "{hashlib.sha256(b"hush").hexdigest()}"\n'
    )
    with serving(tmp_path, "--host", "0.0.0.0", "--auth", tmp_path / "tokens.toml") as server:
        assert server.uri.startswith("grpc+tls://0.0.0.0:")
        port = server.uri.rpartition(":")[2]
        roots = (tmp_path / "stats.duckdb.tls/cert.pem").read_bytes()
        uri = f"grpc+tls://localhost:{port}"
        with StatsClient(uri, token="hush", tls_roots=roots) as client:
            assert client.read("sys.flights").num_rows > 0
        with pytest.raises(pa.ArrowException), StatsClient(f"grpc://localhost:{port}", token="hush") as client:
            client.read("sys.flights")


def test_networked_server_without_tokens_does_not_start(tmp_path):
    done = start(tmp_path, "--port", 0, "--host", "0.0.0.0")
    assert done.returncode == 2 and "must have tokens and TLS" in done.stderr
    assert list(tmp_path.iterdir()) == []
