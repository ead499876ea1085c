"""The store behind a real server: killed, read while written, backed up."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from store.duckdb.database import Database
from store.model.errors import InvalidArgument
from tests.flight_server.live_server import STATFLIGHT, serving
from tests.integration.store_server import (
    KEY,
    Client,
    Publisher,
    check_whole,
    generation,
    kill_loop,
    read_against_writers,
    table_predicates,
)


def test_readers_see_only_complete_generations(tmp_path):
    reads, publications = read_against_writers(tmp_path / "s.db", seconds=0, least=10)
    assert reads > 20 and publications >= 10


def test_acknowledged_puts_survive_kills(tmp_path):
    starts, acknowledged = kill_loop(tmp_path, kills=2)
    assert len(starts) == 3 and acknowledged > 5


def errors_of_other_processes(db) -> list[str]:
    """Errors of a second server and of DuckDB in another process that open a served database."""
    second = [STATFLIGHT, "serve", "--db", db, "--port", "0", "--workers", "0"]
    code = "import duckdb, sys; duckdb.connect(sys.argv[1])"
    errors = []
    for command in (second, [sys.executable, "-c", code, db]):
        done = subprocess.run(command, cwd=db.parent, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and "listening" not in done.stdout, done
        errors.append(done.stderr)
    return errors


def test_backup_of_a_running_server_has_the_same_rows_and_leaves_it_locked(tmp_path):
    with serving(tmp_path, "--db", tmp_path / "s.db") as server:
        client = Client(server.uri)
        client.put("stats.columns", generation(1, 500))
        file = KEY | {"snapshot_id": 1, "file_path": "f"}
        client.put("stats.files", pa.Table.from_pylist([file]))
        command = [STATFLIGHT, "backup", "copy.db", "--server", server.uri]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "MB in" in done.stderr, done.stderr
        again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert again.returncode == 1 and "exists" in again.stderr and "Traceback" not in again.stderr
        flights = ("stats.columns", "stats.files", "sys.snapshots", "information_schema.columns")
        before = [client.get(name, predicates=table_predicates()) for name in flights]
        with pytest.raises(pa.ArrowInvalid, match=r"\[BACKUP\].*absolute"):
            client.act("backup", path="relative.db")
        for reserved in ("s.db.wal", "s.db.lock"):
            with pytest.raises(pa.ArrowInvalid, match=r"\[BACKUP\].*exists or is reserved"):
                client.act("backup", path=str(tmp_path / reserved))
        server_error, duckdb_error = errors_of_other_processes(tmp_path / "s.db")
        assert "another process holds it" in server_error and "Traceback" not in server_error
        assert "lock" in duckdb_error.lower()
        with serving(tmp_path, "--db", tmp_path / "copy.db") as other:
            copy = Client(other.uri)
            assert [copy.get(name, predicates=table_predicates()) for name in flights] == before
            copy.put("stats.columns", generation(2, 500), "replace_snapshot")


@pytest.mark.parametrize("backups", [3, pytest.param(20, marks=pytest.mark.benchmark)])
def test_backups_under_load_lose_no_acknowledged_put(tmp_path, backups):
    """Each copy has every put acknowledged before it began; the original survives a kill at the end."""
    db = tmp_path / "s.db"
    with serving(tmp_path, "--db", db) as server:
        publishers = [Publisher(server.uri, name, 1) for name in ("a", "b")]
        for publisher in publishers:
            publisher.start()
        before = []
        for number in range(backups):
            before.append([publisher.acknowledged for publisher in publishers])
            Client(server.uri).act("backup", path=str(tmp_path / f"copy-{number}.db"))
        assert len(errors_of_other_processes(db)) == 2
        acknowledged = [publisher.acknowledged for publisher in publishers]
        server.kill()
        for publisher in publishers:
            publisher.join(30)
    with serving(tmp_path, "--db", db) as server:
        for publisher, least in zip(publishers, acknowledged, strict=True):
            found = Client(server.uri).get("stats.columns", predicates=table_predicates(publisher.table_name))
            assert (check_whole(found) or 0) >= max(least, publisher.acknowledged)
    for number in (0, backups // 2, backups - 1):
        with serving(tmp_path, "--db", tmp_path / f"copy-{number}.db") as copy:
            for publisher, least in zip(publishers, before[number], strict=True):
                found = Client(copy.uri).get("stats.columns", predicates=table_predicates(publisher.table_name))
                assert (check_whole(found) or 0) >= least


def test_opening_a_database_in_use_is_rejected(tmp_path):
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "d.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(InvalidArgument, match=r'"d\.db": another process holds it'):
            Database(tmp_path / "d.db")
    finally:
        holder.communicate(b"")
