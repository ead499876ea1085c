"""Programs of others: found, downloaded, and run as servers on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SECONDS_TO_DOWNLOAD = 1200.0
SECONDS_TO_START = 300.0


def require(program: str) -> str:
    """The path of a program; the test is skipped if it is not installed."""
    return shutil.which(program) or pytest.skip(f"{program} is not installed")


def downloaded(what: str, command: Sequence[str | Path], folder: Path | None = None, **environment: str) -> None:
    """Runs a download or build in a folder; skips the test with the reason where it fails."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=SECONDS_TO_DOWNLOAD
    )
    if done.returncode:
        told = f"{done.stdout}{done.stderr}".strip()[-300:]
        pytest.skip(f"{Path(command[0]).name} cannot download {what}: {told}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def running(
    command: Sequence[str | Path], folder: Path, port: int, is_ready: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """A server from the time it is ready until the block is left; its log is in its folder, where it runs.

    Args:
        command: Program and arguments.
        folder: An existing directory.
        port: Its port on loopback.
        is_ready: Asks the server, once it listens.
    """
    log = folder / "log"
    with log.open("wb") as out, subprocess.Popen(command, cwd=folder, stdout=out, stderr=out) as process:
        try:
            deadline = time.monotonic() + SECONDS_TO_START
            while not (listens(port) and is_ready()):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.2)
            yield
        finally:
            process.kill()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True
