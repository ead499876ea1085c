"""The rows of single tables: from the cache, else by a prepared statement or a query that is worth it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from flight_server.client.conditions.one_table import NAMES
from flight_server.core.reads.current_rows import CurrentRows
from flight_server.core.reads.prepared import Prepared
from flight_server.core.reads.query import Queries, in_order, order_of, sort_keys
from flight_server.core.reads.scope import ReadScope
from flight_server.core.reads.slice_cache import Slice, SliceCache, one_batch
from flight_server.core.wire.scan_request import ScanRequest
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry
from store.model.flight import Flight


class TableRows:
    """Reads and caches the rows of single tables.

    Attributes:
        slices: The cache.
        prepared: Runs the statements of single tables.
    """

    def __init__(self, database: Database, catalog: Catalog, queries: Queries, slices: SliceCache):
        self._database, self._catalog, self._versions = database, catalog, database.versions
        self._queries, self.slices = queries, slices
        self.prepared = Prepared(database)
        self.current_rows = CurrentRows(self.prepared, catalog, database.versions)

    def of(self, flight: Flight, table: TableEntry, snapshot: int | None, allow_stale: bool = False) -> Slice | None:
        """The rows of a flight about one table, if cached or quickly read; None if DuckDB must be queried.

        Args:
            snapshot: Id of the requested snapshot; None for all stored rows.
        """
        stale = allow_stale and snapshot is not None
        key, generation = (flight.name, table.table_key, snapshot, stale), self._versions.generation(table.table_key)
        if (cached := self.slices.find(key, generation)) is not None:
            return cached
        is_worth = self.slices.is_worth_loading(key)
        rows = None if stale or snapshot is None else self.current_rows.read(flight, table, snapshot)
        if rows is not None:
            new = Slice(in_order(rows, order_of(flight)), generation)
            if is_worth:
                self.slices.put(key, new)
            return new
        if not is_worth:
            return None
        return self.slices.load(key, generation, lambda most: self.load(flight, table, snapshot, stale, most))

    def current(self, flight: Flight, tables: Sequence[TableEntry]) -> Iterator[tuple[TableEntry, Slice]]:
        """Reads the current rows of tables with one query.

        Yields:
            Each table that has current rows, with its slice.
        """
        generations = {table.table_key: self._versions.generation(table.table_key) for table in tables}
        # after the generations: a commit in between makes the slices old
        known = self._catalog.entries.committed.current
        named = {table.name: table for table in tables if known.get(table.table_key) == table.current_snapshot_id}
        if not named:
            return
        whole, scope = ScanRequest(flight), ReadScope([table.table_key for table in named.values()], current=True)
        with self._database.reading() as cursor:
            rows = pa.Table.from_batches(self._queries.start(cursor, whole, scope), whole.schema)
        if not rows.num_rows:
            return
        batch = one_batch(rows)  # clustered by table, because a scoped read is ordered
        starts = _starts(batch)
        for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            table = named[tuple(batch.column(name)[start].as_py() for name in NAMES)]
            yield table, Slice(batch.slice(start, stop - start), generations[table.table_key])

    def load(
        self, flight: Flight, table: TableEntry, snapshot: int | None, allow_stale: bool, most: int
    ) -> pa.RecordBatch | None:
        """All rows of a table as one batch; None if they have more than `most` bytes.

        Args:
            snapshot: Id of the requested snapshot; None for all stored rows.
        """
        whole = ScanRequest(flight)
        epoch = self._versions.steady()
        is_current = self._catalog.entries.committed.current.get(table.table_key) == snapshot
        scope = ReadScope(
            [table.table_key],
            allow_stale=allow_stale,
            only=table,
            snapshot=snapshot,
            epoch=epoch if is_current else None,
        )
        batches, size = [], 0
        with self._database.reading() as cursor:
            for batch in self._queries.start(cursor, whole, scope):
                size += batch.nbytes
                if size > most:
                    return None
                batches.append(batch)
        return one_batch(in_order(pa.Table.from_batches(batches, whole.schema), sort_keys(whole, scope)))


def _starts(batch: pa.RecordBatch) -> list[int]:
    """The places at which the rows of another table begin, in rows clustered by table."""
    names = [batch.column(name).dictionary_encode().indices.to_numpy() for name in NAMES]
    changes = np.logical_or.reduce([codes[1:] != codes[:-1] for codes in names])
    return [0, *(np.flatnonzero(changes) + 1).tolist()]
