"""Current rows: for each target, the one row that applies to the table's current snapshot, stored apart from history.

That row is the one captured at the current snapshot (EXACT), else the newest earlier one with the same schema
(INHERITED), else the newest earlier one (STALE, for readers that allow it). The flight's `…_current` table has it, with
this label. A record of a flight of `GROUPED` has two groups of statistics, counts and distribution, each served from
the best record that has it: the current row is the record with the counts, with the distribution that is served, its
snapshot and label. STALE distributions are not kept here; readers that allow them rank the records.

A put at the current snapshot updates the table itself; any other change that may select other rows (another current
snapshot, a new order of snapshots, a deleted record, a put without one of the groups) registers its tables with
`CurrentRows`, which updates them before the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

import pyarrow as pa

from store.duckdb.arrow_sql import among, execute, query
from store.duckdb.layout import (
    BY_SNAPSHOT,
    BY_SPAN,
    GROUPED,
    PARTED,
    Connection,
    own,
    own_sql,
    parts,
    records,
    row_columns,
    stored_columns,
)
from store.history.presence import Presence
from store.model.freshness import (
    EXACT,
    INHERITED,
    PLANNING,
    STALE,
    distribution_freshness_sql,
    freshness_sql,
    group_rank_sql,
    has_sql,
    oldest_sql,
    rank_sql,
    usable_for_sql,
)
from store.model.puts import IDENTITY
from store.model.schemas import COUNTS, DISTRIBUTION, DISTRIBUTION_LABELS

_REQUESTED = (  # the current snapshot of each table
    "(SELECT x.table_key, n.snapshot_id, n.ordinal, n.schema_hash FROM tables x JOIN snapshots n"
    " ON n.table_key = x.table_key AND n.snapshot_id = x.current_snapshot_id"
    " WHERE x.table_key IN (SELECT key FROM {moved}))"
)
_HASH = "coalesce({row}.schema_hash, n.schema_hash)"
_HELD = (*DISTRIBUTION_LABELS, *DISTRIBUTION, *map(own, DISTRIBUTION))  # columns of a distribution that is served


class CurrentRows:
    """The tables of a transaction whose current rows must be updated before it commits. For the writer's thread."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._unranked: set[int] = set()
        self._unlabelled: dict[int, tuple[int, str | None]] = {}
        self._unlisted: set[int] = set()
        self._replaced: dict[int, int] = {}

    def replace_table_rows(self, snapshots: Mapping[int, int]) -> None:
        """Registers tables (key → snapshot id) whose current row of `stats.tables` is a new one of this snapshot: while
        the snapshot is the current one, the row needs no other label."""
        self._replaced.update(snapshots)

    def invalidate(self, table_keys: Collection[int]) -> None:
        """Registers tables whose rows must be re-ranked."""
        self._unranked.update(table_keys)

    def invalidate_labels(self, current: Mapping[int, tuple[int, str | None]]) -> None:
        """Registers tables (key → current snapshot id, schema hash) with a newer current snapshot of the same schema
        and no rows of snapshots in between: the same rows stay current, but the EXACT ones get another label."""
        self._unlabelled.update(current)

    def invalidate_listings(self, table_keys: Collection[int]) -> None:
        """Registers tables whose file listings changed."""
        self._unlisted.update(table_keys)

    def clear(self, _: Connection | None = None) -> None:
        """Clears the registered tables; called after a rollback."""
        self._unranked, self._unlabelled, self._unlisted, self._replaced = set(), {}, set(), {}

    def update(self, connection: Connection, _: AbstractSet[int] | None = None) -> None:
        """Updates the current rows of the registered tables; called before the commit."""
        unranked, unlisted = self._unranked, self._unranked | self._unlisted
        unlabelled = {key: snapshot for key, snapshot in self._unlabelled.items() if key not in unranked}
        replaced = {
            key for key, snapshot_id in self._replaced.items() if unlabelled.get(key, (None,))[0] == snapshot_id
        }
        self.clear()
        if unranked:
            refresh(connection, sorted(unranked))
        if unlabelled:
            self._relabel(connection, unlabelled, replaced)
        if unlisted:
            refresh_listings(connection, sorted(unlisted))

    def _relabel(
        self, connection: Connection, unlabelled: Mapping[int, tuple[int, str | None]], replaced: AbstractSet[int]
    ) -> None:
        """Updates the labels of tables (key → current snapshot id, schema hash) with a newer current snapshot; those of
        `stats.tables` not for tables in `replaced`."""
        other: set[int] = set()
        for flight in (*PARTED, *BY_SPAN):
            keys = self._presence.among(flight, unlabelled)
            if flight == "stats.tables":
                keys = [key for key in keys if key not in replaced]
            if keys:
                other |= _relabel(connection, flight, {key: unlabelled[key] for key in keys})
        if other:
            refresh(connection, sorted(other))


def refresh(connection: Connection, table_keys: Sequence[int]) -> None:
    """Re-ranks all rows of these tables."""
    moved = pa.table({"key": pa.array(table_keys, pa.int64())})
    for flight in _flights_to_rank(connection, table_keys, moved):
        _rank(connection, flight, table_keys, moved)
        if flight in GROUPED:
            _rank_distributions(connection, flight, table_keys, moved)


def _flights_to_rank(connection: Connection, table_keys: Sequence[int], moved: pa.Table) -> list[str]:
    """The flights of `PARTED` in which these tables have rows in history, or current rows that are not EXACT; in other
    flights every row stays current."""
    scope = among("r.table_key", table_keys)
    each = []
    for flight in PARTED:
        current, history = parts(flight)
        each.append(
            f"(SELECT '{flight}' FROM {current} r JOIN tables x USING (table_key) WHERE {scope} AND"
            f" (r.freshness <> '{EXACT}' OR r.snapshot_id IS DISTINCT FROM x.current_snapshot_id"
            f"{' OR r.distribution_snapshot_id <> r.snapshot_id' if flight in GROUPED else ''}) LIMIT 1)"
        )
        each.append(f"(SELECT '{flight}' FROM {history} r WHERE {scope} LIMIT 1)")
    some = {flight for (flight,) in execute(connection, " UNION ALL ".join(each), moved=moved)}
    return [flight for flight in PARTED if flight in some]


def rank_changes(connection: Connection, flight: str, table_keys: Sequence[int], moved: pa.Table) -> pa.Table:
    """Compares the current rows of tables with those that should be current.

    Args:
        connection: Any connection.
        flight: A flight of `PARTED`.
        table_keys: Keys of the tables, at least one.
        moved: The same keys, in a column `key`.

    Returns:
        A row for each row that changes: its table_key, `part` (0 if it is current now, 1 if in history), row id `rid`,
        and `label`, its freshness as a current row; null if it should be in history.
    """
    current, history = parts(flight)
    scope = among("table_key", table_keys)
    hash_ = _HASH.format(row="r") if "schema_hash" in stored_columns(flight) else "n.schema_hash"
    label = freshness_sql("r", hash_, "n.ordinal", "a")
    identity = [f'"{column}"' for column in IDENTITY[flight]]
    counted, counted_then = (has_sql(table, COUNTS) if flight in GROUPED else "true" for table in (current, history))
    keys = ", ".join(["table_key", "snapshot_id", "schema_hash", *identity])
    by = ", ".join(["r.table_key", *(f"r.{column}" for column in identity)])
    return query(
        connection, "SELECT table_key, part, rid, label FROM (SELECT table_key, part, rid, was,"
        " CASE WHEN best THEN label END AS label FROM ("
        f"SELECT r.table_key, r.part, r.rid, r.label AS was, {label} AS label, row_number() OVER ("
        f"PARTITION BY {by} ORDER BY"
        f" {group_rank_sql(label, 'r.counted', rank_sql('r', hash_, 'n.ordinal', 'a'))}, r.snapshot_id DESC) = 1"
        f" AS best FROM (SELECT 0 AS part, rowid AS rid, freshness AS label, {counted} AS counted,"
        f" {keys} FROM {current} WHERE {scope} UNION ALL"
        f" SELECT 1, rowid, NULL, {counted_then}, {keys} FROM {history} WHERE {scope}) r"
        f" JOIN snapshots n ON n.table_key = r.table_key AND n.snapshot_id = r.snapshot_id"
        f" LEFT JOIN {_REQUESTED} a ON a.table_key = r.table_key))"
        " WHERE CASE part WHEN 0 THEN was IS DISTINCT FROM label ELSE label IS NOT NULL END", moved=moved,
    )  # fmt: skip


def _rank(connection: Connection, flight: str, table_keys: Sequence[int], moved: pa.Table) -> None:
    """Makes the best row of each target the current one: moves rows from and to history, and updates labels."""
    current, history = parts(flight)
    scope = among("table_key", table_keys)
    changes = rank_changes(connection, flight, table_keys, moved)
    if not changes.num_rows:
        return
    columns = ", ".join(row_columns(flight))
    given = {"moved": moved, "changes": changes}
    gone = "(SELECT rid FROM {changes} WHERE part = 0 AND label IS NULL)"
    chosen = "(SELECT rid, label FROM {changes} WHERE part = 1)"
    execute(
        connection, f"CREATE OR REPLACE TEMP TABLE chosen AS SELECT {columns}, c.label AS freshness,"
        f" {usable_for_sql('c.label', 'h', stored_columns(flight))} AS usable_for"
        f" FROM (SELECT rowid AS rid, * FROM {history} WHERE {scope}) h JOIN {chosen} c USING (rid)", **given,
    )  # fmt: skip
    execute(
        connection, f"INSERT INTO {history} ({columns}) SELECT {records(flight, current)} FROM {current} WHERE {scope}"
        f" AND rowid IN {gone}", **given,
    )  # fmt: skip
    execute(connection, f"DELETE FROM {current} WHERE {scope} AND rowid IN {gone}", **given)
    execute(connection, f"DELETE FROM {history} WHERE {scope} AND rowid IN (SELECT rid FROM {chosen})", **given)
    _label(connection, flight, scope, "(SELECT rid, label FROM {changes} WHERE part = 0 AND label IS NOT NULL)", given)
    execute(
        connection, f"INSERT INTO {current} BY NAME SELECT *"
        f"{', snapshot_id AS distribution_snapshot_id' if flight in GROUPED else ''} FROM chosen",
    )  # fmt: skip
    execute(connection, "DROP TABLE chosen")


def distribution_changes(
    connection: Connection, flight: str, table_keys: Sequence[int], moved: pa.Table
) -> pa.Table:  # fmt: skip
    """Compares the distributions of current rows with those that should be served: the best of their target that is
    not STALE. One of an earlier snapshot has no more distinct values than there are values in the row.

    Args:
        connection: Any connection.
        flight: A flight of `GROUPED`.
        table_keys: Keys of the tables, at least one.
        moved: The same keys, in a column `key`.

    Returns:
        A row for each current row that changes: its table_key, row id `rid`, and the values of `_HELD`.
    """
    current, stored = parts(flight)[0], BY_SNAPSHOT[flight]
    hash_ = _HASH.format(row="r")
    label = distribution_freshness_sql(freshness_sql("r", hash_, "n.ordinal", "a"), "n.ordinal", "b.oldest")
    identity = ["table_key", *(f'"{column}"' for column in IDENTITY[flight])]
    by, same = ", ".join(f"r.{name}" for name in identity), " AND ".join(f"d.{name} = c.{name}" for name in identity)
    best = group_rank_sql(label, "r.ndv IS NOT NULL", rank_sql("r", hash_, "n.ordinal", "a"))
    other, most = "d.snapshot_id IS DISTINCT FROM c.snapshot_id", "c.row_count - coalesce(c.null_count, 0)"
    chosen = ["c.table_key", "c.rowid AS rid", "d.snapshot_id AS distribution_snapshot_id"]
    chosen.append("d.label AS distribution_freshness")
    for name in DISTRIBUTION:
        value, own_value = f"d.{name}", own_sql("c", name)
        if name in ("ndv", "ndv_lower", "ndv_upper"):
            value = f"CASE WHEN d.label <> '{EXACT}' AND {value} > {most} THEN {most} ELSE {value} END"
        chosen.append(f"CASE WHEN {other} THEN {value} ELSE {own_value} END AS {name}")
        chosen.append(f"CASE WHEN {other} THEN {own_value} END AS {own(name)}")
    was, now = (", ".join(f"{row}.{name}" for name in _HELD) for row in "cx")
    return query(
        connection, f"SELECT x.* FROM (SELECT {', '.join(chosen)} FROM {current} c LEFT JOIN"
        f" (SELECT r.*, {label} AS label FROM {stored} r"
        " JOIN snapshots n ON n.table_key = r.table_key AND n.snapshot_id = r.snapshot_id"
        f" JOIN {_REQUESTED} a ON a.table_key = r.table_key"
        f" LEFT JOIN {oldest_sql(_REQUESTED)} b ON b.table_key = r.table_key"
        f" WHERE {has_sql('r', DISTRIBUTION)} AND ({label}) <> '{STALE}' AND {among('r.table_key', table_keys)}"
        f" QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {best}, r.snapshot_id DESC) = 1) d ON {same}"
        f" WHERE {among('c.table_key', table_keys)}) x JOIN {current} c ON c.rowid = x.rid"
        f" WHERE ({was}) IS DISTINCT FROM ({now})", moved=moved,
    )  # fmt: skip


def _rank_distributions(connection: Connection, flight: str, table_keys: Sequence[int], moved: pa.Table) -> None:
    """Gives each current row the distribution that should be served, and the snapshot and label of it."""
    current = parts(flight)[0]
    changes = distribution_changes(connection, flight, table_keys, moved)
    if changes.num_rows:
        sets = ", ".join(f"{name} = x.{name}" for name in _HELD)
        scope = _qualified(among("table_key", table_keys), current)
        execute(
            connection, f"UPDATE {current} SET {sets} FROM {{changes}} x WHERE {current}.rowid = x.rid AND {scope}",
            moved=moved, changes=changes,
        )  # fmt: skip


def _relabel(connection: Connection, flight: str, unlabelled: Mapping[int, tuple[int, str | None]]) -> set[int]:
    """Updates the labels of a flight's EXACT rows, or file listings, that are no longer of the current snapshot.

    Args:
        connection: The writer's.
        flight: A flight of `PARTED` or `BY_SPAN`.
        unlabelled: Table key → current snapshot id and its schema hash, which the snapshot before had too.

    Returns:
        The tables with a row whose schema may not be its snapshot's: an older one of the current schema may replace it.
    """
    table, use, kind = "file_snapshots", "", f" AND file_snapshots.family = '{flight}'"
    if flight in PARTED:
        table, use, kind = parts(flight)[0], f", usable_for = '{PLANNING}'", ""
    ids, hashes = zip(*unlabelled.values(), strict=True)
    scope, snapshot_id, hash_ = among(f"{table}.table_key", list(unlabelled)), str(ids[0]), "$hash::VARCHAR"
    values: dict[str, str | None] = {"hash": hashes[0]}
    tables: dict[str, pa.Table] = {}
    join = ""
    if len(unlabelled) > 1:
        values, snapshot_id, hash_, join = {}, "m.id", "m.hash", "{moved} m"
        scope += f" AND m.key = {table}.table_key"
        tables["moved"] = pa.table({
            "key": pa.array(unlabelled, pa.int64()), "id": pa.array(ids, pa.int64()),
            "hash": pa.array(hashes, pa.string()),
        })  # fmt: skip
    label = f"CASE WHEN {hash_} IS NULL THEN '{STALE}' ELSE '{INHERITED}' END"
    other: set[int] = set()
    if flight in GROUPED:
        other = {key for key, (_, known) in unlabelled.items() if known is None}
        exact = f"{table}.distribution_freshness = '{EXACT}' AND {table}.distribution_snapshot_id <> {snapshot_id}"
        apart = execute(  # of another record than the counts
            connection, f"SELECT DISTINCT {table}.table_key FROM {table}{join and f', {join}'} WHERE {scope}"
            f" AND {exact} AND {table}.distribution_snapshot_id <> {table}.snapshot_id", None, **tables,
        )  # fmt: skip
        other |= {key for (key,) in apart}
        execute(
            connection, f"UPDATE {table} SET distribution_freshness = {label}{join and f' FROM {join}'}"
            f" WHERE {scope} AND {exact}", values, **tables,
        )  # fmt: skip
    ((count,),) = execute(
        connection, f"UPDATE {table} SET freshness = {label}{use}{join and f' FROM {join}'} WHERE {scope}"
        f" AND {table}.freshness = '{EXACT}' AND {table}.snapshot_id <> {snapshot_id}{kind}", values, **tables,
    )  # fmt: skip
    if not count or flight not in PARTED or "schema_hash" not in stored_columns(flight):
        return other
    foreign = execute(
        connection, f"SELECT DISTINCT {table}.table_key FROM {table}{join and f', {join}'} WHERE {scope}"
        f" AND {table}.freshness = '{INHERITED}' AND {table}.schema_hash <> {hash_}", values, **tables,
    )  # fmt: skip
    return other | {key for (key,) in foreign}


def _label(
    connection: Connection, flight: str, scope: str, changes: str, given: Mapping[str, pa.Table]
) -> None:  # fmt: skip
    """Sets labels by row id; `changes` is SQL of a relation (rid, label) over the given Arrow tables."""
    current = parts(flight)[0]
    use = usable_for_sql("c.label", current, stored_columns(flight))
    execute(
        connection, f"UPDATE {current} SET freshness = c.label, usable_for = {use} FROM {changes} c"
        f" WHERE {current}.rowid = c.rid AND {_qualified(scope, current)}", **given,
    )  # fmt: skip


def _qualified(scope: str, table: str) -> str:
    return scope.replace("table_key", f"{table}.table_key")


def refresh_listings(connection: Connection, table_keys: Sequence[int]) -> None:
    """Re-ranks the file listings of tables: labels the one that applies to the current snapshot, for each family."""
    moved = pa.table({"key": pa.array(table_keys, pa.int64())})
    scope = among("f.table_key", table_keys)
    needs_ranking = execute(  # more than one listing, or one that is not of the current snapshot
        connection, f"SELECT 1 FROM file_snapshots f JOIN tables x USING (table_key) WHERE {scope}"
        " GROUP BY f.table_key, f.family HAVING count(*) > 1 OR count(*) FILTER ("
        f"f.freshness = '{EXACT}' AND f.snapshot_id = x.current_snapshot_id) = 0 LIMIT 1", moved=moved,
    )  # fmt: skip
    if not needs_ranking:
        return
    changes = listing_changes(connection, table_keys, moved)
    if changes.num_rows:
        execute(
            connection, "UPDATE file_snapshots SET freshness = c.label FROM {changes} c"
            " WHERE file_snapshots.rowid = c.rid", changes=changes,
        )  # fmt: skip


def listing_changes(connection: Connection, table_keys: Sequence[int], moved: pa.Table) -> pa.Table:
    """Compares the labels of file listings with those that they should have; see `rank_changes`.

    Returns:
        A row for each listing that changes: its table_key, row id `rid`, and its `label`, null if it is not current.
    """
    scope = among("f.table_key", table_keys)
    label = freshness_sql("f", "n.schema_hash", "n.ordinal", "a")
    return query(
        connection, "SELECT table_key, rid, label FROM (SELECT table_key, rid, was,"
        " CASE WHEN best THEN label END AS label FROM ("
        f"SELECT f.table_key, f.rowid AS rid, f.freshness AS was, {label} AS label, row_number() OVER ("
        f"PARTITION BY f.table_key, f.family ORDER BY ({label}) IS NULL,"
        f" {rank_sql('f', 'n.schema_hash', 'n.ordinal', 'a')}, f.snapshot_id DESC) = 1 AS best"
        f" FROM file_snapshots f JOIN snapshots n ON n.table_key = f.table_key AND n.snapshot_id = f.snapshot_id"
        f" LEFT JOIN {_REQUESTED} a ON a.table_key = f.table_key WHERE {scope}))"
        " WHERE label IS DISTINCT FROM was", moved=moved,
    )  # fmt: skip
