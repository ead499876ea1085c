"""An advisory lock beside a file that one process owns.

DuckDB locks its file with a POSIX record lock, which the kernel drops as soon as the owning process closes *any*
descriptor of that file. This lock is a second line: it belongs to a file of its own that nothing else opens, and to the
open description (`flock`), so that no other close releases it. The kernel frees it when the process ends in any way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class FileLock:
    """An exclusive lock, held from construction until `release`.

    Args:
        path: The lock file; created if missing, removed on release.

    Raises:
        BlockingIOError: Another process, or another lock of this one, holds it.
        OSError: The file cannot be made.
    """

    def __init__(self, path: str | Path):
        self._path = Path(path)
        while True:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current():
                    return
            except BaseException:
                os.close(self._descriptor)
                raise
            os.close(self._descriptor)  # the last owner removed the file between open and lock

    def _is_current(self) -> bool:
        """True if the locked file is still the one that others would open."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Removes the file while it is still locked, then frees it; a second call does nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1
