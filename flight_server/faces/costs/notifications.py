"""Notifications of object stores: which tables the objects that they name belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote_plus

from store.model.catalog_entries import Entries, TableEntry
from store.model.errors import InvalidArgument

_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})
_TEST: Final = "s3:TestEvent"  # sent when notifications are configured

Object = tuple[str, str]
"""A bucket and the key of an object in it."""


def objects_of(event: Mapping[str, Any]) -> list[Object]:
    """The objects that a notification names: of S3 and MinIO (`Records`, with encoded keys), or of EventBridge
    (`detail`).

    Raises:
        InvalidArgument: It is not a notification.
    """
    if event.get("Event") == _TEST:
        return []
    if "detail" in event:
        return [_object(event["detail"], "detail")]
    records = event.get("Records")
    if not isinstance(records, list):
        raise InvalidArgument(
            "the body is neither a notification of S3 nor names tables",
            hint='send {"Records": […]} as S3 does, or {"tables": ["catalog.schema.table"]}',
        )
    objects = []
    for at, record in enumerate(records):
        said = record.get("s3") if isinstance(record, Mapping) else None
        bucket, key = _object(said, f"Records[{at}].s3")
        objects.append((bucket, unquote_plus(key)))
    return objects


def _object(said: Any, where: str) -> Object:
    try:
        bucket, key = said["bucket"]["name"], said["object"]["key"]
    except (KeyError, TypeError):
        bucket = key = None
    if not isinstance(bucket, str) or not isinstance(key, str):
        raise InvalidArgument(f"{where}: must have bucket.name and object.key")
    return bucket, key


class Locations:
    """Finds the tables of objects by the tables' locations."""

    def __init__(self) -> None:
        self._entries: Entries | None = None
        self._tables: dict[tuple[str, ...], list[TableEntry]] = {}

    def tables(self, entries: Entries, objects: Iterable[Object]) -> list[TableEntry]:
        """The tables whose location is that of an object or a directory above it, each once."""
        if entries is not self._entries:
            self._tables, self._entries = _by_location(entries), entries
        found: dict[int, TableEntry] = {}
        for bucket, key in dict.fromkeys(objects):
            for place in _upwards(bucket, key):
                found |= {table.table_key: table for table in self._tables.get(place, ())}
        return list(found.values())


def _upwards(bucket: str, key: str) -> Iterator[tuple[str, ...]]:
    parts = (bucket, *filter(None, key.split("/")))
    return (parts[:count] for count in range(1, len(parts) + 1))


def _by_location(entries: Entries) -> dict[tuple[str, ...], list[TableEntry]]:
    """Bucket and parts of the path → the tables there."""
    tables: dict[tuple[str, ...], list[TableEntry]] = {}
    for table in entries.by_name.values():
        scheme, separator, rest = (table.location or "").partition("://")
        if separator and scheme.lower() in _SCHEMES:
            tables.setdefault(tuple(filter(None, rest.split("/"))), []).append(table)
    return tables
