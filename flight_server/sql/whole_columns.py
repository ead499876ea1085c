"""A cache of whole columns of flights, for repeated statements over all tables, such as those of dashboards.

A set of columns is cached at its second read without a write in between, until the next write, within a size budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, TypeVar

from store.duckdb.lru import LruCache

MAX_BYTES: Final = 64 << 20  # size of the cache
NOT_AGAIN_FOR_S: Final = 300.0  # interval between attempts to cache columns that were too large
_REMEMBERED: Final = 1024  # sets of columns whose first read is remembered
Key: TypeAlias = tuple[object, ...]
"""Cached form, flight, snapshot, columns."""


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Kept = TypeVar("Kept", bound=_Sized)


class WholeColumns:
    """Cached columns of flights, valid for the newest commit.

    Args:
        epoch: Returns the number of the newest commit.
        most_bytes: Budget in bytes, at most MAX_BYTES; 0 turns the cache off.
    """

    def __init__(self, epoch: Callable[[], int], most_bytes: int):
        self._epoch = epoch
        self._kept: LruCache[Key, tuple[int, _Sized]] = LruCache(min(most_bytes, MAX_BYTES))
        self._too_large: LruCache[Key, float] = LruCache(_REMEMBERED)
        self._asked: LruCache[Key, int] = LruCache(_REMEMBERED)

    def get(self, key: Key, read: Callable[[int], Kept | None]) -> Kept | None:
        """The columns, from the cache if possible.

        Args:
            key: Identity of the columns.
            read: Reads the columns; returns None if they have more bytes than its argument. Equal keys must read the
                same type.

        Returns:
            The columns; None at their first request, and if they are too large.
        """
        epoch = self._epoch()
        cached = self._kept.get(key)
        if cached is not None and cached[0] == epoch:
            return cached[1]  # type: ignore[return-value]
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
        """Removes all columns."""
        self._kept.clear()
