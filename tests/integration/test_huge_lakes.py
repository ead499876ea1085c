"""Discovery of a lake with many directories: progress is visible, and an interrupt keeps the registered connector."""

from __future__ import annotations

import os
import pty
import signal
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flight_server.live_server import STATFLIGHT, eventually, serving

DIRECTORIES = 400_000  # takes seconds to list, on an idle machine too


@pytest.mark.benchmark
def test_long_discovery_shows_progress_and_can_be_interrupted(tmp_path):
    (tmp_path / "small/t").mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "small/t/0.parquet")
    huge = tmp_path / "huge"
    for number in range(DIRECTORIES):
        (huge / f"{number // 300:03}/{number:05}").mkdir(parents=True)
    with serving(tmp_path, "--workers", 1, "--watch-seconds", 0) as server, server.connect() as client:
        connect = [STATFLIGHT, "connect", "lake", "parquet", "--server", server.uri]
        subprocess.run([*connect, tmp_path / "small"], check=True, capture_output=True, timeout=60)
        controller, terminal = pty.openpty()
        command = subprocess.Popen([*connect, huge, "--replace"], stderr=terminal, stdout=subprocess.DEVNULL)
        os.close(terminal)
        try:

            def discovery_job() -> dict:
                jobs = client.get({"table": "sys.capture_jobs"}).to_pylist()
                return next((job for job in jobs if job["mode"] == "LOOK" and job["message"]), {})

            assert "directories, 0 tables found" in eventually(discovery_job)["message"]
            command.send_signal(signal.SIGINT)
            assert command.wait(20) == 130
        finally:
            command.kill()
            command.wait()
            os.close(controller)
        eventually(lambda: not client.get({"table": "sys.capture_jobs"}).num_rows)  # the worker stops too
        (connector,) = client.get({"table": "sys.connectors"}).to_pylist()
        assert connector["uri"] == str(tmp_path / "small")
        assert [row["table_name"] for row in client.get({"table": "sys.tables"}).to_pylist()] == ["t"]
