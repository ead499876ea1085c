"""The generation of a table's stored rows, which tickets pin, and the rows of recent tickets.

A generation is read off the rows: their number and the newest generation among those that a read at a snapshot can use.
Every put that changes one of them, and every deletion, changes it; a put at a newer snapshot does not. So a ticket can
be checked without a record of past writes, after a restart and at a replica too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import pyarrow as pa

from flight_server.core.reads.prepared import Prepared
from flight_server.core.reads.slice_cache import Slice
from store.duckdb.arrow_sql import execute
from store.duckdb.database import Database
from store.duckdb.layout import BY_SPAN, STORED, Connection, records_sql
from store.duckdb.lru import LruCache
from store.model.catalog_entries import TableEntry
from store.model.errors import NotFound
from store.model.flight import Flight

Generation: TypeAlias = tuple[int, ...]

_SKETCHED: Final = ("stats.sketches", "stats.columns")
SOURCES: Final = {
    "stats.sketches": ("stats.sketches", "file_sketches"),
    "stats.histograms": _SKETCHED,
    "stats.most_common_values": _SKETCHED,
    "stats.quantiles": _SKETCHED,
    "stats.partitions": ("stats.files", "stats.tables"),
}
"""Flight → the stored flights that its rows come from; other flights are stored themselves."""

_NUMBERED: Final = ("table_key", "snapshot_id", "generation")
_AT_MOST: Final = "(SELECT ordinal FROM snapshots WHERE table_key = ? AND snapshot_id = ?)"


@cache
def _of_one(flight: str) -> str:
    """SQL for the generation of one table with records at or before a snapshot: its key, and the snapshot's id."""
    return f"""
        SELECT count(*), coalesce(max(r.generation), 0) FROM ({records_sql(flight, _NUMBERED)}) r
        JOIN snapshots o ON o.table_key = r.table_key AND o.snapshot_id = r.snapshot_id
        WHERE r.table_key = $1::BIGINT AND o.table_key = $1::BIGINT AND o.ordinal <= (
            SELECT ordinal FROM snapshots WHERE table_key = $1::BIGINT AND snapshot_id = $2::BIGINT)
    """


def _of_many(flight: str) -> str:
    """SQL for the generations of tables that have records at or before the snapshots of `pins`."""
    return f"""
        SELECT r.table_key, count(*), coalesce(max(r.generation), 0) FROM ({records_sql(flight, _NUMBERED)}) r
        JOIN snapshots o ON o.table_key = r.table_key AND o.snapshot_id = r.snapshot_id
        JOIN {{pins}} p ON p.table_key = r.table_key
        JOIN snapshots s ON s.table_key = p.table_key AND s.snapshot_id = p.snapshot_id
        WHERE o.ordinal <= s.ordinal GROUP BY r.table_key
    """


class Generations:
    """Determines generations, and keeps the rows of recent tickets.

    Args:
        prepared: Runs the statements of one table.
        budget: Memory for rows of tickets in bytes; 0 keeps none.
    """

    def __init__(self, database: Database, prepared: Prepared, budget: int):
        self._database, self._prepared, self._versions = database, prepared, database.versions
        self._known: LruCache[tuple[str, int, int], tuple[int, Generation]] = LruCache(65_536)
        self._kept: LruCache[tuple[Any, ...], Slice] = LruCache(budget)
        self.largest = budget // 8

    def of(self, flight: Flight, table: TableEntry, snapshot_id: int) -> Generation:
        """The generation of the rows that a read of a flight at a snapshot uses."""
        key, version = (flight.name, table.table_key, snapshot_id), self._versions.generation(table.table_key)
        known = self._known.get(key)
        if known is None or known[0] != version:
            sources = SOURCES.get(flight.name, (flight.name,))
            found = tuple(number for name in sources for number in self._read(name, table.table_key, snapshot_id))
            known = version, found
            self._known.put(key, known)
        return known[1]

    def warm(self, wanted: Mapping[str, Sequence[TableEntry]]) -> None:
        """Determines generations of flights about tables at their current snapshots with one query, which takes little
        longer than that of a single table.

        Args:
            wanted: The tables of each flight, by its name; its records must be those of snapshots, not of files.
        """
        tables = {table.table_key: table for some in wanted.values() for table in some}
        pins = {key: id for key, table in tables.items() if (id := table.current_snapshot_id) is not None}
        versions = {key: self._versions.generation(key) for key in pins}
        columns = [pa.array(values, pa.int64()) for values in (pins.keys(), pins.values())]
        pinned = pa.table(columns, names=["table_key", "snapshot_id"])
        each = (f"SELECT '{flight}', * FROM ({_of_many(flight)})" for flight in wanted)
        with self._database.reading() as cursor:
            rows = execute(cursor, " UNION ALL ".join(each), pins=pinned)
        found = {(flight, key): (count, newest) for flight, key, count, newest in rows}
        for flight, some in wanted.items():
            for key in pins.keys() & {table.table_key for table in some}:
                known = versions[key], found.get((flight, key), (0, 0))
                self._known.put((flight, key, pins[key]), known)

    def _read(self, name: str, key: int, snapshot_id: int) -> tuple[int, ...]:
        if name not in BY_SPAN:
            ((count, newest),) = self._prepared.rows(f"generation_{STORED[name]}", _of_one(name), key, snapshot_id)
            return count, newest
        with self._database.reading() as cursor:
            self._database.segments.attach(cursor, [key], [name])
            return self._read_files(cursor, name, key, snapshot_id)

    def _read_files(self, cursor: Connection, name: str, key: int, snapshot_id: int) -> tuple[int, ...]:
        listing = cursor.execute(
            "SELECT f.snapshot_id, f.pos FROM file_snapshots f JOIN snapshots o ON o.table_key = f.table_key"
            f" AND o.snapshot_id = f.snapshot_id WHERE f.table_key = ? AND f.family = ? AND o.ordinal <= {_AT_MOST}"
            " ORDER BY o.ordinal DESC LIMIT 1",
            [key, name, key, snapshot_id],
        ).fetchall()
        if not listing:
            return 0, 0, 0
        of_snapshot, pos = listing[0]
        ((count, newest),) = cursor.execute(
            f"SELECT count(*), coalesce(max(generation), 0) FROM {BY_SPAN[name]}"
            " WHERE table_key = ? AND from_pos <= ? AND to_pos > ?",
            [key, pos, pos],
        ).fetchall()
        return count, newest, of_snapshot

    def check(self, generation: Generation, flight: Flight, table: TableEntry, snapshot_id: int) -> None:
        """Checks that a table's rows are still those of a ticket; to be called after they were read.

        Raises:
            NotFound: They have changed (GONE).
        """
        if self.of(flight, table, snapshot_id) != generation:
            raise NotFound(
                f'{flight.name} of "{table.full_name}" at snapshot {snapshot_id} changed after the ticket was made, and'
                " the former rows are no longer kept",
                code="GONE",
                hint="ask GetFlightInfo for a new ticket",
            )

    def pin(
        self, flight: Flight, table: TableEntry, snapshot_id: int, allow_stale: bool, load: Callable[[], Slice | None]
    ) -> Generation:
        """The current generation, whose rows are kept for `find` if there is room.

        Args:
            load: Returns all rows of the read at `snapshot_id`; None if they are too many.
        """
        version = self._versions.generation(table.table_key)
        generation = self.of(flight, table, snapshot_id)
        key = (flight.name, table.table_key, snapshot_id, allow_stale, generation)
        if self.largest and self._kept.get(key) is None:
            rows = load()
            if rows is not None and self._versions.generation(table.table_key) == version:
                self._kept.put(key, rows, rows.size)
        return generation

    def find(
        self, generation: Generation, flight: Flight, table: TableEntry, snapshot_id: int, allow_stale: bool
    ) -> Slice | None:
        """The kept rows of a ticket; None if they are not kept."""
        return self._kept.get((flight.name, table.table_key, snapshot_id, allow_stale, generation))
