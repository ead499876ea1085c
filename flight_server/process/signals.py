"""Signals for the loop of a main thread.

A handler interrupts the main thread. It must not take a lock that this thread may hold, such as that of an Event it
waits for: that would be a deadlock.
"""

from __future__ import annotations

import queue
import signal


class Signals:
    """Queues signals of the given numbers, in place of their default action. For the main thread."""

    def __init__(self, *numbers: int):
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()  # reentrant: a handler may put while the thread gets
        for number in numbers:
            signal.signal(number, lambda came, _: self._came.put(came))

    def next(self, seconds: float) -> int | None:
        """The next signal; None after the timeout."""
        try:
            return self._came.get(timeout=seconds)
        except queue.Empty:
            return None
