"""Full table names: `catalog.schema.table`, where a schema may be dotted and a part that holds a dot is quoted."""

from __future__ import annotations

import re
from functools import lru_cache


def split_name(name: str) -> tuple[str, str, str]:
    """`lake."my.schema".t` → ("lake", "my.schema", "t"); what lies between catalog and table is the schema."""
    return _split_again(name) if len(name) <= 200 else _split(name)


def _split(name: str) -> tuple[str, str, str]:
    parts = []
    rest = name.strip()
    while True:
        found = re.match(r'"((?:[^"]|"")+)"(?=\.|$)|([^."]+)(?=\.|$)', rest)
        if found is None:
            raise ValueError(f"not a table name: {name!r}; expected catalog.schema.table")
        parts.append(found[1].replace('""', '"') if found[1] is not None else found[2])
        if found.end() == len(rest):
            break
        rest = rest[found.end() + 1 :]
    if len(parts) < 3:
        raise ValueError(f"not a full table name: {name!r}; expected catalog.schema.table")
    return parts[0], ".".join(parts[1:-1]), parts[-1]


_split_again = lru_cache(maxsize=10_000)(_split)


def join_name(catalog: str, schema: str, table: str) -> str:
    """The full name, such that `split_name` gives the parts back. A dotted schema stays as it is."""
    # A schema is quoted as a whole only where its dotted parts would not read back.
    plain = all(part and '"' not in part for part in schema.split("."))
    return ".".join([_quoted(catalog), schema if plain else _quote(schema), _quoted(table)])


def _quoted(part: str) -> str:
    return part if part and not set('."') & set(part) else _quote(part)


def _quote(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'
