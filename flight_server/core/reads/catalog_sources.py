"""The sources of `information_schema` and `sys`: for each flight the FROM clause and the SQL of its columns.

SQL text consists of constants of this file and column names of the schema; values of a request are parameters.
`s` is the row, `t` its table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from flight_server.core.reads.scope import FlightSource, ReadScope, limited_to
from flight_server.core.reads.stats_sources import TABLE_COLUMNS
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, parts, stored_columns
from store.model.schemas import FLIGHTS

_CONSTRAINT_NAME: Final = {
    "constraint_catalog": "t.table_catalog",
    "constraint_schema": "t.table_schema",
    "constraint_name": "s.name",
}
_NAMES: Final = {name: f"t.{name}" for name in ("table_catalog", "table_schema", "table_name")}
_OF_TABLES: Final = " s JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped AND {scope}"
_CONSTRAINTS: Final = "table_constraints" + _OF_TABLES


def _columns(flight: str) -> dict[str, str]:
    """The columns of a flight in rows `s` of a table `t`."""
    return _own_columns(flight) | TABLE_COLUMNS


def _own_columns(flight: str) -> dict[str, str]:
    return {name: f's."{name}"' for name in FLIGHTS[flight].schema.names}


def _plain(sql: str, columns: Mapping[str, str], order: str = "") -> Callable[[ReadScope], FlightSource]:
    """A source whose SQL has one `{scope}`, the condition on table keys."""

    def source(scope: ReadScope) -> FlightSource:
        parameters: list[Any] = []
        return FlightSource(sql.replace("{scope}", limited_to("t", scope, parameters)), parameters, columns, order)

    return source


def _snapshots(scope: ReadScope) -> FlightSource:
    parameters: list[Any] = []
    captured = " UNION ".join(
        f"SELECT table_key, snapshot_id FROM {table} c WHERE {limited_to('c', scope, parameters)}"
        for table in ("stats_tables", "stats_columns", "stats_expressions", "stats_column_groups", "file_snapshots")
    )
    condition = limited_to("t", scope, parameters)
    sql = (
        f"snapshots s JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped LEFT JOIN ({captured}) c"
        " ON c.table_key = s.table_key AND c.snapshot_id = s.snapshot_id"
    )
    columns = _columns("sys.snapshots")
    columns["is_current"] = "(s.snapshot_id = t.current_snapshot_id)"
    columns["captured"] = "(c.snapshot_id IS NOT NULL)"
    where = f"{condition} AND (s.is_live OR c.snapshot_id IS NOT NULL)"
    return FlightSource(sql, parameters, columns, "s.table_key, s.ordinal", where)


def _tables(scope: ReadScope) -> FlightSource:
    parameters: list[Any] = []
    columns = _NAMES | {name: f"t.{name}" for name in FLIGHTS["sys.tables"].schema.names}
    columns["snapshot_id"] = "t.current_snapshot_id"
    columns["last_error"] = "coalesce(t.last_error, t.capture_error)"
    columns["state"] = f"CASE WHEN {columns['last_error']} IS NULL THEN 'ACTIVE' ELSE 'FAILING' END"
    return FlightSource(
        "tables t", parameters, columns, "t.table_key", f"NOT t.dropped AND {limited_to('t', scope, parameters)}"
    )


def _schemata(scope: ReadScope) -> FlightSource:
    """The schemas of the scope's tables; empty ones too if it is not limited."""
    parameters: list[Any] = []
    among = limited_to("t", scope, parameters)
    sql = f"SELECT t.table_catalog, t.table_schema FROM tables t WHERE NOT t.dropped AND {among}"
    if scope.keys is None:
        sql += " UNION SELECT table_catalog, table_schema FROM namespaces"
    columns = {"catalog_name": "s.table_catalog", "schema_name": "s.table_schema"}
    return FlightSource(f"(SELECT DISTINCT * FROM ({sql})) s", parameters, columns, "s.table_catalog, s.table_schema")


_COUNTED: Final = ("row_count", "data_file_count", "total_size_bytes")


def _changes() -> Callable[[ReadScope], FlightSource]:
    """Each snapshot compared with the previous one: volume of captured ones, schema and time between commits of all."""
    columns = _columns("sys.changes") | {
        "change": "(s.after - s.before)",
        "change_percent": "(100 * (s.after - s.before) / nullif(abs(s.before), 0))",
    }
    volumes = " UNION ALL ".join(
        f"SELECT *, 'VOLUME' AS kind, '{name}' AS statistic, (lag({name}) OVER w)::DOUBLE AS before,"
        f" {name}::DOUBLE AS after FROM captured WINDOW w AS (PARTITION BY table_key ORDER BY ordinal)"
        for name in _COUNTED
    )
    own = "n.table_key, n.snapshot_id, n.ordinal, n.committed_at, n.schema_hash"
    sql = (
        f"(WITH known AS (SELECT {own}, NULL::BIGINT AS row_count, NULL::BIGINT AS data_file_count,"
        " NULL::BIGINT AS total_size_bytes, lag(n.snapshot_id) OVER w AS previous_snapshot_id,"
        " lag(n.schema_hash) OVER w AS schema_before, epoch(n.committed_at - lag(n.committed_at) OVER w) AS gap"
        " FROM snapshots n WINDOW w AS (PARTITION BY n.table_key ORDER BY n.ordinal)),"
        f" captured AS (SELECT {own}, c.row_count, c.data_file_count, c.total_size_bytes,"
        " lag(n.snapshot_id) OVER w AS previous_snapshot_id, NULL::VARCHAR AS schema_before, NULL::DOUBLE AS gap"
        " FROM snapshots n JOIN stats_tables c ON c.table_key = n.table_key AND c.snapshot_id = n.snapshot_id"
        " WINDOW w AS (PARTITION BY n.table_key ORDER BY n.ordinal)),"
        f" differences AS ({volumes}"
        " UNION ALL SELECT *, 'SCHEMA', 'schema_hash', NULL::DOUBLE, NULL::DOUBLE FROM known"
        " WHERE schema_before IS NOT NULL AND schema_hash IS NOT NULL AND schema_before <> schema_hash"
        " UNION ALL SELECT *, 'FRESHNESS', 'seconds_between_commits',"
        " (lag(gap) OVER (PARTITION BY table_key ORDER BY ordinal))::DOUBLE, gap FROM known)"
        " SELECT * FROM differences WHERE previous_snapshot_id IS NOT NULL"
        " AND (kind = 'SCHEMA' OR (kind = 'FRESHNESS' AND after IS NOT NULL) OR before <> after)) s"
        " JOIN tables t ON t.table_key = s.table_key AND NOT t.dropped AND {scope}"
    )
    return _plain(sql, columns, "s.table_key, s.ordinal, s.kind, s.statistic")


def _bytes_sql(flight: str) -> str:
    """SQL of the bytes of the values in a row of a flight's physical table; a list counts eight for each element."""
    sizes = []
    for name, type in stored_columns(flight).items():
        if pa.types.is_string(type):
            sizes.append(f'coalesce(strlen("{name}"), 0)')
        elif pa.types.is_binary(type):
            sizes.append(f'coalesce(octet_length("{name}"), 0)')
        else:
            sizes.append(f'coalesce(8 * len("{name}"), 0)' if pa.types.is_list(type) else "8")
    return " + ".join(sizes)


def _storage() -> Callable[[ReadScope], FlightSource]:
    """Stored rows and bytes of each table, by flight and for `file_sketches`; rows of files have spans, no snapshot."""
    tables = {part: (flight, "snapshot_id") for flight in BY_SNAPSHOT for part in parts(flight)}
    tables |= {table: (flight, "NULL::BIGINT") for flight, table in BY_SPAN.items()}
    each = " UNION ALL ".join(
        f"SELECT table_key, '{flight}' AS kind, {snapshot} AS snapshot_id, ({_bytes_sql(flight)}) AS size FROM {table}"
        for table, (flight, snapshot) in tables.items()
    )
    sql = (
        "(SELECT table_key, kind, count(*) AS rows, nullif(count(DISTINCT snapshot_id), 0) AS snapshots,"
        f" sum(size)::BIGINT AS bytes FROM ({each}) GROUP BY ALL)"
    )
    columns = _NAMES | {name: f's."{name}"' for name in ("kind", "rows", "snapshots", "bytes")}
    return _plain(sql + _OF_TABLES, columns, "t.table_key, s.kind")


def _own(flight: str, table: str, order: str, **changed: str) -> Callable[[ReadScope], FlightSource]:
    """A flight stored in a table with the same columns, including the names of the lake's table if it has them."""
    columns = _own_columns(flight) | changed
    keyed = "table_name" in columns

    def source(scope: ReadScope) -> FlightSource:
        parameters: list[Any] = []
        condition = limited_to("s", scope, parameters) if keyed else "true"
        return FlightSource(f"{table} s", parameters, columns, order, condition)

    return source


def _costs(scope: ReadScope) -> FlightSource:
    """Costs of the lakes of the scope's tables; of all lakes if it is not limited."""
    parameters: list[Any] = []
    condition = "true"
    if scope.keys is not None:
        seen = f"SELECT t.table_catalog FROM tables t WHERE NOT t.dropped AND {limited_to('t', scope, parameters)}"
        condition = f"s.catalog IN ({seen})"
    order = "s.day, s.catalog, s.reason, s.operation"
    return FlightSource("costs s", parameters, _own_columns("sys.costs"), order, condition)


def _connectors(scope: ReadScope) -> FlightSource:
    """The connectors of the scope's tables; all connectors if the scope is not limited."""
    parameters: list[Any] = []
    condition = "true"
    if scope.keys is not None:
        condition = f"s.catalog IN (SELECT t.table_catalog FROM tables t WHERE {limited_to('t', scope, parameters)})"
    return FlightSource("connectors s", parameters, _own_columns("sys.connectors"), "s.catalog", condition)


SOURCES: Final[dict[str, Callable[[ReadScope], FlightSource]]] = {
    "information_schema.schemata": _schemata,
    "information_schema.tables": _plain(
        "(SELECT * FROM tables t WHERE NOT t.dropped AND {scope}) t",
        _NAMES | {"table_type": "'BASE TABLE'"},
        "t.table_key",
    ),
    "information_schema.columns": _plain(
        "table_columns" + _OF_TABLES,
        _NAMES
        | {name: f"s.{name}" for name in ("column_name", "data_type", "ordinal_position", "is_nullable", "column_id")}
        | {
            "column_path": "coalesce(s.column_path, CASE WHEN NOT contains(s.column_name, '.')"
            " THEN [s.column_name] END)"
        },
        "t.table_key, s.ordinal_position",
    ),
    "information_schema.table_constraints": _plain(
        "(SELECT DISTINCT table_key, kind, name FROM table_constraints)" + _OF_TABLES,
        _CONSTRAINT_NAME
        | _NAMES
        | {"constraint_type": "s.kind", "is_deferrable": "'NO'", "initially_deferred": "'NO'", "enforced": "'NO'"},
        "t.table_key, s.name",
    ),
    "information_schema.key_column_usage": _plain(
        _CONSTRAINTS + " AND s.kind IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY')",
        _CONSTRAINT_NAME
        | _NAMES
        | {
            "column_name": "s.column_name",
            "ordinal_position": "s.ordinal_position",
            "position_in_unique_constraint": "NULL::BIGINT",
        },
        "t.table_key, s.name, s.ordinal_position",
    ),
    "information_schema.referential_constraints": _plain(
        _CONSTRAINTS + " AND s.kind = 'FOREIGN KEY'",
        _CONSTRAINT_NAME
        | dict.fromkeys(FLIGHTS["information_schema.referential_constraints"].schema.names[3:], "NULL::VARCHAR"),
    ),
    "information_schema.check_constraints": _plain(
        "(SELECT DISTINCT table_key, kind, name, clause FROM table_constraints)" + _OF_TABLES + " AND s.kind = 'CHECK'",
        _CONSTRAINT_NAME | {"check_clause": "s.clause"},
        "t.table_key, s.name",
    ),
    "information_schema.constraint_column_usage": _plain(
        _CONSTRAINTS + " AND s.column_name IS NOT NULL",
        _NAMES | {"column_name": "s.column_name"} | _CONSTRAINT_NAME,
        "t.table_key, s.name, s.ordinal_position",
    ),
    "information_schema.constraint_table_usage": _plain(
        "(SELECT DISTINCT table_key, kind, name FROM table_constraints)" + _OF_TABLES,
        _NAMES | _CONSTRAINT_NAME,
        "t.table_key, s.name",
    ),
    "sys.tables": _tables,
    "sys.columns": _plain(
        "table_columns" + _OF_TABLES,
        _NAMES | {name: f"s.{name}" for name in ("column_id", "column_name", "comment")},
        "t.table_key, s.ordinal_position",
    ),
    "sys.publications": _plain(  # STALE if the current snapshot is neither theirs nor one that they created
        "publications" + _OF_TABLES,
        _columns("sys.publications")
        | {
            "state": "CASE WHEN s.state = 'CURRENT' AND s.snapshot_id IS DISTINCT FROM t.current_snapshot_id"
            " AND s.made_snapshot_id IS DISTINCT FROM t.current_snapshot_id THEN 'STALE' ELSE s.state END"
        },
        "s.table_key, s.home",
    ),
    "sys.checks": _plain(
        "checks" + _OF_TABLES, _columns("sys.checks"), "s.table_key, s.checked_at, s.rule, s.column_name"
    ),
    "sys.changes": _changes(),
    "sys.snapshots": _snapshots,
    "sys.storage": _storage(),
    "sys.capture_jobs": _own("sys.capture_jobs", "jobs", "s.queued_at, s.job_id"),
    "sys.capture_decisions": _own("sys.capture_decisions", "capture_decisions", "s.decided_at"),
    "sys.column_usage": _own("sys.column_usage", "column_usage", "s.table_key, s.column_name"),
    "sys.connectors": _connectors,
    "sys.costs": _costs,
}
