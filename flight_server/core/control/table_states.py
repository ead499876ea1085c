"""The states of tables that `capture.policy` decides by, gathered with a few queries for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from capture.connectors.spi import CONTAINERS
from capture.policy import TableState
from store.catalog.catalog import ids_by_name
from store.duckdb.arrow_sql import among, execute, keys_table
from store.duckdb.database import Connection, Database
from store.model.catalog_entries import TableEntry
from store.queue.job_store import ACTIVE

_SCANNED: Final = "producer = 'ENGINE_COMPUTED' AND coalesce(row_groups_sampled, 0) = 0"  # a sample is no scan

# `{c}` has each table's key and current snapshot id.
_CAPTURES: Final = """
WITH places AS (
    SELECT table_key, snapshot_id, schema_hash,
        row_number() OVER (PARTITION BY table_key ORDER BY ordinal, snapshot_id) AS place
    FROM snapshots WHERE {of_these}
), scans AS (
    SELECT table_key, snapshot_id, max(coalesce(refreshed_at, captured_at, created_at)) AS captured_at
    FROM stats_columns WHERE {of_these} AND {whole} GROUP BY ALL
), newest AS (
    SELECT s.*, p.schema_hash, p.place FROM scans s LEFT JOIN places p USING (table_key, snapshot_id)
    QUALIFY row_number() OVER (PARTITION BY s.table_key ORDER BY p.place DESC NULLS LAST) = 1
)
SELECT c.table_key, a.schema_hash, n.snapshot_id, n.schema_hash, n.captured_at, a.place - n.place,
    c.table_key IN (SELECT r.table_key FROM stats_tables r JOIN places p USING (table_key, snapshot_id) SEMI JOIN {c} x
        ON x.table_key = r.table_key AND x.snapshot_id = r.snapshot_id
        WHERE {of_these} AND coalesce(r.schema_hash = p.schema_hash, true)), coalesce(r.columns, [])
FROM {c} c LEFT JOIN places a USING (table_key, snapshot_id) LEFT JOIN newest n ON n.table_key = c.table_key
LEFT JOIN (SELECT r.table_key, list(r.column_id) AS columns FROM stats_columns r SEMI JOIN {c} x
    ON x.table_key = r.table_key AND x.snapshot_id = r.snapshot_id
    WHERE {of_these} AND {whole} GROUP BY 1) r ON r.table_key = c.table_key
""".replace("{whole}", _SCANNED)

# `{p}` has key, current snapshot id and that of the newest scan. Rows are of tables with a listing of files of both. A
# file whose row was replaced, as by a capture of another mode, is the same one: only its path and sizes tell.
_CHANGED: Final = """
WITH f AS (
    SELECT p.table_key, s.file_path, s.row_count, s.size_bytes, s.from_pos <= b.pos AND s.to_pos > b.pos AS was,
        s.from_pos <= a.pos AND s.to_pos > a.pos AS "is"
    FROM {p} p
    JOIN file_snapshots b ON b.table_key = p.table_key AND b.snapshot_id = p.before AND b.family = 'stats.files'
    JOIN file_snapshots a ON a.table_key = p.table_key AND a.snapshot_id = p.snapshot_id AND a.family = 'stats.files'
    LEFT JOIN (SELECT * FROM stats_files WHERE {of_these} AND file_content = 'DATA') s
        ON s.table_key = p.table_key AND p.before <> p.snapshot_id
), replaced AS (
    SELECT table_key, any_value(row_count) AS row_count FROM f WHERE was <> "is"
    GROUP BY table_key, file_path, f.row_count, size_bytes HAVING count(*) > 1
)
SELECT table_key, coalesce(sum(row_count) FILTER (was), 0), coalesce(sum(row_count) FILTER ("is"), 0),
    coalesce(sum(row_count) FILTER (was AND "is"), 0)
    + coalesce((SELECT sum(r.row_count) FROM replaced r WHERE r.table_key = f.table_key), 0)
FROM f GROUP BY table_key
"""

_ROW_COUNTS: Final = """
WITH counts AS (
    SELECT table_key, snapshot_id, row_count FROM stats_tables WHERE {of_these}
    UNION ALL SELECT table_key, snapshot_id, row_count FROM stats_columns WHERE {of_these}
)
SELECT p.table_key, max(r.row_count) FILTER (r.snapshot_id = p.before),
    max(r.row_count) FILTER (r.snapshot_id = p.snapshot_id)
FROM {p} p JOIN counts r ON r.table_key = p.table_key AND r.snapshot_id IN (p.before, p.snapshot_id)
WHERE p.before <> p.snapshot_id GROUP BY 1
"""


def states(
    database: Database,
    tables: Sequence[TableEntry],
    used: Mapping[int, Mapping[str, int]],
    is_ruled: Callable[[str, str], bool] | None = None,
) -> dict[int, TableState]:
    """The state of each table, by its key.

    Args:
        used: Table key → column name → reads.
        is_ruled: True for the full name of a table and a column of it that a rule is about; None without rules.
    """
    full_names = {table.table_key: table.full_name for table in tables}
    found = {table.table_key: TableState(None, None, ()) for table in tables}
    current = {t.table_key: i for t in tables if (i := t.current_snapshot_id) is not None}
    if not current:
        return found
    with database.reading() as cursor:
        database.segments.attach(cursor, current, ["stats.files"])
        captures = [_Capture(*row) for row in _rows(cursor, _CAPTURES, current, c=_table(current))]
        changes = _changes(cursor, current, captures)
        schemas = _schemas(cursor, current, captures)
        ids = _column_ids(cursor, current)
        active = f"SELECT DISTINCT table_key FROM jobs WHERE {{of_these}} AND state IN {ACTIVE}"
        busy = {key for (key,) in _rows(cursor, active, current)}
    for capture in captures:
        key = capture.table_key
        leaves = {column[0] for column in schemas.get(key, ()) if column[1] not in CONTAINERS}
        names = {name: i for name, i in ids_by_name(ids.get(key, ())).items() if name in leaves}
        ruled = [] if is_ruled is None else [i for name, i in names.items() if is_ruled(full_names[key], name)]
        found[key] = TableState(
            current[key],
            capture.schema_hash,
            tuple(names.values()),
            has_table_record=capture.has_record,
            captured_snapshot_id=capture.captured,
            captured_schema_hash=capture.captured_hash,
            captured_at=capture.captured_at,
            captured_columns=frozenset(capture.columns),
            snapshots_behind=capture.behind,
            changed_share=changes.share.get(key),
            least_changed_share=changes.least.get(key, 0.0),
            ruled=frozenset(ruled),
            used={names[name]: reads for name, reads in used.get(key, {}).items() if name in names},
            busy=key in busy,
        )
    return found


class _Capture(NamedTuple):
    """A row of `_CAPTURES`: a table with its current snapshot, and the newest snapshot that was captured by a scan.

    Attributes:
        behind: Number of snapshots between them; None if unknown.
        has_record: True if the table has a record of the current snapshot and its schema.
        columns: Ids of the columns captured at the current snapshot.
    """

    table_key: int
    schema_hash: str | None
    captured: int | None
    captured_hash: str | None
    captured_at: datetime | None
    behind: int | None
    has_record: bool
    columns: Sequence[int]


class _Changes(NamedTuple):
    """Shares of rows that have changed since the newest scan, by table key.

    Attributes:
        share: By the listings of files of both snapshots.
        least: At least, by their row counts.
    """

    share: Mapping[int, float]
    least: Mapping[int, float]


def _changes(cursor: Connection, current: Mapping[int, int], captures: Sequence[_Capture]) -> _Changes:
    """The changes of tables that have been scanned."""
    scanned = {capture.table_key: capture.captured for capture in captures if capture.captured is not None}
    if not scanned:
        return _Changes({}, {})
    pairs = _table({key: current[key] for key in scanned}, before=pa.array(scanned.values(), pa.int64()))
    by_files = _rows(cursor, _CHANGED, scanned, p=pairs)
    by_counts = _rows(cursor, _ROW_COUNTS, scanned, p=pairs)
    counted = [row for row in by_counts if None not in row]
    return _Changes(
        {key: _share(were, are, stayed) for key, were, are, stayed in by_files},
        {key: _share(were, are, min(were, are)) for key, were, are in counted},
    )


def _schemas(cursor: Connection, current: Mapping[int, int], captures: Sequence[_Capture]) -> dict[int, list[Any]]:
    """Table key → columns of the schema of the current snapshot, for the tables whose schema is stored."""
    hashes = {capture.table_key: capture.schema_hash for capture in captures if capture.schema_hash is not None}
    rows = _rows(cursor, "SELECT * FROM schemas WHERE {of_these}", current)
    return {key: json.loads(columns) for key, schema_hash, columns in rows if hashes.get(key) == schema_hash}


def _column_ids(cursor: Connection, keys: Mapping[int, Any]) -> dict[int, list[tuple[str, int]]]:
    """Table key → names and ids of its columns."""
    ids: dict[int, list[tuple[str, int]]] = {}
    for key, name, column_id in _rows(cursor, "SELECT * FROM column_ids WHERE {of_these}", keys):
        ids.setdefault(key, []).append((name, column_id))
    return ids


def _table(of: Mapping[int, int], **more: pa.Array) -> pa.Table:
    """Tables and snapshot ids, with further columns."""
    return pa.table({"table_key": pa.array(of, pa.int64()), "snapshot_id": pa.array(of.values(), pa.int64())} | more)


def _rows(cursor: Connection, sql: str, keys: Mapping[int, Any], **given: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of a query about tables; `{of_these}` is its condition on `table_key`."""
    of_these = sql.replace("{of_these}", among("table_key", keys))
    return execute(cursor, of_these, moved=keys_table(keys), **given)


def _share(were: int, are: int, stayed: int) -> float:
    """Share of rows that were added, or that were removed if that is larger."""
    return max((float(rows - stayed) / float(rows) for rows in (were, are) if rows), default=0.0)
