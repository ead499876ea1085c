"""Hash of a record's content, by which clients see whether a record has changed."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from store.duckdb.layout import stored_columns
from store.model.columns import COSMETIC


def content_hash(flight: str, row: Mapping[str, Any], sketch_digests: Iterable[str]) -> str:
    """SHA-256 of a record's content, without timestamps and cosmetic names.

    Args:
        sketch_digests: `ROLE sketch_type sha256-of-data` for each of its sketches.
    """
    content = {name: _plain(row[name]) for name in stored_columns(flight) if name not in COSMETIC}
    content = {name: value for name, value in content.items() if value is not None}
    content["sketches"] = sorted(sketch_digests)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A value in a form that JSON can represent."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime) else value
