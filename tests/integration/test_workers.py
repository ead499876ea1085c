"""The worker process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flight_server.core.config import CHILD_VARIABLE
from tests.flight_server.live_server import STATFLIGHT, eventually, serving


def test_worker_exits_if_its_server_died_before_it_started():
    settings = {"server_uri": "grpc://127.0.0.1:1", "control_only": True, "parent_pid": os.getppid()}
    command = [sys.executable, "-m", "flight_server.process.run_worker"]
    with subprocess.Popen(command, env=os.environ | {CHILD_VARIABLE: json.dumps(settings)}) as orphan:
        try:
            assert orphan.wait(60) == 0
        finally:
            orphan.kill()


def test_crash_of_a_worker_leaves_its_stacks_in_the_log(tmp_path):
    with serving(tmp_path, "--workers", 1) as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        (worker,) = eventually(lambda: children.read_text().split())
        # before it runs this program it is a fork of its server, whose handler it loses
        eventually(lambda: "own_worker" in Path(f"/proc/{worker}/cmdline").read_text())
        # the variable that it inherits installs the handler before it imports anything
        eventually(lambda: int(_field(worker, "SigCgt"), 16) >> (signal.SIGSEGV - 1) & 1)
        os.kill(int(worker), signal.SIGSEGV)
        eventually(lambda: "Segmentation fault" in server.log.read_text())
        eventually(lambda: "most recent call first" in server.log.read_text())


def test_crash_of_a_server_leaves_its_stacks_in_the_log(tmp_path):
    with pytest.raises(AssertionError), serving(tmp_path) as server:
        server.process.send_signal(signal.SIGSEGV)
        server.process.wait(30)
    log = server.log.read_text()
    assert "Segmentation fault" in log and 'serve.py", line' in log
    assert server.process.returncode == -signal.SIGSEGV


def test_crash_of_a_command_leaves_its_stacks_on_standard_error():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # never answers
        command = [STATFLIGHT, "query", "sys.flights", "--server", f"grpc://127.0.0.1:{silent.getsockname()[1]}"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                eventually(lambda: int(_field(str(process.pid), "SigCgt"), 16) >> (signal.SIGSEGV - 1) & 1)
                process.send_signal(signal.SIGSEGV)
                _, errors = process.communicate(timeout=60)
            finally:
                process.kill()
    assert "Segmentation fault" in errors and "most recent call first" in errors


def _field(process: str, name: str) -> str:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(line.split(":")[1].strip() for line in lines if line.startswith(f"{name}:"))
