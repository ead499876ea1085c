"""Process-wide changes, each with its reason and its off switch.

The variable STATFLIGHT_KEEP names the changes to leave out, such as `STATFLIGHT_KEEP=pandas,tracebacks`.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Final, NamedTuple

VARIABLE: Final = "STATFLIGHT_KEEP"
_COLLECTIONS: Final = gc.get_threshold()


class MemoryReuse(NamedTuple):
    """The freed memory that a process keeps: blocks of up to `largest_bytes`, `most_bytes` at the end of an arena, in
    `arenas` for all threads; for `arrow_ms` what Arrow's mimalloc has freed, if pyarrow is not yet imported."""

    largest_bytes: int
    most_bytes: int
    arenas: int | None = None
    arrow_ms: int | None = None


SERVER_MEMORY: Final = MemoryReuse(4 << 20, 16 << 20)  # a batch's columns
WORKER_MEMORY: Final = MemoryReuse(32 << 20, 64 << 20, arenas=2, arrow_ms=10_000)  # arrays of some MiB, all the time

_LIMITED_SINCE: Final = 24  # pyarrow's first major version with mimalloc 3, whose arenas are shared by all threads
_LEAST_ARROW_BYTES: Final = 256 << 20  # with which a server can start
_MEMORY_FILES: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _kept(name: str) -> bool:
    return name in os.environ.get(VARIABLE, "").replace(" ", "").split(",")


def limit_arrow_memory(most_bytes: int | None) -> None:
    """Limits the memory of Arrow's pool (`arrow-memory`). To be called before anything imports pyarrow.

    pyarrow's Flight server decompresses a batch before any of our code sees it, and a megabyte may become 30 GB. An
    allocation beyond the limit raises MemoryError in the call that needs it, where the system would kill the process.
    mimalloc takes the limit as an arena reserved (not used) at its start, and no memory besides.

    Args:
        most_bytes: The limit; None means half of the memory of the machine or container, 0 none.
    """
    if _kept("arrow-memory") or most_bytes == 0 or "pyarrow" in sys.modules:
        return
    from importlib.metadata import version  # slow; every command imports this module

    if not sys.platform.startswith("linux") or int(version("pyarrow").partition(".")[0]) < _LIMITED_SINCE:
        return
    import resource

    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:  # the arena might not fit, and be all
        return
    limit = max(_memory_bytes() // 2 if most_bytes is None else most_bytes, _LEAST_ARROW_BYTES)
    kibibytes = f"{limit >> 10}KiB"
    before = dict(os.environ)
    os.environ |= {
        "MIMALLOC_RESERVE_OS_MEMORY": kibibytes,
        "MIMALLOC_ARENA_MAX_OBJECT_SIZE": kibibytes,
        "MIMALLOC_DISALLOW_OS_ALLOC": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "mimalloc",
    }
    try:
        import pyarrow  # noqa: F401  mimalloc reads the variables here
    finally:  # the workers are not meant
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _memory_bytes() -> int:
    """Memory of the machine, or of the container if that has less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _MEMORY_FILES:
        with contextlib.suppress(OSError, ValueError):  # absent, or "max"
            sizes.append(int(Path(file).read_text()))
    return min(sizes)


def open_standard_streams() -> None:
    """Opens the null device in place of a standard stream that the caller has closed (`streams`), as with `>&-`. Python
    has None for it, and its number would go to the next file that is opened: a socket, or the database."""
    if _kept("streams"):
        return
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def report_crashes() -> None:
    """Writes the stacks of all threads to standard error, where the log is, when the process crashes (`crashes`), in
    this process and in the Python processes that it starts, those of Spark too."""
    if not _kept("crashes"):
        os.environ["PYTHONFAULTHANDLER"] = "1"
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # standard error is no file, or closed
            faulthandler.enable()


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


def hush_grpc() -> None:
    """Keeps gRPC's own lines about a failed handshake off standard error (`grpc-log`): the command says what is wrong.
    To be called before anything imports pyarrow.flight; a value that the user has set stays."""
    if not _kept("grpc-log"):
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def leave_azure_cli_out() -> None:
    """Keeps Azure's library from running `az` for credentials where there is no such command (`azure-cli`): the shell
    would say so on standard error, in the middle of everything else. AZURE_TOKEN_CREDENTIALS, if set, stays."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if not _kept("azure-cli") and not any(os.access(os.path.join(folder, "az"), os.X_OK) for folder in folders):  # noqa: PTH118
        os.environ.setdefault("AZURE_TOKEN_CREDENTIALS", "prod")


def leave_pandas_out() -> None:
    """Keeps pyarrow from importing pandas in the server (`pandas`): it would cost a second of the start and 60 MB."""
    if not _kept("pandas"):
        sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
        with contextlib.suppress(AttributeError):
            import pyarrow as pa

            pa.scalar(0, pa.timestamp("ns")).as_py()  # pyarrow tries to import pandas once, and fails here


def leave_numpy_out() -> None:
    """Keeps pyarrow from importing NumPy in a command that needs none (`numpy`): it is a third of the command's start.
    To be called before anything imports pyarrow."""
    if not _kept("numpy") and "pyarrow" not in sys.modules:
        sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]


def leave_blas_threads_out() -> None:
    """Keeps NumPy's OpenBLAS from starting a thread for each processor (`blas`): nothing here multiplies matrices, and
    each would spin for 70 ms in vain. Its variable in the environment takes precedence. To be called before anything
    imports NumPy."""
    if not _kept("blas"):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def postpone_pandas() -> None:
    """Keeps pyarrow from importing pandas at the start of a worker (`late-pandas`): it would be a third of the start.
    Libraries that need pandas, such as PySpark, import it themselves."""
    if not _kept("late-pandas"):
        import pyarrow as pa

        leave_pandas_out()
        if sys.modules.get("pandas", pa) is None:
            pa.scalar(0)  # only the second failure keeps some versions from trying again
            del sys.modules["pandas"]


def realign_buffers() -> None:
    """Makes Acero copy unaligned columns without a warning for each (`alignment`): the columns of a put lie where gRPC
    received them. The variable ACERO_ALIGNMENT_HANDLING takes precedence."""
    if not _kept("alignment"):
        os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")


def collect_less_often() -> None:
    """Lets 50,000 objects be made between two garbage collections, not 700 (`collections`): modules, which live as long
    as the process, make half a million at its start, and collections would be a twentieth of it. `freeze_garbage` ends
    it: the garbage of calls would be hundreds of MB."""
    if not _kept("collections"):
        gc.set_threshold(50_000, 20, 20)


def freeze_garbage() -> None:
    """Exempts the objects made at the start from garbage collection (`gc`): they live as long as the process, and each
    full collection would visit them all. Collections are as frequent again as Python makes them."""
    gc.set_threshold(*_COLLECTIONS)
    if not _kept("gc"):
        gc.freeze()


def switch_threads_sooner() -> None:
    """Makes a thread of a worker that waits for the interpreter's lock ask for it after half a millisecond, not five
    (`switching`). Kernels release the lock in each NumPy call and take it again before a waiting thread has woken; one
    that has asked gets it next, so that threads wake half as often in vain."""
    if not _kept("switching"):
        sys.setswitchinterval(0.0005)


def reuse_memory(of: MemoryReuse) -> None:
    """Makes glibc keep blocks that the process has freed for the next ones (`memory`): clearing a new page costs more
    than most work on it. Its variables in the environment take precedence; other allocators have none of this."""
    if _kept("memory"):
        return
    if of.arrow_ms is not None:
        os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(of.arrow_ms))
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for variable, parameter, value in (
            ("MALLOC_ARENA_MAX", -8, of.arenas),
            ("MALLOC_MMAP_THRESHOLD_", -3, of.largest_bytes),
            ("MALLOC_TRIM_THRESHOLD_", -1, of.most_bytes),
        ):
            if value is not None and variable not in os.environ:
                libc.mallopt(parameter, value)


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


class FreeMemory:
    """Gives freed memory back to the system (`trim`): glibc and Arrow keep what a burst of large calls has freed.

    Calls cost a read of a file, until the process has grown by a tenth since the last time. DuckDB's own allocator
    gives back what a thread has freed while that thread works on. (Its background threads would do so at once; any
    instance that ends, such as that of a backup, turns them off for the whole process.)
    """

    def __init__(self) -> None:
        self._least = 0  # bytes resident after the last time

    def __call__(self) -> None:
        if _kept("trim") or not sys.platform.startswith("linux"):
            return
        now = _resident_bytes()
        if now > self._least * 1.1:
            import pyarrow as pa

            pa.default_memory_pool().release_unused()
            with contextlib.suppress(AttributeError):  # of another libc
                ctypes.CDLL(None).malloc_trim(0)
            now = _resident_bytes()
            self._least = now
        self._least = min(self._least, now)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def allow_open_files() -> None:
    """Raises the limit of open files to what the system allows (`files`): each connection takes one, and with the
    usual limit of 1024 many callers would leave none for the database."""
    if not _kept("files"):
        with contextlib.suppress(ImportError, OSError, ValueError):
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
