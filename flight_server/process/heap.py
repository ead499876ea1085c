"""The C library's heap, told to keep blocks of the size of a batch's columns for the next batch.

DuckDB and Arrow take such blocks and give them back for every batch of a scan. Left to itself, glibc hands them to the
system and gets new ones, and the page faults of these are a tenth of what a scan of a few columns takes.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

_KEPT_BYTES: Final = 16 << 20  # that an arena may hold free at its end
_BLOCK_BYTES: Final = 4 << 20  # of a block that comes from the system itself, and goes back there
_M_TRIM_THRESHOLD: Final = -1  # of malloc.h
_M_MMAP_THRESHOLD: Final = -3


def keep_blocks() -> bool:
    """Tells the heap of this process; False where there is none that would listen."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
