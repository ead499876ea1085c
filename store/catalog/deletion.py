"""Deletion of records and their sketches, inside the writer's transaction."""

from __future__ import annotations

from store.catalog.catalog import Catalog
from store.duckdb.layout import BY_SNAPSHOT, Connection
from store.history.file_listings import forget_mark
from store.history.file_spans import delete_by_snapshot, delete_by_span
from store.model.catalog_entries import TableEntry
from store.model.puts import FLIGHT_OF
from store.model.targets import Target, TargetKind


def delete_records(
    connection: Connection, catalog: Catalog, table: TableEntry, snapshot_id: int | None, target: Target | None = None
) -> int:
    """Deletes records and their sketches; returns the number of records.

    Args:
        snapshot_id: Only records of this snapshot; None for all.
        target: Only records about this target; None for all.
    """
    catalog.database.touch(table.table_key)
    catalog.spans.change([table.table_key])
    catalog.behind.deleted(table, snapshot_id, target)
    forget_mark(connection, table.table_key, snapshot_id)
    deleted = 0
    flights = [*FLIGHT_OF.values(), "stats.file_columns", "stats.sketches", "file_sketches"]
    if target is not None:
        family = "file_sketches" if target.kind is TargetKind.FILE else "stats.sketches"
        flights = [FLIGHT_OF[target.kind], family]
        if target.kind is TargetKind.FILE:
            flights.insert(1, "stats.file_columns")
    for flight in flights:
        if flight in BY_SNAPSHOT:
            count = delete_by_snapshot(connection, flight, table, snapshot_id, target)
        else:
            count = delete_by_span(connection, catalog.database.segments, flight, table, snapshot_id, target)
        deleted += 0 if flight.endswith("sketches") else count
    return deleted
