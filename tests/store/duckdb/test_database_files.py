"""Writes are refused once the database's path names another file than the open one, or its disk has no room."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from store.duckdb import database_files
from store.duckdb.commit import Commit, Derived
from store.duckdb.database import Connection, Database
from store.model.errors import DatabaseMoved, ResourceExhausted
from tests.store.empty_store import empty_store


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(empty_store(tmp_path / "d.db"))
    insert(database)
    yield database
    database.close()


def insert(database: Database) -> None:
    database.write(lambda connection: connection.execute("INSERT INTO settings VALUES ('extra', '1')"))


def count(database: Database) -> int:
    return len(database.rows("SELECT * FROM settings WHERE name = 'extra'"))


@pytest.mark.parametrize("name", ["d.db", "d.db.wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_writes_are_refused_while_a_file_is_away(database: Database, tmp_path: Path, name: str, replaced: bool):
    file, kept = tmp_path / name, tmp_path / "kept"
    file.rename(kept)
    if replaced:
        file.write_bytes(kept.read_bytes())
    with pytest.raises(DatabaseMoved, match=r'file "d\.db" was deleted, moved or replaced') as raised:
        insert(database)
    assert raised.value.code == "DATABASE_MOVED"
    assert "moved" in database.trouble()
    assert count(database) == 1, "reads go on, and nothing was stored"
    kept.replace(file)
    assert database.trouble() == ""
    insert(database)
    assert count(database) == 2


def test_file_replaced_during_a_commit_is_not_acknowledged(database: Database, tmp_path: Path):
    class Moving(Derived):
        def derive(self, _: Connection) -> None:
            (tmp_path / "d.db").rename(tmp_path / "kept")

    database.phases = Commit(derived=Moving())
    with pytest.raises(DatabaseMoved):
        insert(database)
    (tmp_path / "kept").replace(tmp_path / "d.db")


def test_checkpoints_are_no_replacement(database: Database):
    database.write(lambda connection: connection.execute("SET GLOBAL checkpoint_threshold = '1MB'"))
    rows = "SELECT 'extra', string_agg(md5(random()::VARCHAR), '') FROM range(32000)"
    for _ in range(4):  # of 1 MB
        database.write(lambda connection: connection.execute(f"INSERT INTO settings {rows}"))
    assert database.trouble() == ""


def test_full_disk_refuses_writes_until_there_is_room(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with monkeypatch.context() as patch:
        patch.setattr(database_files.os, "statvfs", lambda _: SimpleNamespace(f_bavail=1024, f_frsize=4096))
        for _ in range(2):
            with pytest.raises(ResourceExhausted, match=r"disk of the database has 4\.0 MiB free, and needs 16\.0 MiB"):
                insert(database)
        assert "4.0 MiB" in database.trouble()
        assert count(database) == 1
    insert(database)
    assert count(database) == 2
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "writes are refused",
        "writes are taken again",
    ]


def test_only_the_owner_can_read_the_files(tmp_path: Path):
    old = tmp_path / "old.db"
    Path(empty_store(old)).chmod(0o644)
    for path in (old, tmp_path / "new.db"):
        database = Database(path)
        insert(database)
        for name in (path.name, f"{path.name}.wal", f"{path.name}.lock"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
        database.close()


def test_missing_directory_is_created_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    Database(tmp_path / "typo" / "d.db").close()
    assert 'there was no directory "' in caplog.text
    assert stat.S_IMODE((tmp_path / "typo").stat().st_mode) == 0o700
