"""The current rows of one table, by prepared statements."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from flight_server.core.reads.prepared import Prepared
from flight_server.core.reads.stats_sources import IN_PARTS, TABLE_COLUMNS, current_sql
from store.catalog.catalog import Catalog
from store.duckdb.layout import STORED
from store.duckdb.table_versions import TableVersions
from store.model.catalog_entries import TableEntry
from store.model.flight import Flight
from store.model.schemas import FLIGHTS


class CurrentRows:
    """Reads the current rows of single tables in the flights of `IN_PARTS`. Thread-safe."""

    def __init__(self, prepared: Prepared, catalog: Catalog, versions: TableVersions):
        self._prepared, self._catalog, self._versions = prepared, catalog, versions

    def read(self, flight: Flight, table: TableEntry, snapshot_id: int) -> pa.RecordBatch | None:
        """All rows of a flight about one table at its current snapshot, in no particular order.

        Returns:
            The rows; None if the flight is not one of `IN_PARTS`, the snapshot is not the current one, or a commit
            changed the table meanwhile.
        """
        key = table.table_key
        settled = self._versions.settled(key)
        if flight.name not in IN_PARTS or settled is None:
            return None
        if self._catalog.entries.committed.current.get(key) != snapshot_id:
            return None
        rows = self._prepared.rows(f"current_{STORED[flight.name]}", _statement(flight.name), key, snapshot_id)
        if self._versions.settled(key) != settled:
            return None
        values = dict(
            zip(
                (name for name in flight.schema.names if name not in TABLE_COLUMNS),
                zip(*rows, strict=True),
                strict=bool(rows),
            )
        )
        arrays = [
            pa.repeat(pa.scalar(getattr(table, field.name), field.type), len(rows))
            if field.name in TABLE_COLUMNS
            else pa.array(values.get(field.name, ()), field.type)
            for field in flight.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=flight.schema)


@cache
def _statement(flight: str) -> str:
    return current_sql(FLIGHTS[flight])
