"""File lock beside the database."""

from __future__ import annotations

import pytest

from store.duckdb.database import Database
from store.duckdb.file_lock import FileLock
from store.model.errors import InvalidArgument


def test_lock_has_one_owner_at_a_time(tmp_path):
    path = tmp_path / "x.lock"
    first = FileLock(path)
    with pytest.raises(BlockingIOError):
        FileLock(path)
    path.open().close()  # opening and closing the file does not release the lock
    with pytest.raises(BlockingIOError):
        FileLock(path)
    first.release()
    first.release()
    assert not path.exists()
    FileLock(path).release()


def test_a_lock_file_left_by_a_kill_is_taken_over(tmp_path):
    (tmp_path / "x.lock").touch()
    FileLock(tmp_path / "x.lock").release()


def test_database_is_locked_by_its_own_name_and_by_a_symlink(tmp_path):
    database = Database(tmp_path / "d.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "d.db")
    for name in ("d.db", "link.db"):
        with pytest.raises(InvalidArgument, match="another process holds it"):
            Database(tmp_path / name)
    database.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.db", "link.db"]
    Database(tmp_path / "link.db").close()


def test_refused_file_is_unlocked(tmp_path):
    (tmp_path / "text.db").write_text("no database" * 1000)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="cannot be opened as a database"):
            Database(tmp_path / "text.db")
    assert [path.name for path in tmp_path.iterdir()] == ["text.db"]


def test_error_of_an_invalid_file_is_independent_of_its_path(tmp_path):
    (tmp_path / "block").mkdir()
    (tmp_path / "block/lock.db").write_text("no database" * 1000)
    with pytest.raises(InvalidArgument, match="cannot be opened as a database"):
        Database(tmp_path / "block/lock.db")
