"""Blocks that were given back are there for the next batch."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# The page faults of 100 times three blocks of 512 KiB, which are 128 pages each.
FAULTS = """
import resource
import numpy as np
from flight_server.process import heap

assert {kept}
def batch():
    for block in [np.empty(1 << 19, np.uint8) for _ in range(3)]:
        block[:] = 1
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kept: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(kept=kept)], capture_output=True, text=True, check=True
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's heap")
def test_a_block_given_back_costs_no_page_faults():
    assert faults("heap.keep_blocks()") < 400 < faults("True")


def test_other_heaps_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    from flight_server.process import heap

    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not heap.keep_blocks()
