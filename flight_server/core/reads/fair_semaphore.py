"""A semaphore that serves in order of arrival, and whose waiters can give up."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_TICK: Final = 0.015  # seconds between two checks of a waiter


class FairSemaphore:
    """A semaphore whose waiting callers are served in order of arrival."""

    def __init__(self, slots: int):
        self._free = slots
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def acquire(self, check: Callable[[], None]) -> Iterator[None]:
        """Context that holds a slot; `check` is called while waiting for one, and raises to give up."""
        granted = None
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                granted = threading.Event()
                self._waiting.append(granted)
        try:
            while granted is not None and not granted.wait(_TICK):
                check()
        except BaseException:
            self._leave(granted)
            raise
        try:
            yield
        finally:
            self._release()

    def _leave(self, granted: threading.Event | None) -> None:
        with self._lock:
            if granted is not None and not granted.is_set():
                self._waiting.remove(granted)
                return
        self._release()

    def _release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
