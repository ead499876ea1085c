"""Process-wide changes, each with its reason and its off switch.

The variable STATFLIGHT_KEEP names changes that are not to be made, such as `STATFLIGHT_KEEP=pandas,tracebacks`.
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


def _kept(name: str) -> bool:
    return name in os.environ.get(VARIABLE, "").replace(" ", "").split(",")


def hush_tracebacks() -> None:
    """Keeps tracebacks off the wire (`tracebacks`).

    pyarrow appends `traceback.format_exception` of what a Flight method raises to the status it sends, file paths and
    source lines included, and has no setting for it. The function returns nothing here; logging formats tracebacks by
    other means. A test watches the wire, because this rests on an inside of pyarrow.
    """

    def nothing(*_: Any, **__: Any) -> list[str]:
        return []

    if not _kept("tracebacks"):
        traceback.format_exception = nothing


def leave_pandas_out() -> None:
    """Keeps pyarrow from importing pandas in the server (`pandas`): a second of the start and 60 MB, for nothing."""
    if not _kept("pandas"):
        sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
        with contextlib.suppress(AttributeError):
            pa.array([True])  # pyarrow looks for pandas once, and stumbles


def import_pandas_early() -> None:
    """Has pyarrow import pandas now, in a worker (`early-pandas`): it does so with the first value it converts, and
    threads that meet half of the import fail."""
    if not _kept("early-pandas"):
        pa.scalar(0)


def realign_buffers() -> None:
    """Has Acero copy unaligned columns without a warning for each (`alignment`): columns of a put lie where gRPC
    received them. The variable ACERO_ALIGNMENT_HANDLING comes first."""
    if not _kept("alignment"):
        os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


def freeze_garbage() -> None:
    """Exempts what the start has made from garbage collection (`gc`): it stays as long as the process, and each full
    collection would look at all of it."""
    if not _kept("gc"):
        gc.freeze()


def die_with_parent() -> None:
    """Asks Linux for a SIGTERM when the parent dies, however it dies (`parent`); elsewhere the parent is looked at."""
    if not _kept("parent"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def allow_open_files() -> None:
    """Raises the limit of open files to what the system allows (`files`): each connection is one, and the usual limit
    of 1024 leaves none for the database when so many callers are there."""
    if not _kept("files"):
        with contextlib.suppress(ImportError, OSError, ValueError):
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
