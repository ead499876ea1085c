"""Reads of flights over one connection: tables, columns, history, datasets.

It requires only pyarrow; SQL conditions load a library of the extra `client` at first use.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import pyarrow as pa

from flight_server.client.capture_requests import pick_column, unknown_column
from flight_server.client.connection import Connection, require
from flight_server.client.table_names import COLUMNS, full_name, name_parts, of_table

if TYPE_CHECKING:
    from flight_server.client.answer import Answer
    from flight_server.client.dataset import FlightDataset
    from flight_server.client.scan import Scan

Where: TypeAlias = Any
"""A condition: a `pyarrow.compute` expression, SQL text, a filter tree, or a list of trees combined by AND."""


class StatsReader(Connection):
    """A connection with a method for each kind of read; `Connection` describes the arguments."""

    @overload
    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
        stream: Literal[False] = False,
    ) -> pa.Table: ...

    @overload
    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
        *,
        stream: Literal[True],
    ) -> pa.RecordBatchReader: ...

    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
        stream: bool = False,
    ) -> pa.Table | pa.RecordBatchReader:
        """Reads any flight, such as `stats.columns`, in one round trip.

        Args:
            flight: Name of the flight; `client.read("sys.flights")` lists them.
            columns: Columns in this order; None for all.
            where: Condition on the rows: SQL text, a `pyarrow.compute` expression, a filter tree, or a list of trees
                combined by AND; None for all rows.
            snapshot: For `stats.*` only: "current" or an id returns one valid row per target, "all" or None all
                stored rows.
            allow_stale: With `snapshot`, include rows of older snapshots with other schemas, labelled STALE.
            limit: Most rows to return; None for all.
            stream: Return a RecordBatchReader instead of a Table, for results larger than memory.

        Returns:
            The rows.

        Raises:
            pa.ArrowKeyError: UNKNOWN_FLIGHT.
            pa.ArrowInvalid: UNKNOWN_COLUMN; or BAD_LITERAL: a value of the condition does not suit its column.
            ImportError: The condition is SQL text, and the extra `client` is not installed.
        """
        command: dict[str, Any] = {"table": flight, "strict": True}
        if columns is not None:
            command["columns"] = list(columns)
        if where is not None:
            command |= _condition(where)
        if snapshot not in (None, "all"):
            command["snapshot"] = snapshot
        if allow_stale:
            command["allow_stale"] = True
        if limit is not None:
            command["limit"] = limit
        return self.get(command, stream=True) if stream else self.get(command)

    def tables(self, catalog: str | None = None) -> pa.Table:
        """Reads `information_schema.tables`.

        Args:
            catalog: Only tables of this catalog; None for all.

        Returns:
            One row per table: table_catalog, table_schema, table_name and more.
        """
        where = None if catalog is None else [{"column": "table_catalog", "op": "EQ", "values": [catalog]}]
        return self.read("information_schema.tables", where=where)

    def columns(
        self,
        table: str,
        *,
        snapshot: str | int | None = "current",
        columns: Sequence[str] | None = None,
        where: Where = None,
        allow_stale: bool = False,
    ) -> pa.Table:
        """Reads the column statistics of a table, `stats.columns`.

        Args:
            table: Name of the table, as of `find_table`. The other arguments are those of `read`.
            snapshot: "current" or an id; None for all stored snapshots.

        Returns:
            One row per column, or with snapshot None one per column and stored snapshot.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE.
        """
        return self.read_table("stats.columns", table, columns, where, snapshot, allow_stale)

    def files(
        self,
        table: str,
        *,
        snapshot: str | int | None = "current",
        columns: Sequence[str] | None = None,
        where: Where = None,
        allow_stale: bool = False,
    ) -> pa.Table:
        """Reads the files of a table, `stats.files`.

        Args:
            table: Name of the table, as of `find_table`. The other arguments are those of `read`.

        Returns:
            One row per file of the snapshot; of each stored one with "all".

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE.
        """
        return self.read_table("stats.files", table, columns, where, snapshot, allow_stale)

    def read_table(
        self,
        flight: str,
        table: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
    ) -> pa.Table:
        """Reads the rows about one table in any flight that has table_catalog, table_schema and table_name.

        Args:
            table: Name of the table, as of `find_table`. The other arguments are those of `read`.

        Returns:
            The rows; empty if the table exists but has none in the flight.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE: the table does not exist.
        """
        tree = [] if where is None else _tree(where)
        table = self.find_table(table)
        scope = of_table(table) + (tree if isinstance(tree, list) else [tree])
        rows = self.read(flight, columns, scope, snapshot, allow_stale)
        if not rows.num_rows:
            self.require_table(table)
        return rows

    def quantiles(
        self,
        table: str,
        column: str | None = None,
        *,
        snapshot: str | int | None = "current",
        allow_stale: bool = False,
    ) -> pa.Table:
        """Reads the quantiles of a table's columns, or of one.

        Args:
            table: Name of the table, as of `find_table`.
            column: Name of a column, or `#<column_id>`; None for all. The other arguments are those of `read`.

        Returns:
            The rows of `stats.quantiles`: column_name, quantile (0 to 1), value as text, provenance.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE.
        """
        where = None if column is None else _named(column)
        return self.read_table("stats.quantiles", table, where=where, snapshot=snapshot, allow_stale=allow_stale)

    def history(self, table: str, column: str) -> pa.Table:
        """Reads the statistics of a column at every captured snapshot, oldest first.

        Args:
            table: Name of the table, as of `find_table`.
            column: Name of the column that has it now, else of the last one that had it; or `#<column_id>`.

        Returns:
            The columns of `stats.columns`, followed by `committed_at`.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE; or UNKNOWN_COLUMN: neither the column nor statistics of it exist.
            pa.ArrowInvalid: AMBIGUOUS_COLUMN: several columns have the name; use `#<column_id>`.
        """
        table = self.find_table(table)
        columns = self.read("information_schema.columns", ["column_name", "column_id"], of_table(table)).to_pylist()
        choice = [row for row in columns if row["column_name"] == column]
        if not choice:
            named = self._in_order(table, self.read_table("stats.columns", table, where=_named(column))).to_pylist()
            choice = list({r["column_id"]: r for r in named if r["snapshot_id"] == named[-1]["snapshot_id"]}.values())
            if not choice:
                raise unknown_column(table, column, [row["column_name"] for row in columns])
        column_id = pick_column(table, column, choice)
        where = [{"column": "column_id", "op": "EQ", "values": [column_id]}]  # under another name in older snapshots
        return self._in_order(table, self.read_table("stats.columns", table, where=where))

    def _in_order(self, table: str, rows: pa.Table) -> pa.Table:
        """The rows in the order of the table's history, with `committed_at`."""
        commits = self.read("sys.snapshots", ["snapshot_id", "committed_at"], of_table(table))
        order = {row["snapshot_id"]: (at, row["committed_at"]) for at, row in enumerate(commits.to_pylist())}
        ids = rows["snapshot_id"].to_pylist()
        places = sorted(range(len(ids)), key=lambda at: order.get(ids[at], (-1, None))[0])
        times = [order.get(ids[at], (-1, None))[1] for at in places]
        committed_at = pa.array(times, commits.schema.field("committed_at").type)
        return rows.take(pa.array(places, pa.int64())).append_column("committed_at", committed_at)

    def adbc_statistics(self, catalog: str | None = None) -> pa.Table:
        """Reads the current statistics in the schema of ADBC 1.1's GetStatistics.

        Args:
            catalog: Only this catalog; None for all.

        Returns:
            One row per catalog, with nested lists of schemas and statistics.
        """
        where = None if catalog is None else [{"column": "catalog_name", "op": "EQ", "values": [catalog]}]
        return self.read("adbc.statistics", where=where)

    def arrow_statistics(self, table: str) -> pa.StructArray:
        """Reads the current statistics of a table in Arrow's statistics schema.

        Args:
            table: Name of the table, as of `find_table`.

        Returns:
            `struct<column: int32, statistics: map<dictionary<utf8>, dense_union<…>>>`: a row for the table, whose
            column is null, and one for each column that has statistics, by its position in the schema.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE.
        """
        from flight_server.client.arrow_statistics import COLUMNS, TABLE_COLUMNS, build

        rows = self.read_table("stats.tables", table, TABLE_COLUMNS, snapshot="current").to_pylist()
        columns = self.read_table("stats.columns", table, COLUMNS, snapshot="current").to_pylist()
        names = self.read_table("information_schema.columns", table, ["column_id", "ordinal_position"]).to_pylist()
        ids = [row["column_id"] for row in sorted(names, key=lambda row: row["ordinal_position"])]
        # an external table has no schema: its columns are in the order of their ids
        ids = ids or sorted(row["column_id"] for row in columns)
        order = {column: position for position, column in enumerate(ids)}
        return build(rows[0] if rows else None, columns, order)

    def dataset(self, flight: str, snapshot: str | int | None = None, allow_stale: bool = False) -> FlightDataset:
        """A `pyarrow.dataset.Dataset` of a flight, for DuckDB, polars, DataFusion, pandas and pyarrow.

        Each scan reads the flight again, with the needed columns and the part of the filter that the server supports.

        Args:
            flight: Name of the flight, such as `stats.columns`. The other arguments are those of `read`.

        Returns:
            The dataset; this client must stay open.

        Raises:
            pa.ArrowKeyError: UNKNOWN_FLIGHT.
        """
        from flight_server.client.dataset import FlightDataset

        return FlightDataset(self, flight, snapshot, allow_stale)

    def scan(
        self,
        table: str,
        *,
        where: Where = None,
        columns: Sequence[str] | None = None,
        snapshot: str | int = "current",
    ) -> Scan:
        """Plans a scan: finds the files that can have a row for which a condition is true.

        Args:
            table: Name of the table, as of `find_table`.
            where: Condition on its rows, as in `read`; None for all rows.
            columns: Columns to be read; None for all.
            snapshot: "current" or an id.

        Returns:
            The files, and datasets of them.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE, UNKNOWN_SNAPSHOT.
            pa.ArrowInvalid: UNKNOWN_COLUMN; BAD_LITERAL: a value of the condition does not suit its column; or
                NOT_CAPTURED: the files of the snapshot are not known.
        """
        from flight_server.client.scan import Scan

        table = self.find_table(table)
        command: dict[str, Any] = {"scan": table, "snapshot": snapshot} | selection(where, columns)
        return Scan(self.read_table, table, self.get(command))

    def estimate(
        self,
        table: str,
        where: Where | None = None,
        *,
        columns: Sequence[str] | None = None,
        snapshot: str | int = "current",
    ) -> dict[str, Any]:
        """Estimates what a condition leaves of a table, without opening a file.

        Args:
            table: Name of the table, as of `find_table`.
            where: Condition on its rows, as in `scan`; None for all rows.
            columns: Columns to be read; None for all.
            snapshot: "current" or an id.

        Returns:
            `snapshot_id`; `files` kept of `files_all`; `bytes_to_read`; `row_count`, the rows that satisfy the
            condition, as `estimate`, `low` and `high`, of which the last two are certain; and `columns`: name →
            `null_count` and `ndv` of the rows of the files kept, likewise. None where not known.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE, UNKNOWN_SNAPSHOT.
            pa.ArrowInvalid: See `scan`.
        """
        body: dict[str, Any] = {"table": self.find_table(table), "snapshot": snapshot} | selection(where, columns)
        (found,) = self.act("estimate", body)
        return dict(found)

    def answer(self, sql: str, *, snapshot: str | int = "current") -> Answer:
        """Answers counts, minima and maxima by statistics alone, where they are known exactly.

        Args:
            sql: `SELECT count(*), count(a), min(a), max(a) FROM catalog.schema.table WHERE …`; a condition as in
                `scan`. The name of the table may leave out the catalog, and the schema.
            snapshot: "current" or an id.

        Returns:
            The values, or why statistics do not tell.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE, UNKNOWN_SNAPSHOT.
            pa.ArrowInvalid: BAD_SQL: the text is not such a query; UNKNOWN_COLUMN; or BAD_LITERAL.
        """
        from flight_server.client.answer import Answer

        (found,) = self.act("answer", {"sql": sql, "snapshot": snapshot})
        return Answer.of_result(found)

    def find_table(self, name: str) -> str:
        """The full name of a table.

        Args:
            name: `catalog.schema.table`, which is returned without a call; or its end, `schema.table` or `table`.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE: no table ends so; suggests the nearest name.
            pa.ArrowInvalid: AMBIGUOUS_TABLE: several do; the message names them.
            ValueError: The name is malformed.
        """
        parts = name_parts(name)
        if len(parts) > 2:
            return name
        end = dict(zip(reversed(COLUMNS), reversed(parts), strict=False))
        where = [{"column": column, "op": "EQ", "values": [part]} for column, part in end.items()]
        found = [full_name(row) for row in self.read("information_schema.tables", list(COLUMNS), where).to_pylist()]
        if not found:
            raise self._unknown_table(name)
        if len(found) > 1:
            raise pa.ArrowInvalid(f'[AMBIGUOUS_TABLE] "{name}" may be {" or ".join(sorted(found))}; name one in full')
        return found[0]

    def require_table(self, table: str) -> None:
        """Checks that a table, given by its full name, exists.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE: the table does not exist; suggests the nearest name.
        """
        if not self.read("information_schema.tables", ["table_name"], of_table(table)).num_rows:
            raise self._unknown_table(table)

    def _unknown_table(self, table: str) -> pa.ArrowKeyError:
        names = [full_name(row) for row in self.tables().to_pylist()]
        parts = table.count(".") + 1  # a misspelt name may be the end of a full one
        known = {".".join(name.split(".")[-parts:]): name for name in names} | {name: name for name in names}
        near = difflib.get_close_matches(table, known, 1, 0.6)
        hint = (
            f'did you mean "{known[near[0]]}"?' if near else "`statflight query information_schema.tables` lists them"
        )
        return pa.ArrowKeyError(f'[UNKNOWN_TABLE] no table "{table}"; {hint}')


def _named(column: str) -> list[dict[str, Any]]:
    named = {"column": "column_name", "op": "EQ", "values": [column]}
    by_id = {"column": "column_id", "op": "EQ", "values": [column[1:]]}
    return [{"or": [named, by_id]} if re.fullmatch(r"#[0-9]{1,18}", column) else named]


def selection(where: Where, columns: Sequence[str] | None) -> dict[str, Any]:
    """The keys `where` and `columns` of a request about what a condition leaves; SQL is parsed by the server."""
    asked: dict[str, Any] = {}
    if where is not None:
        asked["where"] = where if isinstance(where, str) else _tree(where)
    if columns is not None:
        asked["columns"] = list(columns)
    return asked


def _tree(where: Where) -> Any:
    """The JSON form of a condition. Translators are imported here, so that the client itself requires only pyarrow."""
    if isinstance(where, str):
        require("sqlglot", "a condition written as SQL")
        from flight_server.client.conditions.sql import parse_where

        return parse_where(where)
    if isinstance(where, Mapping | list | tuple):
        return list(where) if isinstance(where, tuple) else where
    from flight_server.client.conditions.arrow_expressions import from_expression

    return from_expression(where)


def _condition(where: Where) -> dict[str, Any]:
    """The condition as keys of a command: `predicates` for a list of leaves, else `filter`."""
    tree = _tree(where)
    if not isinstance(tree, list):
        return {"filter": tree}
    return {"predicates": tree} if all("column" in leaf for leaf in tree) else {"filter": {"and": tree}}
