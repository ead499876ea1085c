"""A thread-safe LRU cache with a size budget."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """A mapping that evicts the least recently used values. Thread-safe.

    Args:
        limit: Total size allowed, in the unit of the sizes given to `put`.
        overhead: Size of an entry besides its value.
    """

    def __init__(self, limit: int, overhead: int = 0):
        self.limit, self.size = limit, 0
        self._overhead = overhead
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value of a key, which becomes the most recently used; None if there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Stores a value, replacing one of the same key, and evicts the least recently used beyond the limit.

        Args:
            value: The value; not stored if it alone exceeds the limit.
            size: Size of the value, in the unit of the limit, without the overhead of an entry.
        """
        size += self._overhead
        with self._lock:
            self._drop(key)
            if size > self.limit:
                return
            self._entries[key] = value, size
            self.size += size
            while self.size > self.limit:
                self._drop(next(iter(self._entries)))

    def drop(self, key: K) -> None:
        """Removes a value, if there is one."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Removes all values."""
        with self._lock:
            self._entries.clear()
            self.size = 0

    def _drop(self, key: K) -> None:
        if (old := self._entries.pop(key, None)) is not None:
            self.size -= old[1]

    def __len__(self) -> int:
        return len(self._entries)
