"""What the C library holds back of freed memory, given to the system now and then.

Dozens of threads answer calls, each from a part of the heap of its own, where what a short call leaves behind lies
between what a long one still holds. Freed pages stay with the process until somebody asks for them.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any, Final

EVERY_SECONDS: Final = 20.0
_trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it


class Trimmer:
    """Trims the heap at most every so many seconds."""

    def __init__(self, every: float = EVERY_SECONDS):
        self._every, self._last = every, time.monotonic()

    def __call__(self) -> bool:
        """Whether there was anything to give back, as far as that is known."""
        now = time.monotonic()
        if _trim is None or now - self._last < self._every:
            return False
        self._last = now
        return bool(_trim(ctypes.c_size_t(0)))
