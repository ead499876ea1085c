"""Rows that answer for the current snapshot of their table, kept apart from history.

For each target, the best record that is not of a newer snapshot answers: the one captured at the current snapshot
(EXACT), else the newest earlier one with its schema (INHERITED), else the newest earlier one (STALE, for readers who
allow that). It lies in the flight's `…_current` table with this label. A put keeps that up by itself for what it puts
at the current snapshot; whatever else changes who answers (another current snapshot, an order of snapshots that the
lake tells, a record that is deleted) names its tables to `CurrentRows`, which settles them before the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

import pyarrow as pa
import pyarrow.compute as pc

from store.freshness import EXACT, STALE, freshness_sql, rank_sql, usable_for_sql
from store.layout import PARTED, Connection, parts, row_columns, stored_columns
from store.puts import IDENTITY
from store.views import view

_ASKED = (  # the current snapshot of each table
    "(SELECT x.table_key, n.snapshot_id, n.ordinal, n.schema_hash FROM tables x JOIN snapshots n"
    " ON n.table_key = x.table_key AND n.snapshot_id = x.current_snapshot_id"
    " WHERE x.table_key IN (SELECT key FROM moved))"
)
_HASH = "coalesce({row}.schema_hash, n.schema_hash)"


class CurrentRows:
    """The tables of a transaction whose current rows have to be settled before it commits. The writer's thread only."""

    def __init__(self) -> None:
        self._moved: set[int] = set()
        self._aged: dict[int, int] = {}
        self._listed: set[int] = set()

    def moved(self, table_keys: Collection[int]) -> None:
        """Any row of these tables may answer now."""
        self._moved.update(table_keys)

    def aged(self, current: Mapping[int, int]) -> None:
        """These tables (key → id) have a newer current snapshot of the same schema, and no rows between that and the
        one before: the same rows answer, those that were EXACT with another label."""
        self._aged.update(current)

    def listed(self, table_keys: Collection[int]) -> None:
        """These tables have other listings of files."""
        self._listed.update(table_keys)

    def forget(self, _: Connection | None = None) -> None:
        """After a rollback."""
        self._moved, self._aged, self._listed = set(), {}, set()

    def settle(self, connection: Connection, _: AbstractSet[int] | None = None) -> None:
        """Before the commit."""
        moved, listed = self._moved, self._moved | self._listed
        aged = {key: snapshot_id for key, snapshot_id in self._aged.items() if key not in moved}
        self.forget()
        if moved:
            refresh(connection, sorted(moved))
        if aged:
            listed |= relabel(connection, aged)
        if listed:
            refresh_listings(connection, sorted(listed))


def refresh(connection: Connection, table_keys: Sequence[int]) -> None:
    """Chooses anew among all rows of these tables."""
    with view(connection, moved=pa.table({"key": pa.array(table_keys, pa.int64())})):
        for flight in PARTED:
            _choose(connection, flight, table_keys)


def _choose(connection: Connection, flight: str, table_keys: Sequence[int]) -> None:
    current, history = parts(flight)
    among = _among("table_key", table_keys)
    hash_ = _HASH.format(row="r") if "schema_hash" in stored_columns(flight) else "n.schema_hash"
    label = freshness_sql("r", hash_, "n.ordinal", "a")
    identity = [f'"{column}"' for column in IDENTITY[flight]]
    keys = ", ".join(["table_key", "snapshot_id", "schema_hash", *identity])
    by = ", ".join(["r.table_key", *(f"r.{column}" for column in identity)])
    found = connection.sql(
        f"SELECT r.part, r.rid, r.label AS was, {label} AS label, row_number() OVER (PARTITION BY {by} ORDER BY"
        f" ({label}) IS NULL, {rank_sql('r', hash_, 'n.ordinal', 'a')}, r.snapshot_id DESC) = 1 AS best FROM ("
        f"SELECT 0 AS part, rowid AS rid, freshness AS label, {keys} FROM {current} WHERE {among} UNION ALL"
        f" SELECT 1, rowid, NULL, {keys} FROM {history} WHERE {among}) r"
        f" JOIN snapshots n ON n.table_key = r.table_key AND n.snapshot_id = r.snapshot_id"
        f" LEFT JOIN {_ASKED} a ON a.table_key = r.table_key"
    ).to_arrow_table()
    with view(connection, found=found):
        wanted = "SELECT part, rid, was, CASE WHEN best THEN label END AS label FROM found"
        changes = connection.sql(
            f"SELECT part, rid, label FROM ({wanted}) WHERE CASE part WHEN 0 THEN was IS DISTINCT FROM label"
            " ELSE label IS NOT NULL END"
        ).to_arrow_table()
    if not changes.num_rows:
        return
    columns = ", ".join(row_columns(flight))
    with view(connection, changes=changes):
        gone = "(SELECT rid FROM changes WHERE part = 0 AND label IS NULL)"
        chosen = "(SELECT rid, label FROM changes WHERE part = 1)"
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE chosen AS SELECT {columns}, c.label AS freshness,"
            f" {usable_for_sql('c.label', 'h', stored_columns(flight))} AS usable_for"
            f" FROM (SELECT rowid AS rid, * FROM {history} WHERE {among}) h JOIN {chosen} c USING (rid)"
        )
        connection.execute(
            f"INSERT INTO {history} ({columns}) SELECT {columns} FROM {current} WHERE {among} AND rowid IN {gone}"
        )
        connection.execute(f"DELETE FROM {current} WHERE {among} AND rowid IN {gone}")
        connection.execute(f"DELETE FROM {history} WHERE {among} AND rowid IN (SELECT rid FROM {chosen})")
        _label(connection, flight, among, "(SELECT rid, label FROM changes WHERE part = 0 AND label IS NOT NULL)")
        connection.execute(
            f"INSERT INTO {current} ({columns}, freshness, usable_for)"
            f" SELECT {columns}, freshness, usable_for FROM chosen"
        )
        connection.execute("DROP TABLE chosen")


def relabel(connection: Connection, current: Mapping[int, int]) -> set[int]:
    """Renews the labels of rows that answer and are no longer of the current snapshot (table key → id).

    Returns:
        The tables of which a listing of files has to be labelled too.
    """
    keys = list(current)
    among = _among("r.table_key", keys)
    pairs = {"key": pa.array(keys, pa.int64()), "snapshot_id": pa.array(current.values(), pa.int64())}
    again: set[int] = set()
    with view(connection, moved=pa.table(pairs)):
        old = f"JOIN moved m ON m.key = r.table_key WHERE {among} AND r.freshness = '{EXACT}'"
        old += " AND r.snapshot_id <> m.snapshot_id"
        if len(current) == 1:  # the usual put
            old = f"WHERE {among} AND r.freshness = '{EXACT}' AND r.snapshot_id <> {current[keys[0]]}"
        tables = [parts(flight)[0] for flight in PARTED]
        selects = (f"SELECT {n} AS place, r.table_key FROM {table} r {old}" for n, table in enumerate(
            [*tables, "file_snapshots"]))  # fmt: skip
        found = connection.execute(f"SELECT DISTINCT place, table_key FROM ({' UNION ALL '.join(selects)})").fetchall()
        for place in sorted({place for place, _ in found if place < len(PARTED)}):
            flight = PARTED[place]
            hash_ = _HASH.format(row="r") if "schema_hash" in stored_columns(flight) else "n.schema_hash"
            changes = connection.sql(
                f"SELECT r.rowid AS rid, r.table_key, a.schema_hash IS NOT NULL AS hashed,"
                f" {freshness_sql('r', hash_, 'n.ordinal', 'a')} AS label"
                f" FROM {tables[place]} r JOIN snapshots n ON n.table_key = r.table_key"
                f" AND n.snapshot_id = r.snapshot_id JOIN {_ASKED} a ON a.table_key = r.table_key"
                f" WHERE {among} AND r.freshness = '{EXACT}' AND r.snapshot_id <> a.snapshot_id"
            ).to_arrow_table()
            with view(connection, changes=changes):
                _label(connection, flight, _among("table_key", keys), "changes")
            # a row of another schema than its snapshot's: an older one of the current schema may answer instead
            stale = changes.filter(pc.and_(changes["hashed"], pc.equal(changes["label"], STALE)))
            again |= set(stale["table_key"].to_pylist())
    if again:
        refresh(connection, sorted(again))
    return {key for place, key in found if place == len(PARTED)}


def _label(connection: Connection, flight: str, among: str, changes: str) -> None:
    current = parts(flight)[0]
    use = usable_for_sql("c.label", current, stored_columns(flight))
    connection.execute(
        f"UPDATE {current} SET freshness = c.label, usable_for = {use} FROM {changes} c"
        f" WHERE {current}.rowid = c.rid AND {_qualified(among, current)}"
    )


def _qualified(among: str, table: str) -> str:
    return among.replace("table_key", f"{table}.table_key")


def refresh_listings(connection: Connection, table_keys: Sequence[int]) -> None:
    """Chooses anew which listing of files answers for the current snapshot, of each table and family of rows."""
    label = freshness_sql("f", "n.schema_hash", "n.ordinal", "a")
    with view(connection, moved=pa.table({"key": pa.array(table_keys, pa.int64())})):
        found = connection.sql(
            "SELECT rid, label FROM (SELECT rid, was, CASE WHEN best THEN label END AS label FROM ("
            f"SELECT f.rowid AS rid, f.freshness AS was, {label} AS label, row_number() OVER ("
            f"PARTITION BY f.table_key, f.family ORDER BY ({label}) IS NULL,"
            f" {rank_sql('f', 'n.schema_hash', 'n.ordinal', 'a')}, f.snapshot_id DESC) = 1 AS best"
            f" FROM file_snapshots f JOIN snapshots n ON n.table_key = f.table_key AND n.snapshot_id = f.snapshot_id"
            f" LEFT JOIN {_ASKED} a ON a.table_key = f.table_key WHERE {_among('f.table_key', table_keys)}))"
            " WHERE label IS DISTINCT FROM was"
        ).to_arrow_table()
    if found.num_rows:
        with view(connection, found=found):
            connection.execute(
                "UPDATE file_snapshots SET freshness = c.label FROM found c WHERE file_snapshots.rowid = c.rid"
            )


def _among(column: str, table_keys: Sequence[int]) -> str:
    """SQL of whether a row is of one of the tables named in the view `moved`; DuckDB skips row groups by the range."""
    if len(table_keys) <= 16:
        return f"{column} IN ({', '.join(str(int(key)) for key in table_keys)})"
    low, high = int(min(table_keys)), int(max(table_keys))
    return f"{column} BETWEEN {low} AND {high} AND {column} IN (SELECT key FROM moved)"
