"""A server whose disk fills up, or whose file goes: writes are refused by name, reads and health answer, and writes
work again once there is space, without a restart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.flight_server.live_server import Client, file_columns, serving

FLIGHT = "stats.file_columns"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this user may not mount a small file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def table(name: str, files: int) -> pa.Table:
    return file_columns(files).set_column(2, "table_name", pa.repeat(name, files))


def tables(client: Client) -> set[str]:
    return set(client.get({"table": FLIGHT, "columns": ["table_name"]})["table_name"].to_pylist())


def health(client: Client) -> str:
    return str(client.act("health")[0]["status"])


def test_full_disk_is_named_and_passes(disk: Path):
    with serving(disk) as server, server.connect() as client:
        client.put(FLIGHT, table("before", 100))
        filler, left = disk / "filler", os.statvfs(disk)
        filler.write_bytes(bytes(left.f_bavail * left.f_frsize - (8 << 20)))
        for _ in range(3):
            with pytest.raises(
                flight.FlightUnavailableError, match=r"\[RESOURCE_EXHAUSTED\] the disk of the database has"
            ):
                client.put(FLIGHT, table("refused", 100))
        assert health(client) == "read-only"
        assert tables(client) == {"before"}
        filler.unlink()
        assert health(client) == "ok"
        client.put(FLIGHT, table("after", 100))
        assert tables(client) == {"before", "after"}
    assert server.log.read_text().count("writes are refused") == 1
    with serving(disk) as server, server.connect() as client:
        assert tables(client) == {"before", "after"}


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
