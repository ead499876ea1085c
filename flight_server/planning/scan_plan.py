"""Plans of scans: the files of a table that can have a row for which a condition is true.

One query joins the files of the snapshot with the facts that the condition needs of its columns
(`store.model.predicates.pruning`), and returns the files that are kept. Bounds skip files only where their row is
PRUNING and of the same snapshot. Partition values are bounds of their columns, so they need no evaluation of their own;
the summary counts what they skip by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from flight_server.core.reads.stream import never
from flight_server.core.reads.streams import Streams
from flight_server.planning.listings import Listing, Listings, data_files, positions_of
from flight_server.planning.scan_query import Query
from flight_server.planning.slices import WHOLE, Slice
from store.catalog.catalog import Catalog
from store.duckdb.database import Connection, Database
from store.duckdb.lru import LruCache
from store.model.catalog_entries import TableEntry
from store.model.predicates.plain_conditions import Column
from store.model.predicates.tree import Node

METADATA: Final = b"statflight.scan"
TABLE: Final = b"statflight.table"

_PLANS_BYTES: Final = 32 << 20  # of the files of plans that are cached
_PLAN_BYTES: Final = 2048  # of a plan besides
_SUMMED: Final = ("s.row_count", "s.size_bytes")


@dataclass(frozen=True)
class Plan:
    """A planned scan.

    Attributes:
        files: The files that are kept, with `scan_query.SCHEMA` and the summary in its metadata.
        columns: Ids of the columns that the condition and the reader name.
    """

    files: pa.Table
    snapshot_id: int
    columns: tuple[int, ...]


@dataclass(frozen=True)
class FileTotals:
    """The data files of a snapshot together.

    Attributes:
        rows, size_bytes: Their sums; None if those of a file are unknown.
        has_deletes: Row-level deletes apply to one of them.
        partitions: The different values of `partition_data_json`, in order.
    """

    files: int
    rows: int | None
    size_bytes: int | None
    has_deletes: bool
    partitions: tuple[str | None, ...]


class ScanPlanner:
    """Plans scans by stored statistics. What is the same for all scans of a snapshot is cached."""

    def __init__(self, database: Database, catalog: Catalog, streams: Streams):
        self._database, self._versions = database, database.versions
        self.listings = Listings(database, catalog, streams)
        self._plans: LruCache[tuple[Any, ...], tuple[int, TableEntry, Plan]] = LruCache(_PLANS_BYTES, _PLAN_BYTES)

    def is_captured(self, table: TableEntry, snapshot: str | int) -> bool:
        """True if the files of a snapshot are stored.

        Args:
            snapshot: "current" or an id.
        """
        snapshot_id = table.current_snapshot_id if isinstance(snapshot, str) else snapshot
        if snapshot_id is None:
            return False
        with self._database.reading() as cursor:
            return "stats.files" in positions_of(cursor, table.table_key, snapshot_id)

    def plan(
        self,
        table: TableEntry,
        node: Node | None,
        columns: Sequence[str] | None,
        snapshot: str | int,
        is_cancelled: Callable[[], bool] = never,
        find: Callable[[str], Column] | None = None,
        added: Sequence[str] = (),
    ) -> Plan:
        """Plans a scan. A reader asks for a plan's description and then for its files, so plans are cached until the
        table changes.

        Args:
            columns: Names of the columns to be read; None for all.
            snapshot: "current" or an id.
            find: Name in the condition → column; None for the names of the snapshot's schema.
            added: Further columns of `stats.files` that the plan's files get, after those of `scan_query.SCHEMA`.

        Raises:
            InvalidArgument: UNKNOWN_COLUMN, AMBIGUOUS_COLUMN; BAD_LITERAL: a literal cannot be read as its column's
                type.
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """

        def planned(cursor: Connection, listing: Listing) -> Plan:
            return _planned(table, listing, columns, Query(cursor, table.table_key, listing, node, find), added)

        if find is not None:
            return self.listings.reading(table, snapshot, planned, is_cancelled)
        snapshot_id = table.current_snapshot_id if isinstance(snapshot, str) else snapshot
        # equal literals of other types are other ones: 1, 1.0 and true
        key = (table.table_key, snapshot_id, repr(node), columns and tuple(columns), tuple(added))
        generation = self._versions.settled(table.table_key)
        cached = self._plans.get(key)
        if cached is not None and cached[:2] == (generation, table):  # whose entry may be of before a commit
            return cached[2]
        plan = self.listings.reading(table, snapshot, planned, is_cancelled)
        if generation is not None:
            self._plans.put(key, (generation, table, plan), plan.files.nbytes + len(key[2]))
        return plan

    def listed(self, table: TableEntry, snapshot_id: int) -> int:
        """The number of data files of a snapshot.

        Raises:
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """
        return self.listings.reading(table, snapshot_id, lambda _, listing: listing.totals["files"])

    def kept(
        self,
        table: TableEntry,
        node: Node | None,
        columns: Sequence[str],
        snapshot_id: int,
        find: Callable[[str], Column],
        slice: Slice = WHOLE,
        added: Sequence[str] = (),
        most: int | None = None,
    ) -> pa.Table | None:
        """The files of a plan, or of a slice of it, without a summary; the arguments are those of `plan`.

        Args:
            most: Files; if more are kept, the result is None.
        """

        def planned(cursor: Connection, listing: Listing) -> pa.Table | None:
            read = [listing.columns.find(name).id for name in columns]
            return Query(cursor, table.table_key, listing, node, find, slice).kept(read or None, added, most)

        return self.listings.reading(table, snapshot_id, planned)

    def digest(self, table: TableEntry, snapshot_id: int) -> tuple[Any, ...]:
        """Digest of the files that are listed for a snapshot, which stays while the same rows are stored.

        Raises:
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """

        def read(cursor: Connection, listing: Listing) -> tuple[Any, ...]:
            files = data_files(table.table_key, listing.positions)
            sql = f"SELECT count(*), max(s.generation), bit_xor(hash(s.file_path)) {files}"
            (found,) = cursor.execute(sql).fetchall()
            return tuple(found)

        return self.listings.reading(table, snapshot_id, read)

    def totals(self, table: TableEntry, snapshot_id: int) -> FileTotals:
        """The data files of a snapshot together.

        Raises:
            NotFound: UNKNOWN_SNAPSHOT.
            NotCaptured: The files of the snapshot are not known.
        """

        def read(cursor: Connection, listing: Listing) -> FileTotals:
            sums = [f"CASE WHEN count({name}) = count(*) THEN coalesce(sum({name}), 0) END" for name in _SUMMED]
            sql = (
                f"SELECT count(*), {', '.join(sums)}, coalesce(bool_or(len(s.delete_files) > 0), false),"
                " list_sort(list(DISTINCT coalesce(s.partition_data_json, '')))"
                f" {data_files(table.table_key, listing.positions)}"
            )
            ((files, rows, size_bytes, has_deletes, partitions),) = cursor.execute(sql).fetchall()
            known = tuple(text or None for text in partitions or ())
            return FileTotals(files, rows, size_bytes, has_deletes, known)

        return self.listings.reading(table, snapshot_id, read)


def _planned(
    table: TableEntry, listing: Listing, columns: Sequence[str] | None, query: Query, added: Sequence[str]
) -> Plan:
    read = [listing.columns.find(name).id for name in columns or ()]
    named = tuple(dict.fromkeys([*query.columns, *read]))
    kept = query.kept(read if columns else None, added)
    assert kept is not None  # there is no limit
    about = {
        "snapshot_id": listing.snapshot_id,
        "format": table.format,
        "by_id": listing.facts.reads_by_id,  # for clients that do not know of facts
        "facts": asdict(listing.facts),
        "columns": listing.columns.described(named if columns else None),
    }
    metadata = {METADATA: json.dumps(query.summary(kept)), TABLE: json.dumps(about)}
    return Plan(kept.replace_schema_metadata(metadata), listing.snapshot_id, named)
