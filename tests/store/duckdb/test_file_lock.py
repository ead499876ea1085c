"""File lock beside the database."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.duckdb.database import Database
from store.duckdb.file_lock import FileLock
from store.duckdb.opening import opened_read_only, planned_upgrade
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


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.json", "rows.db"])
@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b'{"a": 1}\n', b"PAR1", b"SQLite format 3\0"])
def test_file_of_another_kind_is_no_database(tmp_path, name, content):
    """DuckDB would open some of them, and keep in memory what is stored."""
    if content == b"PAR1":
        pq.write_table(pa.table({"a": [1]}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    before = (tmp_path / name).read_bytes()
    for opened in (Database, opened_read_only_at, planned_upgrade):
        with pytest.raises(InvalidArgument, match=rf'"{name}": .*file of another kind; name a new file'):
            opened(tmp_path / name)
    assert (tmp_path / name).read_bytes() == before and [path.name for path in tmp_path.iterdir()] == [name]


def opened_read_only_at(path):
    with opened_read_only(path):
        pass


def test_place_that_is_no_file_is_named(tmp_path):
    (tmp_path / "lake").mkdir()
    with pytest.raises(InvalidArgument, match='"lake": it is a directory; name a file in it, such as lake/stats'):
        Database(tmp_path / "lake")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgument, match=r'"pipe": it is not a regular file'):
        Database(tmp_path / "pipe")
    with pytest.raises(InvalidArgument, match=r'"x.db": its directory "/proc" cannot be used: no file can be made'):
        Database("/proc/x.db")


def test_file_may_have_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("md:x", "sqlite:y.db", "rows.parquet", "rows.csv"):
        for _ in range(2):
            Database(name).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["md:x", "rows.csv", "rows.parquet", "sqlite:y.db"]
