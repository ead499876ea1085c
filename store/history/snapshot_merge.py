"""Merges the rows of a put, of any number of tables, into flights whose rows are stored once per snapshot."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.arrow_sql import execute, query, rowid_in, tuple_of, within
from store.duckdb.layout import (
    BY_SNAPSHOT,
    GROUPED,
    LABELS,
    PARTED,
    Connection,
    parts,
    records,
    row_columns,
    stored_columns,
)
from store.history.current_rows import CurrentRows
from store.history.file_spans import STORAGE_ID
from store.history.staged import NONE, NameOf, Staged
from store.model.freshness import EXACT, USABLE_COLUMNS, usable_for_arrow
from store.model.puts import FLIGHT_OF, IDENTITY, Counts, PutMode
from store.model.schemas import COUNTS, DISTRIBUTION, DISTRIBUTION_LABELS

_NOTHING = pa.table({"row_no": NONE, "rid": NONE, "same": pa.chunked_array([], pa.bool_()), "part": NONE})
_FEW_ROWS = 512  # at most that many target ids are written into a condition


class SnapshotMerge:
    """The merge of a put; `apply` writes only rows that differ from the stored ones.

    Args:
        mode: Mode of the put.
        flight: A flight of `BY_SNAPSHOT`.
        rows: Rows of the put, with `table_key` and `snapshot_id`.
        name_of: Table key → full name, for messages.
        current: Table key → current snapshot id, None if there is none.
        current_rows: Tables of the transaction to be re-ranked.
        has_tables: False if the flight has no stored rows for any of the tables.
        has_sketches: False if no sketches are stored for any of the tables.
    """

    def __init__(
        self, mode: PutMode, flight: str, rows: pa.Table, name_of: NameOf, current: Mapping[int, int | None],
        current_rows: CurrentRows, *, has_tables: bool = True, has_sketches: bool = True,
    ):  # fmt: skip
        self.mode, self.flight, self.current, self.current_rows = mode, flight, current, current_rows
        self._has_tables, self._has_sketches = has_tables, has_sketches and flight != "stats.sketches"
        self.staged = Staged(flight, rows, name_of, ("snapshot_id",))
        self.tables = parts(flight)
        self.is_parted, self.is_grouped = flight in PARTED, flight in GROUPED

    def apply(self, connection: Connection, generation: int) -> Counts:
        """Merges the put into the stored rows.

        Args:
            connection: The writer's.
            generation: Generation of new rows.

        Returns:
            Counts of the put's rows.

        Raises:
            Conflict: In mode `create` another record is stored for a target.
        """
        staged = self.staged
        if self.mode is PutMode.CAPTURE and self.is_grouped and self._has_tables:
            self._keep_distributions(connection)
        stored = self._matches(connection)
        other = stored.filter(pc.invert(stored["same"]))
        if self.mode is PutMode.CREATE and other.num_rows:
            first = other.slice(0, 1).to_pylist()[0]
            staged.refuse(connection, self.tables[first["part"]], first["row_no"], first["rid"])
        settled = stored if self.mode is PutMode.FILL else stored.filter(stored["same"])
        fresh = staged.without(settled["row_no"])
        replaced = 0
        if self.mode is not PutMode.FILL:
            replaced = other.num_rows
            self._delete(connection, other)
        if self.mode is PutMode.REPLACE_SNAPSHOT and self._has_tables:
            self._delete_absent(connection, stored)
        in_place = replaced == fresh.num_rows and pc.all(pc.equal(other["part"], 0), min_count=0).as_py()
        self._insert(connection, fresh, generation, in_place=in_place)
        if self.mode is PutMode.REPLACE_SNAPSHOT and self._has_sketches:
            self._drop_orphaned_sketches(connection)
        return Counts(staged.received, fresh.num_rows - replaced, settled.num_rows, replaced)

    def _stored(self, scope: str, having: Collection[int] = (0, 1)) -> str:
        """Subquery of the stored rows with `part`, `rid` and all columns; `having` are the parts to read."""
        each = (
            f"{number} AS part, rowid AS rid, {records(self.flight, table)} FROM {table}"
            for number, table in enumerate(self.tables) if number in having
        )  # fmt: skip
        return " UNION ALL ".join(f"SELECT {select} WHERE {scope}" for select in each)

    def _matches(self, connection: Connection) -> pa.Table:
        if not self._has_tables:
            return _NOTHING
        scope = self.staged.scope(snapshots=True)
        first = (f"(SELECT {n} FROM {table} WHERE {scope} LIMIT 1)" for n, table in enumerate(self.tables))
        having = {part for (part,) in connection.execute(" UNION ALL ".join(first)).fetchall()}
        if not having:
            return _NOTHING
        keep = "true" if self.mode is PutMode.CAPTURE else None
        return self.staged.matches(connection, self._stored(scope, having), ("part",), keep_complete=keep)

    def _keep_distributions(self, connection: Connection) -> None:
        """Completes captured rows without distinct counts by the distribution that is stored for the same snapshot, so
        that a capture that knows less replaces nothing that is known."""
        staged = self.staged
        if not _lacking(staged.rows, ("ndv",)).any():
            return
        given = "s.ndv IS NULL" if "ndv" in staged.given else "true"
        chosen = ", ".join(f"t.{name}" for name in DISTRIBUTION)
        stored = self._stored(staged.scope(snapshots=True))
        found = query(
            connection, f"SELECT s.row_no, {chosen} FROM {{staged}} s JOIN ({stored}) t"
            f" ON {staged.same_target('s', 't')} WHERE {given} AND t.ndv IS NOT NULL", staged=staged.numbered,
        )  # fmt: skip
        if found.num_rows:
            places = np.full(staged.rows.num_rows, -1)
            places[found["row_no"].to_numpy()] = np.arange(found.num_rows)
            staged.fill(found.select(DISTRIBUTION), pa.array(places, mask=places < 0))

    def _delete(self, connection: Connection, doomed: pa.Table) -> None:
        """Deletes rows by `part` and `rid`."""
        for number, table in enumerate(self.tables):
            rids = doomed.filter(pc.equal(doomed["part"], number)).select(["rid"]) if doomed.num_rows else doomed
            if rids.num_rows:
                among = f"{self.staged.scope()} AND {rowid_in(rids['rid'], table)}"
                execute(connection, f"DELETE FROM {table} WHERE {among}", doomed=rids)

    def _delete_absent(self, connection: Connection, matched: pa.Table) -> None:
        """Deletes stored rows of the put's snapshots that are not in the put; sketches only if their target is not."""
        among = ""
        if self.flight == "stats.sketches":  # a target in the put keeps its sketches of other roles
            among = (
                " AND NOT EXISTS (SELECT 1 FROM {staged} s WHERE s.table_key = t.table_key"
                " AND s.storage_id = t.storage_id AND s.snapshot_id = t.snapshot_id)"
            )
        stored = self._stored(self.staged.scope(snapshots=True))
        absent = query(
            connection, f"SELECT t.part, t.rid, t.table_key FROM ({stored}) t SEMI JOIN {{staged}} p"
            " ON p.table_key = t.table_key AND p.snapshot_id = t.snapshot_id WHERE NOT EXISTS"
            f" (SELECT 1 FROM {{kept}} k WHERE k.part = t.part AND k.rid = t.rid){among}",
            kept=matched.select(["part", "rid"]), staged=self.staged.rows,
        )  # fmt: skip
        self._delete(connection, absent)
        if self.is_parted:  # an older row may become current
            served = absent if self.is_grouped else absent.filter(pc.equal(absent["part"], 0))
            self.current_rows.invalidate(served["table_key"].unique().to_pylist())

    def _insert(self, connection: Connection, fresh: pa.Table, generation: int, *, in_place: bool) -> None:
        """Stores rows; `in_place` if each replaces a current row that was deleted."""
        if not fresh.num_rows:
            return
        if not self.is_parted:
            self.staged.insert(connection, self.tables[0], fresh, generation)
            return
        current, history = self.tables
        is_current = self._is_current(fresh)
        now, then = fresh, fresh.slice(0, 0)
        if not is_current.all():
            now, then = (fresh.filter(pa.array(mask)) for mask in (is_current, ~is_current))
        if now.num_rows:
            if not in_place and self._has_tables:
                self._retire(connection, now)
            self.staged.insert(connection, current, self._with_labels(now), generation, {LABELS[0]: EXACT})
            if self.flight == "stats.tables":
                snapshots = zip(now["table_key"].to_pylist(), now["snapshot_id"].to_pylist(), strict=True)
                self.current_rows.replace_table_rows(dict(snapshots))
        if then.num_rows:
            self.staged.insert(connection, history, then, generation)
            self._register_older(connection, then)

    def _with_labels(self, now: pa.Table) -> pa.Table:
        """Adds the labels besides `freshness` to rows of current snapshots; registers the tables of rows that may
        inherit a group of their statistics."""
        types, complete = stored_columns(self.flight), now
        for name in USABLE_COLUMNS:
            if name in types and name not in now.column_names:
                complete = complete.append_column(name, pa.nulls(now.num_rows, types[name]))
        label = pa.chunked_array([pa.repeat(EXACT, now.num_rows)])
        labelled = now.append_column(LABELS[1], usable_for_arrow(label, complete))
        if not self.is_grouped:
            return labelled
        if self._has_tables:
            lacking = _lacking(now, ("ndv",)) | _lacking(now, COUNTS)
            self.current_rows.invalidate(now["table_key"].filter(pa.array(lacking)).unique().to_pylist())
        unknown = pa.array(_lacking(now, DISTRIBUTION))
        for name, values in zip(DISTRIBUTION_LABELS, (now["snapshot_id"], label), strict=True):
            labelled = labelled.append_column(name, pc.if_else(unknown, pa.scalar(None, values.type), values))
        return labelled

    def _is_current(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """A mask of the rows of their table's current snapshot."""
        keys, places = np.unique(rows["table_key"].to_numpy(), return_inverse=True)
        current = [self.current.get(key) for key in keys.tolist()]
        known = np.array([snapshot_id is not None for snapshot_id in current])
        ids = np.array([snapshot_id or 0 for snapshot_id in current], np.int64)
        mask: npt.NDArray[np.bool_] = known[places] & (ids[places] == rows["snapshot_id"].to_numpy())
        return mask

    def _target_columns(self) -> list[str]:
        return ["table_key", *IDENTITY[self.flight]]

    def _retire(self, connection: Connection, now: pa.Table) -> None:
        """Moves the current rows of the targets of `now` to history."""
        current = self.tables[0]
        scope = within("table_key", now["table_key"])
        identity = self._target_columns()[1:]
        if now.num_rows <= _FEW_ROWS and len(now["table_key"].unique()) == 1 and identity in ([], ["column_id"]):
            among = " AND ".join([scope, *(f"{name} IN {tuple_of(now[name])}" for name in identity)])
            self._move(connection, among)
            return
        keys = " AND ".join(f's."{name}" = c."{name}"' for name in self._target_columns())
        doomed = query(
            connection, f"SELECT c.rid FROM (SELECT rowid AS rid, * FROM {current} WHERE {scope}) c"
            f" SEMI JOIN {{staged}} s ON {keys}", staged=now.select(self._target_columns()),
        )  # fmt: skip
        if doomed.num_rows:
            self._move(connection, f"{scope} AND {rowid_in(doomed['rid'], current)}", doomed=doomed)

    def _move(self, connection: Connection, among: str, **tables: pa.Table) -> None:
        current, history = self.tables
        columns, own = ", ".join(row_columns(self.flight)), records(self.flight, current)
        execute(connection, f"INSERT INTO {history} ({columns}) SELECT {own} FROM {current} WHERE {among}", **tables)
        execute(connection, f"DELETE FROM {current} WHERE {among}", **tables)

    def _register_older(self, connection: Connection, then: pa.Table) -> None:
        """Registers tables for re-ranking in which rows of older snapshots may be served: for targets without an exact
        row, or without an exact distribution."""
        scope = within("table_key", then["table_key"])
        keys = " AND ".join(f's."{name}" = c."{name}"' for name in self._target_columns())
        exact = " AND c.distribution_snapshot_id = c.snapshot_id AND c.ndv IS NOT NULL" if self.is_grouped else ""
        open_tables = execute(
            connection, f"SELECT DISTINCT s.table_key FROM {{staged}} s ANTI JOIN (SELECT c.* FROM {self.tables[0]} c"
            f" JOIN tables x ON x.table_key = c.table_key AND x.current_snapshot_id = c.snapshot_id{exact}"
            f" WHERE c.{scope}) c ON {keys}", staged=then.select(self._target_columns()),
        )  # fmt: skip
        self.current_rows.invalidate([key for (key,) in open_tables])

    def _drop_orphaned_sketches(self, connection: Connection) -> None:
        """Deletes the sketches of targets that are not in the put, at its snapshots."""
        kind = next(str(kind) for kind, flight in FLIGHT_OF.items() if flight == self.flight)
        scope = f"{self.staged.scope(snapshots=True)} AND target_kind = '{kind}'"
        if not connection.execute(f"SELECT 1 FROM {BY_SNAPSHOT['stats.sketches']} WHERE {scope} LIMIT 1").fetchall():
            return
        execute(
            connection, f"DELETE FROM stats_sketches WHERE {scope}"
            " AND (table_key, snapshot_id) IN (SELECT (s.table_key, s.snapshot_id) FROM {staged} s)"
            " AND (table_key, storage_id, snapshot_id) NOT IN"
            f" (SELECT (s.table_key, {STORAGE_ID[self.flight].format('s')}, s.snapshot_id) FROM {{staged}} s)",
            staged=self.staged.rows.select([*self.staged.keys]),
        )  # fmt: skip


def _lacking(rows: pa.Table, columns: Collection[str]) -> npt.NDArray[np.bool_]:
    """A mask of the rows that have a value in none of the columns."""
    mask = np.ones(rows.num_rows, np.bool_)
    for name in set(columns).intersection(rows.column_names):
        mask &= rows[name].is_null().to_numpy()
    return mask
