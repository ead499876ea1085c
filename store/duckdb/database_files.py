"""Checks that a commit reaches the file that the database's path names, on a disk with room for it.

A file that is deleted or replaced stays open: DuckDB would go on writing to it, and all of that would be lost with the
process. A disk without room for a checkpoint makes DuckDB invalidate the open database, so writes are refused before.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path
from typing import Final, TypeAlias

import duckdb

from store.duckdb.backup import wal
from store.model.errors import DatabaseMoved, ResourceExhausted, StatflightError
from store.model.units import bytes_text

log = logging.getLogger("statflight.store")

CHECKPOINT_BYTES: Final = 16 << 20  # size of the write-ahead log at which DuckDB checkpoints
_Identity: TypeAlias = tuple[int, int] | None
_FULL: Final = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_UNWRITABLE: Final = tuple(os.strerror(code) for code in (errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM))


class DatabaseFiles:
    """The file of an open database, and its write-ahead log."""

    def __init__(self, path: str):
        self._path = Path(path).absolute()
        self._log_path = wal(self._path)
        make_private(self._path)
        self._file = _identity(self._path)
        self._log: _Identity = None
        self._refused = ""
        self._look_at_log()

    def check(self) -> None:
        """Checks the files before a commit.

        Raises:
            DatabaseMoved: The path no longer names the open file, or its log.
            ResourceExhausted: The disk has no room for the next checkpoint.
        """
        if (error := self._trouble()) is not None:
            self._report(str(error))
            raise error

    def committed(self) -> None:
        """Checks after a commit that it reached the named file; raises as `check` does."""
        self._look_at_log()
        if _identity(self._path) != self._file:
            self.check()
        self._report("")

    def refusal(self, error: BaseException) -> BaseException:
        """The error to raise to callers for an error of DuckDB: one that names the disk if the disk is the reason."""
        if not isinstance(error, duckdb.Error):
            return error
        text = str(error)
        reason = next((reason for reason in (*_FULL, *_UNWRITABLE) if reason in text), None)
        if reason is None:
            return error
        refusal = ResourceExhausted(
            f"the disk of the database cannot be written: {reason}",
            hint="nothing of this write is stored; free some space" if reason in _FULL else "nothing is stored",
        )
        self._report(str(refusal))
        return refusal

    def trouble(self) -> str:
        """Why writes are refused now; empty if they are not."""
        error = self._trouble()
        return "" if error is None else str(error)

    def _trouble(self) -> StatflightError | None:
        log_now = _identity(self._log_path)
        if _identity(self._path) != self._file or (log_now != self._log and self._log is not None):
            return DatabaseMoved(
                f'the database file "{self._path.name}" was deleted, moved or replaced: writes would be lost',
                hint="move it back with its .wal, or restart the server",
            )
        size = 0
        with contextlib.suppress(OSError):
            size = self._log_path.stat().st_size
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return None
        free, needed = disk.f_bavail * disk.f_frsize, CHECKPOINT_BYTES + 2 * size
        if free >= needed:
            return None
        return ResourceExhausted(
            f"the disk of the database has {bytes_text(free)} free, and needs {bytes_text(needed)} to write",
            hint="free some space",
        )

    def _look_at_log(self) -> None:
        """Remembers the log, which DuckDB creates after each checkpoint."""
        before, self._log = self._log, _identity(self._log_path)
        if self._log is not None and self._log != before:
            make_private(self._log_path)

    def _report(self, reason: str) -> None:
        """Logs the begin and the end of refusals."""
        if reason and not self._refused:
            log.error("writes are refused: %s", reason)
        elif self._refused and not reason:
            log.warning("writes are taken again")
        self._refused = reason


def make_private(path: Path) -> None:
    """Takes all permissions of others from a file that holds values of the data."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        path.chmod(mode & 0o700)


def _identity(path: Path) -> _Identity:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
