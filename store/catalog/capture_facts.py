"""Facts about stored tables that a worker needs to capture them, read for many tables at once."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from store.duckdb.arrow_sql import among, execute, keys_table
from store.duckdb.database import Database
from store.duckdb.layout import BY_SPAN
from store.history.presence import Presence
from store.model.catalog_entries import TableEntry
from store.model.format_facts import FormatFacts, facts_in
from store.model.freshness import CONTRADICTED, WHOLE_TABLE
from store.model.names import dotted_name


def column_ids(database: Database, table_keys: Collection[int]) -> dict[int, dict[str, int]]:
    """Table key → column key (`store.model.names.column_key`) → id, for every column that each table ever had.

    A dotted name that belongs to one column only is a key too.
    """
    rows = _rows(database, "SELECT table_key, column_name, column_id FROM column_ids", table_keys)
    ids: dict[int, dict[str, int]] = {key: {} for key in table_keys}
    dotted: dict[int, dict[str, int]] = {key: {} for key in table_keys}
    for table_key, name, column_id in rows:
        ids[table_key][name] = column_id
        if '"' in name:
            dotted[table_key][dotted_name(name)] = column_id
    return {key: dotted[key] | ids[key] for key in table_keys}


def format_facts(database: Database, table: TableEntry) -> FormatFacts:
    """The facts about the format of a table, as its last inspection found them."""
    ((properties,),) = database.rows("SELECT properties FROM tables WHERE table_key = ?", table.table_key)
    return facts_in(table.format, properties)


def identities(database: Database, table_keys: Collection[int]) -> dict[int, tuple[int, str]]:
    """The snapshot by which a table is told from another one that was created under its name later.

    Returns:
        Table key → snapshot id, identity; without tables whose format needs none.
    """
    rows = _rows(database, "SELECT table_key, snapshot_id, identity FROM identities", table_keys)
    return {key: (snapshot_id, identity) for key, snapshot_id, identity in rows}


def current_schemas(database: Database, table_keys: Collection[int]) -> dict[int, tuple[int, str | None]]:
    """Table key → current snapshot id and the hash of its schema as stored, None if unknown; without tables that have
    no snapshot."""
    sql = (
        "SELECT table_key, snapshot_id, schema_hash FROM snapshots s SEMI JOIN tables t"
        " ON t.table_key = s.table_key AND t.current_snapshot_id = s.snapshot_id"
    )
    return {key: (snapshot_id, schema_hash) for key, snapshot_id, schema_hash in _rows(database, sql, table_keys)}


def snapshot_ids(database: Database, table_keys: Collection[int]) -> dict[int, list[int]]:
    """Table key → ids of its stored snapshots, without tables that have none."""
    sql = "SELECT table_key, list(snapshot_id) FROM snapshots"
    return dict(_rows(database, sql, table_keys, " GROUP BY table_key"))


def with_statistics(presence: Presence, table_keys: Collection[int]) -> set[int]:
    """The tables that may have stored columns, sketches or files, at any snapshot, which an engine may reuse."""
    families = ("stats.columns", "stats.sketches", *BY_SPAN)
    return {key for family in families for key in presence.of(family, table_keys)}


def contradicted(database: Database, table_keys: Collection[int]) -> dict[int, list[int]]:
    """Ids of the columns whose newest record says that the table's metadata contradicts the data, and WHOLE_TABLE if
    the newest record of the table says so of its rows.

    Returns:
        Table key → column ids, without tables that have none.
    """
    if not table_keys:
        return {}
    tables = ("stats_columns_current", "stats_columns_history", "stats_tables")
    doubts = f"WHERE {among('table_key', table_keys)} AND confidence_level = {CONTRADICTED}"
    any_doubt = " UNION ALL ".join(f"(SELECT table_key FROM {table} {doubts} LIMIT 1)" for table in tables)
    newest = f"HAVING arg_max(coalesce(confidence_level, 1), generation) = {CONTRADICTED}"
    of_tables = f"WHERE {among('table_key', table_keys)} GROUP BY ALL {newest}"
    with database.reading() as cursor:
        if not execute(cursor, any_doubt, moved=keys_table(table_keys)):  # as usual, and for a third of the time
            return {}
        return dict(
            execute(
                cursor,
                "SELECT table_key, list(column_id ORDER BY column_id) FROM"
                f" (SELECT table_key, column_id FROM stats_columns {of_tables}"
                f" UNION ALL SELECT table_key, {WHOLE_TABLE} FROM stats_tables {of_tables}) GROUP BY table_key",
                moved=keys_table(table_keys),
            )
        )


def snapshot_columns(database: Database, pinned: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[list[Any]]]:
    """The columns of snapshots.

    Args:
        pinned: (table key, snapshot id) pairs.

    Returns:
        (table key, snapshot id) → columns, without snapshots whose schema is not stored. A column is
        [name, logical type, nullable, field id, path?]; some connectors give no path.
    """
    if not pinned:
        return {}
    keys, ids = ({*each} for each in zip(*pinned, strict=True))
    with database.reading() as cursor:
        rows = execute(
            cursor,
            "SELECT s.table_key, s.snapshot_id, c.columns FROM snapshots s JOIN schemas c"
            " ON c.table_key = s.table_key AND c.schema_hash = s.schema_hash"
            f" WHERE {among('s.table_key', keys)} AND {among('s.snapshot_id', ids, 'ids')}",
            moved=keys_table(keys),
            ids=keys_table(ids),
        )
    columns = {(key, snapshot_id): text for key, snapshot_id, text in rows}
    return {place: json.loads(columns[place]) for place in pinned if place in columns}


def _rows(database: Database, select: str, keys: Collection[int], more: str = "") -> list[tuple[Any, ...]]:
    """The rows of some tables; `more` follows the condition on their keys."""
    if not keys:
        return []
    with database.reading() as cursor:
        return execute(cursor, f"{select} WHERE {among('table_key', keys)}{more}", moved=keys_table(keys))
