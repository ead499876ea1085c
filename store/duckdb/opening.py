"""Opening a database file: by one process at a time, and only if it is of this layout."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb

from store.duckdb.file_lock import FileLock
from store.duckdb.layout import Connection, prepare
from store.model.errors import InvalidArgument, first_line

log = logging.getLogger("statflight.store")

MEMORY: Final = ":memory:"
_HELD: Final = "another process holds it; stop that one first"


def connect(path: str, *, read_only: bool = False) -> Connection:
    """Opens a database; its tables are made if it is new.

    Raises:
        InvalidArgument: A process uses it, or it is not a database of this layout.
    """
    name = Path(path).name
    try:
        root = duckdb.connect(path, read_only=read_only)
    except duckdb.Error as error:
        is_held = "Could not set lock" in str(error)
        raise _unusable(name, _HELD if is_held else f"it cannot be opened as a database: {first_line(error)}") from None
    return prepared(root, name)


def prepared(root: Connection, name: str) -> Connection:
    """An open database in UTC and with its tables, as `prepare` makes or checks them; closed on any error."""
    try:
        root.execute("SET GLOBAL TimeZone='UTC'")
        prepare(root, name)
    except BaseException:
        root.close()
        raise
    return root


@contextlib.contextmanager
def opened_read_only(path: str | Path) -> Iterator[Connection]:
    """A connection to a database that no other process uses, for the block; nothing is written.

    Raises:
        InvalidArgument: There is no such file, a process uses it, or it is not a database of this layout.
    """
    file = Path(path)
    if not file.is_file():
        raise _unusable(file.name, f'there is no file "{file}"')
    with locked(file), connect(str(file), read_only=True) as root:
        yield root


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
        return FileLock(file.with_name(file.name + ".lock"))
    except BlockingIOError:
        raise _unusable(file.name, _HELD) from None
    except OSError as error:
        raise InvalidArgument(f"database: its directory cannot be used ({error.strerror})") from None


def _unusable(name: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f'database "{name}": {reason}', code="DATABASE")
