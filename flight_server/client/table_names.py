"""Full table names as clients write them: `catalog.schema.table`.

`store.names` has the same two functions for the server. The client is installed beside whatever else its user has, a
package called `store` perhaps, so it imports none of the server's; a property test holds the two equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

COLUMNS: Final = ("table_catalog", "table_schema", "table_name")
_PART: Final = re.compile(r'"((?:[^"]|"")+)"(?=\.|$)|([^."]+)(?=\.|$)')


def split_name(name: str) -> tuple[str, str, str]:
    """Splits a full name: `lake."my.schema".t` → ("lake", "my.schema", "t").

    Args:
        name: The name; all between catalog and table is the schema.

    Returns:
        Catalog, schema and table.

    Raises:
        ValueError: It is not a full table name.
    """
    parts: list[str] = []
    rest = name.strip()
    while True:
        found = _PART.match(rest)
        if found is None:
            raise ValueError(f"not a table name: {name!r}; expected catalog.schema.table")
        parts.append(found[1].replace('""', '"') if found[1] is not None else found[2])
        if found.end() == len(rest):
            break
        rest = rest[found.end() + 1 :]
    if len(parts) < 3:
        raise ValueError(f"not a full table name: {name!r}; expected catalog.schema.table")
    return parts[0], ".".join(parts[1:-1]), parts[-1]


def join_name(catalog: str, schema: str, table: str) -> str:
    """Joins the parts of a name; `split_name` is the reverse.

    Args:
        catalog: First part.
        schema: Second part; a dotted schema stays as it is.
        table: Third part.

    Returns:
        The full name, quoted where that is needed.
    """
    plain = all(part and '"' not in part for part in schema.split("."))
    return ".".join([_quoted(catalog), schema if plain else _quote(schema), _quoted(table)])


def _quoted(part: str) -> str:
    return part if part and not set('."') & set(part) else _quote(part)


def _quote(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'


def full_name(row: Mapping[str, Any]) -> str:
    """Names the table of a row.

    Args:
        row: A row with table_catalog, table_schema and table_name.

    Returns:
        The full name.
    """
    return join_name(row["table_catalog"], row["table_schema"], row["table_name"])


def of_table(name: str) -> list[dict[str, Any]]:
    """Makes the condition on one table.

    Args:
        name: Its full name.

    Returns:
        Predicates of a JSON command, one for each part.

    Raises:
        ValueError: It is not a full table name.
    """
    return [{"column": c, "op": "EQ", "values": [v]} for c, v in zip(COLUMNS, split_name(name), strict=True)]
