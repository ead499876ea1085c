"""Signals for the loop of a main thread.

A handler runs in the main thread, amid whatever that does. It must not take a lock that the thread may hold just then,
as that of an Event it waits for: neither would ever go on.
"""

from __future__ import annotations

import queue
import signal


class Signals:
    """The signals of some numbers, one after the other, instead of what they do by default. For the main thread."""

    def __init__(self, *numbers: int):
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()  # its put may interrupt its get
        for number in numbers:
            signal.signal(number, lambda came, _: self._came.put(came))

    def next(self, seconds: float) -> int | None:
        """The next signal; None when none comes within the time."""
        try:
            return self._came.get(timeout=seconds)
        except queue.Empty:
            return None
