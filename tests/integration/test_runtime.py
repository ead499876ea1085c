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


def faults(prepare: str) -> int:
    """Pages that the system had to clear for arrays of 3 MiB, ten at a time."""
    command = [sys.executable, "-c", FAULTS.format(prepare=prepare)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(found.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_freed_memory_is_used_again():
    assert faults("keep_freed_memory()") * 10 < faults("")
