"""Columns of whole flights, kept for statements that ask for all tables at once: those of dashboards, again and again.

A set of columns is kept once it is read for the second time while nothing is written, until the next write, within a
budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, TypeVar

from store.lru import LruCache

MAX_BYTES: Final = 64 << 20  # of all that is kept
NOT_AGAIN_FOR_S: Final = 300.0  # that columns which were too large are not tried again
_REMEMBERED: Final = 1024  # sets of columns that were asked for once
Key: TypeAlias = tuple[object, ...]
"""Flight, snapshot, columns, and the form in which they are kept."""


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Kept = TypeVar("Kept", bound=_Sized)


class WholeColumns:
    """Columns of flights as of the newest commit.

    Args:
        epoch: Returns the number of the newest commit.
        most_bytes: The budget; 0 keeps nothing.
    """

    def __init__(self, epoch: Callable[[], int], most_bytes: int):
        self._epoch = epoch
        self._kept: LruCache[Key, tuple[int, _Sized]] = LruCache(min(most_bytes, MAX_BYTES))
        self._too_large: LruCache[Key, float] = LruCache(_REMEMBERED)
        self._asked: LruCache[Key, int] = LruCache(_REMEMBERED)

    def get(self, key: Key, read: Callable[[int], Kept | None]) -> Kept | None:
        """Finds the columns, or reads them where they are worth keeping.

        Args:
            key: The columns wanted.
            read: Reads them; None where they have more bytes than its argument. Equal keys must read the same type.

        Returns:
            The columns; None where they are asked for the first time, or are too large.
        """
        epoch = self._epoch()
        found = self._kept.get(key)
        if found is not None and found[0] == epoch:
            return found[1]  # type: ignore[return-value]
        if self._asked.get(key) != epoch:
            self._asked.put(key, epoch)
            return None
        failed = self._too_large.get(key)
        if failed is not None and time.monotonic() - failed < NOT_AGAIN_FOR_S:
            return None
        columns = read(self._kept.limit)
        if columns is None:
            self._too_large.put(key, time.monotonic())
        elif self._epoch() == epoch:
            self._kept.put(key, (epoch, columns), columns.nbytes)
        return columns

    def clear(self) -> None:
        """Drops all columns."""
        self._kept.clear()
