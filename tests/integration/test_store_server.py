"""The store behind a real server: killed, read while written, backed up."""

from __future__ import annotations

import os
import subprocess

import pyarrow as pa
import pytest

from tests.integration.store_server import (
    KEY,
    STATFLIGHT,
    Client,
    generation,
    kill_loop,
    of_table,
    read_against_writers,
    serving,
)

SECONDS = float(os.environ.get("STATFLIGHT_READ_SECONDS", "3"))


def test_no_reader_sees_half_a_generation(tmp_path):
    reads, publications = read_against_writers(tmp_path / "s.db", SECONDS)
    assert reads > 20 and publications > 4


def test_what_is_acknowledged_survives_kills(tmp_path):
    starts, acknowledged = kill_loop(tmp_path, kills=5)
    assert len(starts) == 6 and acknowledged > 5


def test_a_backup_made_while_serving_serves_the_same_rows(tmp_path):
    with serving(tmp_path / "s.db") as server:
        client = Client(server.uri)
        client.put("stats.columns", generation(1, 500))
        file = KEY | {"snapshot_id": 1, "file_path": "f"}
        client.put("stats.files", pa.Table.from_pylist([file]))
        command = [STATFLIGHT, "backup", "copy.db", "--server", server.uri]
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert made.returncode == 0 and "MB in" in made.stderr, made.stderr
        again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert again.returncode == 1 and "taken" in again.stderr and "Traceback" not in again.stderr
        flights = ("stats.columns", "stats.files", "sys.snapshots", "information_schema.columns")
        before = [client.get(name, predicates=of_table()) for name in flights]
        with pytest.raises(pa.ArrowInvalid, match=r"\[BACKUP\].*absolute"):
            client.act("backup", path="relative.db")
    with serving(tmp_path / "copy.db") as server:
        copy = Client(server.uri)
        assert [copy.get(name, predicates=of_table()) for name in flights] == before
        copy.put("stats.columns", generation(2, 500), "replace_snapshot")
