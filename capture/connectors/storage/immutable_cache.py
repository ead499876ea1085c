"""Caches of what was read of files that never change, in the worker's process and bounded by bytes.

Manifests, commits and footers are immutable by path and size, so they are decoded once and shared by all jobs. A key
begins with `scope(config)`: a read of one connector is never handed to another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from typing import Any, Final

from capture.connectors.spi import ConnectorConfig
from store.lru import LruCache

OVERHEAD_BYTES: Final = 200  # of an entry besides its value


FILES: Final[LruCache[Hashable, Any]] = LruCache(128 << 20, OVERHEAD_BYTES)
"""Listings: what is known of data files as wholes, and small things about them."""

COLUMNS: Final[LruCache[Hashable, Any]] = LruCache(256 << 20, OVERHEAD_BYTES)
"""Statistics of columns in files, which take far more room."""


def scope(config: ConnectorConfig) -> str:
    """A digest of a connector's view of its lake: same catalog, place and options, same view."""
    settings = json.dumps([config.catalog, config.format, config.uri, sorted(config.options.items())], default=str)
    return hashlib.sha256(settings.encode("utf-8", "surrogatepass")).hexdigest()
