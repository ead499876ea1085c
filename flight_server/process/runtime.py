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

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_ARENAS: Final = 3
_KEPT_BYTES: Final = 64 << 20  # free at the end of a heap, above which they go back to the system
_HEAPS: Final = 2  # that all threads share: each keeps what was freed in it
_KEPT_BLOCK_BYTES: Final = 32 << 20  # larger blocks go back at once; glibc takes no greater limit


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


def keep_freed_memory() -> None:
    """Has glibc keep freed blocks of a worker for the next ones (`memory`): kernels take and give back arrays of some
    MiB all the time, and a page that the system has to clear again costs more than most of what is done with it. Few
    arenas keep what any thread freed, whichever thread needs it next; call before there are threads."""
    if not _kept("memory"):
        with contextlib.suppress(OSError, AttributeError):  # other C libraries
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_ARENA_MAX, _ARENAS)
            mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            mallopt(_M_ARENA_MAX, _HEAPS)


def die_with_parent() -> None:
    """Asks Linux for a SIGTERM when the parent dies in any way (`parent`); elsewhere workers poll the parent's id."""
    if not _kept("parent"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def allow_open_files() -> None:
    """Raises the limit of open files to what the system allows (`files`): each connection takes one, and with the
    usual limit of 1024 many callers would leave none for the database."""
    if not _kept("files"):
        with contextlib.suppress(ImportError, OSError, ValueError):
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
