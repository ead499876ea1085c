"""Merges the rows of a put into flights of files, whose rows belong to a span of file listings (`file_spans`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.arrow_sql import execute, query, rowid_in, within
from store.duckdb.layout import BY_SPAN, OPEN_END, SPAN, Connection, insert_rows
from store.duckdb.segments import Segments
from store.history.file_listings import FAMILIES, Marks
from store.history.file_spans import STORAGE_ID, remove_at
from store.history.presence import Presence
from store.history.spans import Spans
from store.history.staged import NONE, NameOf, Staged
from store.model.catalog_entries import Place
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
        name_of: Table key → full name, for messages.
        places: (table key, snapshot id) → place, of the put's snapshots.
        presence: The tables that may have listings.
        segments: The segments with rows of these.
        marks: The marks of the put's listings.
    """

    def __init__(
        self,
        mode: PutMode,
        family: str,
        rows: pa.Table,
        name_of: NameOf,
        places: Mapping[tuple[int, int], Place],
        spans: Spans,
        presence: Presence,
        segments: Segments,
        marks: Marks = MappingProxyType({}),
    ):
        self.segments = segments
        self.mode, self.family, self.physical = mode, family, BY_SPAN[family]
        self.places, self.spans, self.presence = places, spans, presence
        self.marks = marks if family in FAMILIES else {}
        self.staged = Staged(family, rows, name_of)

    def apply(self, connection: Connection, generation: int) -> Counts:
        """Merges the put into the stored listings.

        Raises:
            Conflict: In mode `create` another record is stored for a target.
        """
        staged = self.staged
        keys = staged.rows["table_key"].unique().to_pylist()
        if self.presence.has_any(self.family, keys):
            self.listings = _listings(connection, self.family, staged.rows)
        else:
            self.listings = _first_listings(staged.rows)
        self.presence.add(self.family, keys)
        self._lift(connection, keys)
        unchanged = replaced = 0
        stored = doomed = extended = None
        fresh = staged.rows
        if pc.any(pc.greater_equal(self.listings["last"], 0)).as_py():
            stored = self._matches(connection)
            is_settled = stored["same"]
            if self.mode is PutMode.FILL:
                is_settled = pc.invert(stored["relabelled"])
            other = stored.filter(pc.and_not(stored["own"], is_settled))
            if self.mode is PutMode.CREATE and other.num_rows:
                staged.refuse(connection, self.physical, other["row_no"][0].as_py(), other["rid"][0].as_py())
            # an existing listing is compared with its own rows; a new one continues equal rows of the one before
            settled = stored.filter(pc.and_(stored["own"], is_settled))
            unchanged = settled.num_rows
            carried = stored.filter(pc.and_not(stored["same"], stored["own"]))
            done = pa.chunked_array([*settled["row_no"].chunks, *carried["row_no"].chunks], pa.int64())
            replaced, doomed = other.num_rows, other["rid"]
            has_own = self.listings["own"].null_count < self.listings.num_rows
            if has_own and len(done) < staged.rows.num_rows:
                extended, done = self._extended(connection, done)
            fresh = staged.without(done)
            if self.mode is PutMode.REPLACE_SNAPSHOT and has_own:
                absent = self._absent(connection, stored)
                more = absent.chunks if doomed is None else [*doomed.chunks, *absent.chunks]
                doomed = pa.chunked_array(more, pa.int64())
        self._write(connection, stored, doomed, extended)
        self._insert(connection, fresh, generation)
        return Counts(staged.received, staged.rows.num_rows - unchanged - replaced, unchanged, replaced)

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

    def _in_listing(self) -> str:
        """Subquery of the stored rows of the put's listing; if it is new, of the newest one before it."""
        if self.listings.num_rows == 1:  # no join for the rows of one table
            own, pos = self.listings["own"][0].as_py(), self.listings["pos"][0].as_py()
            in_listing = f"t.to_pos = {OPEN_END}" if own is None else f"t.from_pos <= {pos} AND t.to_pos > {pos}"
            return (
                f"SELECT t.rowid AS rid, {own is not None} AS own, t.* FROM {self.physical} t"
                f" WHERE t.{self.staged.scope()} AND {in_listing}"
            )
        return (
            f"SELECT t.rowid AS rid, w.own IS NOT NULL AS own, t.* FROM {self.physical} t JOIN {{listings}} w"
            f" ON w.table_key = t.table_key WHERE t.{self.staged.scope()} AND CASE WHEN w.own IS NULL"
            f" THEN t.to_pos = {OPEN_END} ELSE t.from_pos <= w.pos AND t.to_pos > w.pos END"
        )

    def _matches(self, connection: Connection) -> pa.Table:
        keep = "t.own" if self.mode is PutMode.CAPTURE else None
        fills = self.mode is PutMode.FILL
        return self.staged.matches(
            connection, self._in_listing(), ("own",), keep_complete=keep, fills=fills, listings=self.listings
        )

    def _extended(self, connection: Connection, done: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        """Finds equal rows that end at the listing before: a listing in several puts extends them instead of storing
        them again.

        Returns:
            The row ids to extend, and the row numbers that need no insert.
        """
        ended = (
            f"SELECT t.rowid AS rid, t.* FROM {self.physical} t JOIN {{listings}} w ON w.table_key = t.table_key"
            f" WHERE t.{self.staged.scope()} AND w.own IS NOT NULL AND t.to_pos = w.pos"
        )
        if not pc.any(pc.greater(self.listings["pos"], 0)).as_py():  # no row ends before the first listing
            return NONE, done
        if not execute(connection, f"SELECT 1 FROM ({ended}) LIMIT 1", listings=self.listings):
            return NONE, done
        before = self.staged.matches(connection, ended, listings=self.listings)
        before = before.filter(before["same"])
        if len(done):
            before = before.filter(pc.invert(pc.is_in(before["row_no"], done)))
        return before["rid"], pa.chunked_array([*done.chunks, *before["row_no"].chunks], pa.int64())

    def _absent(self, connection: Connection, stored: pa.Table) -> pa.ChunkedArray:
        """Row ids of existing listings whose targets are not in the put."""
        among = ""
        if self.family == "file_sketches":  # a file in the put keeps its sketches of other roles
            among = (
                " AND NOT EXISTS (SELECT 1 FROM {staged} s WHERE s.table_key = t.table_key"
                " AND s.storage_id = t.storage_id)"
            )
        return query(
            connection,
            f"SELECT t.rid FROM ({self._in_listing()}) t WHERE t.own"
            f" AND t.rid NOT IN (SELECT rid FROM {{kept}}){among}",
            kept=stored.select(["rid"]),
            staged=self.staged.rows,
            listings=self.listings,
        )["rid"]

    def _write(
        self,
        connection: Connection,
        stored: pa.Table | None,
        doomed: pa.ChunkedArray | None,
        extended: pa.ChunkedArray | None,
    ) -> None:
        """Closes, shortens and extends the spans of stored rows, and adds the new listings."""
        new = self.listings.filter(pc.is_null(self.listings["own"]))
        if stored is not None and new.num_rows:
            stay = stored.filter(pc.and_not(stored["same"], stored["own"])).select(["rid"])
            execute(
                connection,
                f"UPDATE {self.physical} SET to_pos = w.pos FROM {{listings}} w"
                f" WHERE w.table_key = {self.physical}.table_key AND w.own IS NULL"
                f" AND {self.physical}.{self.staged.scope()} AND {self.physical}.to_pos = {OPEN_END}"
                f" AND {self.physical}.rowid NOT IN (SELECT rid FROM {{stay}})",
                stay=stay,
                listings=self.listings,
            )
            ends = dict(zip(new["table_key"].to_pylist(), new["pos"].to_pylist(), strict=True))
            self.segments.end_open(connection, self.family, ends)  # without the rows that were lifted
        if doomed is not None and len(doomed):
            remove_at(connection, self.family, doomed, self.staged.scope(), self.listings)
        if extended is not None:
            self._end_at(connection, extended, "w.upto")
        if new.num_rows:
            columns = ("table_key", "snapshot_id", "pos", "last")
            listed = list(zip(*(new[name].to_pylist() for name in columns), strict=True))
            insert_rows(
                connection,
                f"file_snapshots (table_key, family, snapshot_id, pos, {', '.join(SPAN)}, mark)",
                [
                    (
                        key,
                        self.family,
                        snapshot_id,
                        pos,
                        *self._span(key, snapshot_id),
                        self.marks.get((key, snapshot_id)),
                    )
                    for key, snapshot_id, pos, _ in listed
                ],
            )
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

    def _end_at(self, connection: Connection, rowids: pa.ChunkedArray, position: str) -> None:
        if len(rowids):
            execute(
                connection,
                f"UPDATE {self.physical} SET to_pos = {position} FROM {{listings}} w"
                f" WHERE w.table_key = {self.physical}.table_key AND {self.physical}.{self.staged.scope()}"
                f" AND {rowid_in(rowids, self.physical)}",
                listings=self.listings,
                doomed=pa.table({"rid": rowids}),
            )

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
