"""The server's own workers: their address, their processes, their output."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from flight_server.core.config import CHILD_VARIABLE, Settings
from flight_server.core.log import relay
from flight_server.process.listener import Listener, Start

RESTART_SECONDS: Final = 2.0  # a worker that dies at once is not restarted in a tight loop
STOP_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 120.0  # for a worker to connect the first time, even on a busy machine
_CONTROL: Final = ("control", "watch", "publish")  # lanes of a worker that does not capture


class WorkersEndpoint:
    """The address for the server's own workers: the public one without TLS, else a Unix socket in a private directory,
    because workers have no client certificate and the server's may be for another host name."""

    def __init__(self, start: Start, listener: Listener, host: str):
        self.uri = f"grpc://{_reachable(host)}:{listener.server.port}"
        self._server, self._directory = None, None
        if listener.uri.startswith("grpc+tls"):
            self._directory = tempfile.mkdtemp(prefix="statflight-")  # for this user only
            self.uri = f"grpc+unix://{self._directory}/workers"
            self._server = start(self.uri, {})

    def close(self) -> None:
        """Closes the socket, if any."""
        if self._server is not None and self._directory is not None:
            self._server.shutdown()
            shutil.rmtree(self._directory, ignore_errors=True)


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else f"[{host}]" if ":" in host else host  # noqa: S104


class Jobs(NamedTuple):
    """What workers need of the queue.

    Attributes:
        is_waiting: True while a job waits in one of these lanes.
        on_death: Called with the id of a worker whose process has ended, and how: the name of a signal, or empty.
        have_served: True once a worker that serves a lane has connected.
    """

    is_waiting: Callable[[Iterable[str]], bool]
    on_death: Callable[[str, str], None]
    have_served: Callable[[str], bool]


class OwnWorkers:
    """The server's own workers: N that capture, or one that only inspects lakes, from the first such job that waits. A
    worker that dies is restarted. None is started before `open`."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._ids: dict[int, str] = {}  # place → id of the worker whose end is not told yet
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * max(1, settings.workers)
        self._born = [0.0] * len(self._processes)
        self._first = 0.0  # time of the first start

    def open(self, uri: str, token: str, jobs: Jobs, at_once: bool = True) -> None:
        """Lets workers be started.

        Args:
            uri: The address that the workers connect to.
            jobs: Its questions to the queue.
            at_once: Start them now, not at the first `keep`.
        """
        self._uri, self._token, self._jobs = uri, token, jobs
        if at_once:
            self.keep()

    def keep(self) -> None:
        """Tells which workers have ended, and starts those that are not running."""
        self._tell_deaths()
        if not (self._settings.workers or self._has_begun() or self._jobs.is_waiting(_CONTROL)):
            return
        for at, process in enumerate(self._processes):
            dead = process is None or process.poll() is not None
            if dead and time.monotonic() - self._born[at] > RESTART_SECONDS:
                self._first = self._first or time.monotonic()
                self._born[at] = time.monotonic()
                self._ids[at] = f"own-{uuid.uuid4().hex}"
                self._processes[at] = self._start(self._ids[at])

    def _tell_deaths(self) -> None:
        """Tells the queue which workers have ended since the last call."""
        for at, worker_id in list(self._ids.items()):
            process = self._processes[at]
            if process is not None and (status := process.poll()) is not None:
                del self._ids[at]
                self._jobs.on_death(worker_id, signal.Signals(-status).name if status < 0 else "")

    def is_alive(self, lane: str) -> bool:
        """True while a worker that serves a lane runs, or is yet to be started; not if none has connected in
        CONNECT_SECONDS."""
        if not (self._settings.workers > 0 or lane in _CONTROL):
            return False
        if not self._has_begun():
            return True
        is_young = time.monotonic() - self._first < CONNECT_SECONDS
        return self.running() > 0 and (is_young or self._jobs.have_served(lane))

    def running(self) -> int:
        """The number of workers that run."""
        return sum(process is not None and process.poll() is None for process in self._processes)

    def _has_begun(self) -> bool:
        return any(process is not None for process in self._processes)

    def _start(self, worker_id: str) -> subprocess.Popen[bytes]:
        arguments: dict[str, Any] = {
            "server_uri": self._uri,
            "token": self._token,
            "spark_master": self._settings.spark_master,
            "spark_conf": dict(self._settings.spark),
            "engine": self._settings.scan_engine,
            "inline_max_cells": self._settings.inline_max_cells,
            "file_sketches": self._settings.file_sketches,
            "trust_writers": self._settings.trust_writers,
            "control_only": self._settings.workers == 0,
            "parent_pid": os.getpid(),
            "log_level": self._settings.log_level,
            "log_format": "json",
            "worker_id": worker_id,
        }
        output, written = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "flight_server.process.own_worker"],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env=os.environ | {CHILD_VARIABLE: json.dumps(arguments)},
            )
        finally:
            os.close(written)
        threading.Thread(target=relay, args=(output,), kwargs={"worker": process.pid}, daemon=True).start()
        return process

    def stop(self) -> None:
        """Stops the workers; kills those that do not end in time."""
        alive = [process for process in self._processes if process is not None and process.poll() is None]
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
