"""Captures that a client waits for; Ctrl-C cancels them on the server."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Final

from flight_server.client.background import in_background
from flight_server.client.connection import Connection

CANCEL_SECONDS: Final = 1.0  # longest wait for cancelled calls to end


class RunningCaptures:
    """The running calls of `capture` of a client, each in a thread of its own: Flight's calls cannot be interrupted."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._running: dict[str, Future[list[dict[str, Any]]]] = {}  # by correlation id

    def call(self, body: Mapping[str, Any], timeout: float | None) -> list[dict[str, Any]]:
        """Calls the action and waits for its outcomes, one per request; what interrupts the wait cancels the capture.

        Args:
            timeout: Timeout in seconds; None for that of the connection.
        """
        correlation_id = uuid.uuid4().hex
        outcomes = in_background(partial(self._connection.act, "capture", body, timeout, correlation_id), "capture")
        self._running[correlation_id] = outcomes
        try:
            wait([outcomes])
        except BaseException:
            self._cancel({correlation_id: outcomes})
            raise
        finally:
            self._running.pop(correlation_id, None)
        return outcomes.result()

    def cancel(self) -> bool:
        """Cancels all running calls, waits up to CANCEL_SECONDS for their end, and tells if all have ended."""
        return self._cancel(self._running.copy())

    def _cancel(self, running: Mapping[str, Future[Any]]) -> bool:
        deadline = time.monotonic() + CANCEL_SECONDS
        while left := [name for name, outcomes in running.items() if not outcomes.done()]:
            if (seconds := deadline - time.monotonic()) <= 0:
                return False
            for name in left:  # again, because the server may not have begun the call when the first one arrived
                with contextlib.suppress(Exception):
                    list(self._connection.act_raw("cancel_job", {"correlation_id": name}, timeout=seconds))
            wait([running[name] for name in left], 0.1, FIRST_COMPLETED)
        return True
