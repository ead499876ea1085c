"""SQL over stored records: rows of one snapshot, and rows of files, which are valid for spans of file listings.

A file's row belongs to the listings at positions from_pos <= pos < to_pos of its table and family. A snapshot whose
files were put has one listing in `file_snapshots`; positions follow the order of the puts. Invariants: a row belongs to
at least one listing, and `to_pos` is OPEN_END exactly if it belongs to the newest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.arrow_sql import among, execute, keys_table, query, quoted, rowid_in
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, OPEN_END, Connection, parts, stored_columns
from store.duckdb.segments import Segments
from store.model.catalog_entries import TableEntry
from store.model.puts import IDENTITY
from store.model.targets import Target, TargetKind

# Flight → SQL of the storage id of a row's target, by the rules of `store.model.targets`; {0} is the row's alias.
STORAGE_ID = {
    "stats.tables": "'table'",
    "stats.columns": "'column-' || lpad({0}.column_id::VARCHAR, 19, '0')",
    "stats.files": "'file-' || sha256('F' || chr(31) || {0}.file_path)",
    "stats.file_columns": "'file-' || sha256('F' || chr(31) || {0}.file_path)",
    "stats.expressions": "'expression-' || {0}.engine_kind || '-' || sha256(encode('E' || chr(31) || {0}.engine_kind ||"
    " chr(31)) || {0}.engine_expression_key)",
    "stats.column_groups": "'composite-' || sha256('X' || chr(31) || array_to_string({0}.column_ids, chr(31)))",
    "stats.sketches": "{0}.storage_id",
    "file_sketches": "{0}.storage_id",
}


def rows_of(flight: str, table: TableEntry, snapshot_id: int) -> tuple[str, list[Any]]:
    """SQL that selects a table's stored rows at one snapshot.

    Args:
        flight: A stored flight, or `file_sketches`.

    Returns:
        FROM (without the word) and WHERE, to which `AND …` may be appended, with the rows as `t`; and the parameters.
    """
    if flight in BY_SNAPSHOT:
        return f"{BY_SNAPSHOT[flight]} t WHERE t.table_key = ? AND t.snapshot_id = ?", [table.table_key, snapshot_id]
    return (
        f"{BY_SPAN[flight]} t JOIN file_snapshots f ON f.table_key = t.table_key AND f.pos >= t.from_pos"
        " AND f.pos < t.to_pos WHERE t.table_key = ? AND f.table_key = ? AND f.family = ? AND f.snapshot_id = ?",
        [table.table_key, table.table_key, flight, snapshot_id],
    )


def listed_rows(family: str, table_key: int, pos: int, condition: str = "TRUE") -> str:
    """FROM and WHERE clauses of the rows `s` of the listing of a table at a position, -1 for none.

    Args:
        family: A flight of `BY_SPAN`.
    """
    return (
        f"FROM {BY_SPAN[family]} s WHERE s.table_key = {int(table_key)} AND s.from_pos <= {int(pos)}"
        f" AND s.to_pos > {int(pos)} AND {condition}"
    )


def where_target(flight: str, target: Target) -> tuple[str, list[Any]]:
    """SQL that selects the rows about a target.

    Args:
        flight: A stored flight, or `file_sketches`.

    Returns:
        A condition on rows `t` that begins with AND, or is empty; and the parameters.
    """
    if flight.endswith("sketches"):
        return " AND t.storage_id = ?", [target.storage_id]
    match target.kind:
        case TargetKind.COLUMN:
            return " AND t.column_id = ?", [target.column_id]
        case TargetKind.FILE:
            return " AND t.file_path = ?", [target.file_path]
        case TargetKind.EXPRESSION:
            return " AND t.engine_kind = ? AND t.engine_expression_key = ?", [
                target.engine_kind,
                target.engine_expression_key,
            ]
        case TargetKind.COLUMN_GROUP:
            return " AND t.column_ids = ?::BIGINT[]", [list(target.column_ids)]
        case _:
            return "", []


def positions(connection: Connection, table_key: int, family: str) -> dict[int, int]:
    """Snapshot id → position of its listing, of a flight of `BY_SPAN`."""
    rows = connection.execute(
        "SELECT snapshot_id, pos FROM file_snapshots WHERE table_key = ? AND family = ?", [table_key, family]
    )
    return dict(rows.fetchall())


def remove_at(connection: Connection, family: str, doomed: pa.ChunkedArray, scope: str, listings: pa.Table) -> None:
    """Removes rows from one listing of their table: their spans are shortened, or split around it. What is left of a
    span without a listing, as between deleted ones, is removed.

    Args:
        family: A flight of `BY_SPAN`.
        doomed: Row ids (int64).
        scope: A condition on `table_key` that is true for all the rows, by which DuckDB skips row groups.
        listings: For each table, `table_key` and the position of the listing (`pos`).
    """
    if not len(doomed):
        return
    physical = BY_SPAN[family]
    columns = ", ".join(f'"{name}"' for name in ("table_key", *stored_columns(family), "generation", "created_at"))
    around = query(
        connection,
        "SELECT w.table_key, w.pos, coalesce(max(f.pos) FILTER (f.pos < w.pos), -1) AS before,"
        f" min(f.pos) FILTER (f.pos > w.pos) AS after FROM {{listings}} w JOIN file_snapshots f"
        f" ON f.table_key = w.table_key AND f.family = '{family}' AND f.{scope} GROUP BY ALL",
        listings=listings,
    )
    tables = {"around": around, "doomed": pa.table({"rid": doomed})}
    among = f"{physical}.{scope} AND {rowid_in(doomed, physical)}"
    own = ", ".join(f"t.{name}" for name in columns.split(", "))
    if around["after"].null_count < around.num_rows:  # the rest of a span behind the listing
        execute(
            connection,
            f"INSERT INTO {physical} (from_pos, to_pos, {columns}) SELECT w.after, t.to_pos, {own}"
            f" FROM (SELECT * FROM {physical} WHERE {among}) t JOIN {{around}} w ON w.table_key = t.table_key"
            " WHERE t.to_pos > w.after",
            **tables,
        )
    of_listing = f"{{around}} w WHERE w.table_key = {physical}.table_key AND {among} AND {physical}.from_pos"
    execute(connection, f"DELETE FROM {physical} USING {of_listing} > w.before", **tables)
    if pc.any(pc.greater_equal(around["before"], 0)).as_py():  # the rest of a span before the listing
        execute(connection, f"UPDATE {physical} SET to_pos = w.pos FROM {of_listing} <= w.before", **tables)


def delete_by_snapshot(
    connection: Connection, flight: str, table: TableEntry, snapshot_id: int | None, target: Target | None
) -> int:
    """Deletes rows of a flight of `BY_SNAPSHOT`; returns how many.

    Args:
        snapshot_id: Only rows of this snapshot; None for all.
        target: Only rows about this target; None for all.
    """
    condition, parameters = where_target(flight, target) if target else ("", [])
    where, values = "t.table_key = ?", [table.table_key]
    if snapshot_id is not None:
        where, values = where + " AND t.snapshot_id = ?", [*values, snapshot_id]
    deleted = 0
    for physical in parts(flight):
        count = connection.execute(f"DELETE FROM {physical} t WHERE {where}{condition}", [*values, *parameters])
        deleted += int(count.fetchall()[0][0])
    return deleted


def delete_by_span(
    connection: Connection,
    segments: Segments,
    family: str,
    table: TableEntry,
    snapshot_id: int | None,
    target: Target | None,
) -> int:
    """Deletes rows of a flight of `BY_SPAN`.

    Args:
        snapshot_id: Only rows of this snapshot's listing; None for all.
        target: Only rows about this target; None for all.

    Returns:
        The number of rows removed from listings; a row of two listings counts twice.
    """
    physical, key = BY_SPAN[family], table.table_key
    end_staged(connection, segments, family, [key])
    listings = positions(connection, key, family)
    doomed_listings = {s: pos for s, pos in listings.items() if snapshot_id in (None, s)}
    deleted = 0
    condition, parameters = where_target(family, target) if target else ("", [])
    rows = physical
    if target is None:
        rows = segments.sql(connection, family, [key])
    elif doomed_listings:
        (file,) = parameters
        segments.lift(connection, family, [key], f"t.{IDENTITY[family][0]} = {quoted(file)}")
    for pos in doomed_listings.values():
        in_listing = f"t.table_key = {key} AND from_pos <= {pos} AND to_pos > {pos}{condition}"
        if target is None:
            deleted += connection.execute(f"SELECT count(*) FROM {rows} t WHERE {in_listing}").fetchall()[0][0]
            continue
        rowids = query(connection, f"SELECT rowid AS rid FROM {physical} t WHERE {in_listing}", parameters)["rid"]
        deleted += len(rowids)
        position = pa.table({"table_key": [key], "pos": [pos]})
        remove_at(connection, family, rowids, f"table_key = {key}", position)
    if target is None and doomed_listings:
        places = {"table_key": [key] * len(doomed_listings), "snapshot_id": list(doomed_listings)}
        delete_listings(connection, segments, family, pa.table(places))
    return deleted


def end_staged(connection: Connection, segments: Segments, family: str, table_keys: Sequence[int]) -> None:
    """Removes what is staged of a flight of `BY_SPAN` for tables, before another write changes their listings."""
    staged = execute(
        connection,
        f"SELECT table_key FROM staged_listings WHERE family = '{family}' AND {among('table_key', table_keys)}",
        moved=keys_table(table_keys),
    )
    if keys := [key for (key,) in staged]:
        tidy(connection, segments, family, keys)
        execute(
            connection,
            f"DELETE FROM staged_listings WHERE family = '{family}' AND {among('table_key', keys)}",
            moved=keys_table(keys),
        )


def delete_listings(connection: Connection, segments: Segments, family: str, places: pa.Table) -> None:
    """Deletes the listings of snapshots, and the rows that no other one has.

    Args:
        family: A flight of `BY_SPAN`.
        places: Distinct table_key and snapshot_id.
    """
    listed = execute(
        connection,
        f"DELETE FROM file_snapshots USING {{places}} d WHERE file_snapshots.family = '{family}'"
        " AND file_snapshots.table_key = d.table_key AND file_snapshots.snapshot_id = d.snapshot_id"
        " RETURNING file_snapshots.table_key",
        places=places,
    )
    if keys := sorted({key for (key,) in listed}):
        end_staged(connection, segments, family, keys)
        tidy(connection, segments, family, keys)


def tidy(
    connection: Connection, segments: Segments, family: str, table_keys: Sequence[int], most: int | None = None
) -> int:
    """Restores the invariants of tables after listings were deleted or staged: deletes rows of no listing, reopens rows
    of the newest.

    Args:
        family: A flight of `BY_SPAN`.
        most: Number of rows to change at most; None for all.

    Returns:
        The number of rows changed.
    """
    physical, of_these = BY_SPAN[family], among("table_key", table_keys)
    moved = keys_table(table_keys)
    rows = f"(SELECT rowid AS rid, table_key, from_pos, to_pos FROM {physical} WHERE {of_these}) s"
    left = f"SELECT table_key, pos FROM file_snapshots WHERE family = '{family}' AND {of_these}"
    steps = {
        f"DELETE FROM {physical}": f"{rows} ANTI JOIN ({left}) f ON f.table_key = s.table_key"
        " AND f.pos >= s.from_pos AND f.pos < s.to_pos",
        f"UPDATE {physical} SET to_pos = {OPEN_END}": f"{rows} JOIN (SELECT table_key, max(pos) AS pos FROM ({left})"
        f" GROUP BY 1) f ON f.table_key = s.table_key WHERE s.to_pos > f.pos AND s.to_pos < {OPEN_END}",
    }
    changed = 0
    for statement, found in steps.items():
        if most is not None and changed >= most:
            break
        limit = "" if most is None else f" LIMIT {most - changed}"
        sql = f"{statement} WHERE {of_these} AND rowid IN (SELECT s.rid FROM {found}{limit})"
        changed += execute(connection, sql, moved=moved)[0][0]
    if most is None or changed < most:
        changed += segments.tidy(connection, family, table_keys)
    return changed
