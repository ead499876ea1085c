"""Merging the rows of a put, of one table and one flight, with what is stored: only what is new is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.catalog_store import TableEntry
from store.database import BY_SNAPSHOT, BY_SPAN, OPEN_END, Connection, stored_columns
from store.file_spans import STORAGE_ID, delete_rows, positions, remove_at, view
from store.puts import FLIGHT_OF, IDENTITY, Counts, PutMode, contradicts, cosmetic, once

_NONE = pa.chunked_array([], pa.int64())
_ROW_GROUP = 122_880  # rows that DuckDB stores together
_PIECE_BYTES = 256 << 20  # copied at a time


class Merge(Protocol):
    """A merge that has looked at what is stored; `apply` writes."""

    def apply(self, connection: Connection, generation: int) -> Counts: ...


class _Staged:
    """Rows of a put in the physical table's columns, numbered, each target once."""

    def __init__(self, flight: str, entry: TableEntry, rows: pa.Table, leading: Sequence[str] = ()):
        self.flight, self.entry, self.received = flight, entry, rows.num_rows
        self.columns = stored_columns(flight)
        self.keys = (*leading, *IDENTITY[flight])
        self.given = [name for name in self.columns if name in rows.column_names]
        self.content = [name for name in self.columns if name not in cosmetic(flight) and name not in self.keys]
        self.rows = once(flight, entry.full_name, rows.select([*leading, *self.given]), self.keys)

    @property
    def numbered(self) -> pa.Table:
        return self.rows.append_column("row_no", pa.array(np.arange(self.rows.num_rows)))

    def matches(self, connection: Connection, physical: str, scope: str, *, keep_complete: bool = False) -> pa.Table:
        """row_no, rid and same of each staged row that has a stored one of its target within the scope.

        `keep_complete`: a COMPLETE stored row counts as the same as a PARTIAL staged one.
        """
        same = " AND ".join(
            f's."{n}" IS NOT DISTINCT FROM t."{n}"' if n in self.given else f't."{n}" IS NULL' for n in self.content
        )
        if keep_complete and (partial := self._is_partial()):
            same = f"({same or 'true'}) OR ({partial.format('s')} AND NOT {partial.format('t')})"
        # column_id is null where a sketch is of a whole file
        same_key = " AND ".join(
            f's."{k}" IS NOT DISTINCT FROM t."{k}"' if self.flight == "file_sketches" and k == "column_id"
            else f's."{k}" = t."{k}"' for k in self.keys if k in self.rows.column_names
        )  # fmt: skip
        if "column_id" in self.keys and "column_id" not in self.rows.column_names:
            same_key += " AND t.column_id IS NULL"
        with view(connection, staged=self.numbered):
            return connection.sql(
                f"SELECT s.row_no, t.rid, ({same or 'true'}) AS same FROM staged s"
                f" JOIN (SELECT rowid AS rid, * FROM {physical} WHERE {scope}) t ON {same_key or 'true'}"
            ).to_arrow_table()

    def _is_partial(self) -> str | None:
        """SQL of whether a row is of a part of the values, of an alias to be filled in; None where all are whole."""
        if self.flight.endswith("sketches"):
            word = "coalesce(json_extract_string({0}.params, '$.completeness') = 'PARTIAL', false)"
            return word if "params" in self.given else None
        return "coalesce({0}.completeness <> 'COMPLETE', true)" if "completeness" in self.given else None

    def refuse(self, connection: Connection, physical: str, row_no: int, rowid: int) -> None:
        """Raises the Conflict of one row."""
        new = dict.fromkeys(self.columns) | self.rows.slice(row_no, 1).to_pylist()[0]
        with view(connection, doomed=pa.table({"rid": [rowid]})):
            found = connection.sql(f"SELECT * FROM {physical} WHERE rowid IN (SELECT rid FROM doomed)").to_arrow_table()
        old = found.to_pylist()[0]
        stored = {name: old[name] for name in self.columns}
        raise contradicts(self.flight, self.entry.full_name, self.keys, stored, new)

    def without(self, row_numbers: pa.ChunkedArray) -> pa.Table:
        if not len(row_numbers):
            return self.rows
        keep = np.ones(self.rows.num_rows, np.bool_)
        keep[row_numbers.to_numpy()] = False
        return self.rows.filter(pa.array(keep))

    def insert(
        self, connection: Connection, physical: str, rows: pa.Table, leading: Mapping[str, str], generation: int
    ) -> None:
        """Appends rows; `leading` are the SQL expressions of the columns before the flight's own."""
        names = ", ".join([*leading, *(f'"{name}"' for name in self.given), "generation", "created_at"])
        values = ", ".join([*leading.values(), *(f'"{name}"' for name in self.given), str(generation), "now()"])
        for piece in _pieces(rows):
            with view(connection, staged=piece):
                connection.execute(f"INSERT INTO {physical} ({names}) SELECT {values} FROM staged")


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in large pieces of one chunk each.

    DuckDB stores a chunk of whole row groups as it comes; smaller ones it first copies together, at twice the cost.
    """
    step = max(1, _PIECE_BYTES * rows.num_rows // max(1, rows.nbytes))
    if step > _ROW_GROUP:
        step -= step % _ROW_GROUP
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step).combine_chunks()


class SnapshotMerge:
    """A put into a table whose rows are kept once for each snapshot."""

    def __init__(
        self, connection: Connection, mode: PutMode, flight: str, entry: TableEntry, rows: pa.Table,
        snapshots: Sequence[int],
    ):  # fmt: skip
        self.flight, self.physical, self.entry, self.mode = flight, BY_SNAPSHOT[flight], entry, mode
        self.staged = staged = _Staged(flight, entry, rows, ("snapshot_id",))
        self.insert, self.doomed, self.unchanged, self.replaced = staged.rows, _NONE, 0, 0
        self.snapshots = ", ".join(map(str, snapshots))
        scope = f"table_key = {entry.table_key} AND snapshot_id IN ({self.snapshots})"
        if not connection.execute(f"SELECT 1 FROM {self.physical} WHERE {scope} LIMIT 1").fetchall():
            return
        found = staged.matches(connection, self.physical, scope, keep_complete=mode is PutMode.CAPTURE)
        other = found.filter(pc.invert(found["same"]))
        if mode is PutMode.CREATE and other.num_rows:
            staged.refuse(connection, self.physical, other["row_no"][0].as_py(), other["rid"][0].as_py())
        settled = found if mode is PutMode.FILL else found.filter(found["same"])
        self.unchanged = settled.num_rows
        self.insert = staged.without(settled["row_no"])
        if mode is not PutMode.FILL:
            self.replaced, self.doomed = other.num_rows, other["rid"]
        if mode is PutMode.REPLACE_SNAPSHOT:
            absent = self._absent(connection, scope, found)
            self.doomed = pa.chunked_array([*self.doomed.chunks, *absent.chunks], pa.int64())

    def _absent(self, connection: Connection, scope: str, found: pa.Table) -> pa.ChunkedArray:
        """Rowids of what is stored and not in the new set; of sketches, only those of targets that are not."""
        among = ""
        if self.flight == "stats.sketches":  # a target that stays keeps the sketches the new set lacks
            among = (
                " AND NOT EXISTS (SELECT 1 FROM staged s WHERE s.storage_id = stats_sketches.storage_id"
                " AND s.snapshot_id = stats_sketches.snapshot_id)"
            )
        with view(connection, kept=found.select(["rid"]), staged=self.staged.rows):
            return connection.sql(
                f"SELECT rowid AS rid FROM {self.physical} WHERE {scope} AND rowid NOT IN (SELECT rid FROM kept){among}"
            ).to_arrow_table()["rid"]

    def apply(self, connection: Connection, generation: int) -> Counts:
        key = self.entry.table_key
        delete_rows(connection, self.physical, key, self.doomed)
        leading = {"table_key": str(key), "snapshot_id": "snapshot_id"}
        self.staged.insert(connection, self.physical, self.insert, leading, generation)
        if self.mode is PutMode.REPLACE_SNAPSHOT and self.flight != "stats.sketches":
            self._drop_orphaned_sketches(connection)
        created = self.insert.num_rows - self.replaced
        return Counts(self.staged.received, created, self.unchanged, self.replaced)

    def _drop_orphaned_sketches(self, connection: Connection) -> None:
        """Sketches of targets that the new set lacks go; those of targets that stay are carried over."""
        kind = next(str(kind) for kind, flight in FLIGHT_OF.items() if flight == self.flight)
        scope = f"table_key = {self.entry.table_key} AND snapshot_id IN ({self.snapshots}) AND target_kind = '{kind}'"
        if not connection.execute(f"SELECT 1 FROM stats_sketches WHERE {scope} LIMIT 1").fetchall():
            return
        with view(connection, staged=self.staged.rows.select(self.staged.keys)):
            connection.execute(
                f"DELETE FROM stats_sketches WHERE {scope} AND (storage_id, snapshot_id) NOT IN"
                f" (SELECT ({STORAGE_ID[self.flight].format('s')}, s.snapshot_id) FROM staged s)"
            )


class SpanMerge:
    """A put of one snapshot's rows into a table whose rows hold for a span of file listings."""

    def __init__(
        self, connection: Connection, mode: PutMode, family: str, entry: TableEntry, rows: pa.Table, snapshot_id: int
    ):
        self.family, self.physical, self.entry, self.snapshot_id = family, BY_SPAN[family], entry, snapshot_id
        self.mode = mode
        self.staged = staged = _Staged(family, entry, rows)
        self.insert, self.unchanged, self.replaced = staged.rows, 0, 0
        self.doomed, self.extend = _NONE, _NONE
        listings = positions(connection, entry.table_key, family)
        self.last = max(listings.values(), default=-1)
        self.is_new = snapshot_id not in listings
        self.pos = self.last + 1 if self.is_new else listings[snapshot_id]
        self.end = OPEN_END if self.is_new or self.pos == self.last else self.pos + 1
        if self.is_new and self.pos > 0:
            self._continue_listing(connection)
        elif not self.is_new:
            self._change_listing(connection, mode)

    def _continue_listing(self, connection: Connection) -> None:
        """A new listing: what the newest one holds stays open where the new one holds the same, and is closed else."""
        scope = f"table_key = {self.entry.table_key} AND to_pos = {OPEN_END}"
        found = self.staged.matches(connection, self.physical, scope)
        same = found.filter(found["same"])
        self.insert = self.staged.without(same["row_no"])
        self.doomed = self._absent(connection, scope, same)

    def _change_listing(self, connection: Connection, mode: PutMode) -> None:
        key = self.entry.table_key
        scope = f"table_key = {key} AND from_pos <= {self.pos} AND to_pos > {self.pos}"
        found = self.staged.matches(connection, self.physical, scope, keep_complete=mode is PutMode.CAPTURE)
        other = found.filter(pc.invert(found["same"]))
        if mode is PutMode.CREATE and other.num_rows:
            self.staged.refuse(connection, self.physical, other["row_no"][0].as_py(), other["rid"][0].as_py())
        settled = found if mode is PutMode.FILL else found.filter(found["same"])
        self.unchanged = settled.num_rows
        done = settled["row_no"]
        if mode is not PutMode.FILL:
            self.replaced, self.doomed = other.num_rows, other["rid"]
        # a listing that comes in several puts: what its predecessor held is prolonged, not stored again
        scope = f"table_key = {key} AND to_pos = {self.pos}"
        if connection.execute(f"SELECT 1 FROM {self.physical} WHERE {scope} LIMIT 1").fetchall():
            before = self.staged.matches(connection, self.physical, scope)
            before = before.filter(before["same"])
            fresh = pc.invert(pc.is_in(before["row_no"], done)) if len(done) else pa.repeat(True, before.num_rows)
            before = before.filter(fresh)
            self.extend = before["rid"]
            done = pa.chunked_array([*done.chunks, *before["row_no"].chunks], pa.int64())
        self.insert = self.staged.without(done)
        if mode is PutMode.REPLACE_SNAPSHOT:
            scope = f"table_key = {key} AND from_pos <= {self.pos} AND to_pos > {self.pos}"
            absent = self._absent(connection, scope, found)
            self.doomed = pa.chunked_array([*self.doomed.chunks, *absent.chunks], pa.int64())

    def _absent(self, connection: Connection, scope: str, found: pa.Table) -> pa.ChunkedArray:
        among = ""
        if self.family == "file_sketches" and not self.is_new:  # a file that stays keeps the sketches the new set lacks
            among = " AND storage_id NOT IN (SELECT storage_id FROM staged)"
        with view(connection, kept=found.select(["rid"]), staged=self.staged.rows):
            return connection.sql(
                f"SELECT rowid AS rid FROM {self.physical} WHERE {scope} AND rowid NOT IN (SELECT rid FROM kept){among}"
            ).to_arrow_table()["rid"]

    def apply(self, connection: Connection, generation: int) -> Counts:
        key = self.entry.table_key
        if self.is_new:
            self._update_end(connection, self.doomed, self.pos)
            connection.execute(
                "INSERT INTO file_snapshots VALUES (?, ?, ?, ?)", [key, self.family, self.snapshot_id, self.pos]
            )
        else:
            remove_at(connection, self.family, key, self.doomed, self.pos, self.last)
            self._update_end(connection, self.extend, self.end)
        leading = {"table_key": str(key), "from_pos": str(self.pos), "to_pos": str(self.end)}
        self.staged.insert(connection, self.physical, self.insert, leading, generation)
        if self.family == "stats.files" and self.mode is PutMode.REPLACE_SNAPSHOT:
            self._drop_orphaned_sketches(connection)
        total = self.staged.rows.num_rows
        return Counts(self.staged.received, total - self.unchanged - self.replaced, self.unchanged, self.replaced)

    def _update_end(self, connection: Connection, rowids: pa.ChunkedArray, end: int) -> None:
        if len(rowids):
            with view(connection, doomed=pa.table({"rid": rowids})):
                connection.execute(
                    f"UPDATE {self.physical} SET to_pos = {end} WHERE table_key = {self.entry.table_key}"
                    " AND rowid IN (SELECT rid FROM doomed)"
                )

    def _drop_orphaned_sketches(self, connection: Connection) -> None:
        """Sketches of files that the new set lacks go from this snapshot's listing of them."""
        key, listings = self.entry.table_key, positions(connection, self.entry.table_key, "file_sketches")
        pos = listings.get(self.snapshot_id)
        if pos is None:
            return
        kept = f"SELECT {STORAGE_ID[self.family].format('s')} FROM staged s"
        with view(connection, staged=self.staged.rows.select(self.staged.keys)):
            doomed = connection.sql(
                f"SELECT rowid AS rid FROM file_sketches WHERE table_key = {key} AND from_pos <= {pos}"
                f" AND to_pos > {pos} AND storage_id NOT IN ({kept})"
            ).to_arrow_table()["rid"]
        remove_at(connection, "file_sketches", key, doomed, pos, max(listings.values()))
