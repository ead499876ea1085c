"""A server whose disk fills up, or whose file goes: writes are refused by name, reads and health answer, and writes
work again once there is space, without a restart."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.flight_server.live_server import STATFLIGHT, Client, file_columns, serving
from tests.integration.small_disk import SmallDisk

FLIGHT = "stats.file_columns"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk", 64)
    yield disk
    disk.remove()


def table(name: str, files: int) -> pa.Table:
    return file_columns(files).set_column(2, "table_name", pa.repeat(name, files))


def tables(client: Client) -> set[str]:
    return set(client.get({"table": FLIGHT, "columns": ["table_name"]})["table_name"].to_pylist())


def health(client: Client) -> str:
    return str(client.act("health")[0]["status"])


def test_full_disk_is_named_and_passes(disk: SmallDisk):
    with serving(disk.path) as server, server.connect() as client:
        client.put(FLIGHT, table("before", 100))
        disk.fill()
        for _ in range(3):
            with pytest.raises(
                flight.FlightUnavailableError, match=r"\[RESOURCE_EXHAUSTED\] the disk of the database has"
            ):
                client.put(FLIGHT, table("refused", 100))
        assert health(client) == "read-only"
        assert tables(client) == {"before"}
        disk.free()
        assert health(client) == "ok"
        client.put(FLIGHT, table("after", 100))
        assert tables(client) == {"before", "after"}
    assert server.log.read_text().count("writes are refused") == 1
    with serving(disk.path) as server, server.connect() as client:
        assert tables(client) == {"before", "after"}


def test_read_only_file_system_is_named_and_passes(disk: SmallDisk):
    with serving(disk.path) as server, server.connect() as client:
        client.put(FLIGHT, table("before", 100))
    with serving(disk.path) as server, server.connect() as client:
        disk.forbid()
        for _ in range(3):
            with pytest.raises(flight.FlightUnavailableError, match="Read-only file system"):
                client.put(FLIGHT, table("refused", 100))
        assert tables(client) == {"before"}
        disk.allow()
        client.put(FLIGHT, table("after", 100))
        assert tables(client) == {"before", "after"}
    with serving(disk.path) as server, server.connect() as client:
        assert tables(client) == {"before", "after"}


def test_start_on_a_read_only_file_system_says_so(disk: SmallDisk):
    disk.forbid()
    command = [STATFLIGHT, "serve", "--db", disk.path / "stats.duckdb", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    disk.allow()
    assert ended.returncode == 1
    assert "cannot be used: Read-only file system; name a place that can be written" in ended.stderr


def test_deleted_database_is_said_and_nothing_is_acknowledged(tmp_path: Path):
    with serving(tmp_path) as server, server.connect() as client:
        client.put(FLIGHT, table("before", 10))
        for name in ("stats.duckdb", "stats.duckdb.wal"):
            (tmp_path / name).rename(tmp_path / f"away-{name}")
        with pytest.raises(flight.FlightUnavailableError, match=r"\[DATABASE_MOVED\]"):
            client.put(FLIGHT, table("refused", 10))
        assert health(client) == "read-only"
        assert tables(client) == {"before"}
        for name in ("stats.duckdb", "stats.duckdb.wal"):
            (tmp_path / f"away-{name}").rename(tmp_path / name)
        client.put(FLIGHT, table("after", 10))
    with serving(tmp_path) as server, server.connect() as client:
        assert tables(client) == {"before", "after"}
