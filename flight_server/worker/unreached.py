"""What a worker says while it reaches no server: each reason once, after a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from store.model.errors import first_line

log = logging.getLogger("statflight.worker")

PATIENCE_SECONDS: Final = 5.0  # a server that restarts is away for less


class Unreached:
    """Failed calls of all threads of a worker, since the last that succeeded."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._lock = clock, threading.Lock()
        self._since: float | None = None
        self._said = ""

    def succeeded(self) -> None:
        """Notes that the server answered."""
        with self._lock:
            was_said, self._since, self._said = bool(self._said), None, ""
        if was_said:
            log.info("the server answers again")

    def failed(self, error: BaseException) -> None:
        """Notes a failed call, which is tried again; logs its reason if that has lasted and is new."""
        text, now = first_line(error, 500), self._clock()
        with self._lock:
            self._since = now if self._since is None else self._since
            is_due = now - self._since >= PATIENCE_SECONDS and text != self._said
            if is_due:
                self._said = text
        if is_due:
            log.warning("the server is not reached, and tried again: %s", text)
