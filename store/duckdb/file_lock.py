"""An advisory lock beside a file that one process owns.

DuckDB locks its file with a POSIX record lock, which the kernel releases as soon as the owning process closes *any*
descriptor of that file. This second lock is a `flock` on a separate file that nothing else opens, so no other close
releases it. The kernel releases it when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class FileLock:
    """An exclusive lock by a file, created if missing and removed on release; held from construction until then.

    Raises:
        BlockingIOError: Another process, or another lock of this one, holds it.
        OSError: The file cannot be created.
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
        """True if the path still names the locked file."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Removes the file while it is locked, then releases the lock; a second call does nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1
