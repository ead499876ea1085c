"""Counts of requests to lakes and their catalogs: how many, of which operation, and the bytes that they read or wrote.

Whoever works on a lake counts within `counting`; whatever reaches the lake meanwhile in this thread calls `requested`.
Pools of threads hand the meter on with `carried`. Without a meter nothing is counted. What reaches a lake: the file
systems of `metered.py`, requests over HTTP, and the libraries of formats that have connections of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, ParamSpec, TypeVar

LIST: Final = "LIST"
GET: Final = "GET"
HEAD: Final = "HEAD"
PUT: Final = "PUT"
DELETE: Final = "DELETE"
OPEN: Final = "OPEN"
"""A file of this machine is opened, or its directory listed by a library."""

Counts = dict[str, tuple[int, int]]
"""Operation → requests, bytes."""

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Meter:
    """Counts by operation. Thread-safe.

    Attributes:
        total: Number of requests, those included that were taken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counts = {}
        self.total = 0

    def count(self, operation: str, requests: int = 1, size_bytes: int = 0) -> None:
        """Adds requests, and the bytes that they transferred."""
        with self._lock:
            before, size = self._counts.get(operation, (0, 0))
            self._counts[operation] = before + requests, size + size_bytes
            self.total += requests

    def take(self) -> Counts:
        """The counts since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts


_current: Final[ContextVar[Meter | None]] = ContextVar("meter", default=None)


def meter() -> Meter | None:
    """The meter of this context; None if nothing is counted."""
    return _current.get()


def requested(operation: str, requests: int = 1, size_bytes: int = 0) -> None:
    """Counts requests of this context."""
    if (current := _current.get()) is not None:
        current.count(operation, requests, size_bytes)


@contextmanager
def counting(meter: Meter | None) -> Iterator[None]:
    """Counts requests of the block and this thread with a meter."""
    token = _current.set(meter)
    try:
        yield
    finally:
        _current.reset(token)


def carried(call: Callable[P, Answer]) -> Callable[P, Answer]:
    """A function for another thread, whose requests count as if they were made in this one."""
    current = _current.get()
    if current is None:
        return call

    def run(*args: P.args, **named: P.kwargs) -> Answer:
        with counting(current):
            return call(*args, **named)

    return run
