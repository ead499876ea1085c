"""Upgrades of a file: the copy, the refusals, and what is left by a process that ends in the middle."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from store.duckdb import upgrading
from store.duckdb.backup import REPLICA_SETTING, wal
from store.duckdb.database import Database
from store.duckdb.file_lock import FileLock
from store.duckdb.layout import OLDEST, VERSION
from store.duckdb.opening import opened_read_only, planned_upgrade, upgrade
from store.duckdb.upgrades.tables import rebuild
from store.duckdb.upgrading import Plan, before
from store.model.errors import InvalidArgument
from tests.layouts import unpack


@pytest.fixture
def old(tmp_path) -> Path:
    """The file of a server that was killed."""
    return unpack(OLDEST, tmp_path)


def settled(path: Path) -> Path:
    """Merges the log of a database into it, as a stop of its server does."""
    duckdb.connect(str(path)).close()
    assert not wal(path).exists()
    return path


def layout(path: Path) -> int:
    with duckdb.connect(str(path), read_only=True) as connection:
        return int(connection.execute("SELECT value FROM settings WHERE name = 'schema_version'").fetchall()[0][0])


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_old_file_stays_beside_the_new_one(old):
    bytes_before = settled(old).read_bytes()
    Database(old).close()
    assert (layout(old), layout(before(old, OLDEST))) == (VERSION, OLDEST)
    assert before(old, OLDEST).read_bytes() == bytes_before
    assert sorted(content(old.parent)) == ["stats.duckdb", f"stats.duckdb.before-{OLDEST}"]


def test_the_old_file_has_the_commits_of_its_log(old):
    upgrade(old)
    for path in (old, before(old, OLDEST)):
        with duckdb.connect(str(path), read_only=True) as connection:
            ((rows,),) = connection.execute("SELECT count(*) FROM stats_columns WHERE snapshot_id = 7").fetchall()
        assert rows == 59
    assert not wal(old).exists()


def test_a_dry_run_and_a_second_upgrade_change_nothing(old):
    there = content(old.parent)
    plan = planned_upgrade(old)
    assert plan is not None
    assert (plan.found, plan.before.name) == (OLDEST, f"stats.duckdb.before-{OLDEST}")
    assert plan.needed_bytes > plan.size_bytes == len(there["stats.duckdb"]) + len(there["stats.duckdb.wal"])
    assert content(old.parent) == there
    upgrade(old)
    there = content(old.parent)
    assert upgrade(old) is None
    assert planned_upgrade(old) is None
    Database(old).close()
    assert content(old.parent) == there


def test_a_link_leads_to_the_upgraded_file(old, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.duckdb"
    link.symlink_to(old)
    Database(link).close()
    assert link.is_symlink()
    assert layout(old) == VERSION
    assert before(old, OLDEST).exists()


def test_the_new_file_has_the_permissions_of_the_old_one(old):
    old.chmod(0o640)
    upgrade(old)
    assert old.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("is_own", [True, False])
def test_a_replica_knows_the_new_file_where_it_knew_the_old_one(old, is_own):
    inode = old.stat().st_ino if is_own else 1
    with duckdb.connect(str(old)) as connection:
        value = json.dumps({"database": "d", "holder": "h", "before": None, "inode": inode})
        connection.execute("INSERT INTO settings VALUES (?, ?)", [REPLICA_SETTING, value])
    upgrade(old)
    with duckdb.connect(str(old), read_only=True) as connection:
        ((value,),) = connection.execute("SELECT value FROM settings WHERE name = ?", [REPLICA_SETTING]).fetchall()
    assert json.loads(value) == {
        "database": "d",
        "holder": "h",
        "before": None,
        "inode": old.stat().st_ino if is_own else 1,
    }


def test_an_old_file_is_read_by_an_upgraded_copy(old):
    there = content(old.parent)
    with opened_read_only(old) as connection:
        ((found,),) = connection.execute("SELECT value FROM settings WHERE name = 'schema_version'").fetchall()
        assert found == str(VERSION)
        assert connection.execute("SELECT count(*) FROM stats_columns WHERE snapshot_id = 7").fetchall() == [(59,)]
    assert content(old.parent) == there


# Refusals.


def refused(path: Path, message: str) -> None:
    """A start and the command refuse the file, and leave everything as it is."""
    there = content(path.parent)
    opened: list[Callable[[Path], object]] = [Database, upgrade]
    for open_file in opened:
        with pytest.raises(InvalidArgument, match=message):
            open_file(path)
        assert content(path.parent) == there


def test_a_full_disk_is_refused(old, monkeypatch):
    really = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: _Disk(really(path)))
    refused(old, r"stays of layout 19, .* has 0 B free, and the upgrade needs \d+")
    with pytest.raises(InvalidArgument, match="has 0 B free"):
        planned = planned_upgrade(old)
        assert planned is not None
        planned.check()


class _Disk:
    def __init__(self, real: os.statvfs_result):
        self.f_frsize, self.f_bavail = real.f_frsize, 0


def test_a_file_of_the_name_of_the_copy_is_not_overwritten(old):
    before(old, OLDEST).write_text("mine")
    refused(old, f'"stats.duckdb.before-{OLDEST}", which another file has')


@pytest.mark.parametrize("number", [1, OLDEST - 1, VERSION + 1])
def test_a_layout_without_a_step_is_refused_with_both_numbers(old, number):
    with duckdb.connect(str(old)) as connection:
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        connection.execute("UPDATE settings SET value = ? WHERE name = 'schema_version'", [str(number)])
    assert wal(old).exists()
    refused(old, f'"stats.duckdb": it has layout {number}, this statflight reads layout {VERSION}')


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_a_half_copy_is_refused(old, kept):
    size = settled(old).stat().st_size
    os.truncate(old, int(size * kept) if kept else 100)
    refused(old, r'"stats.duckdb"(: it cannot be opened as a database| stays .* as a copy that was not finished)')


def test_damage_that_a_step_meets_is_refused(old, monkeypatch):
    def meet(connection: duckdb.DuckDBPyConnection) -> None:
        raise duckdb.IOException("Corrupt database file")

    monkeypatch.setitem(upgrading.STEPS, OLDEST, meet)
    refused(settled(old), "stays of layout 19, and cannot be upgraded to 20: Corrupt database file")


def test_a_file_in_use_is_refused(old):
    lock = FileLock(f"{old}.lock")
    try:
        refused(old, "another process holds it")
    finally:
        lock.release()


def test_no_file_is_refused_and_not_made(tmp_path):
    with pytest.raises(InvalidArgument, match="there is no file"):
        upgrade(tmp_path / "none.duckdb")
    assert content(tmp_path) == {}


# A process that ends.


class Ended(BaseException):
    """Stands for the end of the process; nothing after it has an effect."""


PHASES = ((upgrading, "_copy"), (upgrading, "run"), (upgrading, "_keep_replica"), (os, "link"), (Path, "replace"))


@pytest.mark.parametrize("phase", range(len(PHASES)))
def test_a_process_that_ends_leaves_the_old_or_the_new_file(old, monkeypatch, phase):
    """After each phase, and again in the next attempt."""
    ended = False
    owner, name = PHASES[phase]
    really, remove = getattr(owner, name), upgrading._remove

    def end(*given, **named):
        nonlocal ended
        really(*given, **named)
        ended = True
        raise Ended

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, end)
        patched.setattr(upgrading, "_remove", lambda path: None if ended else remove(path))
        for _ in range(2):
            ended = False
            with contextlib.suppress(Ended):  # a second name that is there is not given again
                upgrade(old)
    assert layout(old) == (VERSION if name in ("link", "replace") else OLDEST)
    Database(old).close()
    assert (layout(old), layout(before(old, OLDEST))) == (VERSION, OLDEST)
    assert sorted(content(old.parent)) == ["stats.duckdb", f"stats.duckdb.before-{OLDEST}"]


def test_without_links_the_old_file_is_copied_once(old, monkeypatch):
    """As on a file system that knows none; a copy of an attempt that was killed counts."""
    monkeypatch.setattr(os, "link", raising(OSError("no links here")))
    whole = settled(old).read_bytes()
    with monkeypatch.context() as patched, pytest.raises(Ended):
        patched.setattr(Path, "replace", raising(Ended()))
        upgrade(old)
    made = before(old, OLDEST).stat().st_ino
    upgrade(old)
    assert (before(old, OLDEST).stat().st_ino, before(old, OLDEST).read_bytes()) == (made, whole)
    assert sorted(content(old.parent)) == ["stats.duckdb", f"stats.duckdb.before-{OLDEST}"]


def test_a_file_that_cannot_be_replaced_gets_no_second_name(old, monkeypatch):
    settled(old)
    monkeypatch.setattr(Path, "replace", raising(OSError(errno.EBUSY, "Device or resource busy")))
    refused(old, "stays of layout 19, .* Device or resource busy; nothing was changed")


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


# Steps.


def test_a_rebuilt_table_has_its_rows_in_other_columns():
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (a BIGINT, gone BIGINT, c VARCHAR)")
        connection.execute("INSERT INTO t SELECT i, i, 'c' || i FROM range(3) r(i)")
        rebuild(connection, "t", "CREATE TABLE t (c VARCHAR, new DOUBLE, a BIGINT)")
        assert connection.execute("SELECT * FROM t").fetchall() == [(f"c{i}", None, i) for i in range(3)]


def test_the_room_is_that_of_two_files(tmp_path):
    plan = Plan(tmp_path / "d.duckdb", OLDEST, 1000, 10**9)
    assert 2000 < plan.needed_bytes < 2000 + (32 << 20)
