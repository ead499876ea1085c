"""Segments in S3: written there by the worker, read by copies, and whole when all copies are lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flight_server.live_server import STATFLIGHT, serving
from tests.integration.replica_servers import aws_variables
from tests.integration.store_server import Client

pytest.importorskip("obstore")
FILES = 4


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake" / "t"
    folder.mkdir(parents=True)
    for n in range(FILES):
        pq.write_table(pa.table({"id": [n, n + 10], "word": ["a", "b"]}), folder / f"{n}.parquet")
    return folder.parent


@pytest.fixture
def env(aws) -> dict[str, str]:
    return aws_variables(aws.endpoint) | {
        "STATFLIGHT_SEGMENT_CELLS": "3",
        "STATFLIGHT_SEGMENTS": f"s3://{aws.bucket}/stats",
    }


def objects(aws) -> list[str]:
    from pyarrow.fs import FileSelector

    found = aws.file_system().get_file_info(FileSelector(f"{aws.bucket}/stats/files", allow_not_found=True))
    return sorted(info.base_name for info in found)


def rows(client: Client) -> list[tuple[Any, ...]]:
    table = client.get("stats.file_columns", columns=["file_path", "column_name", "min", "max"])
    return sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


def capture(uri: str, lake: Path) -> None:
    for command in (["connect", "lake", "parquet", str(lake)], ["capture", "lake.default.t"]):
        subprocess.run([STATFLIGHT, *command, "--server", uri], check=True, capture_output=True, timeout=120)


def test_worker_writes_them_there_and_a_server_without_copies_reads_them(tmp_path, lake, aws, env):
    copies = tmp_path / "s.db.segments"
    with serving(tmp_path, "--db", tmp_path / "s.db", "--workers", "1", env=env) as server:
        capture(server.uri, lake)
        before = rows(Client(server.uri))
        assert len(before) == 2 * FILES
        assert objects(aws)
        shutil.rmtree(copies)
        assert rows(Client(server.uri)) == before
        Client(server.uri).act("backup", path=str(tmp_path / "copy.db"))
    assert sorted(path.name for path in (tmp_path / "copy.db.segments").iterdir()) == objects(aws)
    shutil.rmtree(copies)
    with serving(tmp_path, "--db", tmp_path / "s.db", env=env) as server:
        assert rows(Client(server.uri)) == before
    with serving(tmp_path, "--db", tmp_path / "copy.db") as server:  # has its own files
        assert rows(Client(server.uri)) == before


def test_missing_object_is_named_and_found_by_doctor(tmp_path, lake, aws, env):
    with serving(tmp_path, "--db", tmp_path / "s.db", "--workers", "1", env=env) as server:
        capture(server.uri, lake)
        shutil.rmtree(tmp_path / "s.db.segments")
        for name in objects(aws):
            aws.file_system().delete_file(f"{aws.bucket}/stats/files/{name}")
        with pytest.raises(pa.ArrowException, match=r"the segment [0-9a-f]{32}\.parquet is missing.*SEGMENT"):
            rows(Client(server.uri))
        assert Client(server.uri).get("stats.columns").num_rows  # others answer
    doctor = [STATFLIGHT, "doctor", "--db", str(tmp_path / "s.db")]
    done = subprocess.run(doctor, env=os.environ | env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "is missing" in done.stdout + done.stderr


def test_files_follow_from_the_directory_to_the_bucket(tmp_path, lake, aws, env):
    local = {name: value for name, value in env.items() if name != "STATFLIGHT_SEGMENTS"}
    with serving(tmp_path, "--db", tmp_path / "s.db", "--workers", "1", env=local) as server:
        capture(server.uri, lake)
        before = rows(Client(server.uri))
    assert objects(aws) == []
    with serving(tmp_path, "--db", tmp_path / "s.db", env=env) as server:
        shutil.rmtree(tmp_path / "s.db.segments")
        assert rows(Client(server.uri)) == before
    assert objects(aws)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "has the segments of another database"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 'segments "s3://'),
        ({"STATFLIGHT_SEGMENTS": "ftp://x/y"}, "cannot be written to; a directory, s3://, gs:// or abfss://"),
    ],
)
def test_bucket_that_cannot_be_used_ends_the_start(tmp_path, env, change, reason):
    with serving(tmp_path, "--db", tmp_path / "s.db", env=env):
        pass
    command = [STATFLIGHT, "serve", "--db", str(tmp_path / "other.db"), "--port", "0", "--workers", "0"]
    done = subprocess.run(command, env=os.environ | env | change, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
