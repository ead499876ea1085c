"""Progress of long metadata reads, with cancellation; and the files that are read, where one may end the process.

A connector calls `report` regularly; this has no effect unless the caller registered a listener with `reporting`. The
listener raises `store.model.errors.Cancelled` to stop the connector.

Each file is named by `reading` before it is opened. Where the caller listens with `announcing`, because an earlier try
ended its process, files are read one at a time in its thread, so that the last one named is the one at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

Listener = Callable[[str], None]

_listener: Final[ContextVar[Listener | None]] = ContextVar("listener", default=None)
_announce: Final[ContextVar[Listener | None]] = ContextVar("announce", default=None)


def report(message: str) -> None:
    """Reports progress to the listener of this context.

    Raises:
        Cancelled: The caller no longer needs the result.
    """
    if (listener := _listener.get()) is not None:
        listener(message)


def reading(file: str) -> None:
    """Names a file that is about to be opened."""
    if (announce := _announce.get()) is not None:
        announce(file)


def one_at_a_time() -> bool:
    """True if files are to be read one after the other, in this thread."""
    return _announce.get() is not None


@contextmanager
def announcing(announce: Listener) -> Iterator[None]:
    """Names each file to `announce` before it is opened, within the block and in this thread."""
    token = _announce.set(announce)
    try:
        yield
    finally:
        _announce.reset(token)


@contextmanager
def reporting(listener: Listener) -> Iterator[None]:
    """Registers a listener for calls of `report` within the block, in this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
