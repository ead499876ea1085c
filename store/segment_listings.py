"""Listings of files that are stored as segments: Parquet files that are written before the commit that shows them.

A capture of many files adds its rows to a `SegmentListing`, which writes them to files as they come and compares them
with stored rows by reading only. The commit adds a row for each file to `segments`, and ends the rows that the listing
no longer has. Nobody waits for anything but that commit. As for a listing that is stored in pieces, a row of
`staged_listings` tells other writers of it: each ends it, and its capture is begun again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from store.duckdb.arrow_sql import execute, query
from store.duckdb.database import Connection, Database
from store.duckdb.layout import OPEN_END, stored_columns
from store.duckdb.segment_files import Written
from store.duckdb.segments import segment_of
from store.history.file_listings import Marks
from store.history.merge import Ids, Merged, Standing, Stored, merge
from store.history.staged import Staged
from store.model.errors import Cancelled
from store.model.puts import IDENTITY, Counts, Put, PutMode, two_rows
from store.staged_listings import StagedListing

ROWS: Final = 1 << 18
"""Rows of a segment as it is written, at most; merging makes larger ones."""

_BYTES: Final = 128 << 20  # of a segment in memory, at most
_FEW_ROWS: Final = 10_000
_RUN_ROWS: Final = 64  # rows of a run from which on a slice costs less than a copy, on average
_ORDER: Final = {
    "stats.files": ("file_path",),
    "stats.file_columns": ("column_id", "file_path"),
    "file_sketches": ("column_id", "file_path"),
}
"""Family → the columns by which the rows of a segment are sorted."""


class SegmentListing(StagedListing):
    """The listing of one snapshot in one family, stored as segments; its life is that of a `StagedListing`. It takes
    the rows of captures."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self._segments = self._database.segments
        self._size = 0  # bytes of the rows that wait
        self._fills: bool | None = None  # its rows are of mode FILL
        self._repeated: list[Staged] = []  # rows about targets put earlier
        self._files: list[Written] = []
        self._unread: list[Written] = []  # those whose targets are not known yet
        self._small: list[pa.Table] = []  # new rows, while they are few
        self._kept: list[Ids] = []  # ids of the stored rows that this listing has, too
        self._kept_rows: list[pa.Table] = []  # the same for rows in the family's table, by their identity
        self._ended: list[Ids] = []  # ids of rows in segments that end where this listing begins
        self._ended_rows: list[pa.Table] = []
        self._gone = pa.table({"file": pa.array([], pa.string())})  # files of the base that this listing lacks
        self._is_settled = False
        self.few_rows = min(_FEW_ROWS, self._segments.cells or 0)
        """New rows up to which they go into the file, where a merge finds them later."""

    # Taking rows.

    def begin(self) -> bool:
        """Begins the listing; see `StagedListing.begin`."""
        if not super().begin():
            return False
        self._segments.expect(self.table_key)
        self._gone = self._removed
        return True

    def _end_removed(self) -> None:
        """The rows of removed files end with the commit."""

    def takes(self, put: Put) -> bool:
        """True if rows of a put can be added: they belong to the same listing, and are requested as the first ones
        were, or not. The others are put after its commit."""
        return super().takes(put) and self._fills in (None, put.mode is PutMode.FILL)

    def add(self, rows: pa.Table, mode: PutMode) -> None:
        """Takes rows; the arguments and errors are those of `StagedListing.add`."""
        self._fills = mode is PutMode.FILL
        if self._waiting and (self._mode, self._waiting[0].schema) != (mode, rows.schema):
            self._store_waiting(1)
        self._mode = mode
        self._waiting.append(rows)
        self._size += rows.get_total_buffer_size()
        if self._size >= _BYTES or sum(part.num_rows for part in self._waiting) >= ROWS:
            self._store_waiting(ROWS)

    def _store_waiting(self, least: int) -> None:  # noqa: ARG002  all rows that wait fit into one file
        rows, self._waiting, self._size = pa.concat_tables(self._waiting), [], 0
        for start in range(0, rows.num_rows, ROWS):
            self._store(rows.slice(start, ROWS).combine_chunks())

    def add_file(self, written: Written, mode: PutMode) -> None:
        """Takes a file of rows that its maker has checked, about targets of which no other such file has a row. It
        becomes a segment as it is, unless stored rows or earlier ones are about the same targets.

        Args:
            mode: As of `add`, whose errors it raises.
        """
        if self._waiting:
            self._store_waiting(1)
        self._fills, self._mode = mode is PutMode.FILL, mode
        is_first = not self._has_rows and not self._targets
        if is_first:
            self._refuse_cancelled()
            self._files.append(written)
            self._unread.append(written)
            self.counts += Counts(written.row_count, written.row_count, 0, 0)
            return
        rows = self._read(written)
        placed = rows.append_column("snapshot_id", pa.repeat(pa.scalar(self._snapshot_id, pa.int64()), rows.num_rows))
        if self._take(placed, written):
            self._segments.files.discard([written.name])

    def _read(self, written: Written, columns: list[str] | None = None) -> pa.Table:
        """Rows of a file, with all columns of their identity."""
        rows = self._segments.files.read(written, columns)
        types = stored_columns(self.family)
        for name in IDENTITY[self.family]:
            if name not in rows.column_names:
                rows = rows.append_column(name, pa.nulls(rows.num_rows, types[name]))
        return rows

    def _know_all(self) -> None:
        """Notes the targets of the files that were taken as they are, before other rows are compared with them."""
        unread, self._unread = self._unread, []
        for written in unread:
            self._targets.add(self._targets.places(self._read(written, [*IDENTITY[self.family]])))

    def _refuse_cancelled(self) -> None:
        if self._is_cancelled is not None and self._is_cancelled():
            raise Cancelled("the job was cancelled")

    def _store(self, piece: pa.Table) -> None:
        self._take(piece)

    def _take(self, piece: pa.Table, written: Written | None = None) -> bool:
        """Stores rows that differ from those that are stored.

        Args:
            written: The file that they are in, if they are in one.

        Returns:
            False if the file is used as it is.
        """
        self._refuse_cancelled()
        self._know_all()
        keyed = piece.append_column("table_key", pa.repeat(pa.scalar(self.table_key, pa.int64()), piece.num_rows))
        staged = Staged(self.family, keyed, lambda _: self._full_name)
        places = self._targets.places(staged.rows)
        known = self._targets.has(places)
        received = staged.received
        if known.any():
            if self._mode is not PutMode.FILL:  # of rows that fill, the first one stays
                self._repeated.append(Staged(self.family, staged.rows.filter(pa.array(known)), staged.name_of))
            self._targets.add(places)
            self.counts += Counts(received - int((~known).sum()), 0, 0, 0)
            received = int((~known).sum())
            staged = Staged(self.family, staged.rows.filter(pa.array(~known)), staged.name_of)
        else:
            self._targets.add(places)
        fresh, counts = staged.rows, Counts(received, staged.rows.num_rows, 0, 0)
        if self._has_rows:
            merged = self._compared(staged)
            counts = merged.counts(received)
            fresh = staged.only(merged.insert)
        is_whole = written is not None and fresh.num_rows == piece.num_rows
        if written is not None and is_whole:
            self._write_small()
            self._files.append(written)
        else:
            self._keep(fresh.drop_columns(["table_key", "snapshot_id"]))
        self.counts += counts
        return not is_whole

    def _compared(self, staged: Staged) -> Merged:
        """Compares rows with the stored ones of the same targets, and notes which of these stay and which end."""
        file = IDENTITY[self.family][0]
        removed = np.zeros(staged.rows.num_rows, np.bool_)
        if self._gone.num_rows:
            removed = pc.is_in(staged.rows[file], self._gone["file"]).to_numpy()
        keep = None
        if self._mode is PutMode.CAPTURE and self._is_own:
            among = "NOT IN (SELECT file FROM {removed})" if self._gone.num_rows else "IS NOT NULL"
            keep = f"t.{file} {among}"
        with self._database.reading() as cursor:
            fills = self._mode is PutMode.FILL
            found = staged.matches(
                cursor, self._stored_sql(cursor), keep_complete=keep, fills=fills, removed=self._gone
            )
        row, rid = (found[name].to_numpy() for name in ("row_no", "rid"))
        is_own = self._is_own & ~removed[row]
        standing = np.where(is_own, Standing.OWN, Standing.EARLIER)
        merged = merge(staged.rows.num_rows, Stored.of(found, standing), self._mode)
        ends = merged.close | merged.split
        for which, ids, rows in ((merged.leave, self._kept, self._kept_rows), (ends, self._ended, self._ended_rows)):
            ids.append(rid[which & (rid < 0)])
            numbers = row[which & (rid >= 0)]
            if len(numbers):
                rows.append(self._targets_of(staged.rows.take(pa.array(numbers))))
        return merged

    def _targets_of(self, rows: pa.Table) -> pa.Table:
        return rows.select([name for name in IDENTITY[self.family] if name in rows.column_names])

    def _stored_sql(self, cursor: Connection) -> str:
        """SQL of the stored rows of the newest listing, with ids: negative ones of rows in segments."""
        cursor.execute("BEGIN TRANSACTION")
        segments = self._segments.find(cursor, [self.table_key], self.family)
        where = f"t.table_key = {self.table_key} AND t.to_pos = {OPEN_END}"
        stored = f"SELECT t.rowid AS rid, t.* FROM {self._physical} t WHERE {where}"
        if (numbered := self._segments.numbered_sql(self.family, segments)) is not None:
            stored += f" UNION ALL SELECT t.* FROM {numbered} t WHERE t.to_pos = {OPEN_END}"
        return stored

    def _keep(self, fresh: pa.Table) -> None:
        """Keeps new rows in memory while they are few, else in files."""
        if not fresh.num_rows:
            return
        self._small.append(fresh)
        if self._files or sum(part.num_rows for part in self._small) > self.few_rows:
            self._write_small()

    def _write_small(self) -> None:
        for part in self._small:
            self._files.append(self._segments.files.write(in_order(part, self.family)))
        self._small = []

    # The end.

    def settle(self) -> None:
        """Stores the last rows and finds those that end, after the last `add`; a second call has no effect."""
        if self._is_settled:
            return
        if self._waiting:
            self._store_waiting(1)
        self._refuse_other()
        if self._has_rows:
            self._end_others()
        if self._files:
            self._segments.files.sync()
        self._is_settled = True

    def _refuse_other(self) -> None:
        """Refuses rows that differ from those that were put before about the same targets."""
        if not self._repeated:
            return
        with self._database.reading() as cursor:
            stored = self._stored_sql(cursor)
            kept = np.unique(np.concatenate([np.empty(0, np.int64), *self._kept]))
            for staged in self._repeated:
                found = staged.matches(cursor, stored)
                is_kept = np.isin(found["rid"].to_numpy(), kept)
                self._refuse_one(staged, found.filter(pa.array(is_kept)))
                own = self._put_before(staged)
                self._refuse_one(staged, staged.matches(cursor, "SELECT * FROM {own}", own=own))

    def _put_before(self, staged: Staged) -> pa.Table:
        """The new rows of the same files, with all stored columns."""
        file = IDENTITY[self.family][0]
        files = staged.rows[file].unique()
        parts = [part.filter(pc.is_in(part[file], files)) for part in self._small]
        for each in self._files:
            self._segments.files.check(each.name, each.digest)
            path = self._segments.files.path(each.name)
            parts.append(pq.read_table(path, filters=pc.field(file).isin(files.to_pylist()), partitioning=None))
        schema = pa.schema([("table_key", pa.int64()), ("rid", pa.int64()), *staged.columns.items()])
        rows = pa.concat_tables([schema.empty_table(), *parts], promote_options="permissive").select(schema.names)
        keys = pa.repeat(pa.scalar(self.table_key, pa.int64()), rows.num_rows)
        return rows.set_column(0, "table_key", keys).set_column(1, "rid", keys)

    def _refuse_one(self, staged: Staged, found: pa.Table) -> None:
        other = found.filter(pc.invert(found["same"]))
        if other.num_rows:
            first = other["row_no"][0].as_py()
            target = {name: staged.rows[name][first].as_py() for name in ("snapshot_id", *IDENTITY[self.family])}
            raise two_rows(self.family, self._full_name, target)

    def _end_others(self) -> None:
        """Notes the rows of removed files and, if the listing has no other rows than those put, all that were not."""
        conditions = ["t.file_path IN (SELECT file FROM {removed})"] if self._gone.num_rows else []
        if self._is_exact:
            conditions = ["true"]
        if not conditions:
            return
        kept = np.unique(np.concatenate([np.empty(0, np.int64), *self._kept, *self._ended]))
        with self._database.reading() as cursor:
            cursor.execute("BEGIN TRANSACTION")
            for segment in self._segments.find(cursor, [self.table_key], self.family):
                rows = self._segments.numbered_sql(self.family, [segment])
                where = f"t.to_pos = {OPEN_END} AND {conditions[0]}"
                found = query(cursor, f"SELECT rid FROM {rows} t WHERE {where}", removed=self._gone)["rid"]
                self._ended.append(np.setdiff1d(found.to_numpy(), kept))
            where = f"t.table_key = {self.table_key} AND t.to_pos = {OPEN_END} AND {conditions[0]}"
            names = ", ".join(IDENTITY[self.family])
            sql = f"SELECT {names} FROM {self._physical} t WHERE {where}"
            given = {"removed": self._gone}
            if self._kept_rows or self._ended_rows:
                given["done"] = pa.concat_tables([*self._kept_rows, *self._ended_rows])
                same = " AND ".join(f"d.{name} IS NOT DISTINCT FROM t.{name}" for name in given["done"].column_names)
                sql += f" AND NOT EXISTS (SELECT 1 FROM {{done}} d WHERE {same})"
            left = query(cursor, sql, **given)
        if left.num_rows:
            self._ended_rows.append(left)

    def commit(self, connection: Connection, marks: Marks = MappingProxyType({})) -> None:
        """Makes the listing visible, inside of the transaction of the capture; see `StagedListing.commit`."""
        self._check(connection)
        created_us = time.time_ns() // 1000
        span = (self._pos, OPEN_END)
        self._end_rows(connection)
        given = self.table_key, self.family, self._files, span, self._generation, created_us
        self._segments.add(connection, *given)
        for rows in self._small:
            keyed = rows.append_column("table_key", pa.repeat(pa.scalar(self.table_key, pa.int64()), rows.num_rows))
            keyed = keyed.append_column("snapshot_id", pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows))
            staged = Staged(self.family, keyed, lambda _: self._full_name)
            placed = {"from_pos": self._pos, "to_pos": OPEN_END}
            staged.insert(connection, self._physical, keyed.drop_columns(["snapshot_id"]), self._generation, placed)
        super().commit(connection, marks)

    def _end_rows(self, connection: Connection) -> None:
        """Ends the stored rows that this listing does not have."""
        ended = np.unique(np.concatenate([np.empty(0, np.int64), *self._ended]))
        by_segment = segment_of(ended)
        numbers, counts = np.unique(by_segment, return_counts=True)
        ended_of = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        segments = self._segments.find(connection, [self.table_key], self.family)
        whole = {s.segment for s in segments if ended_of.get(s.segment) == s.row_count and s.to_pos == OPEN_END}
        if whole:
            among = ", ".join(map(str, whole))
            connection.execute(f"UPDATE segments SET to_pos = {self._pos} WHERE segment IN ({among})")
        in_part = [s.segment for s in segments if s.segment not in whole]
        self._segments.end(connection, ended[np.isin(by_segment, in_part)], self._pos)
        for rows in self._ended_rows:
            same = " AND ".join(f"t.{name} IS NOT DISTINCT FROM e.{name}" for name in rows.column_names)
            execute(
                connection,
                f"UPDATE {self._physical} t SET to_pos = {self._pos} FROM {{ended}} e"
                f" WHERE t.table_key = {self.table_key} AND t.to_pos = {OPEN_END} AND t.from_pos < {self._pos}"
                f" AND {same}",
                ended=rows,
            )

    def close(self) -> None:
        """Removes what is not committed."""
        if self._files:
            used = drop_unused(self._database, [file.name for file in self._files])
            self._files = [file for file in self._files if file.name in used]
        super().close()


def drop_unused(database: Database, names: Sequence[str]) -> set[str]:
    """Deletes files that were written for a capture and are not committed; returns the names of the others."""
    with database.reading() as cursor:
        found = query(cursor, "SELECT s.name FROM segments s JOIN {n} n USING (name)", n=pa.table({"name": names}))
    used = set(found["name"].to_pylist())
    database.segments.files.keep(used)
    database.segments.files.discard([name for name in names if name not in used])
    return used


def in_order(rows: pa.Table, family: str) -> pa.Table:
    """The rows of a segment in the order in which they are stored: by column, then file."""
    keys = _sort_keys(rows, _ORDER[family])
    if (keys[1:] >= keys[:-1]).all():
        return rows
    order = np.argsort(keys, kind="stable")
    starts: Ids = np.flatnonzero(order[1:] != order[:-1] + 1) + 1
    if len(starts) * _RUN_ROWS > len(order):
        return rows.take(pa.array(order))
    bounds = [0, *starts.tolist(), len(order)]  # of runs of rows, as engines make them, that are not copied
    return pa.concat_tables([rows.slice(order[at], end - at) for at, end in itertools.pairwise(bounds)])


def _sort_keys(rows: pa.Table, names: Sequence[str]) -> Ids:
    """Numbers that order rows as columns do, the first one foremost and nulls last in each."""
    keys: Ids = np.zeros(rows.num_rows, np.int64)
    for name in names:
        if name not in rows.column_names:
            continue
        coded = rows[name].combine_chunks().dictionary_encode()  # few distinct values are sorted, not all
        ranks = pc.rank(coded.dictionary).to_numpy()
        numbers = np.append(ranks.astype(np.int64), len(ranks) + 1)[coded.indices.fill_null(-1).to_numpy()]
        keys = keys * (len(ranks) + 2) + numbers
    return keys
