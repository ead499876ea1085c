"""Listings of files that are stored in pieces, so that no other write waits for a large put or capture.

The rows go into the final tables in pieces, between the commits of other writes, at the position after the newest
listing: new rows begin there, rows that changed or are absent end there. No reader sees the position, because no row of
`file_snapshots` has it; the commit adds that row. Until then `staged_listings` records the position. Any other write to
the same table and family removes what is staged first (`file_spans.end_staged`), and its capture or put then begins
again; a server removes at its start what an earlier one left. While something is being removed, its generation there is
negative.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import execute, rowid_in
from store.duckdb.database import Connection, Database
from store.duckdb.layout import BY_SPAN, OPEN_END, insert_rows
from store.history.file_listings import FAMILIES, ListingChanged, Marks, can_continue
from store.history.file_spans import end_staged, positions, tidy
from store.history.merge import Ids, Mask, Merged, Standing, Stored, merge
from store.history.presence import STAGED
from store.history.span_merge import drop_orphaned_sketches
from store.history.staged import Staged
from store.history.target_bits import TargetBits
from store.model.errors import StatflightError
from store.model.names import join_name
from store.model.puts import (
    FAMILY_OF,
    IDENTITY,
    MANY_ROWS,
    Counts,
    Listing,
    Put,
    PutMode,
    is_constant,
    one_place,
    two_rows,
)

log = logging.getLogger("statflight.store")

_PIECE_ROWS: Final = MANY_ROWS  # a row group of DuckDB, which it writes to the file at once instead of to its log
_PIECE_BYTES: Final = 64 << 20
_NEAR_ROWS: Final = _PIECE_ROWS  # row ids around the last ones where the next piece's rows are looked for first
_TIDY_ROWS: Final = 100_000  # rows that are deleted or closed in one transaction

# States of a stored row about a target, in the SQL of `_matches`.
_OPEN, _ENDED, _REQUESTED, _FILLED = range(4)  # of an earlier listing, and staged by this one

T = TypeVar("T")


class _Piece(NamedTuple):
    """The effect of a piece: its counts, how many more rows of earlier listings are carried over, and their last id."""

    counts: Counts
    carried: int
    near: int


class StagedListing:
    """The listing of one snapshot in one family, stored in pieces: `begin`, `add`, `settle`, then `commit` in the
    transaction that makes it visible, and `close` in any case.

    Args:
        family: A flight of `BY_SPAN`.
        first: A row of the table at the snapshot.
        table_key: Key of the table; None for one that is not registered yet: `begin` reserves its key.
        generation: Generation of requested rows; that of others (mode FILL) is the number after it.
        whole: The rows are all of the listing, so that it lacks the others of the snapshot's listing, if it has one.
        base: The listing that the rows continue; None if they do not.
    """

    def __init__(
        self,
        catalog: Catalog,
        family: str,
        first: pa.Table,
        table_key: int | None,
        generation: int,
        *,
        whole: bool = False,
        base: Listing | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ):
        self._catalog, self._database, self.family, self.first = catalog, catalog.database, family, first
        self.table_key, self.is_new, self._generation = table_key or 0, not table_key, generation
        self.whole, self._base, self._is_cancelled = whole, base, is_cancelled
        *names, self._snapshot_id = self._place = place_of(first) or ()
        self.name, self._full_name = tuple(names), join_name(*names)
        self._physical, self._file = BY_SPAN[family], IDENTITY[family][0]
        self._pos, self._has_rows, self._is_own = 0, False, False
        self._carried, self._near = 0, 0  # rows of earlier listings that this one has; the greatest id among the last
        self._targets = TargetBits(family)  # of the rows that are stored
        self.counts = Counts()  # of the rows that are stored, as of a put
        self._waiting: list[pa.Table] = []  # rows of one schema, which are no piece yet
        self._mode = PutMode.CREATE  # of these

    def takes(self, put: Put) -> bool:
        """True if rows of a put can be added: they belong to the same listing."""
        whole = put.mode is PutMode.REPLACE_SNAPSHOT
        return family_of(put) == self.family and whole == self.whole and place_of(put.rows) == self._place

    @property
    def _is_exact(self) -> bool:
        """True if the listing has no other rows than those put."""
        return self.whole or not self._is_own

    def begin(self) -> bool:
        """Begins to stage; removes what is staged already for the table and family.

        Returns:
            False if the snapshot has a listing that is not the newest: its rows cannot be put in pieces.

        Raises:
            ListingChanged: The base is not the newest listing.
        """
        if not self.is_new:
            unstage(self._database, self.family, self.table_key)
        if not self._write(self._begin):
            return False
        self._end_removed()
        return True

    @property
    def _removed(self) -> pa.Table:
        """The files of the base, in a column `file`, that this listing does not have."""
        is_same = self._base is None or self._base.snapshot_id == self._base.base_snapshot_id
        return pa.table({"file": pa.array([] if is_same else self._base.removed, pa.string())})  # type: ignore[union-attr]

    def _end_removed(self) -> None:
        removed = self._removed
        if removed.num_rows:
            self._end_all("IN (SELECT file FROM {ended})", removed)

    def _begin(self, connection: Connection) -> bool:
        if self.is_new:
            self.table_key = self._catalog.entries.reserve_key()
        end_staged(connection, self._database.segments, self.family, [self.table_key])
        listed = positions(connection, self.table_key, self.family)
        newest, own = max(listed.values(), default=-1), listed.get(self._snapshot_id)
        if own not in (None, newest):
            return False
        if self._base is not None and not can_continue(connection, self.table_key, self._base):
            raise ListingChanged
        self._pos, self._has_rows = newest + 1, newest >= 0
        self._is_own = own is not None or self._base is not None
        for family in (self.family, STAGED):
            self._catalog.presence.add(family, [self.table_key])
        insert_rows(connection, "staged_listings", [[self.table_key, self.family, self._pos, self._generation]])
        return True

    def add(self, rows: pa.Table, mode: PutMode) -> None:
        """Takes rows, and stores those that fill a piece; `settle` stores the rest.

        Args:
            rows: Rows of the table at the snapshot, prepared, with all columns of their identity.
            mode: Treatment of rows that the snapshot has, or got by an earlier call.

        Raises:
            Conflict: In mode `create` another record is stored for a target.
            InvalidArgument: Two different rows for one target.
            ListingChanged: Another write ended the staging.
            Cancelled: The rows are unwanted.
        """
        if self._waiting and (self._mode, self._waiting[0].schema) != (mode, rows.schema):
            self._store_waiting(1)
        self._mode = mode
        self._waiting.append(rows)
        if (
            sum(part.num_rows for part in self._waiting) >= _PIECE_ROWS
            or sum(part.get_total_buffer_size() for part in self._waiting) >= _PIECE_BYTES
        ):
            self._store_waiting(_PIECE_ROWS)

    def _store_waiting(self, least: int) -> None:
        """Stores the rows that wait, in pieces; fewer than `least`, or than a piece of the largest size, remain."""
        rows, self._waiting = pa.concat_tables(self._waiting), []
        step = min(_PIECE_ROWS, max(1, _PIECE_BYTES * rows.num_rows // max(1, rows.nbytes)))
        if not self._has_rows:  # nothing is compared, and two row groups are written by two threads
            step *= 2
        while rows.num_rows >= min(step, least):
            self._store(rows.slice(0, step).combine_chunks())
            rows = rows.slice(step)
        if rows.num_rows:
            self._waiting.append(rows)

    def _store(self, piece: pa.Table) -> None:
        keyed = piece.append_column("table_key", pa.repeat(pa.scalar(self.table_key, pa.int64()), piece.num_rows))
        staged = Staged(self.family, keyed, lambda _: self._full_name)
        places = self._targets.places(staged.rows)
        known = self._targets.has(places)
        merged = self._write(functools.partial(self._merge, staged=staged, mode=self._mode, known=known))
        self.counts += merged.counts
        self._carried, self._near = self._carried + merged.carried, merged.near
        self._targets.add(places)

    def _merge(self, connection: Connection, staged: Staged, mode: PutMode, known: Mask) -> _Piece:
        """Stores a piece.

        Args:
            known: True for rows about targets put earlier.
        """
        self._check(connection)
        if not self._has_rows and not known.any():
            self._insert(connection, staged, staged.rows, mode)
            return _Piece(Counts(staged.received, staged.rows.num_rows, 0, 0), 0, self._near)
        found = self._matches(connection, staged, mode, known)
        stored = Stored.of(found, self._standings(found, known))
        merged = merge(staged.rows.num_rows, stored, mode)
        self._refuse(connection, staged, found, merged)
        rid, state = found["rid"].to_numpy(), found["state"].to_numpy()
        ends, was_open = merged.close | merged.split, state == _OPEN  # an own row ends: its snapshot moves on
        self._change(connection, f"UPDATE {{0}} SET to_pos = {self._pos}", rid[ends & was_open])
        self._change(connection, f"UPDATE {{0}} SET to_pos = {OPEN_END}", rid[merged.extend])
        self._change(connection, "DELETE FROM {0}", rid[ends & ~was_open])
        self._insert(connection, staged, staged.only(merged.insert), mode)
        was_carried = stored.standing == Standing.CARRIED
        more = merged.extend | (merged.leave & was_open & ~was_carried)
        carried = int(more.sum()) - int((merged.close & was_carried).sum())
        return _Piece(merged.counts(staged.received), carried, int(rid[was_open].max(initial=self._near)))

    def _standings(self, found: pa.Table, known: Mask) -> Ids:
        """The `Standing` of stored rows.

        Args:
            known: True for staged rows about targets put earlier.
        """
        of_open = np.where(known, Standing.CARRIED, Standing.OWN if self._is_own else Standing.EARLIER)
        of_state = np.array([-1, Standing.ENDED, Standing.ASKED, Standing.FILLED])
        state = found["state"].to_numpy()
        return np.where(state == _OPEN, of_open[found["row_no"].to_numpy()], of_state[state])

    def _insert(self, connection: Connection, staged: Staged, rows: pa.Table, mode: PutMode) -> None:
        generation = self._generation + (mode is PutMode.FILL)
        span = {"from_pos": self._pos, "to_pos": OPEN_END}
        staged.insert(connection, self._physical, rows.drop_columns(["snapshot_id"]), generation, span)

    def _matches(self, connection: Connection, staged: Staged, mode: PutMode, known: Mask) -> pa.Table:
        """The stored rows of the same targets, with their `state`."""
        is_own = mode is PutMode.CAPTURE and self._is_own
        stored = (
            f"SELECT t.rowid AS rid, CASE WHEN t.from_pos = {self._pos} THEN CASE t.generation"
            f" WHEN {self._generation} THEN {_REQUESTED} ELSE {_FILLED} END WHEN t.to_pos = {OPEN_END} THEN {_OPEN}"
            f" ELSE {_ENDED} END AS state, t.* FROM {self._physical} t WHERE t.table_key = {self.table_key}"
            f" AND t.to_pos IN ({self._pos}, {OPEN_END})"
        )
        keep, fills = f"t.from_pos < {self._pos}" if is_own else None, mode is PutMode.FILL
        if known.any():
            return staged.matches(connection, stored, ("state",), keep_complete=keep, fills=fills)
        stored += f" AND t.from_pos < {self._pos}"  # one row at most of each target
        # files usually come in the order in which they were stored, and DuckDB reads only the row groups of these ids
        nearby = f" AND t.rowid BETWEEN {self._near - _NEAR_ROWS} AND {self._near + 2 * _NEAR_ROWS}"
        found = staged.matches(connection, stored + nearby, ("state",), keep_complete=keep, fills=fills)
        if found.num_rows == staged.rows.num_rows:
            return found
        return staged.matches(connection, stored, ("state",), keep_complete=keep, fills=fills)

    def _refuse(self, connection: Connection, staged: Staged, found: pa.Table, merged: Merged) -> None:
        """Refuses rows that differ from a stored one that is put again, or that is the snapshot's own."""
        if merged.repeated is not None:
            row_no = found["row_no"][merged.repeated].as_py()
            target = {name: staged.rows[name][row_no].as_py() for name in ("snapshot_id", *IDENTITY[self.family])}
            raise two_rows(self.family, self._full_name, target)
        if merged.conflict is not None:
            first = found.slice(merged.conflict, 1).to_pylist()[0]
            staged.refuse(connection, self._physical, first["row_no"], first["rid"])

    def _change(self, connection: Connection, statement: str, rids: npt.NDArray[np.int64]) -> None:
        """Runs an UPDATE or DELETE, with `{0}` for the table, on rows by id."""
        if rids.size:
            doomed = pa.chunked_array([rids])
            where = f"table_key = {self.table_key} AND {rowid_in(doomed, self._physical)}"
            sql = f"{statement.format(self._physical)} WHERE {where}"
            execute(connection, sql, doomed=pa.table({"rid": doomed}))

    def settle(self) -> None:
        """Stores the last rows and ends those that were not put, after the last `add`; a second call has no effect.

        Raises:
            ListingChanged: Another write ended the staging.
            Cancelled: The rows are unwanted.
        """
        if self._waiting:
            self._store_waiting(1)
        if not self._is_exact or not self._has_rows or self._are_all_carried():
            return
        self._end_all("NOT IN (SELECT file FROM {ended})", pa.table({"file": self._targets.files()}))
        if not self._are_all_carried():  # files have fewer columns, or sketches, than before
            names = IDENTITY[self.family]
            with self._database.reading() as cursor:
                cursor.execute(f"SELECT {', '.join(names)} FROM {self._physical} WHERE {self._earlier}")
                rows = itertools.chain.from_iterable(iter(lambda: cursor.fetchmany(_TIDY_ROWS), []))
                absent = [target for target in rows if target not in self._targets]
            same = " AND ".join(f"e.{name} IS NOT DISTINCT FROM t.{name}" for name in names)
            columns = dict(zip(names, zip(*absent, strict=True), strict=False))
            self._end_all(f"IN (SELECT {self._file} FROM {{ended}} e WHERE {same})", pa.table(columns))

    @property
    def _earlier(self) -> str:
        """Condition on the open rows of earlier listings."""
        return f"table_key = {self.table_key} AND to_pos = {OPEN_END} AND from_pos < {self._pos}"

    def _are_all_carried(self) -> bool:
        """True if this listing has all open rows of earlier listings."""
        ((count,),) = self._database.rows(f"SELECT count(*) FROM {self._physical} WHERE {self._earlier}")
        return bool(count == self._carried)

    def _end_all(self, among: str, ended: pa.Table) -> None:
        """Ends the open rows of earlier listings whose file is among those of a table, in pieces."""

        def end_some(connection: Connection) -> int:
            self._check(connection)
            ((count,),) = execute(
                connection,
                f"UPDATE {self._physical} SET to_pos = {self._pos} WHERE rowid IN (SELECT rowid FROM"
                f" {self._physical} t WHERE {self._earlier} AND {self._file} {among} LIMIT {_TIDY_ROWS})",
                ended=ended,
            )
            return int(count)

        while self._write(end_some) == _TIDY_ROWS:
            pass

    def commit(self, connection: Connection, marks: Marks = MappingProxyType({})) -> None:
        """Makes the listing visible, inside of the transaction of the put or capture.

        Raises:
            ListingChanged: Another write ended the staging.
        """
        self._check(connection)
        self._catalog.behind.stored(self.family, one_place(self.table_key, self._snapshot_id))
        listing = [self.table_key, self.family, self._snapshot_id]
        mark = marks.get((self.table_key, self._snapshot_id)) if self.family in FAMILIES else None
        kept = "mark" if mark is None and not self.whole else "NULL"
        ((moved,),) = connection.execute(
            f"UPDATE file_snapshots SET pos = {self._pos}, mark = coalesce(?, {kept})"
            " WHERE table_key = ? AND family = ? AND snapshot_id = ?",
            [mark, *listing],
        ).fetchall()
        if moved:  # what only its former listing has is removed by `close`
            connection.execute("UPDATE staged_listings SET pos = pos - 1 WHERE generation = ?", [self._generation])
        else:
            columns = "file_snapshots (table_key, family, snapshot_id, pos, mark)"
            insert_rows(connection, columns, [[*listing, self._pos, mark]])
            connection.execute("DELETE FROM staged_listings WHERE generation = ?", [self._generation])
        self._catalog.spans.list_files([self.table_key])
        self._database.touch(self.table_key)
        if self.whole and self.family == "stats.files":
            places = pa.table({"table_key": [self.table_key], "snapshot_id": [self._snapshot_id]})
            drop_orphaned_sketches(connection, self._database.segments, places)

    def close(self) -> None:
        """Removes what is staged and not committed, and what only the former listing of the snapshot has, in a thread
        of its own."""
        unstage_later(self._database, [(self.family, self.table_key, self._generation)])

    def _check(self, connection: Connection) -> None:
        if not connection.execute("SELECT 1 FROM staged_listings WHERE generation = ?", [self._generation]).fetchall():
            raise ListingChanged

    def _write(self, function: Callable[[Connection], T]) -> T:
        with self._database.turn:  # one piece in a commit of the writer, however many listings are staged
            return self._database.write(function, self._is_cancelled)


def family_of(put: Put) -> str | None:
    """The family of a put whose rows are all about files and have an identity, else None."""
    sketches = put.flight == "stats.sketches"
    family = FAMILY_OF.get(put.flight)
    if family is None or (sketches and not pc.all(pc.equal(put.rows["target_kind"], "FILE")).as_py()):
        return None
    needed = [name for name in IDENTITY[family] if not sketches or name == "storage_id"]
    given = (name in put.rows.column_names and not put.rows[name].null_count for name in needed)
    return family if all(given) else None


def place_of(rows: pa.Table) -> tuple[Any, ...] | None:
    """Catalog, schema, name and snapshot id of rows that have these and the table's id in common, else None."""
    place = [rows[name] for name in ("table_catalog", "table_schema", "table_name", "snapshot_id")]
    has_ids = "table_id" in rows.column_names and rows["table_id"].null_count < rows.num_rows
    shared = [*place, rows["table_id"]] if has_ids else place
    return tuple(column[0].as_py() for column in place) if all(map(is_constant, shared)) else None


def unstage(database: Database, family: str, table_key: int, generation: int | None = None) -> None:
    """Removes what is staged for a table, in pieces.

    Args:
        family: A flight of `BY_SPAN`.
        generation: Only what has this generation in `staged_listings`; None for all.
    """

    def run(connection: Connection) -> bool:
        # the put that stages it must neither commit it nor go on with it from the first piece on
        ((recorded,),) = connection.execute(
            "UPDATE staged_listings SET generation = -abs(generation) WHERE family = ? AND table_key = ?"
            " AND abs(generation) = abs(coalesce(?, generation))",
            [family, table_key, generation],
        ).fetchall()
        segments = database.segments
        if recorded and tidy(connection, segments, family, [table_key], _TIDY_ROWS) < _TIDY_ROWS:
            end_staged(connection, segments, family, [table_key])
            return False
        return bool(recorded)

    with database.turn:
        if not database.rows("SELECT 1 FROM staged_listings WHERE table_key = ? LIMIT 1", table_key):
            return
    more = True
    while more:
        with database.turn:
            more = database.write(run)


def unstage_later(database: Database, places: list[tuple[str, int, int]]) -> None:
    """`unstage` in a thread of its own, for any number of (family, table key, generation)."""

    def run() -> None:
        for place in places:
            try:
                unstage(database, *place)
            except StatflightError as error:  # the next write to the table does it, or the next start
                log.info("rows that no listing has are left for later: %s", error)

    if places:
        threading.Thread(target=run, name="store-unstage").start()


def unstage_all(database: Database) -> None:
    """Removes what an earlier server has left staged, in a thread of its own."""
    rows = database.rows("SELECT family, table_key, generation FROM staged_listings")
    unstage_later(database, [(family, table_key, generation) for family, table_key, generation in rows])
