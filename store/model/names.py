"""Full table names and column names.

A full name is `catalog.schema.table`; the schema may have dots, other parts with dots are quoted. A column is a path of
parts.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

_PART: Final = re.compile(r'"((?:[^"]|"")+)"(?=\.|$)|([^."]+)(?=\.|$)')
_QUOTED: Final = re.compile(r'"(?:[^"]|"")*"')

_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # the OID namespace of RFC 4122


def split_name(name: str) -> tuple[str, str, str]:
    """Catalog, schema and table of a full name: `lake."my.schema".t` → ("lake", "my.schema", "t").

    Raises:
        ValueError: The name is malformed or has fewer than three parts.
    """
    return _split_cached(name) if len(name) <= 200 else _split(name)


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


def _split(name: str) -> tuple[str, str, str]:
    parts = name_parts(name)
    if len(parts) < 3:
        raise ValueError(f"not a full table name: {name!r}; expected catalog.schema.table")
    return parts[0], ".".join(parts[1:-1]), parts[-1]


_split_cached = lru_cache(maxsize=10_000)(_split)


def readings(name: str) -> Iterator[tuple[str, str, str]]:
    """What a full name may mean, the usual reading first: the table's own name may contain unquoted dots.

    Raises:
        ValueError: As `split_name`.
    """
    yield split_name(name)
    if '"' not in name:
        first, *rest = name.split(".")
        for cut in range(1, len(rest) - 1):
            yield first, ".".join(rest[:cut]), ".".join(rest[cut:])


def join_name(catalog: str, schema: str, table: str) -> str:
    """The full name of a table, the inverse of `split_name`. A schema with dots is not quoted."""
    # A schema is quoted as a whole only if `split_name` would not return it otherwise.
    plain = all(part and '"' not in part for part in schema.split("."))
    return ".".join([_quoted(catalog), schema if plain else quote(schema), _quoted(table)])


def _quoted(part: str) -> str:
    return part if part and part == part.strip() and not set('."') & set(part) else quote(part)


def quote(part: str) -> str:
    """A part of a name in double quotes."""
    return '"' + part.replace('"', '""') + '"'


def column_key(path: Sequence[str]) -> str:
    """The key of a column within its table: its parts joined by dots, parts with dots or quotes quoted.

    `("a", "b")` gives `a.b` and `("a.b",)` gives `"a.b"`; these two columns share the `column_name` `a.b`.
    """
    return ".".join([quote(part) if "." in part or '"' in part else part for part in path])


def column_parts(key: str) -> tuple[str, ...]:
    """The path of a column key, the inverse of `column_key`; text that is not a key is split at its dots."""
    if '"' not in key:
        return tuple(key.split("."))
    matches = re.findall(r'(?:^|\.)(?:"((?:[^"]|"")*)"(?=\.|$)|([^.]*))', key)
    return tuple(quoted.replace('""', '"') or plain for quoted, plain in matches)


def dotted_name(key: str) -> str:
    """The `column_name` of a column key, which several columns may share."""
    return ".".join(column_parts(key))


# Patterns of full names, in the form of `join_name`: `*` matches any characters, including dots.


def is_pattern(text: str) -> bool:
    """True if a text has a `*` outside of quotes."""
    return "*" in _QUOTED.sub("", text)


@lru_cache(maxsize=1024)
def matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """A regular expression whose `fullmatch` matches the names that any of the patterns matches."""
    return re.compile("|".join(map(_expression, patterns)) or r"(?!)", re.DOTALL)


def _expression(pattern: str) -> str:
    return with_any_between([re.escape(part) for part in pattern.split("*")])


def with_any_between(parts: Sequence[str]) -> str:
    """The regular expression of texts (with DOTALL) that match some parts, with any characters between these.

    Args:
        parts: Regular expressions, each of a fixed length.
    """
    # A part between two others may always be matched at its first occurrence, so the groups are atomic: without
    # backtracking no pattern or name makes the match slow.
    first, *middle = parts
    if not middle:
        return first
    *middle, last = middle
    return first + "".join(f"(?>.*?{part})" for part in middle if part) + ".*" + last


def table_uuid(catalog: str, schema: str, table: str) -> str:
    """The id of a table whose format has no table ids (store/SEMANTICS.md §1)."""
    return str(uuid.uuid5(_NAMESPACE, f"{catalog}\0{schema}\0{table}"))
