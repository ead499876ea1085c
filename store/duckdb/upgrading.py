"""The upgrade of a database file of an older layout: old or new at every moment, whenever the process ends.

A copy beside the file is upgraded, synced and read again; the file itself stays as it is until then. Then the file gets
a second name, `<file>.before-<layout>`, and the copy takes its place by a rename. The copy begins with the commits of
the write-ahead log of a server that was killed; that log is merged into the old file just before, as each start does.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from store.duckdb.backup import REPLICA_SETTING, wal
from store.duckdb.database_files import CHECKPOINT_BYTES
from store.duckdb.layout import VERSION, Connection, OlderLayout, check
from store.duckdb.upgrades import STEPS
from store.model.errors import InvalidArgument, first_line
from store.model.units import bytes_text

log = logging.getLogger("statflight.store")

_COPIES: Final = 2  # as large as the file: the upgraded one, and what a step may write anew in it
_HEADERS: Final = 3 * 4096  # bytes of a file before its first block


@dataclass(frozen=True)
class Plan:
    """The upgrade of a file.

    Attributes:
        path: The file, without links.
        found: Its layout.
        size_bytes: Size of the file and its write-ahead log.
        free_bytes: Free bytes of its disk.
    """

    path: Path
    found: int
    size_bytes: int
    free_bytes: int

    @property
    def before(self) -> Path:
        """The name that the old file gets."""
        return before(self.path, self.found)

    @property
    def needed_bytes(self) -> int:
        """The room that the upgrade needs, at most. The old file and the new one stay, each of about `size_bytes`."""
        return _COPIES * self.size_bytes + CHECKPOINT_BYTES

    def check(self) -> None:
        """Checks that the upgrade can be made.

        Raises:
            InvalidArgument: There is no room, another file has the name of the copy, or the file cannot be replaced.
        """
        if self.free_bytes < self.needed_bytes:
            free, needed = bytes_text(self.free_bytes), bytes_text(self.needed_bytes)
            raise self.refused(f"its disk has {free} free, and the upgrade needs {needed}", "free some space")
        if os.path.lexists(self.before) and not _is_equal(self.path, self.before):
            raise self.refused(
                f'the old file would get the name "{self.before.name}", which another file has',
                "move that one elsewhere",
            )
        if os.path.ismount(self.path):
            raise self.refused("the file is a mount of its own, and cannot be replaced", "mount its directory instead")

    def refused(self, reason: str, hint: str) -> InvalidArgument:
        """The error of an upgrade that was not made."""
        return InvalidArgument(
            f'database "{self.path.name}" stays of layout {self.found}, and cannot be upgraded to {VERSION}: {reason}',
            code="DATABASE",
            hint=hint,
        )


def before(path: Path, layout: int) -> Path:
    """The name of a file of an older layout, once the upgraded one has its name."""
    return path.with_name(f"{path.name}.before-{layout}")


def plan(path: Path) -> Plan | None:
    """Looks what an upgrade would do; None for a file of this layout. Nothing is changed.

    Args:
        path: A file that no process uses.

    Raises:
        InvalidArgument: It is of a newer layout, or no database of statflight.
        duckdb.Error: It cannot be opened.
    """
    with duckdb.connect(str(path), read_only=True) as root:
        try:
            check(root, path.name)
        except OlderLayout as older:
            return planned(path, older.found)
    return None


def planned(path: Path, found: int) -> Plan:
    """The upgrade of a file whose layout is known."""
    path = path.resolve()
    size = sum(file.stat().st_size for file in (path, wal(path)) if file.exists())
    disk = os.statvfs(path.parent)
    return Plan(path, found, size, disk.f_bavail * disk.f_frsize)


def upgrade(path: Path, found: int) -> Plan:
    """Brings a file to this layout.

    Args:
        path: A file that no process uses, and that this one has locked (`store.duckdb.opening`).
        found: Its layout.

    Raises:
        InvalidArgument: It cannot be upgraded; it stays as it is then.
    """
    plan = planned(path, found)
    plan.check()
    began = time.monotonic()
    log.warning(
        'database "%s": upgrading it from layout %d to %d; the old file stays as "%s"',
        plan.path.name,
        found,
        VERSION,
        plan.before.name,
    )
    new = plan.path.with_name(f".{plan.path.name}.upgrade")
    try:
        _remove(new)  # left by an upgrade that was killed
        _copy(plan.path, new)
        _take_owner(plan.path, new)
        run(new, found)
        _sync(new)
        _replace(plan, new)
    except duckdb.Error as error:
        raise plan.refused(first_line(error), "restore a backup, or a replica") from None
    except OSError as error:
        raise plan.refused(error.strerror or type(error).__name__, "nothing was changed") from None
    finally:
        _remove(new)
    log.warning('database "%s": upgraded in %.1f s', plan.path.name, time.monotonic() - began)
    return plan


def run(path: Path, found: int) -> None:
    """Runs the steps in a file, which may be left half done if the process ends, and merges its log into it.

    Raises:
        duckdb.Error: The file is damaged, or there is no room.
        OSError: It is shorter than it was.
    """
    size = path.stat().st_size
    with duckdb.connect(str(path)) as connection:
        connection.execute("SET GLOBAL TimeZone='UTC'")
        _check_size(connection, size)
        connection.execute("CHECKPOINT")  # of the log that came with it
        for layout in range(found, VERSION):
            connection.execute("BEGIN")
            STEPS[layout](connection)
            connection.execute("UPDATE settings SET value = ? WHERE name = 'schema_version'", [str(layout + 1)])
            connection.execute("COMMIT")
        connection.execute("CHECKPOINT")


def _check_size(connection: Connection, size: int) -> None:
    """Raises OSError for a file that lacks blocks. DuckDB opens one if it needs them for rows only."""
    ((blocks,),) = connection.execute("SELECT block_size * total_blocks FROM pragma_database_size()").fetchall()
    if size < _HEADERS + blocks:
        raise OSError(errno.EIO, f"it has {size} bytes of {_HEADERS + blocks}, as a copy that was not finished")


@contextlib.contextmanager
def upgraded_copy(path: Path, found: int, folder: Path) -> Iterator[Connection]:
    """A connection to an upgraded copy of a file, for the block; the file stays as it is.

    Args:
        folder: An empty directory with room for the copy.

    Raises:
        InvalidArgument: There is no room, or the file is damaged.
    """
    plan, copy = planned(path, found), folder / path.name
    try:
        _copy(plan.path, copy)
        run(copy, found)
    except duckdb.Error as error:
        raise plan.refused(first_line(error), "restore a backup, or a replica") from None
    except OSError as error:
        raise plan.refused(error.strerror or type(error).__name__, "free some space in TMPDIR") from None
    with duckdb.connect(str(copy), read_only=True) as root:
        root.execute("SET GLOBAL TimeZone='UTC'")
        yield root


def _copy(source: Path, target: Path) -> None:
    """Copies a file and its write-ahead log."""
    for file, name in ((source, target), (wal(source), wal(target))):
        if file.exists():
            shutil.copyfile(file, name)
            name.chmod(0o600)


def _take_owner(old: Path, new: Path) -> None:
    """Gives the new file the owner and permissions of the old one."""
    wanted = old.stat()
    found = new.stat()
    if (found.st_uid, found.st_gid) != (wanted.st_uid, wanted.st_gid):
        os.chown(new, wanted.st_uid, wanted.st_gid)
    shutil.copymode(old, new)


def _replace(plan: Plan, new: Path) -> None:
    """Gives the old file its second name, and its own name to the new one."""
    _keep_replica(plan.path, new)
    if wal(plan.path).exists():
        with duckdb.connect(str(plan.path)) as connection:
            connection.execute("CHECKPOINT")
    is_named = os.path.lexists(plan.before)
    try:
        if not is_named:
            _name(plan.path, plan.before)
        new.replace(plan.path)
    except OSError:
        if not is_named:
            plan.before.unlink(missing_ok=True)
        raise
    _sync(plan.path.parent)


def _name(path: Path, other: Path) -> None:
    """Gives a file a second name, or a copy where the file system has no links; the name is on disk then."""
    try:
        os.link(path, other)
    except OSError:
        _copy_whole(path, other)
    _sync(path.parent)


def _keep_replica(old: Path, new: Path) -> None:
    """Lets the new file go on as the writer's in place of the old one: a replica knows its writer's file by inode."""
    with duckdb.connect(str(new)) as connection:
        check(connection, old.name)
        rows = connection.execute("SELECT value FROM settings WHERE name = ?", [REPLICA_SETTING]).fetchall()
        record = json.loads(rows[0][0]) if rows else {}
        if record.get("inode") != old.stat().st_ino:
            return
        value = json.dumps(record | {"inode": new.stat().st_ino})
        connection.execute("UPDATE settings SET value = ? WHERE name = ?", [value, REPLICA_SETTING])
        connection.execute("CHECKPOINT")
    _sync(new)


def _copy_whole(source: Path, target: Path) -> None:
    """Copies a file so that the name is there once the copy is whole."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.copyfile(source, partial)
        shutil.copymode(source, partial)
        _sync(partial)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


def _is_equal(one: Path, other: Path) -> bool:
    """True for two names of a file, or two equal files, as an upgrade leaves that is killed between link and rename."""
    return one.is_file() and other.is_file() and (one.samefile(other) or filecmp.cmp(one, other, shallow=False))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Removes a database with what DuckDB has beside it."""
    for file in (path, wal(path)):
        file.unlink(missing_ok=True)
    shutil.rmtree(f"{path}.tmp", ignore_errors=True)
