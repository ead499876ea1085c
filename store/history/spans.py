"""Spans: a record holds from its snapshot until the next record of its target with the same schema.

A row of a flight of `BY_SNAPSHOT`, or a file listing, holds at every snapshot of its `schema_key` whose place in the
table's history is from_ord <= ordinal < to_ord. So the rows that apply at any snapshot are a plain filter, one per
target: EXACT if captured at that snapshot, else INHERITED. A new snapshot writes nothing. Snapshots without a known
schema or place in history have a key of their own: their rows hold there only.

A record of a flight of `GROUPED` has two groups of statistics, counts and distribution, each served from the best
record that has it. Its row has the distribution that is served, and the record's own in `own_…` where that differs.
Where the served records change within a span, as where a record with nothing but a distribution follows, the older
record has a copy for the rest (`is_copy`); a record whose counts are never served has an empty span. A table may limit
the age of inherited distributions: those beyond it are not served, and the spans of sketches end there. A sketch of a
sample is served where there is no sketch of all rows.

Invariants, which `statflight doctor --db` checks by `changes` and `listing_changes`:
1. Each record has one row that is no copy. Spans of one target and key do not overlap.
2. A row is in the flight's `…_current` table exactly if it holds at the table's current snapshot.
3. Spans, copies and served distributions are those that `changes` computes from the records.

| what happens | what is written |
|---|---|
| a record with counts at the current snapshot, nothing newer stored | the target's row ends, a new one is open |
| a record at the current snapshot that replaces the only one of its target, no history | its row |
| any other record, or a deleted one; another schema, order or age limit of snapshots | rows that `changes` finds |
| a new current snapshot of the same schema | nothing, unless rows of it were stored before |
| a put at a new current snapshot of another schema, or none | rows that hold there no more move to the other table |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from store.duckdb.arrow_sql import LITERALS, among, execute, keys_table, query
from store.duckdb.layout import BY_SNAPSHOT, GROUPED, OPEN_END, SPAN, Connection, own, own_sql, parts, stored_columns
from store.history.presence import Presence
from store.model.catalog_entries import UNPLACED, Place
from store.model.columns import COUNTS, DISTRIBUTION
from store.model.freshness import has_sql
from store.model.puts import IDENTITY
from store.model.sketches import is_partial_sql
from store.model.statistics import PER_VALUE

SnapshotPlace: TypeAlias = tuple[int, Place]  # id and place of a snapshot
_GREATEST: Final = 2**63 - 1  # ordinal, after which there is none
_UNLIMITED: Final = 2**40  # snapshots
_SPAN: Final = tuple(SPAN)


def schema_key_sql(snapshot: str, own_hash: str = "NULL") -> str:
    """SQL of the schema key of a row of `snapshots`, whose alias is given, as it is stored there;
    `Place.schema_key` in SQL.

    Args:
        own_hash: SQL of the schema hash; NULL for the stored one.
    """
    text = f"coalesce({schema_sql(own_hash, snapshot)}, 'snapshot ' || {snapshot}.snapshot_id)"
    return f"md5_number_lower({text})"


def schema_sql(own_hash: str, snapshot: str) -> str:
    """SQL of the schema hash under which a record is inherited: null if it, or the snapshot's place, is unknown."""
    return f"CASE WHEN {snapshot}.ordinal <> {UNPLACED} THEN coalesce({own_hash}, {snapshot}.schema_hash)::VARCHAR END"


def holds_sql(row: str, at: str) -> str:
    """SQL of the condition that a row holds at a snapshot, a row `at` with its `schema_key` and `ordinal`."""
    return f"{row}.schema_key = {at}.schema_key AND {row}.from_ord <= {at}.ordinal AND {row}.to_ord > {at}.ordinal"


class Spans:
    """The tables of a transaction whose spans may have changed, updated before it commits. For the writer's thread.

    Args:
        presence: The tables that may have rows.
        current: Returns the id and place of the current snapshot of tables, of those that have one.
    """

    def __init__(
        self,
        presence: Presence,
        current: Callable[[Connection, Collection[int]], Mapping[int, SnapshotPlace]],
    ):
        self._presence, self._current = presence, current
        self.clear()

    def clear(self) -> None:
        """Clears the registered tables; called after a rollback."""
        self._changed, self._moved, self._advanced, self._listed = set[int](), set[int](), set[int](), set[int]()

    def change(self, table_keys: Collection[int]) -> None:
        """Registers tables of which records, or the schemas, order or limits of snapshots, changed."""
        self._changed.update(table_keys)

    def move(self, table_keys: Collection[int]) -> None:
        """Registers tables with another current snapshot."""
        self._moved.update(table_keys)

    def advance(self, table_keys: Collection[int]) -> None:
        """Registers tables with a newer current snapshot of the same schema, when no record was newer than the last."""
        self._advanced.update(table_keys)

    def list_files(self, table_keys: Collection[int]) -> None:
        """Registers tables with new file listings."""
        self._listed.update(table_keys)

    def update(self, connection: Connection) -> None:
        """Updates the registered tables; called before the commit."""
        changed, listed = self._changed, self._listed | self._changed
        moved, advanced = self._moved - changed, self._advanced - changed - self._moved
        if flights := self._with_rows(moved):
            changed = changed | _misplaced(connection, flights, moved, self._current(connection, moved))
        if flights := self._with_rows(advanced):
            changed = changed | _ended(connection, flights, advanced)
        self.clear()
        if changed:
            respan(connection, sorted(changed))
        if listed:
            respan_listings(connection, sorted(listed))

    def _with_rows(self, table_keys: Collection[int]) -> list[str]:
        return [flight for flight in BY_SNAPSHOT if self._presence.has_any(flight, table_keys)]


def _misplaced(
    connection: Connection, flights: Sequence[str], table_keys: Collection[int], current: Mapping[int, SnapshotPlace]
) -> set[int]:
    """The tables with a row of some flights in the wrong part."""
    scope, (holds, at) = among("r.table_key", table_keys), _holding(current)
    each = (
        f"SELECT r.table_key FROM {table} r WHERE {scope} AND {'NOT' * is_current} {holds}"
        for flight in flights
        for table, is_current in zip(parts(flight), (True, False), strict=True)
    )
    return {key for (key,) in execute(connection, " UNION ".join(each), at=at, moved=keys_table(table_keys))}


def _ended(connection: Connection, flights: Sequence[str], table_keys: Collection[int]) -> set[int]:
    """The tables with a row of some flights in the current part whose span ends."""
    where = f"{among('table_key', table_keys)} AND to_ord < {OPEN_END}"
    each = (f"SELECT table_key FROM {parts(flight)[0]} WHERE {where}" for flight in flights)
    return {key for (key,) in execute(connection, " UNION ".join(each), moved=keys_table(table_keys))}


def _holding(current: Mapping[int, SnapshotPlace]) -> tuple[str, pa.Table]:
    """SQL of the condition that a row `r` holds at the current snapshot of its table, and the Arrow table `at` of it.

    Args:
        current: Table key → id and place of its current snapshot.
    """
    keys = [place.schema_key(snapshot_id) for snapshot_id, place in current.values()]
    ordinals = [place.ordinal for _, place in current.values()]
    types = {"table_key": pa.int64(), "schema_key": pa.uint64(), "ordinal": pa.int64()}
    at = pa.table([list(current), keys, ordinals], pa.schema(types))
    if len(current) > LITERALS:
        return f"EXISTS (FROM {{at}} a WHERE a.table_key = r.table_key AND {holds_sql('r', 'a')})", at
    each = (
        f"r.table_key = {key} AND r.schema_key = {schema_key} AND r.from_ord <= {ordinal} AND r.to_ord > {ordinal}"
        for key, schema_key, ordinal in zip(current, keys, ordinals, strict=True)
    )
    return f"({' OR '.join(each) or 'false'})", at


def move_rows(connection: Connection, flights: Sequence[str], current: Mapping[int, SnapshotPlace]) -> None:
    """Moves rows between the tables of current and other rows, once their tables have another current snapshot. No
    span changes.

    Args:
        flights: Flights of `BY_SNAPSHOT`.
        current: Table key → id and place of its current snapshot.
    """
    scope, (holds, at) = among("r.table_key", current), _holding(current)
    given = {"at": at, "moved": keys_table(current)}
    for flight in flights:
        now, then = parts(flight)
        ways = [(now, then, f"NOT {holds}")]
        if any(place.schema_hash is not None for _, place in current.values()):  # else nothing was stored for it
            ways.append((then, now, holds))
        for source, destination, condition in ways:
            where = f"{scope} AND {condition}"
            ((moved,),) = execute(
                connection, f"INSERT INTO {destination} SELECT r.* FROM {source} r WHERE {where}", **given
            )
            if moved:
                execute(connection, f"DELETE FROM {source} r WHERE {where}", **given)


def respan(connection: Connection, table_keys: Sequence[int]) -> None:
    """Computes the spans, copies and served distributions of tables again, and writes the rows that differ."""
    moved, scope = keys_table(table_keys), among("table_key", table_keys)
    some = (
        f"(SELECT '{flight}' FROM {table} WHERE {scope} LIMIT 1)" for flight in BY_SNAPSHOT for table in parts(flight)
    )
    having = {flight for (flight,) in execute(connection, " UNION ".join(some), moved=moved)}
    for flight in having:
        found = changes(connection, flight, table_keys, moved)
        if found.num_rows:
            _apply(connection, flight, scope, found, moved)


def _both(flight: str, scope: str) -> str:
    """SQL of the rows of both tables of a flight, with `part` (0 for current) and `rid`."""
    selects = (f"SELECT {part} AS part, rowid AS rid, * FROM {t} WHERE {scope}" for part, t in enumerate(parts(flight)))
    return f"({' UNION ALL '.join(selects)})"


def _mine(flight: str) -> str:
    """SQL of the columns `mine_…` with the values of a record's own distribution."""
    return "".join(f", {own_sql(name)} AS mine_{name}" for name in DISTRIBUTION) if flight in GROUPED else ""


def served_distribution(counts: str, distribution: str, is_exact: str, prefix: str = "mine_") -> dict[str, str]:
    """Column → SQL of the distribution that is served: as captured, but one of another record is cut to the number of
    values in the row, unless it was captured where the span begins.

    Args:
        is_exact: SQL that is true if it was captured where the span begins.
        prefix: Prefix of the columns with the record's own distribution.
    """
    most, values = f"{counts}.row_count - coalesce({counts}.null_count, 0)", {}
    for name in DISTRIBUTION:
        value = f"{distribution}.{prefix}{name}"
        if name in PER_VALUE:
            other = f"NOT {is_exact} AND {distribution}.snapshot_id <> {counts}.snapshot_id"
            value = f"CASE WHEN {other} AND {value} > {most} THEN {most} ELSE {value} END"
        values[name] = value
    return values


def changes(connection: Connection, flight: str, table_keys: Sequence[int], moved: pa.Table) -> pa.Table:
    """Compares the rows of tables with those that should be stored.

    Args:
        flight: A flight of `BY_SNAPSHOT`.
        table_keys: Keys of the tables, at least one.
        moved: The same keys, in a column `key`.

    Returns:
        A row for each difference: table_key; `part` and `rid` of a row to delete, else null; and of a row to insert,
        else null: `of_part` and `of_rid` of its record, `d_part` and `d_rid` of the record with its distribution,
        `is_exact` if that was captured where the span begins, is_copy, `to_part`, and the columns of `SPAN`.
    """
    return query(connection, _changes_sql(flight, table_keys), moved=moved)


def _changes_sql(flight: str, table_keys: Sequence[int]) -> str:
    """SQL of `changes`.

    n: the tables' snapshots; s: stored rows; r: records among them; e: events, the points at which what is served may
    change: records, the point after one that is inherited under another schema or served with older counts, and each
    snapshot of a table with an age limit; p: events, one per point; b: the records whose counts (c) and distribution
    (d) are served from the point on; i: spans; w: rows that should be stored.
    """
    names, is_grouped = [f'"{name}"' for name in IDENTITY[flight]], flight in GROUPED
    target = ", ".join(["table_key", *names])
    scope = among("table_key", table_keys)
    schema_hash = "schema_hash" if "schema_hash" in stored_columns(flight) else "NULL::VARCHAR AS schema_hash"
    narrow = f"{target}, snapshot_id, {schema_hash}, generation, is_copy, {', '.join(_SPAN)}"
    flags, differs = "true AS counted, false AS has_ndv, false AS has_dist", ""
    if flight == "stats.sketches":  # of a sample, it yields to earlier ones of all rows
        narrow += f", NOT {is_partial_sql('t')} AS counted"
        flags = "counted, false AS has_ndv, false AS has_dist"
    if is_grouped:
        is_own = "distribution_snapshot_id IS NOT DISTINCT FROM snapshot_id"
        narrow += (
            f", {has_sql('', COUNTS)} AS counted, CASE WHEN {is_own} THEN ndv ELSE own_ndv END IS NOT NULL AS has_ndv"
        )
        narrow += f", distribution_snapshot_id = snapshot_id OR {has_sql('', map(own, DISTRIBUTION))} AS has_dist"
        narrow += ", distribution_snapshot_id, distribution_generation"
        flags = "counted, has_ndv, coalesce(has_dist, false) AS has_dist"
        differs = (
            " OR s.distribution_snapshot_id IS DISTINCT FROM d.snapshot_id"
            " OR (d.rec IS NOT NULL AND s.distribution_generation IS DISTINCT FROM d.generation)"
        )
    stored = (
        f"SELECT {part} AS part, rowid AS rid, {narrow} FROM {table} t WHERE {scope}"
        for part, table in enumerate(parts(flight))
    )
    served = "recent" if flight == "stats.sketches" else "earlier"  # a sketch is a distribution
    record = "rec AS own, counted, has_ndv, has_dist"
    point = "NULL AS own, false AS counted, false AS has_ndv, false AS has_dist"
    series = f"PARTITION BY {target}, key ORDER BY"
    same = " AND ".join(f"s.{name} = w.{name}" for name in ["table_key", *names])

    def of(row: str) -> str:
        return ", ".join(f"{row}.{name}" for name in ["table_key", *names])

    def last(condition: str, window: str) -> str:
        return f"last_value(CASE WHEN inherit AND {condition} THEN own END IGNORE NULLS) OVER {window}"

    return f"""
WITH n AS MATERIALIZED (SELECT n.table_key, n.snapshot_id, n.ordinal, n.schema_hash,
    n.schema_key, n.snapshot_id = x.current_snapshot_id AS is_current,
    row_number() OVER (PARTITION BY n.table_key ORDER BY n.ordinal, n.snapshot_id) AS number,
    x.max_snapshots_behind AS most
  FROM snapshots n JOIN tables x ON x.table_key = n.table_key WHERE {scope.replace("table_key", "n.table_key")}),
s AS MATERIALIZED ({" UNION ALL ".join(stored)}),
r AS MATERIALIZED (SELECT row_number() OVER () AS rec, s.part, s.rid, {of("s")}, s.snapshot_id, s.generation,
    {flags}, n.ordinal, n.number, n.most, n.schema_key AS at_key,
    md5_number_lower({schema_sql("s.schema_hash", "n")}) AS own_key
  FROM s JOIN n ON n.table_key = s.table_key AND n.snapshot_id = s.snapshot_id WHERE NOT s.is_copy),
e AS (
  SELECT {target}, at_key AS key, ordinal, number, most, {record}, coalesce(own_key = at_key, false) AS inherit FROM r
  UNION ALL SELECT {target}, own_key, ordinal, number, most, {record}, true FROM r WHERE own_key <> at_key
  UNION ALL SELECT {target}, at_key, ordinal + 1, number, most, {point}, false FROM r
    WHERE (own_key <> at_key OR (NOT counted AND has_dist)) AND ordinal < {_GREATEST}
  UNION ALL SELECT DISTINCT {of("r")}, n.schema_key, n.ordinal, n.number, n.most, {point}, false
    FROM r JOIN n ON n.table_key = r.table_key AND n.schema_key IN (r.at_key, r.own_key) WHERE n.most IS NOT NULL),
p AS (SELECT {target}, key, ordinal, max(number) AS number, max(most) AS most, max(own) AS own,
    bool_or(counted) AS counted, bool_or(has_ndv) AS has_ndv, bool_or(has_dist) AS has_dist, bool_or(inherit) AS inherit
  FROM e GROUP BY {target}, key, ordinal),
b AS (SELECT {target}, key, ordinal, own,
    CASE WHEN counted THEN own ELSE coalesce({last("counted", served)}, own, {last("true", served)}) END AS c,
    CASE WHEN has_ndv THEN own ELSE coalesce({last("has_ndv", "recent")},
      CASE WHEN has_dist THEN own ELSE {last("has_dist", "recent")} END) END AS d
  FROM p WINDOW earlier AS ({series} ordinal ROWS UNBOUNDED PRECEDING),
    recent AS ({series} number RANGE BETWEEN coalesce(most, {_UNLIMITED}) PRECEDING AND CURRENT ROW)),
k AS (SELECT * FROM (SELECT *, coalesce(d = own AND c <> d, false) AS is_exact FROM b) WINDOW o AS ({series} ordinal)
  QUALIFY (c, d, is_exact) IS DISTINCT FROM (lag(c) OVER o, lag(d) OVER o, lag(is_exact) OVER o)),
i AS MATERIALIZED (
  SELECT g.*, row_number() OVER (PARTITION BY g.c ORDER BY g.key <> r.at_key, g.ordinal) > 1 AS is_copy FROM (SELECT *,
    coalesce(lead(ordinal) OVER ({series} ordinal), {OPEN_END}) AS to_ord FROM k) g JOIN r ON r.rec = g.c),
w AS (SELECT j.*, CASE WHEN {holds_sql("j", "n")} THEN 0 ELSE 1 END AS to_part FROM (
    SELECT {target}, key AS schema_key, ordinal AS from_ord, to_ord, c, d, is_exact, is_copy FROM i
    UNION ALL SELECT {target}, at_key, ordinal, ordinal, rec, CASE WHEN has_dist THEN rec END, false, false
    FROM r WHERE rec NOT IN (SELECT c FROM i)) j LEFT JOIN n ON n.table_key = j.table_key AND n.is_current)
SELECT coalesce(s.table_key, w.table_key) AS table_key, s.part, s.rid, c.part AS of_part, c.rid AS of_rid,
  d.part AS d_part, d.rid AS d_rid, w.is_exact, w.is_copy, w.to_part, w.schema_key, w.from_ord, w.to_ord
FROM w JOIN r c ON c.rec = w.c LEFT JOIN r d ON d.rec = w.d FULL JOIN s
  ON {same} AND s.snapshot_id = c.snapshot_id
  AND s.schema_key = w.schema_key AND s.from_ord = w.from_ord AND s.is_copy = w.is_copy
WHERE s.rid IS NULL OR w.c IS NULL OR s.part <> w.to_part OR s.to_ord <> w.to_ord
  OR s.generation <> c.generation{differs}"""


def misserved(connection: Connection, flight: str, table_keys: Sequence[int], moved: pa.Table) -> pa.Table:
    """The rows of tables (table_key) whose distribution is not that of the record that they name; arguments are those
    of `changes`, of a flight of `GROUPED`."""
    both = f"(SELECT *{_mine(flight)} FROM {_both(flight, among('table_key', table_keys))})"
    first = "c.is_copy AND n.ordinal = c.from_ord AND c.schema_key = n.schema_key"
    served = served_distribution("c", "d", f"({first})")
    same = " AND ".join(f"d.{name} = c.{name}" for name in ("table_key", *(f'"{name}"' for name in IDENTITY[flight])))
    return query(
        connection,
        f"SELECT c.table_key FROM {both} c LEFT JOIN {both} d ON NOT d.is_copy AND {same}"
        " AND d.snapshot_id = c.distribution_snapshot_id LEFT JOIN snapshots n ON n.table_key = c.table_key"
        f" AND n.snapshot_id = c.distribution_snapshot_id WHERE ({', '.join(f'c.{name}' for name in served)})"
        f" IS DISTINCT FROM ({', '.join(served.values())})",
        moved=moved,
    )


def _served_columns() -> list[str]:
    """SQL of the columns that a record `c` gets from the record `d` whose distribution is served."""
    columns = ["d.snapshot_id AS distribution_snapshot_id", "d.generation AS distribution_generation"]
    for name, value in served_distribution("c", "d", "x.is_exact").items():
        mine = f"CASE WHEN d.snapshot_id IS DISTINCT FROM c.snapshot_id THEN c.mine_{name} END"
        columns += [f"{value} AS {name}", f"{mine} AS {own(name)}"]
    return columns


def _apply(connection: Connection, flight: str, scope: str, found: pa.Table, moved: pa.Table) -> None:
    """Writes what `changes` found."""
    given, served = {"moved": moved, "found": found}, _served_columns() if flight in GROUPED else []
    both = f"(SELECT *{_mine(flight)} FROM {_both(flight, scope)})"
    kept = ", ".join(
        f'c."{name}"' for name in stored_columns(flight) if flight not in GROUPED or name not in DISTRIBUTION
    )
    execute(
        connection,
        "CREATE OR REPLACE TEMP TABLE chosen AS SELECT x.to_part, c.table_key, c.snapshot_id, c.generation,"
        f" c.created_at, x.is_copy, {', '.join(f'x.{name}' for name in _SPAN)}, {', '.join([kept, *served])}"
        f" FROM {{found}} x JOIN {both} c ON c.part = x.of_part AND c.rid = x.of_rid"
        f" LEFT JOIN {both} d ON d.part = x.d_part AND d.rid = x.d_rid",
        **given,
    )
    left, entered = (set(found[name].unique().to_pylist()) for name in ("part", "to_part"))
    for part, table in enumerate(parts(flight)):
        if part in left:
            execute(
                connection,
                f"DELETE FROM {table} WHERE {scope} AND rowid IN (SELECT rid FROM {{found}} WHERE part = {part})",
                **given,
            )
        if part in entered:
            execute(
                connection, f"INSERT INTO {table} BY NAME SELECT * EXCLUDE (to_part) FROM chosen WHERE to_part = {part}"
            )
    execute(connection, "DROP TABLE chosen")


def respan_listings(connection: Connection, table_keys: Sequence[int]) -> None:
    """Computes the spans of the file listings of tables again."""
    found = listing_changes(connection, table_keys, keys_table(table_keys))
    if found.num_rows:
        execute(
            connection,
            f"UPDATE file_snapshots SET {', '.join(f'{name} = c.{name}' for name in _SPAN)}"
            " FROM {found} c WHERE file_snapshots.rowid = c.rid",
            found=found,
        )


def listing_changes(connection: Connection, table_keys: Sequence[int], moved: pa.Table) -> pa.Table:
    """Compares the spans of file listings with those that they should have; see `changes`.

    Returns:
        A row for each listing that changes: its table_key, row id `rid`, and the columns of `SPAN`.
    """
    differs = " OR ".join(f"was_{name} IS DISTINCT FROM {name}" for name in _SPAN)
    was = ", ".join(f"f.{name} AS was_{name}" for name in _SPAN)
    return query(
        connection,
        f"SELECT table_key, rid, {', '.join(_SPAN)} FROM (SELECT f.table_key, f.rowid AS rid, {was},"
        f" n.schema_key, n.ordinal AS from_ord, coalesce(lead(n.ordinal) OVER (PARTITION BY"
        f" f.table_key, f.family, n.schema_key ORDER BY n.ordinal), {OPEN_END}) AS to_ord"
        " FROM file_snapshots f JOIN snapshots n ON n.table_key = f.table_key AND n.snapshot_id = f.snapshot_id"
        f" WHERE {among('f.table_key', table_keys)}) WHERE {differs}",
        moved=moved,
    )
