"""Statements that are being read, so that a client can cancel them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import pyarrow as pa

from flight_server.auth.principal import Principal
from flight_server.wire import flight_sql
from flight_server.wire.flight_sql import Message

_CANCELLED: Final = 1  # statuses of the standard
_NOT_CANCELLABLE: Final = 3


class RunningStatements:
    """An event for each read of each caller, set when it is cancelled. Safe among threads."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, bytes], list[threading.Event]] = {}
        self._lock = threading.Lock()

    def begin(self, caller: Principal, ticket: bytes) -> threading.Event:
        """Registers a read.

        Args:
            caller: Its caller.
            ticket: Its ticket.

        Returns:
            The event, for `end`.
        """
        event = threading.Event()
        with self._lock:
            self._events.setdefault((caller.name, ticket), []).append(event)
        return event

    def end(self, caller: Principal, ticket: bytes, event: threading.Event) -> None:
        """Removes a read; it may be removed before.

        Args:
            caller: Its caller.
            ticket: Its ticket.
            event: As `begin` returned it.
        """
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
            request: A CancelFlightInfoRequest.
            caller: Its caller, whose reads alone are cancelled.

        Returns:
            The CancelFlightInfoResult.
        """
        found = False
        info = flight_sql.read_message("FlightInfo", request.data(1))
        for endpoint in info.fields.get(3, []):
            if isinstance(endpoint, bytes):
                message = flight_sql.read_message("Endpoint", endpoint)
                ticket = flight_sql.read_message("Ticket", message.data(1)).data(1)
                with self._lock:
                    for event in self._events.get((caller.name, ticket), []):
                        event.set()
                        found = True
        return flight_sql.write_message((1, _CANCELLED if found else _NOT_CANCELLABLE))


class Reading:
    """Batches on their way to a caller.

    Args:
        batches: The batches.
        on_end: Called once they are read, or not wanted any more.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], on_end: Callable[[], None]):
        self._batches, self._on_end = batches, on_end

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets go of the batches."""
        self._batches = iter(())
        self._on_end()

    def __del__(self) -> None:
        self.close()
