"""A store behind the database: another `StatsStore` that has the records of statistics, while DuckDB answers.

Reads are SQL over DuckDB, whose file also has what is not a record: the catalog, the order of snapshots, listings of
files, the queue. Each transaction writes its records to the store before it commits, so that what the store refuses is
refused; a new database file is filled from the store. A server that is killed, or a write that is cancelled, between
the two leaves the store ahead by what nobody was told is stored, until its places are written again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

from store.duckdb.arrow_sql import query
from store.duckdb.commit import Behind
from store.duckdb.database import Connection, Database
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidArgument, StatflightError, UpstreamError
from store.model.puts import Put, PutMode
from store.model.targets import Target
from store.records import select_rows
from store.stats_store import DuckDBStatsStore
from store.stores import StatsStore

log = logging.getLogger("statflight.store")

SETTING: Final = "store"  # in the table `settings`: which store the database is in step with
FLIGHTS: Final = (*BY_SNAPSHOT, *BY_SPAN)
_FILL_ROWS: Final = 20_000  # of a put, at least
_PLACE: Final = pa.schema([("table_key", pa.int64()), ("snapshot_id", pa.int64())])


class _Deleted(NamedTuple):
    table: TableEntry
    snapshot_id: int | None
    target: Target | None


class WriteThrough(Behind):
    """Keeps a store in step with the database, once `join` has brought both in step.

    Args:
        store: The store behind the database.
        name: Name and address of the store, which the database remembers.
    """

    def __init__(self, store: StatsStore, name: str):
        self._store, self._name = store, name
        self._local: DuckDBStatsStore | None = None
        self.clear()

    def join(self, local: DuckDBStatsStore) -> None:
        """Brings both in step.

        Args:
            local: The database's records, with this store behind it; nothing else writes.

        Raises:
            InvalidArgument: Both have records, and the database was not in step with this store.
        """
        database = local.database
        (is_known,) = database.rows(
            "SELECT count(*) > 0 FROM settings WHERE name = ? AND value = ?", SETTING, self._name
        )[0]
        exports = not is_known and self._begin(local)
        self._local = local
        if not is_known:
            database.write(lambda connection: self._join(connection, exports))

    # What a transaction changes.

    def registered(self, table: TableEntry) -> None:
        self._new.append(table)

    def stored(self, flight: str, places: pa.Table) -> None:
        # Sketches with their records: a place that is put whole drops those of no record.
        for each in {flight, "stats.sketches" if flight in BY_SNAPSHOT else "file_sketches"}:
            self._places.setdefault(each, []).append(places.select(_PLACE.names).cast(_PLACE))

    def deleted(self, table: TableEntry, snapshot_id: int | None, target: Target | None) -> None:
        self._deleted.append(_Deleted(table, snapshot_id, target))

    def clear(self) -> None:
        self._places: dict[str, list[pa.Table]] = {}  # by flight
        self._deleted: list[_Deleted] = []
        self._new: list[TableEntry] = []

    def write(self, connection: Connection) -> None:
        """Writes what the transaction has changed; nothing before both are in step."""
        try:
            if self._local is not None:
                self._write(connection, self._local)
        except StatflightError:
            raise
        except Exception as error:
            log.exception("the store %s failed", self._name)
            raise UpstreamError(f"the store {self._name} failed: {error}", code="STORE") from None
        self.clear()

    def _write(self, connection: Connection, local: DuckDBStatsStore) -> None:
        # Records of a table that was dropped under this name, or deleted; those that are there again follow.
        for each in (*(_Deleted(table, None, None) for table in self._new), *self._deleted):
            self._delete(local, each)
        rows = ((flight, self._read(connection, flight)) for flight in FLIGHTS if flight in self._places)
        puts = [_put(flight, found) for flight, found in rows if found.num_rows]
        if puts:
            self._store.put(puts)

    def _delete(self, local: DuckDBStatsStore, deleted: _Deleted) -> None:
        """Deletes records, unless the table's name is that of another one now."""
        named = local.catalog.find(deleted.table.name)
        is_replaced = named is not None and named.table_key != deleted.table.table_key
        found = None if is_replaced else self._store.find(deleted.table.name)
        if found is not None:
            self._store.delete(found, deleted.snapshot_id, deleted.target)

    def _read(self, connection: Connection, flight: str) -> pa.Table:
        places = pa.concat_tables(self._places[flight]).group_by(_PLACE.names).aggregate([])
        return query(connection, select_rows(flight), places=places)

    # The begin.

    def _begin(self, local: DuckDBStatsStore) -> bool:
        """Fills an empty database from the store; True if it is the store that is empty."""
        tables = [table for table in self._store.tables() if self._store.captured_snapshots(table)]
        if tables and any(map(local.captured_snapshots, local.catalog.tables())):
            raise InvalidArgument(
                f"the database and the store {self._name} both have statistics, and may differ",
                code="STORE",
                hint="start with a new database file, which is filled from the store; or with an empty store",
            )
        count = sum(local.put(puts).received for puts in self._filled(tables))
        if count:
            log.info("filled the database with %s records of the store %s", f"{count:,}", self._name)
        return not tables

    def _filled(self, tables: Iterable[TableEntry]) -> Iterable[list[Put]]:
        """The records of the store as puts of whole tables."""
        parts: dict[str, list[pa.Table]] = {}
        count = 0
        for table in tables:
            for snapshot_id in sorted(self._store.captured_snapshots(table)):
                for flight in FLIGHTS:
                    rows = self._store.rows(table, snapshot_id, flight)
                    count += rows.num_rows
                    if rows.num_rows:
                        parts.setdefault(flight, []).append(rows)
            if count >= _FILL_ROWS:
                yield _puts(parts)
                parts, count = {}, 0
        yield _puts(parts)

    def _join(self, connection: Connection, exports: bool) -> None:
        """Notes that both are in step from then on, and has all records written to the store if it `exports` them."""
        if exports:
            for flight in FLIGHTS:
                source = BY_SNAPSHOT.get(flight) or f"file_snapshots WHERE family = '{flight}'"
                self.stored(flight, query(connection, f"SELECT DISTINCT table_key, snapshot_id FROM {source}"))
        _forget(connection)
        connection.execute("INSERT INTO settings VALUES (?, ?)", [SETTING, self._name])


def forget_store(database: Database) -> None:
    """Has a database, which is about to be written without its store, be in step with none."""
    if database.rows("SELECT 1 FROM settings WHERE name = ?", SETTING):
        database.write(_forget)


def _forget(connection: Connection) -> None:
    connection.execute("DELETE FROM settings WHERE name = ?", [SETTING])


def _puts(parts: dict[str, list[pa.Table]]) -> list[Put]:
    return [_put(flight, pa.concat_tables(parts[flight])) for flight in FLIGHTS if flight in parts]


def _put(flight: str, rows: pa.Table) -> Put:
    return Put("stats.sketches" if flight == "file_sketches" else flight, rows, PutMode.REPLACE_SNAPSHOT)
