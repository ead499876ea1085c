"""Retention of sketches: those of a table's newest snapshots stay, of older ones one snapshot a day, then one a week.

A sketch of a column takes up to 45 kB for each snapshot, its record some hundred bytes. So records stay, and sketches
of older snapshots are thinned out. Those that hold at the current snapshot of a table always stay, whatever their age.
A snapshot without its sketch reads the one before as INHERITED, as if it had never been captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import among, execute, keys_table, query
from store.duckdb.database import Connection, Database
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, parts
from store.model.catalog_entries import TableEntry

_SKETCHES: Final = "stats.sketches"


class SketchRetention(NamedTuple):
    """Of which snapshots sketches are kept.

    Attributes:
        newest: How many of the newest snapshots with sketches keep theirs; 0 means all.
        days: For how many days one snapshot a day keeps its sketches; after them one a week.
    """

    newest: int = 100
    days: int = 90


def superseded(database: Database, tables: Sequence[TableEntry], keep: SketchRetention) -> dict[int, list[int]]:
    """Table key → ids of the snapshots whose sketches `thin` would delete; without tables that have none."""
    with database.reading() as cursor:
        found = _superseded(cursor, [table.table_key for table in tables], keep)
    doomed: dict[int, list[int]] = {}
    for row in found.to_pylist():
        doomed.setdefault(row["table_key"], []).append(row["snapshot_id"])
    return doomed


def thin(connection: Connection, catalog: Catalog, tables: Sequence[TableEntry], keep: SketchRetention) -> int:
    """Deletes the sketches of the snapshots that `superseded` returns, inside of a write.

    Returns:
        The number of snapshots.
    """
    places = _superseded(connection, [table.table_key for table in tables], keep)
    if not places.num_rows:
        return 0
    keys = places["table_key"].unique().to_pylist()
    catalog.database.touch(*keys)
    catalog.spans.change(keys)
    for key, snapshot_id in zip(places["table_key"].to_pylist(), places["snapshot_id"].to_pylist(), strict=True):
        catalog.behind.deleted(catalog.by_key(key), snapshot_id, None)
    for flight in (*BY_SNAPSHOT, *BY_SPAN):  # a store behind gets back what stays
        catalog.behind.stored(flight, places)
    history = parts(_SKETCHES)[1]
    execute(
        connection,
        f"DELETE FROM {history} USING {{places}} d WHERE {history}.table_key = d.table_key"
        f" AND {history}.snapshot_id = d.snapshot_id",
        places=places,
    )
    return places.num_rows


def _superseded(connection: Connection, keys: Sequence[int], keep: SketchRetention) -> pa.Table:
    if not keep.newest or not keys:
        return pa.table({"table_key": pa.array([], pa.int64()), "snapshot_id": pa.array([], pa.int64())})
    return query(connection, _superseded_sql(keys, keep), moved=keys_table(keys))


def _superseded_sql(keys: Sequence[int], keep: SketchRetention) -> str:
    """SQL of the snapshots (`table_key`, `snapshot_id`) whose sketches are not kept.

    h: snapshots that have sketches, with the time of their commit, or of the capture where that is unknown; p: the day
    or week of each, and how many newer ones have sketches; the newest of each day or week is kept.
    """
    current, history = parts(_SKETCHES)
    scope = among("table_key", keys)
    narrow = "table_key, snapshot_id, coalesce(captured_at, created_at) AS captured"
    order = "PARTITION BY table_key ORDER BY ordinal DESC, snapshot_id DESC"
    return f"""
WITH s AS (SELECT {narrow}, false AS is_old FROM {current} WHERE {scope}
    UNION ALL SELECT {narrow}, true FROM {history} WHERE {scope}),
h AS (SELECT s.table_key, s.snapshot_id, n.ordinal, bool_or(is_old) AS is_old,
    coalesce(any_value(n.committed_at), max(captured)) AS taken
  FROM s JOIN snapshots n ON n.table_key = s.table_key AND n.snapshot_id = s.snapshot_id GROUP BY ALL),
p AS (SELECT *, row_number() OVER ({order}) AS number,
    taken > now() - INTERVAL {int(keep.days)} DAY AS is_daily,
    date_trunc(CASE WHEN is_daily THEN 'day' ELSE 'week' END, taken) AS period FROM h)
SELECT table_key, snapshot_id FROM (SELECT *, row_number() OVER (
    PARTITION BY table_key, is_daily, period ORDER BY ordinal DESC, snapshot_id DESC) AS in_period FROM p)
WHERE number > {int(keep.newest)} AND in_period > 1 AND is_old AND taken IS NOT NULL ORDER BY table_key, ordinal"""
