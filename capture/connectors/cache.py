"""What was read of files that never change, kept in the worker's process for the next look: bounded by bytes.

Manifests, commits and footers are immutable by path and size, so they are decoded once and shared by all jobs. A key
begins with `scope(config)`: what one connector may read is never handed to another.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final

from capture.connectors.spi import ConnectorConfig

_OVERHEAD: Final = 200  # bytes of an entry besides its value


class Cache:
    """Values by key, the least recently used dropped first. Safe among threads.

    Args:
        limit_bytes: What all values together may take; a greater one is not kept at all.
    """

    def __init__(self, limit_bytes: int):
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """The value, None when it is not there."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        size_bytes += _OVERHEAD
        with self._lock:
            if (old := self._held.pop(key, None)) is not None:
                self.size_bytes -= old[1]
            if size_bytes > self.limit_bytes:
                return
            self._held[key] = value, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self.limit_bytes:
                _, (_, dropped) = self._held.popitem(last=False)
                self.size_bytes -= dropped

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self.size_bytes = 0


FILES: Final = Cache(128 << 20)
"""Listings: what is known of data files as wholes, and small things about them."""

COLUMNS: Final = Cache(256 << 20)
"""Statistics of columns in files, which take far more room."""


def scope(config: ConnectorConfig) -> str:
    """What tells a connector's view of its lake from another's: same catalog, place and options, same view."""
    told = json.dumps([config.catalog, config.format, config.uri, sorted(config.options.items())], default=str)
    return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()
