"""Turns of the threads of a worker, so that small captures follow one another."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

TURN_SECONDS: Final = 0.1  # after which a capture no longer excludes others


class Turns:
    """One thread has its turn at a time, for at most some time.

    A small capture is hundreds of short calls of Arrow and NumPy, each of which releases the interpreter's lock: two
    of them side by side hand it to each other all the time, and take longer than one after the other. One that waits
    for a remote lake, or scans much, has its turn only at its start.
    """

    def __init__(self, seconds: float = TURN_SECONDS):
        self._seconds = seconds
        self._changed = threading.Condition()
        self._end = 0.0  # of the current turn; in the past if nobody has one

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Waits until no other thread has its turn, and has one for the block."""
        with self._changed:
            while (left := self._end - time.monotonic()) > 0:
                self._changed.wait(left)
            self._end = own = time.monotonic() + self._seconds
        try:
            yield
        finally:
            with self._changed:
                if self._end == own:
                    self._end = 0.0
                    self._changed.notify()
