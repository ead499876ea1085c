"""Memory and thread settings of workers, measured in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flight_server.live_server import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="settings of glibc and mimalloc")

FAULTS = """
import resource, numpy
for round in range(20):
    if round == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [numpy.ones(3 << 20, numpy.uint8) for _ in range(10)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
ARENAS = """
import ctypes, threading, numpy
together = threading.Barrier(12)
def work():
    together.wait()
    for _ in range(20):
        numpy.sort(numpy.ones(1 << 18))  # without Python's lock
    together.wait()
threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(out := libc.fdopen(1, b"w")))
libc.fflush(ctypes.c_void_p(out))
"""

SETTINGS = """
import os
os.dup2(1, 2)  # mimalloc writes its settings there
import pyarrow
pyarrow.allocate_buffer(1)
"""

SWITCHING = """
import sys
from flight_server.process.runtime import switch_threads_sooner
switch_threads_sooner()
print(sys.getswitchinterval())
"""

BLAS = """
import os
from flight_server.process.runtime import leave_blas_threads_out
leave_blas_threads_out()
import numpy
print(len(os.listdir("/proc/self/task")) - 1)
"""


STARTED = """
import sys
from flight_server.process.run_worker import postpone_pandas
postpone_pandas()
import pyarrow
pyarrow.scalar(0)
print(*sys.modules)
pyarrow.table({"a": [1]}).to_pandas()  # as PySpark may ask for
"""


REUSES = """
from flight_server.process.runtime import WORKER_MEMORY, reuse_memory
reuse_memory(WORKER_MEMORY)
"""


def output(code: str, **variables: str) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "OPENBLAS_"))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=plain | variables).stdout


def test_worker_memory_settings_reuse_freed_memory():
    assert int(output(REUSES + FAULTS)) * 10 < int(output(REUSES + FAULTS, STATFLIGHT_KEEP="memory"))


def test_worker_memory_settings_limit_arenas():
    assert 1 <= output(REUSES + ARENAS).count("<heap nr=") <= 2


def test_arrow_keeps_freed_memory_for_ten_seconds():
    settings = output(REUSES + SETTINGS, MIMALLOC_VERBOSE="1")
    assert "'purge_delay': 10000" in settings


@pytest.mark.parametrize(("kept", "seconds"), [("", "0.0005"), ("switching", "0.005")])
def test_waiting_threads_ask_for_the_lock_after_half_a_millisecond(kept, seconds):
    assert output(SWITCHING, STATFLIGHT_KEEP=kept).strip() == seconds


def test_numpy_starts_no_threads():
    assert output(BLAS, STATFLIGHT_KEEP="blas").strip() == str(len(os.sched_getaffinity(0)) - 1)
    assert output(BLAS).strip() == "0"


def test_server_loads_no_pandas(tmp_path):
    with serving(tmp_path, "--http-port", 0) as server:
        loaded = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "pyarrow" in loaded and "pandas" not in loaded


def test_worker_starts_without_libraries_that_few_captures_need():
    loaded = set(output(STARTED).split())
    assert "pyarrow" in loaded and not loaded & {
        "pandas",
        "duckdb",
        "sqlglot",
        "rich",
        "asyncio",
        "pyspark",
        "deltalake",
    }


CLOSED = """
import os, sys
for number in (0, 1):
    os.close(number)
sys.stdin = sys.stdout = None  # as Python starts with closed streams
from flight_server.process.runtime import open_standard_streams
open_standard_streams()
print("nowhere")
sys.stdout.buffer.write(b"nowhere")
assert sys.stdin.read() == "" and not sys.stdout.isatty()
assert os.open(os.devnull, os.O_RDONLY) > 2  # no other file takes their place
"""


def test_closed_standard_streams_are_the_null_device():
    assert output(CLOSED) == ""
