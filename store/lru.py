"""A thread-safe LRU cache with a size budget."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key, the least recently used dropped first. Safe among threads.

    Args:
        limit: What all values together may take, in the unit of the sizes that `put` is told; a greater one is not
            kept at all.
        overhead: What each takes besides.
    """

    def __init__(self, limit: int, overhead: int = 0):
        self.limit, self.size = limit, 0
        self._overhead = overhead
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value of a key, which is now the most recently used; None when it does not exist."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size: int = 1) -> None:
        """Keeps a value in place of one of the same key; drops the least recently used where it is too much.

        Args:
            key: What to find it by.
            value: Not kept if it alone is larger than the limit.
            size: What it takes, in the unit of the limit, without the overhead of an entry.
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
        """Drops a value, if it is there."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Drops all values."""
        with self._lock:
            self._entries.clear()
            self.size = 0

    def _drop(self, key: K) -> None:
        if (old := self._entries.pop(key, None)) is not None:
            self.size -= old[1]

    def __len__(self) -> int:
        return len(self._entries)
