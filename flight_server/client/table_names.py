"""Full table names in the client: `catalog.schema.table`, in rows and in conditions of commands.

The names themselves are `store.model.names`, the one module of the store that the client imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from store.model.names import join_name, name_parts, split_name

__all__ = ["COLUMNS", "full_name", "join_name", "name_parts", "of_table", "split_name"]

COLUMNS: Final = ("table_catalog", "table_schema", "table_name")


def full_name(row: Mapping[str, Any]) -> str:
    """The full name of the table in a row with table_catalog, table_schema and table_name."""
    return join_name(row["table_catalog"], row["table_schema"], row["table_name"])


def of_table(name: str) -> list[dict[str, Any]]:
    """Predicates of a JSON command that select the table of a full name.

    Raises:
        ValueError: The name is not a full table name.
    """
    return [{"column": c, "op": "EQ", "values": [v]} for c, v in zip(COLUMNS, split_name(name), strict=True)]
