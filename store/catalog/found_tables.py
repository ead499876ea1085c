"""A table as an inspection of its lake describes it, as rows and columns of the catalog."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from store.model.catalog_entries import Place, new_column_ids
from store.model.names import column_key

Found = Mapping[str, Any]
"""A table as `flight_server.worker.lake_inspection` describes it."""


_DESCRIPTION: Final = (
    "schema_hash",
    "schemas",
    "constraints",
    "partition_keys",
    "properties",
    "format_schema",
    "description",
    "comments",
)
_STATE: Final = ("live_snapshot_ids", "identities", "metadata_location")


class Digests(NamedTuple):
    """Digests of a discovered table, without its entry and new snapshots."""

    description: str  # of what most snapshots leave as it is
    state: str

    @classmethod
    def of(cls, found: Found) -> Digests:
        """The digests of a table as it was found."""
        return cls(*(_digest([found.get(name) for name in names]) for names in (_DESCRIPTION, _STATE)))


class StoredSnapshot(NamedTuple):
    """A snapshot of a found table as the catalog has it."""

    ordinal: int
    schema_hash: str | None
    is_live: bool | None


def _digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _path(column: Sequence[Any]) -> list[str] | None:
    """The path of a column `[name, type, nullable, field id, path?]`; None if unknown."""
    if len(column) > 4 and column[4]:
        return list(column[4])
    return None if "." in column[0] else [column[0]]


def _key_of(column: Sequence[Any]) -> str:
    path = _path(column)
    return str(column[0]) if path is None else column_key(path)


def details(found: Found) -> dict[str, Any]:
    """Columns of `tables` with a table's description."""
    return {
        "partition_keys": list(found.get("partition_keys", ())),
        "properties": json.dumps(dict(found.get("properties", {})), sort_keys=True),
        "format_schema": found.get("format_schema"),
        "description": found.get("description"),
    }


def fields(format: str, found: Found) -> dict[str, Any]:
    """Fields of a table's entry."""
    return {
        "table_schema": found["schema"],
        "table_name": found["name"],
        "format": found.get("format", format),  # of its own where the lake has several
        "location": found.get("location"),
        "current_snapshot_id": found["current_snapshot_id"],
        "dropped": False,
    }


def column_rows(table_key: int, found: Found, ids: Mapping[str, int]) -> list[list[Any]]:
    """Rows of `table_columns`; `ids` are those of `column_ids`."""
    comments = found.get("comments", {})
    return [
        [
            table_key,
            c[0],
            c[1],
            position,
            "YES" if c[2] else "NO",
            ids[_key_of(c)],
            _path(c),
            comments.get(_key_of(c)),
        ]
        for position, c in enumerate(found["schemas"].get(found["schema_hash"], []), 1)
    ]


def constraint_rows(table_key: int, found: Found) -> list[list[Any]]:
    """Rows of `table_constraints`."""
    return [
        [table_key, kind, name, position, column, clause]
        for kind, name, columns, clause in found.get("constraints", [])
        for position, column in enumerate(columns or [None], 1)
    ]


def snapshot_rows(table_key: int, found: Found) -> list[list[Any]]:
    """Rows of `snapshots`."""
    live = found.get("live_snapshot_ids")
    live = None if live is None else set(live)
    return [
        [
            table_key,
            s["snapshot_id"],
            s["ordinal"],
            s["parent_snapshot_id"],
            s["sequence_number"],
            datetime.fromisoformat(s["committed_at"]) if s["committed_at"] else None,
            s["operation"],
            s["schema_hash"],
            live is None or s["snapshot_id"] in live,
            s.get("manifest_list"),
            s.get("summary"),
            str(Place(s["ordinal"], s["schema_hash"]).schema_key(s["snapshot_id"])),
        ]  # Arrow infers no UBIGINT
        for s in found["snapshots"]
    ]


def types(format_schema: str | None) -> list[Any]:
    """The types in a schema as its format has it (JSON), in order. A schema's hash has no widths of integers."""
    found: list[Any] = []
    json.loads(format_schema or "null", object_hook=lambda item: found.append(item.get("type")))
    return found


def widened(before: str | None, after: str | None) -> frozenset[int]:
    """Ids of the columns whose types differ in two schemas as their format has them, though both may be one logical
    type, as an int and a long."""
    old, new = _types_by_id(before), _types_by_id(after)
    return frozenset(i for i in old.keys() & new.keys() if old[i] != new[i])


def _types_by_id(format_schema: str | None) -> dict[int, str]:
    found: dict[int, str] = {}

    def note(item: dict[str, Any]) -> dict[str, Any]:
        if isinstance(item.get("id"), int) and isinstance(item.get("type"), str):
            found[item["id"]] = item["type"]
        return item

    json.loads(format_schema or "null", object_hook=note)
    return found


def reads_otherwise(before: str | None, now: str | None) -> bool:
    """True if a name in files without ids leads to another column than before (`FILE_NAMES`), or to none."""
    old, new = _columns_of_names(before), _columns_of_names(now)
    return any(new.get(name) != column for name, column in old.items())


def _columns_of_names(mapping: str | None) -> dict[tuple[str, ...], int | None]:
    """Path of names in files → column id, from a name mapping; empty where there is none, or it cannot be read."""
    found: dict[tuple[str, ...], int | None] = {}

    def note(fields: Sequence[Any], within: tuple[str, ...]) -> None:
        for field in fields:
            for name in field.get("names", ()):
                found[(*within, name)] = field.get("field-id")
                note(field.get("fields", ()), (*within, name))

    try:
        note(json.loads(mapping or "[]"), ())
    except (ValueError, TypeError, AttributeError):
        return {}
    return found


def identity_rows(table_key: int, found: Found) -> list[list[Any]]:
    """The identity of the current snapshot, by which the next inspection recognizes the table."""
    identities = dict(map(tuple, found.get("identities", ())))
    current = found["current_snapshot_id"]
    return [[table_key, current, identities[current]]] if current in identities else []


def column_ids(stored: Mapping[str, int], found: Found) -> dict[str, int]:
    """Column key → id of a table's stored and found columns; a column keeps the id of its first appearance."""
    ids = dict(stored)
    current = found["schemas"].get(found["schema_hash"], [])
    for columns in (*(c for h, c in found["schemas"].items() if h != found["schema_hash"]), current):
        keyed = {_key_of(c): c for c in columns}
        for key, column in keyed.items():
            if column[0] in ids and key != column[0] and column[0] not in keyed:  # stored before its path was known
                ids[key] = ids.pop(column[0])
        ids |= new_column_ids(ids, keyed, {key: c[3] for key, c in keyed.items() if c[3] is not None})
    of_field = {c[3]: _key_of(c) for c in current if c[3] is not None}
    for columns in found["schemas"].values():  # from before the format gave ids, maybe those of columns dropped by then
        keys = [_key_of(c) for c in columns if c[3] is None]
        for key in keys:
            if (owner := of_field.get(ids[key], key)) != key and owner in keys:
                ids[key] = max(ids.values()) + 1
    return ids
