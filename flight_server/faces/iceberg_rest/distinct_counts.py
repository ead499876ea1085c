"""Distinct counts as entries of `statistics` in Iceberg's metadata, which planners read without opening a file.

An entry has the counts that were captured at its snapshot and cover it whole. Trino and Spark take the number from the
property `ndv` of a blob's metadata; no file exists, so that the path of an entry has a scheme of no file system.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import msgspec

from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry
from store.model.columns import THETA
from store.model.freshness import UNCONFIRMED

NEWEST: Final = 10  # snapshots that get an entry
_NO_FILE: Final = "statflight-counts-without-a-file:/"
_WITHOUT_DELETES: Final = ("total-delete-files", "total-position-deletes", "total-equality-deletes")

Entry = Mapping[str, Any]
"""An entry of the metadata's `statistics`, with its JSON names."""


@dataclass(frozen=True)
class Place:
    """A snapshot in the metadata of a table.

    Attributes:
        stored: Its id in the store.
        shown: Its id in the metadata.
        is_free_of_deletes: No row-level deletes apply at it, so that a count without them is one of live rows.
    """

    stored: int
    shown: int
    sequence_number: int
    is_free_of_deletes: bool


@dataclass(frozen=True)
class Countable:
    """The snapshots and fields of a table's metadata that may get distinct counts.

    Attributes:
        own: The entries that the metadata has; None if it lacks the property.
        places: Its snapshots, the newest first.
        fields: Id of a column in the store → id of a field with values of its own in the current schema.
    """

    own: Sequence[Entry] | None = None
    places: Sequence[Place] = ()
    fields: Mapping[int, int] = field(default_factory=dict, repr=False)

    def statistics(self, ours: Sequence[Entry]) -> str:
        """JSON of the property `statistics`, for the end of an object; empty if there is none."""
        if self.own is None and not ours:
            return ""
        entries = [*map(json.dumps, self.own or ()), *(msgspec.json.encode(entry).decode() for entry in ours)]
        return f', "statistics": [{", ".join(entries)}]'


def of_metadata(document: Mapping[str, Any]) -> Countable:
    """The places of an Iceberg table's own metadata, of any format version, that may get distinct counts."""
    snapshots = document.get("snapshots") or []
    newest_first = sorted(
        snapshots, key=lambda each: (each.get("sequence-number", 0), each.get("timestamp-ms", 0)), reverse=True
    )
    has_deletes = document.get("format-version", 1) > 1
    places = [
        Place(
            each["snapshot-id"],
            each["snapshot-id"],
            each.get("sequence-number", 0),
            not has_deletes or _is_free_of_deletes(each.get("summary") or {}),
        )
        for each in newest_first
    ]
    ids = {id: id for _, id in leaves(_current_schema(document))}
    return Countable(document.get("statistics"), places, ids)


def leaves(struct: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Path and id of the primitive fields of an Iceberg struct and the structs in it, not those of lists and maps."""
    for each in struct["fields"]:
        path = (*prefix, each["name"])
        if isinstance(each["type"], str):
            yield path, each["id"]
        elif each["type"]["type"] == "struct":
            yield from leaves(each["type"], path)


def entries(database: Database, table: TableEntry, countable: Countable) -> list[Entry]:
    """The entries of the newest snapshots with distinct counts that have none of their own, the newest first."""
    counted = {entry["snapshot-id"] for entry in countable.own or ()}
    places = {place.stored: place for place in countable.places if place.shown not in counted}
    newest = list(places)
    if len(newest) > NEWEST:
        with_counts = {id for (id,) in database.rows(f"SELECT DISTINCT snapshot_id {_COUNTS}", table.table_key)}
        newest = [id for id in newest if id in with_counts][:NEWEST]
    found = _counts(database, table, newest)
    blobs = {id: _blobs(places[id], countable.fields, found.get(id, ())) for id in newest}
    return [_entry(table, places[id], of_snapshot) for id, of_snapshot in blobs.items() if of_snapshot]


def _current_schema(document: Mapping[str, Any]) -> Mapping[str, Any]:
    current: Any = document.get("current-schema-id")
    of_id = (schema for schema in document.get("schemas") or () if schema.get("schema-id") == current)
    return next(of_id, None) or document.get("schema") or {"fields": []}


def _is_free_of_deletes(summary: Mapping[str, str]) -> bool:
    """True if a snapshot's summary says that it has no delete files; a summary that is silent does not."""
    return summary.get(_WITHOUT_DELETES[0]) == "0" and all(
        summary.get(name, "0") == "0" for name in _WITHOUT_DELETES[1:]
    )


# Whole columns, neither sampled nor contradicted. Doubts in their bounds do not concern the counts.
_COUNTS: Final = (
    "FROM stats_columns WHERE table_key = ? AND isfinite(ndv) AND ndv < 9e18 AND completeness = 'COMPLETE'"
    f" AND coalesce(row_groups_sampled, 0) = 0 AND coalesce(confidence_level, 1) >= {UNCONFIRMED}"
)
_Count = tuple[int, int, bool]
"""Column id, distinct values, and whether they are of the rows that were read, without the deleted ones."""


def _counts(database: Database, table: TableEntry, snapshot_ids: Collection[int]) -> dict[int, list[_Count]]:
    """Id of a snapshot → the counts captured at it."""
    ids = ", ".join(str(int(id)) for id in snapshot_ids) or "NULL"
    rows = database.rows(
        "SELECT snapshot_id, column_id, least(round(ndv)::BIGINT, row_count - coalesce(null_count, 0)),"
        f" coalesce(producer = 'ENGINE_COMPUTED', false) {_COUNTS} AND snapshot_id IN ({ids}) ORDER BY column_id",
        table.table_key,
    )
    found: dict[int, list[_Count]] = {}
    for snapshot_id, column_id, distinct, is_of_live_rows in rows:
        found.setdefault(snapshot_id, []).append((column_id, distinct, is_of_live_rows))
    return found


def _blobs(place: Place, fields: Mapping[int, int], counts: Collection[_Count]) -> list[dict[str, Any]]:
    """Metadata of the blobs of a snapshot, one for each column whose count is of its live rows."""
    return [
        {
            "type": THETA,
            "snapshot-id": place.shown,
            "sequence-number": place.sequence_number,
            "fields": [fields[column_id]],
            "properties": {"ndv": str(distinct)},
        }
        for column_id, distinct, is_of_live_rows in counts
        if column_id in fields and (is_of_live_rows or place.is_free_of_deletes)
    ]


def _entry(table: TableEntry, place: Place, blobs: Sequence[Mapping[str, Any]]) -> Entry:
    parts = (table.table_catalog, table.table_schema, table.table_name, str(place.shown))
    return {
        "snapshot-id": place.shown,
        "statistics-path": _NO_FILE + "".join(f"/{quote(part, safe='')}" for part in parts),
        "file-size-in-bytes": 0,
        "file-footer-size-in-bytes": 0,
        "blob-metadata": blobs,
    }
