"""The staged rows of a put: without duplicates, compared with stored rows, and inserted into a physical table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.arrow_sql import execute, query, within
from store.duckdb.layout import GROUPED, Connection, record_columns, stored_columns
from store.model.freshness import CONTRADICTED, UNCONFIRMED
from store.model.puts import IDENTITY, contradicts, cosmetic, once
from store.model.sketches import is_partial_sql

NONE = pa.chunked_array([], pa.int64())
_ROW_GROUP = 122_880  # rows of a row group of DuckDB
_PIECE_BYTES = 256 << 20  # size of the parts of an insert

NameOf = Callable[[int], str]
"""The full name of a table, by its key."""


class Staged:
    """Rows of a flight for any number of tables: `table_key`, `snapshot_id` and the given stored columns.

    Args:
        flight: The flight, or `file_sketches`.
        rows: The rows, with `table_key` and `snapshot_id` (both int64) among their columns.
        name_of: Table key → full name, for messages.
        leading: Key columns besides `table_key` and the identity: `snapshot_id` if rows are stored by snapshot.
    """

    def __init__(self, flight: str, rows: pa.Table, name_of: NameOf, leading: Sequence[str] = ()):
        self.flight, self.name_of, self.received = flight, name_of, rows.num_rows
        self.columns = stored_columns(flight)
        self.keys = ("table_key", *leading, *IDENTITY[flight])
        given = set(rows.column_names)
        self.given = [name for name in self.columns if name in given]
        self.content = [name for name in self.columns if name not in cosmetic(flight) and name not in self.keys]
        chosen = rows.select(["table_key", "snapshot_id", *self.given])
        distinct = once(flight, lambda row: name_of(rows["table_key"][row].as_py()), chosen, self.keys)
        self.rows = _with_own_children(distinct)

    def fill(self, values: pa.Table, places: pa.Array) -> None:
        """Replaces columns of some rows.

        Args:
            places: For each staged row the number of its row in `values`; null leaves the staged row as it is.
        """
        for name in values.column_names:
            found = values[name].take(places).cast(self.columns[name])
            if name in self.given:
                found = pc.if_else(places.is_valid(), found, self.rows[name])
                self.rows = self.rows.set_column(self.rows.column_names.index(name), name, found)
            else:
                self.rows = self.rows.append_column(name, found)
        self.given = [name for name in self.columns if name in self.rows.column_names]

    def scope(self, snapshots: bool = False) -> str:
        """A condition that is true for all stored rows that can match, by which DuckDB skips row groups.

        Args:
            snapshots: Restrict the snapshot ids too, not only the tables.
        """
        scope = within("table_key", self.rows["table_key"])
        return f"{scope} AND {within('snapshot_id', self.rows['snapshot_id'])}" if snapshots else scope

    def matches(
        self,
        connection: Connection,
        stored: str,
        more: Sequence[str] = (),
        *,
        keep_complete: str | None = None,
        fills: bool = False,
        absent: str | None = None,
        **tables: pa.Table,
    ) -> pa.Table:
        """Joins the staged rows with the stored rows of the same targets.

        Args:
            stored: Subquery of stored rows with `rid` and all stored columns.
            more: Further columns of the subquery to return.
            keep_complete: SQL condition on the stored row `t` under which a COMPLETE stored row counts as the same as a
                PARTIAL staged one, unless only that one is CONTRADICTED; None for never.
            fills: Find `relabelled` rows.
            absent: SQL condition on stored rows `t` under which those without a staged one are returned, too, with
                null in `row_no`; it may read `{staged}`. None for none of them.
            tables: Arrow tables that the subquery reads.

        Returns:
            For each pair: `row_no` of the staged row, `rid` of the stored one, `same` (true if their content is equal),
            `relabelled` (true if the engine of both doubts the one and not the other), and the columns `more`.
        """
        same = " AND ".join(
            f's."{n}" IS NOT DISTINCT FROM t."{n}"' if n in self.given else f't."{n}" IS NULL' for n in self.content
        )
        if keep_complete and (partial := self._is_partial()):
            kept = f"{keep_complete} AND {partial.format('s')} AND NOT {partial.format('t')}"
            if "confidence_level" in self.given:
                kept += (
                    f" AND (s.confidence_level IS DISTINCT FROM {CONTRADICTED}"
                    f" OR t.confidence_level IS NOT DISTINCT FROM {CONTRADICTED})"
                )
            same = f"({same or 'true'}) OR ({kept})"
        further = "".join(f", t.{name}" for name in more)
        relabelled = self._is_relabelled() if fills else "false"
        join, among = ("JOIN", "") if absent is None else ("RIGHT JOIN", f" WHERE s.row_no IS NOT NULL OR ({absent})")
        sql = (
            f"SELECT s.row_no, t.rid, ({same or 'true'}) AS same, {relabelled} AS relabelled{further} FROM {{staged}} s"
            f" {join} ({stored}) t ON {self.same_target('s', 't')}{among}"
        )
        return query(connection, sql, staged=self.numbered, **tables)

    def _is_relabelled(self) -> str:
        """SQL that is true if the engine that stored a row `t` is that of the staged row `s`, and takes the writer of
        its bounds for known now and not then, or the reverse."""
        if not {"engine_id", "confidence_level"} <= set(self.columns) or "engine_id" not in self.given:
            return "false"
        now = "s.confidence_level" if "confidence_level" in self.given else "NULL"
        either = f"((t.confidence_level = {UNCONFIRMED} AND {now} IS NULL)"
        either += f" OR (t.confidence_level IS NULL AND {now} = {UNCONFIRMED}))"
        return f"coalesce(t.engine_id = s.engine_id AND {either}, false)"

    def same_target(self, staged: str, stored: str) -> str:
        """SQL condition that is true if a staged and a stored row are about the same target."""
        terms = []
        for key in self.keys:
            if key not in self.rows.column_names:
                terms.append(f'{stored}."{key}" IS NULL')
            elif self.flight == "file_sketches" and key == "column_id":  # null for a sketch of a whole file
                terms.append(f'{staged}."{key}" IS NOT DISTINCT FROM {stored}."{key}"')
            else:
                terms.append(f'{staged}."{key}" = {stored}."{key}"')
        return " AND ".join(terms)

    def _is_partial(self) -> str | None:
        """SQL condition that is true for PARTIAL rows, with `{0}` for the row's alias; None if no staged row is."""
        if self.flight.endswith("sketches"):
            return is_partial_sql("{0}") if "params" in self.given else None
        return "coalesce({0}.completeness <> 'COMPLETE', true)" if "completeness" in self.given else None

    @property
    def numbered(self) -> pa.Table:
        """The rows with `row_no` (int64) as the last column."""
        return self.rows.append_column("row_no", pa.array(np.arange(self.rows.num_rows)))

    def refuse(self, connection: Connection, table: str, row_no: int, rowid: int) -> None:
        """Raises the Conflict of a staged row with a stored one.

        Raises:
            Conflict: Always.
        """
        new = dict.fromkeys(self.columns) | self.rows.slice(row_no, 1).to_pylist()[0]
        columns = record_columns(self.flight) if self.flight in GROUPED else "*"
        row = query(connection, f"SELECT {columns} FROM {table} WHERE rowid = {int(rowid)}").to_pylist()[0]
        stored = {name: row[name] for name in self.columns}
        keys = [key for key in self.keys if key != "table_key"]
        raise contradicts(self.flight, self.name_of(new["table_key"]), keys, stored, new)

    def only(self, mask: npt.NDArray[np.bool_]) -> pa.Table:
        """The rows of a mask; a filter would copy them where it has all."""
        return self.rows if mask.all() else self.rows.filter(pa.array(mask))

    def insert(
        self,
        connection: Connection,
        table: str,
        rows: pa.Table,
        generation: int,
        constants: Mapping[str, str | int] = MappingProxyType({}),
    ) -> None:
        """Appends rows.

        Args:
            rows: Some of the staged rows, with columns of the physical table only.
            constants: Further columns with one value.
        """
        added = {**constants, "generation": generation, "created_at": datetime.now(UTC)}
        for piece in _pieces(rows):
            for name, value in added.items():  # constants in SQL would take a quarter of the time of a small insert
                piece = piece.append_column(name, pa.repeat(value, piece.num_rows))
            execute(connection, f"INSERT INTO {table} BY NAME FROM {{staged}}", staged=piece)


def _with_own_children(rows: pa.Table) -> pa.Table:
    """The rows, empty children of lists made anew.

    The children of lists that are all empty have buffers of no bytes, of which DuckDB 2.0 reads a few: past the end of
    the message that they came in, where that is not mapped.
    """
    for at, column in enumerate(rows.schema):
        if pa.types.is_list(column.type) and not any(len(chunk.flatten()) for chunk in rows.column(at).chunks):
            nulls = rows.column(at).is_null().combine_chunks()
            empty = pa.repeat(pa.scalar([], column.type), rows.num_rows)
            rows = rows.set_column(at, column, pc.if_else(nulls, pa.scalar(None, column.type), empty))
    return rows


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Splits rows into large tables of one chunk each.

    DuckDB stores chunks of whole row groups directly; smaller ones it combines first, at twice the cost.
    """
    size_bytes = rows.get_total_buffer_size()  # cheaper than nbytes for many chunks, and never less
    if size_bytes > _PIECE_BYTES:
        size_bytes = rows.nbytes  # without the rest of the buffers if the rows are a slice
    step = max(1, _PIECE_BYTES * rows.num_rows // max(1, size_bytes))
    if step > _ROW_GROUP:
        step -= step % _ROW_GROUP
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step).combine_chunks()
