"""Column records from statistics that a source keeps for a whole table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def combined(files: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Completes a source's statistics of a column with the roll-up of its files; counts stay consistent.

    Args:
        files: The roll-up of the same snapshot; empty if there is none.
        kept: The source's row of COLUMN_SCHEMA; nulls are unknown.
    """
    paired = {f"{side}_is_exact" for side in ("min", "max") if kept[side] is not None}
    return possible(dict(files) | {name: value for name, value in kept.items() if value is not None or name in paired})


def possible(row: dict[str, Any]) -> dict[str, Any]:
    """Makes a row consistent: ndv is clamped to the non-null rows, impossible counts and widths become unknown."""
    rows = row.get("row_count")
    for name in ("null_count", "nan_count"):
        count = row.get(name)
        if count is not None and (count < 0 or (rows is not None and count > rows)):
            row[name] = None
    most = None if rows is None else rows - (row.get("null_count") or 0)
    for name in ("ndv", "ndv_lower", "ndv_upper"):
        value = row.get(name)
        if value is not None and most is not None:
            row[name] = min(max(float(value), 0.0), float(most))
    widest, width = row.get("max_width_bytes"), row.get("avg_width_bytes")
    if widest is not None and width is not None and width > widest:
        row["avg_width_bytes"] = row["max_width_bytes"] = None
    return row


def is_complete(row: Mapping[str, Any]) -> bool:
    """True if the row has a row count and a null count."""
    return row.get("row_count") is not None and row.get("null_count") is not None
