"""Columns that are written alike (a leaf `x` of `st` beside a column `st.x`): how each is named and referred to.

A name is ambiguous where another of the rows has it; `#<column_id>` is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def references(rows: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """By column id: what requests and addresses name the column by, its name or `#<column_id>`.

    Args:
        rows: With `column_id` and `column_name`, one for each column of one table.
    """
    return {column_id: name if is_sole else f"#{column_id}" for column_id, name, is_sole in _named(rows)}


def labels(rows: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """By column id: what people read, the name and where that is ambiguous `#<column_id>` behind it."""
    return {
        column_id: name if is_sole else f"{name} #{column_id}" if name else f"#{column_id}"
        for column_id, name, is_sole in _named(rows)
    }


def _named(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, str, bool]]:
    names = {row["column_id"]: row["column_name"] or "" for row in rows}
    count = Counter(names.values())
    return [(column_id, name, bool(name) and count[name] == 1) for column_id, name in names.items()]
