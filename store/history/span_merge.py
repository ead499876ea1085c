"""Merges the rows of a put into flights of files, whose rows belong to a span of file listings (`file_spans`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.arrow_sql import execute, query, rowid_in, within
from store.duckdb.layout import BY_SPAN, OPEN_END, Connection
from store.duckdb.segments import Segments
from store.history.file_listings import FAMILIES
from store.history.file_spans import STORAGE_ID, remove_at
from store.history.merge import Standing, Stored, merge
from store.history.placement import Placement
from store.history.staged import Staged
from store.model.puts import IDENTITY, Codes, Counts, PutMode, codes, first_of_each


def waves(rows: pa.Table) -> Iterator[pa.Table]:
    """Splits rows into parts with at most one snapshot per table, in order of appearance."""
    numbers = codes(rows, ["table_key", "snapshot_id"])
    distinct, first, places = np.unique(numbers, return_index=True, return_inverse=True)
    if len(distinct) <= 1:
        yield rows
        return
    order = np.argsort(first)
    keys = rows["table_key"].take(pa.array(first[order])).to_pylist()
    seen: dict[int, int] = {}
    turns: Codes = np.empty(len(distinct), np.int64)
    for pair, key in zip(order, keys, strict=True):
        turns[pair] = seen[key] = seen.get(key, -1) + 1
    turn = turns[places]
    for number in range(int(turns.max()) + 1):
        yield rows if not turns.any() else rows.filter(pa.array(turn == number))


class SpanMerge:
    """The merge of a put with at most one snapshot per table; `apply` writes only rows that differ from stored ones.

    Args:
        family: A flight of `BY_SPAN`.
        rows: Rows of the put, with `table_key` and `snapshot_id`.
        placement: The put's tables and snapshots.
    """

    def __init__(self, mode: PutMode, family: str, rows: pa.Table, placement: Placement):
        self.segments = placement.segments
        self.mode, self.family, self.physical = mode, family, BY_SPAN[family]
        self.places, self.spans, self.presence = placement.places, placement.spans, placement.presence
        self.marks = placement.marks if family in FAMILIES else {}
        self.new_listings = placement.listings
        self.staged = Staged(family, rows, placement.name_of)

    def apply(self, connection: Connection, generation: int) -> Counts:
        """Merges the put into the stored listings.

        Raises:
            Conflict: In mode `create` another record is stored for a target.
        """
        staged = self.staged
        keys = staged.rows["table_key"].unique().to_pylist()
        self.new_listings.store(connection, self.family)
        if self.presence.has_any(self.family, keys):
            self.listings = _listings(connection, self.family, staged.rows)
        else:
            self.listings = _first_listings(staged.rows)
        self.presence.add(self.family, keys)
        self._lift(connection, keys)
        if not pc.any(pc.greater_equal(self.listings["last"], 0)).as_py():
            self._add_listings(connection)
            self._insert(connection, staged.rows, generation)
            return Counts(staged.received, staged.rows.num_rows, 0, 0)
        stored = self._matches(connection)
        merged = merge(staged.rows.num_rows, Stored.of(stored, stored["standing"].to_numpy()), self.mode)
        if merged.conflict is not None:
            first = stored.slice(merged.conflict, 1).to_pylist()[0]
            staged.refuse(connection, self.physical, first["row_no"], first["rid"])
        split, extend, leave = (
            stored["rid"].filter(pa.array(mask)) for mask in (merged.split, merged.extend, merged.leave)
        )
        self._close(connection, leave)
        remove_at(connection, self.family, split, staged.scope(), self.listings)
        self._extend(connection, extend)
        self._add_listings(connection)
        self._insert(connection, staged.only(merged.insert), generation)
        return merged.counts(staged.received)

    def _lift(self, connection: Connection, keys: Sequence[int]) -> None:
        """Moves the rows that this put may change from segments into the family's table."""
        if not self.segments.may_have(keys):
            return
        file = IDENTITY[self.family][0]
        condition = f"t.{file} IN (SELECT {file} FROM {{files}})"
        if self.mode is PutMode.REPLACE_SNAPSHOT:  # rows of files that the put lacks leave its listing
            own = self.listings.filter(pc.is_valid(self.listings["own"]))
            for key, pos in zip(own["table_key"].to_pylist(), own["own"].to_pylist(), strict=True):
                condition += f" OR (t.table_key = {key} AND t.from_pos <= {pos} AND t.to_pos > {pos})"
        self.segments.lift(connection, self.family, keys, condition, files=self.staged.rows.select([file]))

    def _matches(self, connection: Connection) -> pa.Table:
        """The stored rows of the put's targets in its listings, in the ones before new ones, and those that end where
        a listing begins; in mode REPLACE_SNAPSHOT also the other rows of its listings. With their `standing`."""
        own = f"t.standing = {Standing.OWN:d}"
        return self.staged.matches(
            connection,
            self._near_listings(),
            ("standing",),
            keep_complete=own if self.mode is PutMode.CAPTURE else None,
            fills=self.mode is PutMode.FILL,
            absent=self._absent() if self.mode is PutMode.REPLACE_SNAPSHOT else None,
            listings=self.listings,
        )

    def _near_listings(self) -> str:
        """Subquery of the stored rows of the put's listings, or of the newest before new ones, and of those that end
        where one of the put's listings begins; with their `standing`."""
        if self.listings.num_rows == 1:  # no join for the rows of one table
            own, pos = self.listings["own"][0].as_py(), self.listings["pos"][0].as_py()
            is_near = f"t.to_pos = {OPEN_END}" if own is None else f"t.from_pos <= {pos} AND t.to_pos >= {pos}"
            standing = f"{Standing.EARLIER:d}" if own is None else _own_or_ended(str(pos))
            return (
                f"SELECT t.rowid AS rid, {standing} AS standing, t.* FROM {self.physical} t"
                f" WHERE t.{self.staged.scope()} AND {is_near}"
            )
        standing = f"CASE WHEN w.own IS NULL THEN {Standing.EARLIER:d} ELSE {_own_or_ended('w.pos')} END"
        return (
            f"SELECT t.rowid AS rid, {standing} AS standing, t.* FROM {self.physical} t JOIN {{listings}} w"
            f" ON w.table_key = t.table_key WHERE t.{self.staged.scope()} AND CASE WHEN w.own IS NULL"
            f" THEN t.to_pos = {OPEN_END} ELSE t.from_pos <= w.pos AND t.to_pos >= w.pos END"
        )

    def _absent(self) -> str:
        """SQL that is true for a stored row of the put's listings; for a sketch only if the put has none of its file,
        which else keeps those of other roles."""
        own = f"t.standing = {Standing.OWN:d}"
        if self.family != "file_sketches":
            return own
        return f"{own} AND (t.table_key, t.storage_id) NOT IN (SELECT (p.table_key, p.storage_id) FROM {{staged}} p)"

    def _close(self, connection: Connection, leave: pa.ChunkedArray) -> None:
        """Ends the rows of the listings before new ones where these begin, except those that stay. Not by the ids of
        the rows to close: a table may have millions that the put does not name, and one statement ends them."""
        new = self.listings.filter(pc.is_null(self.listings["own"]))
        if not new.num_rows:
            return
        execute(
            connection,
            f"UPDATE {self.physical} SET to_pos = w.pos FROM {{listings}} w"
            f" WHERE w.table_key = {self.physical}.table_key AND w.own IS NULL"
            f" AND {self.physical}.{self.staged.scope()} AND {self.physical}.to_pos = {OPEN_END}"
            f" AND {self.physical}.rowid NOT IN (SELECT rid FROM {{leave}})",
            leave=pa.table({"rid": leave}),
            listings=self.listings,
        )
        ends = dict(zip(new["table_key"].to_pylist(), new["pos"].to_pylist(), strict=True))
        self.segments.end_open(connection, self.family, ends)  # without the rows that were lifted

    def _extend(self, connection: Connection, rowids: pa.ChunkedArray) -> None:
        """Extends rows that ended where a listing begins: a listing in several puts has them again."""
        if len(rowids):
            execute(
                connection,
                f"UPDATE {self.physical} SET to_pos = w.upto FROM {{listings}} w"
                f" WHERE w.table_key = {self.physical}.table_key AND {self.physical}.{self.staged.scope()}"
                f" AND {rowid_in(rowids, self.physical)}",
                listings=self.listings,
                doomed=pa.table({"rid": rowids}),
            )

    def _add_listings(self, connection: Connection) -> None:
        """Adds new listings, and gives stored ones their marks."""
        new = self.listings.filter(pc.is_null(self.listings["own"]))
        if new.num_rows:
            columns = ("table_key", "snapshot_id", "pos", "last")
            listed = list(zip(*(new[name].to_pylist() for name in columns), strict=True))
            for key, snapshot_id, pos, _ in listed:
                rest = *self._span(key, snapshot_id), self.marks.get((key, snapshot_id))
                self.new_listings.add(key, self.family, snapshot_id, pos, rest)
            self.spans.list_files([key for key, _, _, last in listed if last >= 0])
        if new.num_rows < self.listings.num_rows and self.family in FAMILIES:
            self._mark(connection, self.listings.filter(pc.is_valid(self.listings["own"])))

    def _mark(self, connection: Connection, own: pa.Table) -> None:
        """Gives listings that were stored before their new marks; one that is replaced as a whole loses its own."""
        pairs = zip(own["table_key"].to_pylist(), own["snapshot_id"].to_pylist(), strict=True)
        marks, is_whole = [self.marks.get(pair) for pair in pairs], self.mode is PutMode.REPLACE_SNAPSHOT
        is_other = [
            new != old and (is_whole or new is not None)
            for new, old in zip(marks, own["mark"].to_pylist(), strict=True)
        ]
        if any(is_other):
            columns = {name: own[name] for name in ("table_key", "snapshot_id")} | {
                "mark": pa.array(marks, pa.string())
            }
            marked = pa.table(columns).filter(pa.array(is_other))
            execute(
                connection,
                "UPDATE file_snapshots SET mark = m.mark FROM {marked} m WHERE file_snapshots.table_key ="
                f" m.table_key AND file_snapshots.snapshot_id = m.snapshot_id AND family = '{self.family}'",
                marked=marked,
            )

    def _span(self, table_key: int, snapshot_id: int) -> tuple[str, int, int]:
        """The span of a listing without earlier ones; any other is computed by `Spans.update`."""
        place = self.places[table_key, snapshot_id]
        # as text, because Arrow takes no such integer among smaller ones
        return str(place.schema_key(snapshot_id)), place.ordinal, OPEN_END

    def _insert(self, connection: Connection, fresh: pa.Table, generation: int) -> None:
        rows = fresh.drop_columns(["snapshot_id"])
        places = pc.index_in(rows["table_key"], self.listings["table_key"])
        for name, position in (("from_pos", "pos"), ("to_pos", "upto")):
            rows = rows.append_column(name, self.listings[position].take(places))
        self.staged.insert(connection, self.physical, rows, generation)


def drop_orphaned_sketches(connection: Connection, segments: Segments, rows: pa.Table) -> None:
    """Removes the sketches of files that are not in the listings of files of snapshots from their listings of sketches.

    Args:
        rows: Rows with the `table_key` and `snapshot_id` of the snapshots, at most one for each table.
    """
    scope = within("table_key", rows["table_key"])
    listed = f"SELECT 1 FROM file_snapshots WHERE family = 'file_sketches' AND {scope} LIMIT 1"
    if not connection.execute(listed).fetchall():
        return
    sketches = _listings(connection, "file_sketches", rows)
    sketches = sketches.filter(pc.is_valid(sketches["own"]))
    if not sketches.num_rows:
        return
    keys = sketches["table_key"].to_pylist()
    files = segments.sql(connection, "stats.files", keys)
    is_orphan = (
        "EXISTS (SELECT 1 FROM {listings} w WHERE w.table_key = t.table_key AND t.from_pos <= w.pos"
        " AND t.to_pos > w.pos) AND (t.table_key, t.storage_id) NOT IN"
        f" (SELECT (s.table_key, {STORAGE_ID['stats.files'].format('s')})"
        f" FROM (SELECT * FROM {files} WHERE {scope}) s JOIN file_snapshots f ON f.table_key = s.table_key"
        " AND f.family = 'stats.files' AND f.pos >= s.from_pos AND f.pos < s.to_pos"
        " JOIN {listings} v ON v.table_key = f.table_key AND v.snapshot_id = f.snapshot_id)"
    )
    segments.lift(connection, "file_sketches", keys, is_orphan, listings=sketches)
    doomed = query(
        connection,
        f"SELECT t.rid FROM (SELECT rowid AS rid, * FROM file_sketches WHERE {scope}) t WHERE {is_orphan}",
        listings=sketches,
    )["rid"]
    remove_at(connection, "file_sketches", doomed, scope, sketches)


def _own_or_ended(pos: str) -> str:
    """SQL of the `Standing` of a row that a stored listing has, or that ends where it begins."""
    return f"CASE WHEN t.to_pos = {pos} THEN {Standing.ENDED:d} ELSE {Standing.OWN:d} END"


def _first_listings(rows: pa.Table) -> pa.Table:
    """The result of `_listings` for tables that have none stored."""
    listings = rows.select(["table_key", "snapshot_id"]).take(first_of_each(rows, ["table_key", "snapshot_id"]))
    columns = {"pos": 0, "last": -1, "own": None, "upto": OPEN_END}
    for name, value in columns.items():
        listings = listings.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), listings.num_rows))
    return listings.append_column("mark", pa.nulls(listings.num_rows, pa.string()))


def _listings(connection: Connection, family: str, rows: pa.Table) -> pa.Table:
    """The positions of the listings of a put, one row per table: table_key, snapshot_id, and as int64 `pos` (of its
    listing), `last` (of the newest listing, -1 if none), `own` (`pos` if the listing exists, else null), `upto` (end of
    the span of new rows); and `mark` (of the listing if it exists)."""
    listings = _first_listings(rows)
    keys, ids = listings["table_key"].to_pylist(), listings["snapshot_id"].to_pylist()
    is_own = "f.snapshot_id = p.snapshot_id" if len(keys) > 1 else f"f.snapshot_id = {ids[0]}"
    join = " JOIN {listings} p USING (table_key)" if len(keys) > 1 else ""
    listed = {
        key: found
        for key, *found in execute(
            connection,
            f"SELECT f.table_key, max(f.pos), max(f.pos) FILTER ({is_own}), max(f.mark) FILTER ({is_own})"
            f" FROM file_snapshots f{join}"
            f" WHERE f.family = '{family}' AND {within('f.table_key', listings['table_key'])} GROUP BY f.table_key",
            listings=listings,
        )
    }
    if not listed:
        return listings
    last, own, marks = zip(*(listed.get(key, (-1, None, None)) for key in keys), strict=True)
    places = {
        "pos": [after + 1 if at is None else at for after, at in zip(last, own, strict=True)],
        "last": last,
        "own": own,
        "upto": [OPEN_END if at in (None, after) else at + 1 for after, at in zip(last, own, strict=True)],
    }
    names = {name: listings[name] for name in ("table_key", "snapshot_id")}
    columns = names | {name: pa.array(values, pa.int64()) for name, values in places.items()}
    return pa.table(columns | {"mark": pa.array(marks, pa.string())})
