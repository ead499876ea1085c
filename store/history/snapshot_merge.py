"""Merges the rows of a put, of any number of tables, into flights whose rows are stored once per snapshot."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.arrow_sql import execute, query, rowid_in, within
from store.duckdb.layout import (
    BY_SNAPSHOT,
    GROUPED,
    OPEN_END,
    Connection,
    own,
    parts,
    record_columns,
    stored_columns,
)
from store.history.file_spans import STORAGE_ID
from store.history.merge import Standing, Stored, merge
from store.history.placement import Placement
from store.history.spans import served_distribution
from store.history.staged import NONE, Staged
from store.model.columns import COUNTS, DISTRIBUTION
from store.model.freshness import has_sql
from store.model.puts import FLIGHT_OF, IDENTITY, Counts, PutMode, codes, first_of_each
from store.model.sketches import is_partial

_NONE_TRUE = pa.chunked_array([], pa.bool_())
_NOTHING = pa.table(
    dict.fromkeys(("row_no", "rid", "part", "table_key"), NONE) | {"same": _NONE_TRUE, "relabelled": _NONE_TRUE}
)
# Current rows, rows of the history, copies at the put's snapshots, rows that begin after one of them.
_CURRENT, _HISTORY, _COPIES, _LATER = 2, 3, 4, 5
_ANY = (_CURRENT, _HISTORY)


class SnapshotMerge:
    """The merge of a put; `apply` writes only rows that differ from the stored ones.

    Args:
        flight: A flight of `BY_SNAPSHOT`.
        rows: Rows of the put, with `table_key` and `snapshot_id`.
        placement: The put's tables and snapshots.
    """

    def __init__(self, mode: PutMode, flight: str, rows: pa.Table, placement: Placement):
        self.mode, self.flight, self.places = mode, flight, placement.places
        self.spans, self.presence = placement.spans, placement.presence
        if mode is PutMode.FILL:  # of two records for a target, the second is not missing any more
            rows = rows.take(first_of_each(rows, ("table_key", "snapshot_id", *IDENTITY[flight])))
        self.staged = Staged(flight, rows, placement.name_of, ("snapshot_id",))
        self.tables = parts(flight)
        self.is_grouped = flight in GROUPED
        self.having: AbstractSet[int] = set()

    def apply(self, connection: Connection, generation: int) -> Counts:
        """Merges the put into the stored rows.

        Raises:
            Conflict: In mode `create` another record is stored for a target.
        """
        staged = self.staged
        keys = staged.rows["table_key"].unique().to_pylist()
        self.having = self._stored_kinds(connection) if self.presence.has_any(self.flight, keys) else set()
        self.presence.add(self.flight, keys)
        if _COPIES in self.having:
            self.spans.change(keys)
        if self.mode is PutMode.CAPTURE and self.is_grouped and not self.having.isdisjoint((0, 1)):
            self._keep_distributions(connection)
        stored = self._matches(connection)
        if self.is_grouped and pc.any(stored["relabelled"]).as_py():
            self._keep_distributions(connection)
            stored = self._matches(connection)
        merged = merge(staged.rows.num_rows, Stored.of(stored, Standing.OWN), self.mode)
        if merged.conflict is not None:
            first = stored.slice(merged.conflict, 1).to_pylist()[0]
            staged.refuse(connection, self.tables[first["part"]], first["row_no"], first["rid"])
        self._delete(connection, stored.filter(pa.array(merged.split)))
        absent = stored["table_key"].filter(pa.array(merged.is_absent))
        self.spans.change(absent.unique().to_pylist())
        fresh = staged.only(merged.insert)
        replaced_parts = stored["part"].filter(pa.array(merged.split & ~merged.is_absent)).unique().to_pylist()
        in_place = merged.replaced == fresh.num_rows and replaced_parts in ([], [0])
        self._insert(connection, fresh, generation, in_place=in_place, is_new=not merged.replaced)
        has_sketches = self.flight != "stats.sketches" and self.presence.has_any("stats.sketches", keys)
        if self.mode is PutMode.REPLACE_SNAPSHOT and has_sketches:
            self._drop_orphaned_sketches(connection)
        return merged.counts(staged.received)

    def _stored(self, scope: str, having: Collection[int] = (0, 1)) -> str:
        """Subquery of the stored records with `part`, `rid` and all columns; `having` are the parts to read."""
        each = (
            f"{number} AS part, rowid AS rid, {record_columns(self.flight)} FROM {table}"
            for number, table in enumerate(self.tables)
            if number in having
        )
        return " UNION ALL ".join(f"SELECT {select} WHERE {scope} AND NOT is_copy" for select in each)

    def _stored_kinds(self, connection: Connection) -> set[int]:
        """The kinds of rows that are stored for the put's tables: the parts with records of its snapshots, `_CURRENT`,
        `_HISTORY`, `_COPIES`, `_LATER`."""
        tables, snapshots = self.staged.scope(), self.staged.scope(snapshots=True)
        first = [f"(SELECT {n} FROM {table} WHERE {snapshots} LIMIT 1)" for n, table in enumerate(self.tables)]
        current, history = self.tables
        least = min(place.ordinal for place in self.places.values())
        first.append(f"(SELECT {_CURRENT} FROM {current} WHERE {tables} LIMIT 1)")
        first.append(f"(SELECT {_HISTORY} FROM {history} WHERE {tables} LIMIT 1)")
        first.append(f"(SELECT {_COPIES} FROM {history} WHERE {snapshots} AND is_copy LIMIT 1)")
        first.append(f"(SELECT {_LATER} FROM {history} WHERE {tables} AND from_ord > {least} LIMIT 1)")
        return {kind for (kind,) in connection.execute(" UNION ALL ".join(first)).fetchall()}

    def _matches(self, connection: Connection) -> pa.Table:
        """The stored records of the put's targets, in mode REPLACE_SNAPSHOT also those of its snapshots' others."""
        if self.having.isdisjoint((0, 1)):
            return _NOTHING
        return self.staged.matches(
            connection,
            self._stored(self.staged.scope(snapshots=True), self.having),
            ("part", "table_key"),
            keep_complete="true" if self.mode is PutMode.CAPTURE else None,
            fills=self.mode is PutMode.FILL,
            absent=self._absent() if self.mode is PutMode.REPLACE_SNAPSHOT else None,
        )

    def _absent(self) -> str:
        """SQL that is true for a stored row of the put's snapshots; for a sketch only if its target is not in the
        put, as one that is keeps its sketches of other roles."""
        of_snapshot = "(t.table_key, t.snapshot_id) IN (SELECT (p.table_key, p.snapshot_id) FROM {staged} p)"
        if self.flight != "stats.sketches":
            return of_snapshot
        return (
            f"{of_snapshot} AND (t.table_key, t.snapshot_id, t.storage_id) NOT IN"
            " (SELECT (p.table_key, p.snapshot_id, p.storage_id) FROM {staged} p)"
        )

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
            connection,
            f"SELECT s.row_no, {chosen} FROM {{staged}} s JOIN ({stored}) t"
            f" ON {staged.same_target('s', 't')} WHERE {given} AND t.ndv IS NOT NULL",
            staged=staged.numbered,
        )
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

    def _insert(
        self, connection: Connection, fresh: pa.Table, generation: int, *, in_place: bool, is_new: bool
    ) -> None:
        """Stores rows; `in_place`: each replaces a current row that was deleted; `is_new`: none replaces a record."""
        if not fresh.num_rows:
            return
        current, history = self.tables
        is_only = is_new or (in_place and _HISTORY not in self.having)
        fresh, simple = self._with_spans(connection, fresh, generation, is_new=is_new, is_only=is_only)
        now, then = fresh, fresh.slice(0, 0)
        if not simple.all():
            now, then = (fresh.filter(pa.array(mask)) for mask in (simple, ~simple))
        if now.num_rows:
            if not in_place and _CURRENT in self.having:
                self._end(connection, now)
            self.staged.insert(connection, current, now, generation, {"to_ord": OPEN_END})
        if then.num_rows:
            then = then.append_column("to_ord", then["from_ord"])
            self.staged.insert(connection, history, then, generation)
            self.spans.change(then["table_key"].unique().to_pylist())

    def _with_spans(
        self, connection: Connection, fresh: pa.Table, generation: int, *, is_new: bool, is_only: bool
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """The rows with the columns of their spans and distributions, and a mask of those that hold from now on as they
        are: those at the current snapshot of a table with nothing newer, with counts, and a distribution that is their
        own or that of the row that they end; no sketches of samples, if there are others.

        Args:
            is_new: False if some of them replace a record of their snapshot.
            is_only: True if none does, or none of their targets has a record of another snapshot.
        """
        _, first, at = np.unique(codes(fresh, ["table_key", "snapshot_id"]), return_index=True, return_inverse=True)
        keys, ids = (fresh[name].take(pa.array(first)).to_pylist() for name in ("table_key", "snapshot_id"))
        places = [self.places[pair] for pair in zip(keys, ids, strict=True)]
        later = self._with_later(connection) if _LATER in self.having else set()
        simple = np.array([place.is_newest and key not in later for key, place in zip(keys, places, strict=True)])[at]
        if "schema_hash" in fresh.column_names:
            hashes = pa.array([place.schema_hash for place in places], pa.string()).take(pa.array(at))
            other = pc.fill_null(pc.not_equal(fresh["schema_hash"], hashes), pc.is_valid(fresh["schema_hash"]))
            simple &= ~other.to_numpy()
        schemas = [place.schema_key(id_) for id_, place in zip(ids, places, strict=True)]
        columns = {
            "schema_key": np.array(schemas, np.uint64)[at],
            "is_copy": np.zeros(len(at), np.bool_),
            "from_ord": np.array([place.ordinal for place in places], np.int64)[at],
        }
        if self.is_grouped:
            lacks_ndv = _lacking(fresh, ("ndv",))
            has_own = pa.array(~_lacking(fresh, DISTRIBUTION))
            columns["distribution_snapshot_id"] = pc.if_else(has_own, fresh["snapshot_id"], pa.scalar(None, pa.int64()))
            columns["distribution_generation"] = np.full(len(at), generation)
            simple &= ~_lacking(fresh, COUNTS)
            inheriting = simple & lacks_ndv
            if not is_only:
                simple &= ~lacks_ndv
        for name, values in columns.items():
            fresh = fresh.append_column(name, values if isinstance(values, pa.ChunkedArray) else pa.array(values))
        if self.flight == "stats.sketches" and "params" in fresh.column_names and not self.having.isdisjoint(_ANY):
            simple &= ~np.array(list(map(is_partial, fresh["params"].to_pylist())), np.bool_)
        if self.is_grouped and is_new and _CURRENT in self.having and inheriting.any():
            fresh, unsure = self._with_inherited(connection, fresh, inheriting)
            simple &= ~unsure
        return fresh, simple

    def _with_inherited(
        self, connection: Connection, fresh: pa.Table, inheriting: npt.NDArray[np.bool_]
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Gives rows without distinct counts (`inheriting`) the distribution of the current row of their target if it
        has distinct counts, or they have no distribution.

        Returns:
            The rows, and a mask of those for which that cannot be told from the current row.
        """
        given = [
            name
            for name in (*self._target_columns(), "snapshot_id", "row_count", "null_count", *DISTRIBUTION)
            if name in fresh.column_names
        ]
        staged = fresh.select(given).append_column("row_no", pa.array(np.arange(fresh.num_rows)))
        for name in {"row_count", "null_count", *DISTRIBUTION}.difference(given):
            staged = staged.append_column(name, pa.nulls(fresh.num_rows, stored_columns(self.flight)[name]))
        staged = staged.filter(pa.array(inheriting))
        scope = within("table_key", staged["table_key"])
        same = (" AND ".join(f'{row}."{name}" = s."{name}"' for name in self._target_columns()) for row in "cd")
        current, records = f"(SELECT * FROM {self.tables[0]} WHERE {scope})", self._stored(scope)
        served = ", ".join(f"{sql} AS {name}" for name, sql in served_distribution("s", "d", "false", "").items())
        found = query(
            connection,
            f"SELECT s.row_no, d.snapshot_id, d.generation, c.distribution_snapshot_id = s.snapshot_id"
            f" AS is_unsure, {served} FROM {{staged}} s JOIN {current} c ON {next(same)} JOIN ({records}) d"
            f" ON {next(same)} AND d.snapshot_id = c.distribution_snapshot_id"
            f" WHERE d.ndv IS NOT NULL OR NOT {has_sql('s', DISTRIBUTION)} OR is_unsure",
            staged=staged,
        )
        at, unsure = np.full(fresh.num_rows, -1), np.zeros(fresh.num_rows, np.bool_)
        at[found["row_no"].to_numpy()] = np.arange(found.num_rows)
        unsure[found["row_no"].filter(found["is_unsure"]).to_numpy()] = True
        places = pa.array(at, mask=at < 0)
        values = {"distribution_snapshot_id": "snapshot_id", "distribution_generation": "generation"}
        for name in DISTRIBUTION:
            type = stored_columns(self.flight)[name]
            mine = fresh[name] if name in fresh.column_names else pa.nulls(fresh.num_rows, type)
            fresh = fresh.append_column(own(name), pc.if_else(places.is_valid(), mine, pa.scalar(None, type)))
        for name, of in (values | dict(zip(DISTRIBUTION, DISTRIBUTION, strict=True))).items():
            column = found[of].take(places)
            if name not in fresh.column_names:
                fresh = fresh.append_column(name, column)
                continue
            column = pc.if_else(places.is_valid(), column, fresh[name])
            fresh = fresh.set_column(fresh.column_names.index(name), name, column)
        return fresh, unsure

    def _with_later(self, connection: Connection) -> set[int]:
        """The tables with rows in history that begin after the put's snapshots."""
        keys, least = zip(*((key, place.ordinal) for (key, _), place in self.places.items()), strict=True)
        rows = execute(
            connection,
            f"SELECT DISTINCT h.table_key FROM {self.tables[1]} h JOIN {{places}} p"
            f" ON p.table_key = h.table_key AND h.from_ord > p.ordinal WHERE h.{self.staged.scope()}",
            places=pa.table({"table_key": pa.array(keys, pa.int64()), "ordinal": pa.array(least, pa.int64())}),
        )
        return {key for (key,) in rows}

    def _target_columns(self) -> list[str]:
        return ["table_key", *IDENTITY[self.flight]]

    def _end(self, connection: Connection, now: pa.Table) -> None:
        """Ends the current rows of the targets of `now`, which move to history; copies that begin with it are
        replaced."""
        current = self.tables[0]
        scope = within("table_key", now["table_key"])
        begins = now["from_ord"].unique()
        keys = " AND ".join(f's."{name}" = c."{name}"' for name in self._target_columns())
        doomed = query(
            connection,
            f"SELECT c.rid, s.from_ord AS end_ord FROM {{staged}} s JOIN"
            f" (SELECT rowid AS rid, * FROM {current} WHERE {scope}) c ON {keys}",
            staged=now.select([*self._target_columns(), "from_ord"]),
        )
        if doomed.num_rows:
            end = str(begins[0].as_py())
            if len(begins) > 1:
                end = f"(SELECT d.end_ord FROM {{doomed}} d WHERE d.rid = {current}.rowid)"
            self._move(connection, f"{scope} AND {rowid_in(doomed['rid'], current)}", end, doomed=doomed)

    def _move(self, connection: Connection, among: str, end: str, **tables: pa.Table) -> None:
        current, history = self.tables
        execute(
            connection,
            f"INSERT INTO {history} SELECT * REPLACE ({end} AS to_ord) FROM {current} WHERE {among}"
            f" AND NOT (is_copy AND from_ord >= {end})",
            **tables,
        )
        execute(connection, f"DELETE FROM {current} WHERE {among}", **tables)

    def _drop_orphaned_sketches(self, connection: Connection) -> None:
        """Deletes the sketches of targets that are not in the put, at its snapshots."""
        kind = next(str(kind) for kind, flight in FLIGHT_OF.items() if flight == self.flight)
        scope = f"{self.staged.scope(snapshots=True)} AND target_kind = '{kind}'"
        if not connection.execute(f"SELECT 1 FROM {BY_SNAPSHOT['stats.sketches']} WHERE {scope} LIMIT 1").fetchall():
            return
        for table in parts("stats.sketches"):
            execute(
                connection,
                f"DELETE FROM {table} WHERE {scope}"
                " AND (table_key, snapshot_id) IN (SELECT (s.table_key, s.snapshot_id) FROM {staged} s)"
                " AND (table_key, storage_id, snapshot_id) NOT IN"
                f" (SELECT (s.table_key, {STORAGE_ID[self.flight].format('s')}, s.snapshot_id) FROM {{staged}} s)",
                staged=self.staged.rows.select([*self.staged.keys]),
            )
        self.spans.change(self.staged.rows["table_key"].unique().to_pylist())


def _lacking(rows: pa.Table, columns: Collection[str]) -> npt.NDArray[np.bool_]:
    """A mask of the rows that have a value in none of the columns."""
    mask = np.ones(rows.num_rows, np.bool_)
    for name in set(columns).intersection(rows.column_names):
        mask &= rows[name].is_null().to_numpy()
    return mask
