"""Process-wide changes, each with its reason and its off switch.

The variable STATFLIGHT_KEEP names the changes to leave out, such as `STATFLIGHT_KEEP=pandas,tracebacks`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
from typing import Any, Final

import pyarrow as pa

VARIABLE: Final = "STATFLIGHT_KEEP"

_WORKER_MEMORY: Final = {
    "MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MIMALLOC_PURGE_DELAY": "10000",
}  # fmt: skip


def _kept(name: str) -> bool:
    return name in os.environ.get(VARIABLE, "").replace(" ", "").split(",")


def hush_tracebacks() -> None:
    """Keeps tracebacks off the wire (`tracebacks`).

    pyarrow appends `traceback.format_exception` of an exception in a Flight method to the status it sends, file paths
    and source lines included, and has no setting for it. Here that function returns nothing; logging does not use it. A
    test checks the wire, because this relies on pyarrow's internals.
    """

    def nothing(*_: Any, **__: Any) -> list[str]:
        return []

    if not _kept("tracebacks"):
        traceback.format_exception = nothing


def leave_pandas_out() -> None:
    """Keeps pyarrow from importing pandas in the server (`pandas`): it would cost a second of the start and 60 MB."""
    if not _kept("pandas"):
        sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
        with contextlib.suppress(AttributeError):
            pa.array([True])  # pyarrow tries to import pandas once, and fails here


def import_pandas_early() -> None:
    """Makes pyarrow import pandas now, in a worker (`early-pandas`): otherwise it does so at the first conversion, and
    threads that run into the unfinished import fail."""
    if not _kept("early-pandas"):
        pa.scalar(0)


def realign_buffers() -> None:
    """Makes Acero copy unaligned columns without a warning for each (`alignment`): the columns of a put lie where gRPC
    received them. The variable ACERO_ALIGNMENT_HANDLING takes precedence."""
    if not _kept("alignment"):
        os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


def freeze_garbage() -> None:
    """Exempts the objects made at the start from garbage collection (`gc`): they live as long as the process, and each
    full collection would visit them all."""
    if not _kept("gc"):
        gc.freeze()


def switch_threads_sooner() -> None:
    """Makes a thread of a worker that waits for the interpreter's lock ask for it after half a millisecond, not five
    (`switching`). Kernels release the lock in each NumPy call and take it again before a waiting thread has woken; one
    that has asked gets it next, so that threads wake half as often in vain."""
    if not _kept("switching"):
        sys.setswitchinterval(0.0005)


def worker_memory() -> dict[str, str]:
    """Variables that make glibc, and for ten seconds Arrow's mimalloc, keep a worker's freed blocks for the next ones
    (`memory`). Kernels allocate and free arrays of some MiB all the time, and clearing a new page costs more than most
    work on it. All threads share two arenas of glibc, so that each captures in memory that another has freed. Other
    allocators ignore the variables."""
    return {} if _kept("memory") else dict(_WORKER_MEMORY)


def die_with_parent() -> None:
    """Asks Linux for a SIGTERM when the parent dies in any way (`parent`); elsewhere workers poll the parent's id."""
    if not _kept("parent"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def keep_files_private() -> None:
    """Lets nobody else read files that the server creates (`umask`): the database, its log and its backups hold values
    of the data."""
    if not _kept("umask"):
        os.umask(0o077)


def allow_open_files() -> None:
    """Raises the limit of open files to what the system allows (`files`): each connection takes one, and with the
    usual limit of 1024 many callers would leave none for the database."""
    if not _kept("files"):
        with contextlib.suppress(ImportError, OSError, ValueError):
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
