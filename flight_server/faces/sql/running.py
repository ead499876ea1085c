"""The running statements, so that clients can cancel them."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from flight_server.core.auth.principal import Principal
from flight_server.core.wire.protobuf import Message, read_message, write_message

_CANCELLED: Final = 1  # statuses of the Flight SQL standard
_NOT_CANCELLABLE: Final = 3


class RunningStatements:
    """The running reads of all callers, each with an event that is set when it is cancelled. Thread-safe."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, bytes], list[threading.Event]] = {}
        self._lock = threading.Lock()

    def begin(self, caller: Principal, ticket: bytes) -> threading.Event:
        """Registers a read; its event must be passed to `end`."""
        event = threading.Event()
        with self._lock:
            self._events.setdefault((caller.name, ticket), []).append(event)
        return event

    def end(self, caller: Principal, ticket: bytes, event: threading.Event) -> None:
        """Removes a read; a second call does nothing."""
        key = (caller.name, ticket)
        with self._lock:
            if (events := self._events.get(key)) is not None:
                with suppress(ValueError):
                    events.remove(event)
                if not events:
                    del self._events[key]

    def cancel(self, request: Message, caller: Principal) -> bytes:
        """Cancels the reads of a FlightInfo's tickets.

        Args:
            caller: The caller; only its own reads are cancelled.
        """
        is_any = False
        info = read_message("FlightInfo", request.data(1))
        for at in range(len(info.fields.get(3, ()))):
            endpoint = info.nested(3, at, "Endpoint")
            ticket = read_message("Ticket", endpoint.data(1)).data(1)
            with self._lock:
                for event in self._events.get((caller.name, ticket), []):
                    event.set()
                    is_any = True
        return write_message((1, _CANCELLED if is_any else _NOT_CANCELLABLE))
