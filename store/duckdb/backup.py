"""Copies of the database file, made while it is in use.

The process that owns the file never opens it a second time: closing that descriptor would drop the lock that DuckDB
holds on it (see `store.duckdb.file_lock`), and another process could write to the same file. A child process copies
instead.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import duckdb

from store.model.errors import InvalidArgument

log = logging.getLogger("statflight.server")

SEGMENTS_SETTING: Final = "segments"
"""In the table `settings`: the directory or bucket of the segments, if they do not lie beside the database."""

REPLICA_SETTING: Final = "replica"  # in the table `settings`: of which replica the file is, and its last lease

_COPY: Final = """
import os, shutil, sys
for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        sys.stderr.write(os.strerror(error.errno) if error.errno else "cannot be written")
        sys.exit(1)
"""


def check_target(database: str, path: Path) -> None:
    """Checks the path of a backup.

    Raises:
        InvalidArgument: The path is relative, exists, or is reserved for a file of the live database.
    """
    if not path.is_absolute():
        raise InvalidArgument("the path of a backup must be absolute, on the server's machine", code="BACKUP")
    live = Path(database).resolve()
    own = [live.with_name(live.name + suffix) for suffix in (".wal", ".tmp", ".lock", ".secrets", ".tls", ".segments")]
    if os.path.lexists(path) or path.resolve() in own:
        raise InvalidArgument("the path of the backup exists or is reserved", code="BACKUP", hint="name a new file")


def copy_files(database: str, target: Path) -> None:
    """Copies a database and its write-ahead log as they are on disk, the state that a kill would leave. Consistent if
    nothing is written meanwhile.

    Raises:
        InvalidArgument: The files cannot be copied.
    """
    pairs = [(Path(database), target), (wal(database), wal(target))]
    names = [str(path) for pair in pairs if pair[0].exists() for path in pair]
    child = subprocess.run(  # noqa: S603  our own code, the paths are checked
        [sys.executable, "-X", "faulthandler", "-I", "-S", "-c", _COPY, *names],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if child.returncode < 0:
        log.error("the copy of a backup ended by signal %d: %s", -child.returncode, child.stderr.strip())
    if child.returncode:
        raise unwritable(child.stderr.strip() if child.returncode == 1 else "the copy was stopped")


def settle(path: Path) -> None:
    """Merges a copied database and its write-ahead log into one file, which belongs to no replica, and syncs it.

    Raises:
        duckdb.Error: DuckDB cannot open the copy.
        OSError: It cannot be written.
    """
    with duckdb.connect(str(path)) as connection:
        connection.execute("DELETE FROM settings WHERE name IN (?, ?)", [REPLICA_SETTING, SEGMENTS_SETTING])
        connection.execute("CHECKPOINT")
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def unwritable(reason: str | None) -> InvalidArgument:
    """The error of a backup that cannot be written."""
    return InvalidArgument(f"the backup cannot be written: {reason or 'the copy failed'}", code="BACKUP")


def wal(path: str | Path) -> Path:
    """The write-ahead log of a database."""
    return Path(f"{path}.wal")
