"""LRU caches of data from immutable files, per worker process, limited by bytes.

Manifests, commits and footers are immutable for a given path and size, so they are decoded once and shared by all jobs.
Keys begin with `scope(config)`, so connectors with different options share nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from typing import Any, Final

from capture.connectors.spi import ConnectorConfig
from store.duckdb.lru import LruCache

OVERHEAD_BYTES: Final = 200  # memory of an entry besides its value


FILES: Final[LruCache[Hashable, Any]] = LruCache(128 << 20, OVERHEAD_BYTES)
"""Cache of file listings, footers and other small data about files."""

COLUMNS: Final[LruCache[Hashable, Any]] = LruCache(256 << 20, OVERHEAD_BYTES)
"""Cache of per-file column statistics, which are larger."""


def scope(config: ConnectorConfig) -> str:
    """Digest of a connector's catalog, format, URI and options; equal for connectors that read the same data."""
    settings = json.dumps([config.catalog, config.format, config.uri, sorted(config.options.items())], default=str)
    return hashlib.sha256(settings.encode("utf-8", "surrogatepass")).hexdigest()
