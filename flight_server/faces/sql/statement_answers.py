"""Answers to the statements besides SELECT: SHOW and DESCRIBE run a SELECT, ANALYZE the action `capture`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from capture.connectors.spi import CONTAINERS
from flight_server.client.conditions.words import Name, Part
from flight_server.core.auth.principal import Principal
from flight_server.faces.sql import flights
from flight_server.faces.sql.language import refusal
from flight_server.faces.sql.plan import Plan
from flight_server.faces.sql.pushdown import Slot
from flight_server.faces.sql.statements import (
    Analyze,
    AnalyzeTables,
    Columns,
    Describe,
    Explain,
    ShowStats,
    ShowTables,
    Statement,
)
from store.catalog.capture_facts import format_facts
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidArgument, NotFound, nearest
from store.model.names import join_name
from store.model.predicates.tree import And, Leaf, Node, Not, Or

if TYPE_CHECKING:
    from flight_server.core.app import App

_FULL: Final = "a table of a lake is catalog.schema.table; SHOW TABLES lists them"
ANALYZED: Final = pa.schema(
    {
        "table": pa.string(),
        "snapshot_id": pa.int64(),
        "columns": pa.list_(pa.string()),
        "rows": pa.int64(),
        "engine": pa.string(),
        "outcome": pa.string(),
        "detail": pa.string(),
    }
)
EXPLAINED: Final = pa.schema({"plan": pa.string()})
_OF_TABLE: Final = "table_catalog = ? AND table_schema = ? AND table_name = ?"
_TABLES: Final = "SELECT table_catalog, table_schema, table_name FROM information_schema.tables ORDER BY 1, 2, 3"
_SCHEMAS: Final = "SELECT catalog_name, schema_name FROM information_schema.schemata"
_COLUMNS: Final = f"FROM information_schema.columns WHERE {_OF_TABLE} ORDER BY ordinal_position"
_DESCRIBE: Final = f"SELECT column_name, data_type {_COLUMNS}"
_IDS: Final = f"SELECT column_name, column_id, column_path, data_type {_COLUMNS}"
_ROWS: Final = f"SELECT row_count FROM stats.tables WHERE {_OF_TABLE}"
_STATS: Final = f"""
    SELECT column_name, data_size, distinct_values_count, nulls_fraction, row_count, low_value, high_value FROM (
        SELECT c.ordinal_position AS place, c.column_name,
            s.avg_width_bytes * (s.row_count - s.null_count) AS data_size, s.ndv AS distinct_values_count,
            s.null_count / nullif(cast(s.row_count AS DOUBLE), 0) AS nulls_fraction, cast(NULL AS DOUBLE) AS row_count,
            CASE WHEN s.freshness = 'EXACT' THEN s.min END AS low_value,
            CASE WHEN s.freshness = 'EXACT' THEN s.max END AS high_value
        FROM (SELECT column_id, column_name, ordinal_position {_COLUMNS}) c
        LEFT JOIN (SELECT * FROM stats.columns WHERE {_OF_TABLE}) s ON s.column_id = c.column_id
        UNION ALL
        SELECT NULL, NULL, NULL, NULL, NULL, cast(max(row_count) AS DOUBLE), NULL, NULL
        FROM stats.tables WHERE {_OF_TABLE}
    ) ORDER BY place NULLS LAST
"""

Capture: TypeAlias = Callable[[bytes], Sequence[dict[str, Any]]]
"""The action `capture` for the caller: its body → its results."""


Select: TypeAlias = Callable[[str, Sequence[Any]], pa.Table]
"""Runs a SELECT for the caller: its text and the values of its parameters → its rows."""


@dataclass(frozen=True)
class StatementCall:
    """A statement's caller, and what its answer needs."""

    app: App
    caller: Principal
    is_cancelled: Callable[[], bool]
    select: Select
    capture: Capture


def schema(statement: Statement, plan: Callable[[str], Any]) -> pa.Schema:
    """The schema of a statement's result.

    Args:
        plan: Plans a SELECT; the attribute `schema` of the result is the schema of its rows.
    """
    match statement:
        case Analyze() | AnalyzeTables():
            return ANALYZED
        case Explain(sql):
            plan(sql)  # refuses what is not allowed
            return EXPLAINED
        case ShowStats():
            columns = plan(_STATS).schema
        case Describe():
            columns = plan(_DESCRIBE).schema
        case ShowTables():
            columns = plan(_TABLES).schema
    return columns


def answer(statement: Statement, call: StatementCall, plan: Callable[[str], Plan]) -> pa.Table:
    """Runs a statement.

    Raises:
        InvalidArgument: A name is ambiguous, a flight, or no column.
        NotFound: The table does not exist.
        PermissionDenied: The caller may not read or capture the table.
    """
    match statement:
        case Analyze(name):
            return _analyzed([_analyze(_find(name, call, "capture.run"), statement, call)])
        case AnalyzeTables(schema):
            tables = [_entry(row, call, "capture.run") for row in _tables_of(schema, call).to_pylist()]
            return _analyzed([_analyze(table, Analyze((), Columns.NONE), call) for table in tables])
        case Explain(sql):
            return pa.table([list(_lines(plan(sql)))], schema=EXPLAINED)
        case ShowStats(name):
            return call.select(_STATS, 3 * _find(name, call, "stats.read").name)
        case ShowTables(schema):
            return _tables_of(schema, call)
        case Describe(name):
            if (flight := _flight(name)) is not None:
                return _columns_of(flight)
            return call.select(_DESCRIBE, _find(name, call, "stats.read").name)


# Names.


def _flight(name: Name) -> flights.Table | None:
    return flights.TABLES.get(_shown(name).lower().removeprefix(f"{flights.CATALOG}."))


def _find(name: Name, call: StatementCall, scope: str) -> TableEntry:
    """The table of a name, for which the caller has the scope."""
    shown = _shown(name)
    if _flight(name) is not None:
        raise refusal(f'"{shown}" is a flight of this server, which has no statistics', hint=_FULL)
    if len(name) < 3:
        raise refusal(f'"{shown}" is not the full name of a table', hint=_FULL)
    alike = [table.name for table in call.app.catalog.tables() if _equals(name, table.name)]
    alike = [each for each in alike if call.caller.sees(*each)]
    exact = name[0].text, ".".join(part.text for part in name[1:-1]), name[-1].text
    if len(alike) > 1 and exact not in alike:
        names = " or ".join(join_name(*each) for each in alike[:3])
        raise InvalidArgument(f'"{shown}" is ambiguous', code="AMBIGUOUS_TABLE", hint=f"quote its parts: {names}")
    found = alike[0] if len(alike) == 1 else exact
    return call.app.access.table(join_name(*found), call.caller, scope)


def _entry(row: Mapping[str, Any], call: StatementCall, scope: str) -> TableEntry:
    """The table of a row of SHOW TABLES."""
    name = join_name(row["table_catalog"], row["table_schema"], row["table_name"])
    return call.app.access.table(name, call.caller, scope)


def _tables_of(name: Name | None, call: StatementCall) -> pa.Table:
    """The rows of SHOW TABLES: those of a schema or catalog, the flights of one of the server's own schemas, or all.

    Raises:
        NotFound: The caller sees no schema or catalog of this name.
    """
    tables = call.select(_TABLES, ())
    if name is None:
        return tables
    schemas = call.select(_SCHEMAS, ()).to_pylist()
    rows = [row for row in tables.to_pylist() if _is_within(name, row["table_catalog"], row["table_schema"])]
    if not rows and not any(_is_within(name, row["catalog_name"], row["schema_name"]) for row in schemas):
        rows = [
            {"table_catalog": flights.CATALOG, "table_schema": table.schema, "table_name": table.name}
            for table in flights.TABLES.values()
            if _is_within(name, flights.CATALOG, table.schema) or _shown(name).lower() == table.schema
        ]
        if not rows:
            known = sorted({".".join(row.values()) for row in schemas})
            hint = nearest(_shown(name), known) or "SHOW TABLES lists all"
            raise NotFound(f'no schema "{_shown(name)}"', code="UNKNOWN_SCHEMA", hint=hint)
    return pa.Table.from_pylist(rows, tables.schema)


def _is_within(name: Name, catalog: str, schema: str) -> bool:
    """True if a name is that of a schema, which may have dots, or of its catalog."""
    first, *others = name
    within = Part(".".join(part.text for part in others), any(part.quoted for part in others))
    return first.equals(catalog) and (not others or within.equals(schema))


def _columns_of(table: flights.Table) -> pa.Table:
    """The rows of DESCRIBE of a flight."""
    fields = flights.naive(table.flight.schema)
    columns = [[field.name for field in fields], [flights.sql_type(field.type) for field in fields]]
    return pa.table(columns, names=["column_name", "data_type"])


def _shown(name: Name) -> str:
    return ".".join(part.text for part in name)[:200]


def _equals(name: Name, table: tuple[str, str, str]) -> bool:
    """True if a name is written like a table's, whose schema may have dots."""
    first, *middle, last = name
    schema = Part(".".join(part.text for part in middle), all(part.quoted for part in middle))
    return last.equals(table[2]) and first.equals(table[0]) and schema.equals(table[1])


def _column(name: Name, table: str, known: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row of a column in `known`, by its name or the parts of its path."""
    shown = _shown(name)
    alike = [row for row in known if _is_column(name, row)]
    exact = [row for row in alike if row["column_name"] == shown]
    if len(found := exact if len(alike) > 1 else alike) == 1:
        return found[0]
    if alike:
        names = ", ".join(row["column_name"] for row in alike[:3])
        raise InvalidArgument(
            f'"{table}" has several columns "{shown}": {names}', code="AMBIGUOUS_COLUMN", hint="quote the name of one"
        )
    hint = nearest(shown, [row["column_name"] for row in known]) or "DESCRIBE lists its columns"
    raise InvalidArgument(f'"{table}" has no column "{shown}"', code="UNKNOWN_COLUMN", hint=hint)


def _is_column(name: Name, row: Mapping[str, Any]) -> bool:
    path = row["column_path"] or [row["column_name"]]
    if len(name) == len(path) and all(part.equals(step) for part, step in zip(name, path, strict=True)):
        return True
    return len(name) == 1 and name[0].equals(row["column_name"])


# ANALYZE.


def _chosen(table: TableEntry, columns: tuple[Name, ...] | Columns, call: StatementCall) -> list[Mapping[str, Any]]:
    """The columns that an ANALYZE captures with a table, each once."""
    if columns is Columns.AS_USUAL:
        facts = format_facts(call.app.database, table)
        columns = Columns.ALL if facts.analyzes_columns else Columns.NONE
    if columns is Columns.NONE:
        return []
    with call.app.lakes.refreshed([table], call.is_cancelled):  # its columns may have changed
        pass
    known = call.select(_IDS, table.name).to_pylist()
    if isinstance(columns, Columns):
        return [row for row in known if row["data_type"] not in CONTAINERS]  # others only if they are named
    chosen = [_column(name, table.full_name, known) for name in columns]
    return list({row["column_id"]: row for row in chosen}.values())


def _analyzed(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, ANALYZED)


def _analyze(table: TableEntry, statement: Analyze, call: StatementCall) -> dict[str, Any]:
    """Captures a table as a statement has it; a row of ANALYZED."""
    chosen = _chosen(table, statement.columns, call)
    targets: list[dict[str, Any]] = [{"kind": "TABLE"}]
    targets += [{"kind": "COLUMN", "column_id": row["column_id"]} for row in chosen]
    body = {"requests": [{"table": table.full_name, "target": target} for target in targets]}
    outcomes = call.capture(json.dumps(body).encode())
    of_columns = outcomes[1:] or outcomes
    failed = [outcome for outcome in outcomes if outcome["outcome"] != "CAPTURED"]
    details = [statement.ignored, *(each["detail"] for each in failed or outcomes)]
    rows = call.select(_ROWS, table.name).to_pylist()
    return {
        "table": table.full_name,
        "snapshot_id": call.app.catalog.get(table.full_name).current_snapshot_id,
        "columns": [row["column_name"] for row in chosen],
        "rows": rows[0]["row_count"] if rows else None,
        "engine": ", ".join(sorted({each["engine_id"] for each in of_columns if each["engine_id"]})) or None,
        "outcome": failed[0]["outcome"] if failed else "CAPTURED",
        "detail": "; ".join(dict.fromkeys(detail for detail in details if detail)),
    }


# EXPLAIN.


def _lines(plan: Plan) -> Iterator[str]:
    for source in plan.sources:
        yield f"read {source.table.schema}.{source.table.name}: {', '.join(source.columns)}"
        if source.node is not None:
            yield f"  where {_text(source.node)}"
    if plan.direct is None:
        yield f"then in DuckDB: {plan.sql}"
    elif plan.direct.limit is not None:
        yield f"  limit {_value(plan.direct.limit)}"


def _text(node: Node) -> str:
    match node:
        case Leaf():
            values = ", ".join(map(_value, node.values))
            return f"{node.column} {node.op.replace('_', ' ')} {values}".rstrip()
        case Not(child):
            return f"NOT ({_text(child)})"
    word = " AND " if isinstance(node, And) else " OR "
    return word.join(f"({_text(child)})" if isinstance(child, And | Or) else _text(child) for child in node.children)


def _value(value: Any) -> str:
    return f"?{value.number + 1}" if isinstance(value, Slot) else repr(value)
