"""The files of a snapshot as a whole, and its columns: what is the same for all scans of it, cached."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from flight_server.core.reads.stream import never
from flight_server.core.reads.streams import Streams
from flight_server.planning.scan_columns import Columns
from store.catalog.capture_facts import snapshot_columns
from store.catalog.catalog import Catalog
from store.duckdb.database import Connection, Database
from store.duckdb.lru import LruCache
from store.history.file_spans import listed_rows
from store.model import logical_types
from store.model.catalog_entries import TableEntry
from store.model.columns import PARTITION_SPECS
from store.model.errors import InvalidField, NotCaptured
from store.model.format_facts import FormatFacts, facts_in
from store.model.names import column_key, column_parts
from store.model.predicates.buckets import Bucket
from store.model.predicates.plain_conditions import Column

T = TypeVar("T")

UNITS: Final = {"files": "count(*)", "rows": "sum(row_count)", "bytes": "sum(size_bytes)"}
"""Unit of sums over files → its aggregate in SQL."""

_LISTINGS: Final = 1024  # snapshots of which the listing is cached


@dataclass(frozen=True)
class Listing:
    """The files of a snapshot as a whole, and its columns.

    Attributes:
        generation: Generation of the table before this was read.
        positions: Family of rows → position of the snapshot's listing.
        partitioned: Ids of the columns whose values are those of the partition.
        facts: Facts about the format of the table.
        whole: The table's record says that there are no other files.
        buckets: Column id → its partition fields with bucket transforms, which no bounds stand for.
        has_ranges: Rows of columns have the ranges of their bounds, in the transaction that reads the listing.
        covered: Condition on the rows of a column → whether each file has such a row; filled by scans.
        measured: Ids of columns → whether the bytes of one of them are known in any file; filled by scans.
    """

    generation: int
    snapshot_id: int
    positions: Mapping[str, int]
    columns: Columns
    partitioned: frozenset[int]
    facts: FormatFacts
    totals: Mapping[str, int]
    whole: bool
    buckets: Mapping[int, Sequence[Bucket]]
    has_ranges: bool = False
    covered: dict[str, bool] = field(default_factory=dict)
    measured: dict[frozenset[int], bool] = field(default_factory=dict)


class Listings:
    """Reads the listings of snapshots, and caches them."""

    def __init__(self, database: Database, catalog: Catalog, streams: Streams):
        self._database, self._catalog, self._streams = database, catalog, streams
        self._versions = database.versions
        self._listings: LruCache[tuple[int, int], Listing] = LruCache(_LISTINGS)

    def reading(
        self,
        table: TableEntry,
        snapshot: str | int,
        read: Callable[[Connection, Listing], T],
        is_cancelled: Callable[[], bool] = never,
    ) -> T:
        """Calls a function with the listing of a snapshot and a cursor that sees the rows which the listing is of.

        Args:
            snapshot: "current" or an id.
            read: The function; it may be called twice.

        Raises:
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """
        if isinstance(snapshot, int):
            self._catalog.snapshot(table, snapshot)
        snapshot_id = table.current_snapshot_id if isinstance(snapshot, str) else snapshot
        if snapshot_id is None:
            raise NotCaptured(f'"{table.full_name}" has no snapshot', hint="discover its catalog, or capture it first")
        cursor, segments = self._database.read(), self._database.segments

        def run() -> T:
            epoch = self._versions.steady()
            cached = self._listings.get((table.table_key, snapshot_id))
            if epoch is not None and cached is not None and cached.generation == self._generation(table):
                is_attached = segments.attach(cursor, [table.table_key])
                found = read(cursor, replace(cached, has_ranges=is_attached))
                if self._versions.steady() == epoch:  # no commit in between: the listing is of the rows just read
                    return found
                if is_attached:
                    cursor.execute("ROLLBACK")
            is_attached = segments.begin(cursor, [table.table_key])
            return read(cursor, replace(self._listing(cursor, table, snapshot_id), has_ranges=is_attached))

        return self._streams.whole(cursor, run, is_cancelled)

    def _generation(self, table: TableEntry) -> int:
        return self._versions.generation(table.table_key)

    def _listing(self, cursor: Connection, table: TableEntry, snapshot_id: int) -> Listing:
        """The listing of a snapshot as the cursor's transaction sees it."""
        generation = self._generation(table)
        positions = positions_of(cursor, table.table_key, snapshot_id)
        if "stats.files" not in positions:
            raise _not_captured(table, snapshot_id, "the files of snapshot {} are not known")
        totals = sums(cursor, data_files(table.table_key, positions))
        counted = cursor.execute(
            "SELECT data_file_count FROM stats_tables WHERE table_key = ? AND snapshot_id = ?",
            [table.table_key, snapshot_id],
        ).fetchall()
        if counted and counted[0][0] is not None and counted[0][0] > totals["files"]:  # such as a put of some files
            stated = f"{totals['files']} of {counted[0][0]} files of snapshot {{}} are known"
            raise _not_captured(table, snapshot_id, stated)
        columns = self._columns(cursor, table, snapshot_id, positions)
        ((partition_keys, properties),) = cursor.execute(
            "SELECT partition_keys, properties FROM tables WHERE table_key = ?", [table.table_key]
        ).fetchall()
        facts = facts_in(table.format, properties)
        specs = json.loads(properties or "{}").get(PARTITION_SPECS) if facts.iceberg_metadata else None
        listing = Listing(
            generation,
            snapshot_id,
            positions,
            columns,
            frozenset(columns.ids_of(partition_keys or [])),
            facts,
            totals,
            bool(counted) and counted[0][0] == totals["files"],
            _buckets(specs),
        )
        self._listings.put((table.table_key, snapshot_id), listing)
        return listing

    def _columns(
        self, cursor: Connection, table: TableEntry, snapshot_id: int, positions: Mapping[str, int]
    ) -> Columns:
        """The columns of the snapshot's schema; of a table without one, those that statistics name."""
        schema = snapshot_columns(self._database, [(table.table_key, snapshot_id)]).get((table.table_key, snapshot_id))
        if schema:
            ids = self._catalog.column_ids(table)
            of_schema = []
            for name, type, _, field_id, *path in schema:
                key = column_key(path[0]) if path and path[0] else name
                column_id = field_id if field_id is not None else ids.get(key)
                if column_id is not None:
                    of_schema.append((Column(column_id, name, _type(type)), column_parts(key)))
            return Columns(table, of_schema)
        rows_of_files = listed_rows("stats.file_columns", table.table_key, positions.get("stats.file_columns", -1))
        rows = cursor.execute(
            "SELECT DISTINCT column_id, column_name, logical_type FROM ("
            "SELECT column_id, column_name, logical_type FROM stats_columns WHERE table_key = ? AND snapshot_id = ?"
            f" UNION ALL SELECT column_id, column_name, logical_type {rows_of_files}"
            ") WHERE column_name IS NOT NULL ORDER BY ALL",
            [table.table_key, snapshot_id],
        ).fetchall()
        return Columns(table, [(Column(id, name, _type(type)), (name,)) for id, name, type in rows])


def _buckets(specs: str | None) -> dict[int, list[Bucket]]:
    """The bucket transforms of partition specs in Iceberg's JSON, by the ids of their source columns."""
    found: dict[int, list[Bucket]] = {}
    for spec in json.loads(specs or "[]"):
        for part in spec["fields"]:
            if count := re.fullmatch(r"bucket\[(\d+)\]", part["transform"]):
                found.setdefault(part["source-id"], []).append(Bucket(spec["spec-id"], part["name"], int(count[1])))
    return found


def _not_captured(table: TableEntry, snapshot_id: int, stated: str) -> NotCaptured:
    return NotCaptured(
        f'"{table.full_name}": {stated.format(snapshot_id)}',
        hint='capture the table first, or send "capture": true',
        params={"table": table.full_name, "snapshot": snapshot_id},
    )


def _type(text: str | None) -> logical_types.LogicalType | None:
    try:
        return None if text is None else logical_types.parse(text)
    except InvalidField:
        return None


def positions_of(cursor: Connection, table_key: int, snapshot_id: int) -> dict[str, int]:
    """Family of rows → position of the listing of exactly this snapshot."""
    return dict(
        cursor.execute(
            "SELECT family, pos FROM file_snapshots WHERE table_key = ? AND snapshot_id = ?", [table_key, snapshot_id]
        ).fetchall()
    )


def data_files(table_key: int, positions: Mapping[str, int]) -> str:
    """FROM and WHERE clauses of the data files `s`."""
    return listed_rows("stats.files", table_key, positions["stats.files"], "coalesce(s.file_content, 'DATA') = 'DATA'")


def sums(cursor: Connection, rows: str, parameters: Sequence[Any] = ()) -> dict[str, int]:
    """Number, rows and bytes of files."""
    (sums,) = cursor.execute(f"SELECT {', '.join(UNITS.values())} {rows}", list(parameters)).fetchall()
    return {unit: int(value or 0) for unit, value in zip(UNITS, sums, strict=True)}
