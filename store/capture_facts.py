"""Facts about stored tables that a worker needs to capture them, read for many tables at once."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from store.database import Database
from store.layout import parts
from store.names import dotted_name


def column_ids(database: Database, table_keys: Collection[int]) -> dict[int, dict[str, int]]:
    """Column key (`store.names.column_key`) → id, for every column that each table ever had.

    A dotted name that belongs to one column only is a key too.

    Args:
        database: The database.
        table_keys: Keys of the tables.

    Returns:
        Table key → column → id.
    """
    rows = database.rows(
        "SELECT table_key, column_name, column_id FROM column_ids WHERE table_key IN (SELECT unnest(?::BIGINT[]))",
        list(table_keys),
    )
    ids: dict[int, dict[str, int]] = {key: {} for key in table_keys}
    dotted: dict[int, dict[str, int]] = {key: {} for key in table_keys}
    for table_key, name, column_id in rows:
        ids[table_key][name] = column_id
        if '"' in name:
            dotted[table_key][dotted_name(name)] = column_id
    return {key: dotted[key] | ids[key] for key in table_keys}


def with_statistics(database: Database, table_keys: Collection[int]) -> set[int]:
    """The tables with stored columns, sketches or files, at any snapshot, which an engine may reuse.

    Args:
        database: The database.
        table_keys: Keys of the tables to check.

    Returns:
        Keys of the tables that have any.
    """
    if not table_keys:
        return set()
    physical = [*parts("stats.columns"), *parts("stats.sketches"), "file_snapshots"]
    scope = f"BETWEEN {min(table_keys)} AND {max(table_keys)}"  # by which DuckDB skips row groups
    union = " UNION ".join(f"SELECT table_key FROM {name} WHERE table_key {scope}" for name in physical)
    return {key for (key,) in database.rows(union)} & set(table_keys)


def snapshot_columns(
    database: Database, pinned: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], list[list[Any]]]:  # fmt: skip
    """The columns of snapshots.

    Args:
        database: The database.
        pinned: (table key, snapshot id) pairs.

    Returns:
        (table key, snapshot id) → columns, without snapshots whose schema is not stored. A column is
        [name, logical type, nullable, field id, path?]; some connectors give no path.
    """
    rows = database.rows(
        "SELECT s.table_key, s.snapshot_id, c.columns"
        " FROM (SELECT unnest(?::BIGINT[]) AS table_key, unnest(?::BIGINT[]) AS snapshot_id) w"
        " JOIN snapshots s USING (table_key, snapshot_id)"
        " JOIN schemas c ON c.table_key = s.table_key AND c.schema_hash = s.schema_hash",
        [key for key, _ in pinned], [snapshot_id for _, snapshot_id in pinned],
    )  # fmt: skip
    return {(key, snapshot_id): json.loads(columns) for key, snapshot_id, columns in rows}
