"""The worker process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from flight_server.config import CHILD_VARIABLE


def test_worker_exits_if_its_server_died_before_it_started():
    settings = {"server_uri": "grpc://127.0.0.1:1", "control_only": True, "parent_pid": os.getppid()}
    command = [sys.executable, "-m", "flight_server.process.run_worker"]
    with subprocess.Popen(command, env=os.environ | {CHILD_VARIABLE: json.dumps(settings)}) as orphan:
        try:
            assert orphan.wait(60) == 0
        finally:
            orphan.kill()
