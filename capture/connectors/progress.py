"""Progress of long metadata reads, with cancellation.

A connector calls `report` regularly; this has no effect unless the caller registered a listener with `reporting`. The
listener raises `store.model.errors.Cancelled` to stop the connector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

Listener = Callable[[str], None]

_listener: Final[ContextVar[Listener | None]] = ContextVar("listener", default=None)


def report(message: str) -> None:
    """Reports progress to the listener of this context.

    Raises:
        Cancelled: The caller no longer needs the result.
    """
    if (listener := _listener.get()) is not None:
        listener(message)


@contextmanager
def reporting(listener: Listener) -> Iterator[None]:
    """Registers a listener for calls of `report` within the block, in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
