"""Expiry: deletion of the records of snapshots that left their lake and that no snapshot in the lake needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import execute
from store.duckdb.database import Connection, Database
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, GROUPED, parts
from store.history.file_spans import delete_listings
from store.history.spans import holds_sql
from store.model.catalog_entries import EXTERNAL, TableEntry

WITH_SNAPSHOTS: Final = (*BY_SNAPSHOT.values(), "file_snapshots")  # physical tables that have `snapshot_id`
HAS_RECORDS: Final = " OR ".join(
    f"EXISTS (SELECT 1 FROM {name} r WHERE r.table_key = n.table_key AND r.snapshot_id = n.snapshot_id)"
    for name in WITH_SNAPSHOTS
)
"""SQL of the condition that something is stored of a snapshot `n`."""


def expirable(database: Database, tables: Sequence[TableEntry]) -> dict[int, list[int]]:
    """Table key → ids of snapshots that have records but left the lake; without tables that have none.

    Snapshots of which something is served for others in the lake never expire, nor do those of external tables.
    """
    keys = [table.table_key for table in tables if table.format != EXTERNAL]
    sources = [("file_snapshots", "r.snapshot_id")]
    for flight in BY_SNAPSHOT:
        also = ", r.distribution_snapshot_id" if flight in GROUPED else ""
        sources += [(part, f"unnest([r.snapshot_id{also}])") for part in parts(flight)]
    # of the snapshots at which a row may hold, the first one tells: four times as fast as joining all
    served = " UNION ".join(
        f"SELECT r.table_key, {ids} AS snapshot_id FROM {part} r ASOF JOIN live l ON l.table_key = r.table_key"
        f" AND l.schema_key = r.schema_key AND r.from_ord <= l.ordinal WHERE {holds_sql('r', 'l')}"
        for part, ids in sources
    )
    stale = database.rows(
        "WITH n AS (FROM snapshots WHERE table_key IN (SELECT unnest(?::BIGINT[]))),"
        " live AS (FROM n WHERE is_live IS DISTINCT FROM false)"
        f" SELECT n.table_key, n.snapshot_id FROM n ANTI JOIN ({served}) s ON s.table_key = n.table_key"
        f" AND s.snapshot_id = n.snapshot_id WHERE n.is_live = false AND ({HAS_RECORDS}) ORDER BY ALL",
        keys,
    )
    doomed: dict[int, list[int]] = {}
    for key, snapshot_id in stale:
        doomed.setdefault(key, []).append(snapshot_id)
    return doomed


def expire(connection: Connection, catalog: Catalog, tables: Sequence[TableEntry]) -> dict[int, list[int]]:
    """Deletes the records of the snapshots that `expirable` returns, inside the writer's transaction; returns these."""
    doomed = expirable(catalog.database, tables)
    if doomed:
        _delete(connection, catalog, doomed)
    return doomed


def _delete(connection: Connection, catalog: Catalog, doomed: Mapping[int, Sequence[int]]) -> None:
    """Deletes all records of snapshots (table key → ids)."""
    catalog.database.touch(*doomed)
    catalog.spans.change(doomed)
    pairs = [(key, snapshot_id) for key, ids in doomed.items() for snapshot_id in ids]
    for key, snapshot_id in pairs:
        catalog.behind.deleted(catalog.by_key(key), snapshot_id, None)
    columns = dict(zip(("table_key", "snapshot_id"), map(pa.array, zip(*pairs, strict=True)), strict=True))
    places = pa.table(columns)
    for table in (part for flight in BY_SNAPSHOT for part in parts(flight)):
        execute(
            connection,
            f"DELETE FROM {table} USING {{places}} d WHERE {table}.table_key = d.table_key"
            f" AND {table}.snapshot_id = d.snapshot_id",
            places=places,
        )
    for family in BY_SPAN:
        delete_listings(connection, catalog.database.segments, family, places)
