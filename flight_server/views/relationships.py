"""Foreign keys between tables, for pages and commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flight_server.table_names import full_name
from flight_server.views.reader import Reader


def among(reader: Reader, is_meant: Callable[[str], bool]) -> list[dict[str, Any]]:
    """The rows of `sys.relationships` with `from` and `to`, full names, of which at least one `is_meant`."""
    rows = []
    for row in reader.read("sys.relationships").to_pylist():
        named = {
            end: full_name({f"table_{part}": row.pop(f"{end}_{part}") for part in ("catalog", "schema")}
                           | {"table_name": row.pop(f"{end}_table")})
            for end in ("from", "to")
        }  # fmt: skip
        if is_meant(named["from"]) or is_meant(named["to"]):
            rows.append(named | row)
    return sorted(rows, key=lambda row: (row["from"], row["from_columns"], row["to"], row["to_columns"]))


def contained(row: dict[str, Any]) -> str:
    """The share of values that the key has, in percent, with its bounds unless it is exact; empty if unknown."""
    low, high = row["containment_low"], row["containment_high"]
    if low is None or high is None:
        return ""
    percent = f"{100 * row['containment']:.4g} %"
    return percent if low == high else f"{percent} ({100 * low:.3g}–{100 * high:.3g})"
