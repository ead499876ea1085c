"""A PostgreSQL of the tests' own: Debian's package, a data directory and a port on loopback of its own."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

USER: Final = "flight"
PASSWORD: Final = "pa55/w%rd"
_QUOTED: Final = "pa55%2Fw%25rd"
_SETTINGS: Final = {"fsync": "off", "max_connections": "60", "shared_buffers": "16MB", "unix_socket_directories": ""}


def binaries() -> Path | None:
    """The directory of the newest PostgreSQL; None if there is none."""
    known = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    found = shutil.which("postgres")
    return known[-1].parent if known else Path(found).parent if found else None


class PostgresServer:
    """A running server, and its databases.

    Args:
        settings: Settings of PostgreSQL besides those of all tests, or instead of them.
    """

    def __init__(self, binaries: Path, **settings: str):
        self._binaries, self._settings = binaries, _SETTINGS | settings
        self._home = Path(tempfile.mkdtemp(prefix="statflight-postgres-"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses root
            names = {entry.pw_name for entry in pwd.getpwall()}
            self._user = {"user": "postgres" if "postgres" in names else "nobody"}
            shutil.chown(self._home, self._user["user"])
        secret = self._home / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        made = ["initdb", "-D", "data", "-U", USER, "-A", "scram-sha-256", "--pwfile", secret, "-E", "UTF8"]
        self._run(*made, "--no-locale", "-N")
        self._numbers = itertools.count(1)
        self.start()

    def _run(self, name: str, *arguments: Any) -> None:
        command = [self._binaries / name, *arguments]
        done = subprocess.run(command, cwd=self._home, capture_output=True, text=True, check=False, **self._user)
        assert not done.returncode, done.stderr

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        command = [self._binaries / "postgres", "-D", "data", "-h", "127.0.0.1", "-p", str(self.port), *settings]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._home, stdout=log, stderr=log, **self._user)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.run("SELECT 1")
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._home / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it: at once and its connections with it, or, by SIGQUIT, as a crash does."""
        self._process.send_signal(how)
        self._process.wait(30)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Out of reach during the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def close(self) -> None:
        """Ends it, and removes its data."""
        if self._process.poll() is None:
            self.stop(signal.SIGQUIT)
        shutil.rmtree(self._home, ignore_errors=True)

    def address(self, database: str) -> str:
        """The address of a database."""
        return f"postgresql://{USER}:{_QUOTED}@127.0.0.1:{self.port}/{database}"

    def new(self) -> str:
        """The address of a new, empty database."""
        name = f"store{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}")
        return self.address(name)

    def run(self, sql: str, address: str | None = None) -> list[tuple[Any, ...]]:
        """Runs a statement."""
        url = address or self.address("postgres")
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL is installed (Debian: apt-get install postgresql)")
    server = PostgresServer(found)
    with suppress(KeyboardInterrupt):
        yield server
    server.close()
