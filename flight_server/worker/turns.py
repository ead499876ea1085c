"""Turns at computing, for the threads of one process.

A capture of a small table calls thousands of short functions of Arrow and NumPy. Each of them lets go of Python's
interpreter, so that two such captures at once spend a third of their time handing it to each other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TURN_SECONDS: Final = 0.1  # after which the next thread begins beside: long captures are in long calls, or wait


class Turns:
    """Lets threads compute one after the other, in the order in which they ask. Nobody waits for a long turn: once the
    newest one has lasted for `seconds`, the next begins beside it."""

    def __init__(self, seconds: float = TURN_SECONDS):
        self._seconds = seconds
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()  # threads, by their idents
        self._began: dict[int, float] = {}  # thread → when its turn began

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for this thread's turn, which lasts for the block."""
        self._take()
        try:
            yield
        finally:
            self._give()

    @contextmanager
    def handed_over(self) -> Iterator[None]:
        """Interrupts this thread's turn, if it has one, for a block that waits for something else."""
        had = self._give()
        try:
            yield
        finally:
            if had:
                self._take()

    def _take(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._waiting.append(me)
            while (is_behind := self._waiting[0] != me) or self._seconds_left() > 0:
                self._changed.wait(None if is_behind else self._seconds_left())
            self._waiting.popleft()
            self._began[me] = time.monotonic()
            self._changed.notify_all()

    def _seconds_left(self) -> float:
        """The time until nobody waits for the newest turn any more."""
        return max(self._began.values(), default=float("-inf")) + self._seconds - time.monotonic()

    def _give(self) -> bool:
        with self._changed:
            self._changed.notify_all()
            return self._began.pop(threading.get_ident(), None) is not None
