"""Progress of long looks at a lake, told to whoever runs the connector, who may stop it there.

A connector calls `report` now and then; it does nothing unless the caller listens with `reporting`. The listener raises
`store.errors.Cancelled` once nobody wants the result any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

Listener = Callable[[str], None]

_listener: Final[ContextVar[Listener | None]] = ContextVar("listener", default=None)


def report(message: str) -> None:
    """Tells the listener of this context how far the look is.

    Raises:
        Cancelled: The look is not wanted any more.
    """
    if (listener := _listener.get()) is not None:
        listener(message)


@contextmanager
def reporting(listener: Listener) -> Iterator[None]:
    """Hands every `report` of the block, in this thread, to the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
