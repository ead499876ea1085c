"""Comments of columns in a schema that a format writes as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from store.model.names import column_key

OWN_MARK: Final = "statflight: "
"""Beginning of the docs that a connector puts into metadata for itself."""


@lru_cache(256)  # files of a table, and its inspections, mostly repeat one schema
def comments_in(schema: str | bytes | None) -> Mapping[str, str]:
    """Column key → comment: `metadata.comment` of Spark and Delta, `doc` of Iceberg, `description` of Paimon.

    Args:
        schema: JSON with `fields`; what is no such JSON has no comments.
    """
    try:
        return dict(_walk(json.loads(schema or "{}").get("fields", ()), ()))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}


def _walk(fields: Any, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for field in fields:
        path = (*above, str(field["name"]))
        comment = (field.get("metadata") or {}).get("comment") or field.get("doc") or field.get("description")
        if isinstance(comment, str) and not comment.startswith(OWN_MARK):
            yield column_key(path), comment
        if isinstance(field["type"], Mapping):
            yield from _walk(field["type"].get("fields", ()), path)
