"""Lists of tables with their statistics, counted, filtered, sorted and cut in DuckDB: of a catalog of many tables only
the rows of one page leave it.

`t` is a table, `c` its current statistics, `o` those of a table that has none at its current snapshot, `n` its current
snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from flight_server.core.reads.catalog_sources import SOURCES
from flight_server.core.reads.scope import ReadScope, limited_to
from flight_server.core.views.table_lists import TableFilter, TableOrder, Tally
from flight_server.core.wire.scan_request import CURRENT, ScanRequest
from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection
from store.duckdb.layout import parts
from store.model.freshness import STALE
from store.model.schemas import FLIGHTS

if TYPE_CHECKING:
    from flight_server.core.auth.principal import Principal
    from flight_server.core.reads.scanner import Scanner

Name = tuple[str, str, str]

_STATS: Final = FLIGHTS["stats.tables"]
_NAMES: Final = ("table_catalog", "table_schema", "table_name")
_BY_NAME: Final = ", ".join(f"t.{name}" for name in _NAMES)
_COLUMNS: Final = {"catalog": "table_catalog", "schema": "table_schema"}
_ERROR: Final = "coalesce(t.last_error, t.capture_error)"
_IS_CAPTURED: Final = "(c.table_key IS NOT NULL OR o.table_key IS NOT NULL)"
_IS_STALE: Final = (
    "((c.table_key IS NOT NULL AND t.table_key IN (SELECT table_key FROM {failing}))"
    f" OR coalesce(o.freshness = '{STALE}', false))"
)
_STATES: Final = {"stale": _IS_STALE, "failing": f"({_ERROR} IS NOT NULL)", "not captured": f"(NOT {_IS_CAPTURED})"}
_ORDERS: Final = {
    "rows": "coalesce(c.row_count, o.row_count)",
    "files": "coalesce(c.data_file_count, o.data_file_count)",
    "size": "coalesce(c.total_size_bytes, o.total_size_bytes)",
    "age": "coalesce(c.captured_at, o.captured_at)",
    "changed": "n.committed_at",
}
_OLDER: Final = ("row_count", "data_file_count", "total_size_bytes", "captured_at", "freshness")
_JOINS: Final = {
    "c": f" LEFT JOIN {parts('stats.tables')[0]} c ON c.table_key = t.table_key",
    "o": " LEFT JOIN {older} o ON o.table_key = t.table_key",
    "n": " LEFT JOIN snapshots n ON n.table_key = t.table_key AND n.snapshot_id = t.current_snapshot_id",
}
"""Alias of a relation → the join that adds it."""


class TableListing:
    """The tables that a caller sees, at the moment of each call.

    Args:
        about: Columns of `sys.tables` of each row besides the names.
        statistics: The same of `stats.tables`.
    """

    def __init__(self, scanner: Scanner, principal: Principal, about: Sequence[str], statistics: Sequence[str]):
        self._scanner, self._about, self._statistics = scanner, about, statistics
        scope = scanner.scope(ScanRequest(_STATS, snapshot=CURRENT, allow_stale=True), principal)
        self._scope = replace(scope, only=None, snapshot=None, epoch=None, current=True)  # one table is like many

    def tallies(self) -> list[Tally]:
        """Counts of all visible tables."""
        values = f"{_ERROR} IS NOT NULL AS a, {_IS_STALE} AS b, {_IS_CAPTURED} AS c"
        sql = f"SELECT t.table_catalog, t.table_schema, t.format, t.owner, {values}, count(*) AS tables"
        return [Tally(*row.values()) for row in self._run(sql, TableFilter(), " GROUP BY ALL").to_pylist()]

    def changed_since(self, time: datetime) -> int:
        """The number of tables whose current snapshot was committed at that time or later."""
        parameters: list[Any] = []
        among = limited_to("t", self._scope, parameters)
        sql = (
            "SELECT count(*) FROM tables t JOIN snapshots n ON n.table_key = t.table_key"
            " AND n.snapshot_id = t.current_snapshot_id"
            f" WHERE NOT t.dropped AND {among} AND n.committed_at >= ?"
        )
        with self._scanner.database.reading() as cursor:
            ((count,),) = cursor.execute(sql, [*parameters, time]).fetchall()
        return int(count)

    def count(self, wanted: TableFilter) -> int:
        """The number of tables."""
        return int(self._run("SELECT count(*)", wanted)[0][0].as_py())

    def rows(self, wanted: TableFilter, order: TableOrder, first: int, most: int) -> list[dict[str, Any]]:
        """A page of the tables: names, the columns asked for, and by order `changed` the commit of their snapshot.

        Args:
            first: The number of tables before the page.
            most: The number of tables of the page.
        """
        direction = "DESC" if order.is_descending else "ASC"
        value = _ORDERS.get(order.key)
        by = ", ".join(f"t.{name} {direction}" for name in _NAMES)
        if value is not None:
            by = f"{value} {direction} NULLS LAST, {_BY_NAME}"
        names = (*_NAMES, *self._about, *(["committed_at"] if order.key == "changed" else []))
        columns = {**SOURCES["sys.tables"](self._scope).columns, "committed_at": "n.committed_at"}
        sql = f"SELECT t.table_key, {', '.join(f'{columns[name]} AS {name}' for name in names)}"
        rows = self._run(sql, wanted, f" ORDER BY {by} LIMIT {int(most)} OFFSET {int(first)}")
        if not rows.num_rows:
            return []
        with self._scanner.database.reading() as cursor:
            scope = self._of(rows["table_key"].to_pylist())
            statistics = self._by_name(cursor, self._request(self._statistics), scope)
        unknown = dict.fromkeys(self._statistics)
        return [row | statistics.get(_name(row), unknown) for row in rows.select(names).to_pylist()]

    def _request(self, columns: Sequence[str]) -> ScanRequest:
        return ScanRequest(_STATS, (*_NAMES, *columns), snapshot=CURRENT, allow_stale=True)

    def _of(self, keys: Collection[int]) -> ReadScope:
        """The scope limited to some tables. Records are ranked, which is slow, only for tables that need it."""
        failing, overdue = (some.intersection(keys) for some in (self._scope.failing, self._scope.overdue))
        needs_rank = bool(failing) or not self._older_keys.isdisjoint(keys)
        return replace(self._scope, keys=list(keys), failing=failing, overdue=overdue, allow_stale=needs_rank)

    def _by_name(self, cursor: Connection, request: ScanRequest, scope: ReadScope) -> dict[Name, dict[str, Any]]:
        batches = self._scanner.queries.start(cursor, request, scope)
        rows = (row for batch in batches for row in batch.to_pylist())
        return {_name(row): row for row in rows}

    @cached_property
    def _older_keys(self) -> frozenset[int]:
        """Keys of the tables that have statistics, but none at their current snapshot."""
        current, older = parts(_STATS.name)
        sql = f"SELECT DISTINCT h.table_key FROM {older} h ANTI JOIN {current} c USING (table_key) WHERE NOT h.is_copy"
        keys = frozenset(key for (key,) in self._scanner.database.rows(sql))
        return keys if self._scope.keys is None else keys.intersection(self._scope.keys)

    @cached_property
    def _older(self) -> pa.Table:
        """The best statistics of each table of `_older_keys`."""
        schema = pa.schema([pa.field("table_key", pa.int64()), *map(_STATS.schema.field, _OLDER)])
        if not self._older_keys:
            return schema.empty_table()
        with self._scanner.database.reading() as cursor:
            rows = self._by_name(cursor, self._request(_OLDER), self._of(self._older_keys))
        known = {name: self._scanner.catalog.find(name) for name in rows}
        found = [{"table_key": table.table_key} | rows[name] for name, table in known.items() if table is not None]
        return pa.Table.from_pylist(found, schema)

    def _run(self, selected: str, wanted: TableFilter, ending: str = "") -> pa.Table:
        """The rows of a SELECT over the wanted tables, joined with what it and its conditions name."""
        parameters: list[Any] = []
        conditions = [f"NOT t.dropped AND {limited_to('t', self._scope, parameters)}"]
        if wanted.search:
            conditions.append(f"contains(lower(concat_ws('.', {_BY_NAME})), lower(?))")
            parameters.append(wanted.search)
        for column in ("catalog", "schema", "format", "owner"):
            if (value := getattr(wanted, column)) is not None:
                conditions.append(f"t.{_COLUMNS.get(column, column)} = ?")
                parameters.append(value)
        if wanted.state is not None:
            conditions.append(_STATES[wanted.state])
        where = " AND ".join(conditions)
        joins = [join for alias, join in _JOINS.items() if re.search(rf"\b{alias}\.", selected + where + ending)]
        sql = f"{selected} FROM tables t{''.join(joins)} WHERE {where}{ending}"
        given = {"failing": pa.table({"table_key": pa.array(sorted(self._scope.failing), pa.int64())})}
        if _JOINS["o"] in joins:
            given["older"] = self._older
        with self._scanner.database.reading() as cursor:
            return query(cursor, sql, parameters, **given)


def _name(row: Mapping[str, Any]) -> Name:
    return row["table_catalog"], row["table_schema"], row["table_name"]
