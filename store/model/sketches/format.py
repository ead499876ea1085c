"""Rules common to all sketches: the error for invalid bytes, and the mark of a sample."""

from __future__ import annotations

import json

from store.model.errors import InvalidArgument


def invalid_sketch(kind: str, what: str) -> InvalidArgument:
    """The error for bytes that are not a valid sketch."""
    return InvalidArgument(f"data: not a {kind} sketch of Apache DataSketches: {what}")


def is_partial(params: str | None) -> bool:
    """True if a sketch's parameters (JSON) mark it as covering only a part of its target's rows."""
    try:
        values = json.loads(params or "{}")
    except ValueError:
        return False
    return isinstance(values, dict) and values.get("completeness") == "PARTIAL"


def is_partial_sql(row: str) -> str:
    """SQL of `is_partial`, never NULL; `row` is the alias of a row with `params`."""
    return f"coalesce(json_extract_string({row}.params, '$.completeness') = 'PARTIAL', false)"
