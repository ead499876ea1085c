"""Opening a database file: by one process at a time, and in this layout."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb

from store.duckdb import upgrading
from store.duckdb.file_lock import FileLock
from store.duckdb.layout import Connection, OlderLayout, prepare
from store.model.errors import InvalidArgument, first_line

log = logging.getLogger("statflight.store")

MEMORY: Final = ":memory:"
SHARED_STORE: Final = "shared_store"  # in the table `settings`: the store that the file is a cache of
SHARED_ADDRESS: Final = "shared_address"  # likewise: where that store is, without its password
_HELD: Final = "another process holds it; stop that one first"
_MAGIC: Final = b"DUCK"  # in bytes 8 to 12 of a database


def connect(path: str, *, is_cache: bool = False) -> Connection:
    """Opens a database that is locked; makes its tables if it is new, and upgrades it if it is of an older layout.

    Args:
        is_cache: The file may be the cache of a store that the caller joins, or is a copy; else a cache is refused.

    Raises:
        InvalidArgument: A process uses it, it is no database of statflight, it cannot be upgraded, or it is a cache.
    """
    name = Path(path).name
    try:
        return prepared(_open(path), name, takes_cache=is_cache)
    except OlderLayout as older:
        if path == MEMORY:
            raise
        upgrading.upgrade(Path(path), older.found)
    return prepared(_open(path), name, takes_cache=is_cache)


def _open(path: str, *, read_only: bool = False) -> Connection:
    # DuckDB takes a path such as md:x for one of an extension, which it would fetch; none that begins with a slash.
    whole = path if path == MEMORY else os.path.abspath(path)  # noqa: PTH100  resolving links would move the log
    try:
        return duckdb.connect(whole, read_only=read_only)
    except duckdb.Error as error:
        raise _unopened(Path(path).name, error) from None


def _unopened(name: str, error: duckdb.Error) -> InvalidArgument:
    is_held = "Could not set lock" in str(error)
    return _unusable(name, _HELD if is_held else f"it cannot be opened as a database: {first_line(error)}")


def prepared(root: Connection, name: str, *, takes_cache: bool = True) -> Connection:
    """An open database in UTC and with its tables, as `prepare` makes or checks them; closed on any error, and left as
    it is on disk then.

    Args:
        takes_cache: False refuses the cache of a store that servers share.
    """
    try:
        root.execute("SET GLOBAL TimeZone='UTC'")
        root.execute("SET GLOBAL parquet_metadata_cache = true")  # of segments, which never change
        prepare(root, name)
        if not takes_cache:
            _refuse_cache(root, name)
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            root.execute("PRAGMA disable_checkpoint_on_shutdown")
        root.close()
        raise
    return root


@contextlib.contextmanager
def opened_read_only(path: str | Path) -> Iterator[Connection]:
    """A connection to a database that no other process uses, for the block; nothing is written. Of a database of an
    older layout it is one to an upgraded copy in the directory for temporary files.

    Raises:
        InvalidArgument: There is no such file, a process uses it, it is no database of statflight, or it cannot be
            upgraded.
    """
    with _locked_file(path) as file:
        try:
            root = prepared(_open(str(file), read_only=True), file.name)
        except OlderLayout as older:
            with (
                tempfile.TemporaryDirectory(prefix="statflight-") as folder,
                upgrading.upgraded_copy(file, older.found, Path(folder)) as copy,
            ):
                yield copy
        else:
            with root:
                yield root


def upgrade(path: str | Path) -> upgrading.Plan | None:
    """Brings a database that no other process uses to this layout; returns None if it has it already.

    Raises:
        InvalidArgument: As `opened_read_only`.
    """
    with _locked_file(path) as file:
        plan = _plan(file)
        return None if plan is None else upgrading.upgrade(plan.path, plan.found)


def planned_upgrade(path: str | Path) -> upgrading.Plan | None:
    """The plan of `upgrade`, without any change; None if the database has this layout.

    Raises:
        InvalidArgument: There is no such file, a process uses it, or it is no database of statflight.
    """
    with _locked_file(path) as file:
        return _plan(file)


def _plan(file: Path) -> upgrading.Plan | None:
    try:
        return upgrading.plan(file)
    except duckdb.Error as error:
        raise _unopened(file.name, error) from None


@contextlib.contextmanager
def _locked_file(path: str | Path) -> Iterator[Path]:
    """An existing file, locked for the block."""
    file = Path(path)
    if not file.is_file():
        raise _unusable(file.name, f'there is no file "{file}"')
    with locked(file):
        yield file


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps all others from using a database, which need not exist, for the block.

    Raises:
        InvalidArgument: It is in use, or its directory cannot be written.
    """
    lock = take_lock(str(path))
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def take_lock(path: str) -> FileLock | None:
    """The lock file beside a database, None for one in memory; creates the directory.

    Raises:
        InvalidArgument: The database is in use, or its directory cannot be written.
    """
    if path == MEMORY:
        return None
    file = Path(path)
    try:
        if not file.parent.exists():
            file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            log.warning('there was no directory "%s": created it for a new database', file.parent)
        file = file.resolve()
        lock = FileLock(file.with_name(file.name + ".lock"))
    except BlockingIOError:
        raise _unusable(file.name, _HELD) from None
    except OSError as error:
        reason = f'its directory "{file.parent}" cannot be used: {_words(error)}; name a place that can be written'
        raise _unusable(file.name, reason) from None
    try:
        _refuse_other_kinds(file)
    except BaseException:
        lock.release()
        raise
    return lock


def _words(error: OSError) -> str:
    """The reason of an error of the system; its own is misleading where a system such as /proc takes no new file."""
    return "no file can be made there" if error.errno == errno.ENOENT else error.strerror or str(error)


def _refuse_other_kinds(file: Path) -> None:
    """Checks that a file, if it exists, is a database. DuckDB itself opens a file of Parquet, CSV or JSON as a database
    in memory with a view of it, so that all that is stored would be lost, and fetches an extension for one of SQLite.

    To be called under the lock beside the file: closing it here would release the lock of a database that is open.
    """
    if not file.exists():
        return
    if file.is_dir():
        raise _unusable(file.name, f"it is a directory; name a file in it, such as {file.name}/stats.duckdb")
    if not file.is_file():
        raise _unusable(file.name, "it is not a regular file")
    try:
        with file.open("rb") as opened:
            begin = opened.read(8 + len(_MAGIC))
    except OSError as error:
        raise _unusable(file.name, f"it cannot be read: {error.strerror}") from None
    if begin[8:] != _MAGIC:
        raise _unusable(file.name, "it cannot be opened as a database: it is a file of another kind; name a new file")


def _refuse_cache(root: Connection, name: str) -> None:
    """Refuses the cache of a store that servers share, to whoever does not join that store: what is written to such a
    file alone is in no store, and the next server that has the file as its cache replaces it.

    Raises:
        InvalidArgument: The file is such a cache; says which store it is of, and what to do.
    """
    noted = dict(root.execute("SELECT name, value FROM settings").fetchall())
    if SHARED_STORE in noted:
        address = noted.get(SHARED_ADDRESS, "postgresql://...")
        raise InvalidArgument(
            f'database "{name}": it is the cache of the store {address}, and is written by a server of that store only',
            code="STORE",
            hint=f'serve it with store = "{address}" (statflight.toml or STATFLIGHT_STORE), or name another file with'
            " --db; statflight export --db and doctor --db read it",
        )


def _unusable(name: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f'database "{name}": {reason}', code="DATABASE")
