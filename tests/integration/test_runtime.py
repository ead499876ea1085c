"""Changes of a whole process, seen in a process of their own."""

import subprocess
import sys

import pytest

FAULTS = """
import resource, numpy
from flight_server.process.runtime import keep_freed_memory
{prepare}
for round in range(20):
    if round == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [numpy.ones(3 << 20, numpy.uint8) for _ in range(10)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


HEAPS = """
import ctypes, sys, threading, numpy
from flight_server.process.runtime import keep_freed_memory
keep_freed_memory()
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


def faults(prepare: str) -> int:
    """Pages that the system had to clear for arrays of 3 MiB, ten at a time."""
    command = [sys.executable, "-c", FAULTS.format(prepare=prepare)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(found.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_freed_memory_is_used_again():
    assert faults("keep_freed_memory()") * 10 < faults("")


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_threads_share_few_heaps():
    found = subprocess.run([sys.executable, "-c", HEAPS], check=True, capture_output=True, text=True)
    assert 1 <= found.stdout.count("<heap nr=") <= 2
