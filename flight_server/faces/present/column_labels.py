"""Labels of columns with ambiguous names (a leaf `x` of `st` beside a column `st.x`).

`#<column_id>` is always unambiguous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def references(rows: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Column id → the column's reference in requests and addresses: its name, or `#<column_id>` if that is ambiguous.

    Args:
        rows: With `column_id` and `column_name`, one for each column of one table.
    """
    return {column_id: name if is_sole else f"#{column_id}" for column_id, name, is_sole in _named(rows)}


def labels(rows: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Column id → label for people: the name, followed by `#<column_id>` if it is ambiguous."""
    return {
        column_id: name if is_sole else f"{name} #{column_id}" if name else f"#{column_id}"
        for column_id, name, is_sole in _named(rows)
    }


def _named(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, str, bool]]:
    names = {row["column_id"]: row["column_name"] or "" for row in rows}
    count = Counter(names.values())
    return [(column_id, name, bool(name) and count[name] == 1) for column_id, name in names.items()]
