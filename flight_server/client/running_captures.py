"""Captures that a client waits for; Ctrl-C cancels them on the server."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from flight_server.client.connection import Connection

CANCEL_SECONDS: Final = 1.0  # longest wait for cancelled calls to end


class RunningCaptures:
    """The running calls of `capture` of a client, each in a thread of its own: Flight's calls cannot be interrupted."""

    def __init__(self, connection: Connection):
        self._connection = connection
        self._running: dict[str, threading.Event] = {}  # by correlation id; set when the call has ended

    def call(self, body: Mapping[str, Any], timeout: float | None) -> list[dict[str, Any]]:
        """Calls the action and waits for its outcomes, one per request; what interrupts the wait cancels the capture.

        Args:
            timeout: Timeout in seconds; None for that of the connection.
        """
        correlation_id, ended = uuid.uuid4().hex, threading.Event()
        outcomes: list[dict[str, Any]] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                outcomes.extend(self._connection.act("capture", body, timeout, correlation_id))
            except BaseException as error:
                errors.append(error)
            finally:
                ended.set()

        self._running[correlation_id] = ended
        try:
            threading.Thread(target=run, daemon=True, name="capture").start()
            ended.wait()
        except BaseException:
            self._cancel({correlation_id: ended})
            raise
        finally:
            self._running.pop(correlation_id, None)
        if errors:
            raise errors[0]
        return outcomes

    def cancel(self) -> bool:
        """Cancels all running calls, waits up to CANCEL_SECONDS for their end, and tells if all have ended."""
        return self._cancel(self._running.copy())

    def _cancel(self, running: Mapping[str, threading.Event]) -> bool:
        deadline = time.monotonic() + CANCEL_SECONDS
        while left := [(name, ended) for name, ended in running.items() if not ended.is_set()]:
            if (seconds := deadline - time.monotonic()) <= 0:
                return False
            for name, _ in left:  # again, because the server may not have begun the call when the first one arrived
                with contextlib.suppress(Exception):
                    list(self._connection.act_raw("cancel_job", {"correlation_id": name}, timeout=seconds))
            left[0][1].wait(0.1)
        return True
