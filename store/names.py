"""Full table names (`catalog.schema.table`, a schema may be dotted, a part that holds a dot is quoted) and the names of
columns, which are paths of parts."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_QUOTED: Final = re.compile(r'"(?:[^"]|"")*"')

_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # the OID namespace of RFC 4122


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


def column_key(path: Sequence[str]) -> str:
    """The text that identifies a column within its table: its parts joined by dots, those that hold a dot quoted.

    `("a", "b")` gives `a.b` and `("a.b",)` gives `"a.b"`: two columns, though both are written `a.b` in `column_name`.
    """
    return ".".join(_quote(part) if set('."') & set(part) else part for part in path)


def column_parts(key: str) -> tuple[str, ...]:
    """The path that a column key was made of; of a text that is not a key, what lies between its dots."""
    if '"' not in key:
        return tuple(key.split("."))
    found = re.findall(r'(?:^|\.)(?:"((?:[^"]|"")*)"(?=\.|$)|([^.]*))', key)
    return tuple(quoted.replace('""', '"') or plain for quoted, plain in found)


def dotted_name(key: str) -> str:
    """The `column_name` of a column key, which is not an identity."""
    return ".".join(column_parts(key))


# Patterns of full names, as `join_name` writes them: `*` is any run of characters, dots too.


def is_pattern(text: str) -> bool:
    """True if a text has a star outside of quotes."""
    return "*" in _QUOTED.sub("", text)


@lru_cache(maxsize=1024)
def matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """An expression that matches the whole of each name that one of the patterns matches."""
    return re.compile("|".join(map(_expression, patterns)) or r"(?!)", re.DOTALL)


def _expression(pattern: str) -> str:
    # What lies between two stars may always be taken where it comes first, so no group is tried twice: no pattern and
    # no name make the match slow.
    first, *middle = map(re.escape, pattern.split("*"))
    if not middle:
        return first
    *middle, last = middle
    return first + "".join(f"(?>.*?{text})" for text in middle if text) + ".*" + last


def table_uuid(catalog: str, schema: str, table: str) -> str:
    """The id of a table whose format has none (store/SEMANTICS.md §1)."""
    return str(uuid.uuid5(_NAMESPACE, f"{catalog}\0{schema}\0{table}"))
