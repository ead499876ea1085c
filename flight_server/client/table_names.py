"""Full table names in the client: `catalog.schema.table`.

`store.model.names` has the same functions for the server. The client does not import it, because its user may have
another package called `store`; a property test checks that both agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

COLUMNS: Final = ("table_catalog", "table_schema", "table_name")
_PART: Final = re.compile(r'"((?:[^"]|"")+)"(?=\.|$)|([^."]+)(?=\.|$)')


def split_name(name: str) -> tuple[str, str, str]:
    """Catalog, schema and table of a full name: `lake."my.schema".t` → ("lake", "my.schema", "t").

    Raises:
        ValueError: The name is not a full table name.
    """
    parts = name_parts(name)
    if len(parts) < 3:
        raise ValueError(f"not a full table name: {name!r}; expected catalog.schema.table")
    return parts[0], ".".join(parts[1:-1]), parts[-1]


def name_parts(name: str) -> list[str]:
    """The parts of a name between its dots, without their quotes.

    Raises:
        ValueError: The name is malformed.
    """
    parts: list[str] = []
    rest = name.strip()
    while True:
        match = _PART.match(rest)
        if match is None:
            raise ValueError(f"not a table name: {name!r}; expected catalog.schema.table")
        parts.append(match[1].replace('""', '"') if match[1] is not None else match[2])
        if match.end() == len(rest):
            return parts
        rest = rest[match.end() + 1 :]


def join_name(catalog: str, schema: str, table: str) -> str:
    """The full name of a table, with quotes where needed; the inverse of `split_name`. A schema with dots is not
    quoted."""
    plain = all(part and '"' not in part for part in schema.split("."))
    return ".".join([_quoted(catalog), schema if plain else quote(schema), _quoted(table)])


def _quoted(part: str) -> str:
    return part if part and part == part.strip() and not set('."') & set(part) else quote(part)


def quote(part: str) -> str:
    """A part of a name in quotes."""
    return '"' + part.replace('"', '""') + '"'


def full_name(row: Mapping[str, Any]) -> str:
    """The full name of the table in a row with table_catalog, table_schema and table_name."""
    return join_name(row["table_catalog"], row["table_schema"], row["table_name"])


def of_table(name: str) -> list[dict[str, Any]]:
    """Predicates of a JSON command that select the table of a full name.

    Raises:
        ValueError: The name is not a full table name.
    """
    return [{"column": c, "op": "EQ", "values": [v]} for c, v in zip(COLUMNS, split_name(name), strict=True)]
