"""Plans of statements: the flights to read, with columns and conditions, and the SQL that DuckDB runs over their rows.

A plan does not depend on the caller, so it can be cached and shared. A statement that only filters and limits one
flight needs no DuckDB: its plan is `direct`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from flight_server.sql import conditions, flights, group_keys, language, parameter_types, text_sizes
from flight_server.sql.flights import NAIVE, Table
from flight_server.sql.language import Query
from flight_server.sql.pushdown import Slot
from store.model.predicates.tree import Node
from store.model.schemas import Flight

log = logging.getLogger("statflight.server")

_ZONED: Final = exp.DataType.Type.TIMESTAMPTZ
_PLAIN: Final = exp.DataType.Type.TIMESTAMP


@dataclass(frozen=True)
class Source:
    """A scan of a flight for a statement: columns, condition (`node`), the name of its rows in the SQL (`label`), and
    the columns that may be ENUMs (`keys`)."""

    table: Table
    label: str
    columns: tuple[str, ...]
    node: Node | None
    keys: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Direct:
    """A scan whose rows are the statement's result: the names of its columns in the result, and a limit."""

    names: tuple[str, ...]
    limit: int | Slot | None


@dataclass(frozen=True)
class Plan:
    """The plan of a statement.

    `parameters` are the types of its `?`; if `now` is true, `sql` has one more, for the current time. A direct plan has
    no `sql`.
    """

    sources: tuple[Source, ...]
    parameters: tuple[pa.DataType, ...]
    sql: str
    typed_sql: str  # `sql` with typed nulls for parameters, to determine the schema
    now: bool
    direct: Direct | None


def make(sql: str) -> Plan:
    """Plans a statement.

    Raises:
        InvalidArgument: The statement is not allowed; the message has the refused part.
        NotFound: A table does not exist.
    """
    try:
        return _make(language.parse(sql))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        # sqlglot parses some text that is not SQL, and then fails on its own tree.
        log.info("a statement cannot be planned: %r", error)
        raise language.refusal("the statement cannot be read") from None


def _make(statement: Query) -> Plan:
    text_sizes.check(statement)
    nodes: dict[type, list[Any]] = {}
    for node, _ in language.nodes(statement):
        nodes.setdefault(type(node), []).append(node)
    common = conditions.uses_of(nodes.get(exp.CTE, []), nodes.get(exp.Table, []))
    reads = [(node, table) for node in nodes.get(exp.Table, []) if (table := flights.find(node, common)) is not None]
    if len(reads) > language.MAX_TABLES:
        raise language.refusal(f"the statement reads more than {language.MAX_TABLES} tables")
    wanted = {node.name.lower() for node in nodes.get(exp.Identifier, [])}
    star = any(not isinstance(node.parent, exp.Count) for node in nodes.get(exp.Star, []))
    sources: list[Source] = []
    exact = True
    for number, (node, table) in enumerate(reads, 1):
        if flights.renames_columns(node):  # by position: all columns are needed, and conditions use other names
            columns, tree, whole = tuple(table.flight.schema.names), None, False
        else:
            columns = tuple(n for n in table.flight.schema.names if star or n in wanted) or (_narrowest(table.flight),)
            tree, whole = conditions.of_flight(node, table, common)
        exact = exact and whole
        sources.append(Source(table, f"{table.schema}.{table.name} {number}", columns, tree))
    parameters = parameter_types.find(nodes.get(exp.Placeholder, []), [table for _, table in reads])
    direct = _direct(statement, sources[0], reads[0][0]) if len(reads) == 1 and exact else None
    if direct is not None:
        (source,) = sources
        alone = Source(source.table, source.label, direct[0], source.node)
        return Plan((alone,), tuple(parameters), "", "", False, direct[1])
    identifiers = nodes.get(exp.Identifier, [])
    sources = [replace(source, keys=group_keys.separate(node, table, identifiers))
               for source, (node, table) in zip(sources, reads, strict=True)]  # fmt: skip
    now = _rewrite(statement, [(node, source.label) for (node, _), source in zip(reads, sources, strict=True)],
                   len(parameters) + 1)  # fmt: skip
    typed = statement.copy() if parameters or now else None  # copied first, because generating SQL changes some trees
    text = language.write(statement)
    return Plan(
        tuple(sources), tuple(parameters), text, text if typed is None else _typed(typed, parameters), now, None
    )


def _typed(statement: exp.Expression, parameters: Sequence[pa.DataType]) -> str:
    """SQL of the statement with typed nulls in place of its parameters."""
    for node in list(statement.find_all(exp.Placeholder)):
        number = int(node.name)
        type_ = parameters[number - 1] if number <= len(parameters) else NAIVE
        node.replace(exp.cast(exp.Null(), parameter_types.sql_name(type_), dialect=language.DIALECT))
    return language.write(statement)


def _narrowest(flight: Flight) -> str:
    """The column to read if only the number of rows is needed."""
    fixed = [field.name for field in flight.schema if pa.types.is_integer(field.type)]
    return fixed[0] if fixed else flight.schema.names[0]


# Statements that need no DuckDB.


def _direct(statement: Query, source: Source, node: exp.Table) -> tuple[tuple[str, ...], Direct] | None:
    """The flight's columns and the direct read; None if the statement needs DuckDB."""
    args = {name for name, value in statement.args.items() if value}
    from_ = statement.args.get("from_") or statement.args.get("from")
    if not args <= {"expressions", "from_", "from", "where", "limit"} or from_ is None or from_.this is not node:
        return None
    fields, alias = flights.fields_of(source.table), (node.alias or node.name).lower()
    columns: list[str] = []
    names: list[str] = []
    for item in statement.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        if isinstance(inner, exp.Star) and not any(inner.args.values()):
            columns += source.table.flight.schema.names
            names += source.table.flight.schema.names
            continue
        if not isinstance(inner, exp.Column) or (inner.table and inner.table.lower() != alias):
            return None
        field = fields.get(inner.name.lower()) if isinstance(inner.this, exp.Identifier) else None
        if field is None:
            return None
        columns.append(field.name)
        names.append(item.alias if isinstance(item, exp.Alias) else field.name)
    limit: int | Slot | None = None
    if (clause := statement.args.get("limit")) is not None:
        value = clause.expression
        if isinstance(value, exp.Placeholder):
            limit = Slot(int(value.name) - 1, pa.field("limit", pa.int64()))
        elif isinstance(value, exp.Literal) and not value.is_string and str(value.this).isdecimal():
            limit = min(int(value.this), 2**62)
        else:
            return None
    if len(set(columns)) < len(columns):
        return None
    return tuple(columns), Direct(tuple(names), limit)


# SQL for DuckDB.


def _rewrite(statement: Query, tables: list[tuple[exp.Table, str]], next_parameter: int) -> bool:
    """Rewrites a statement for DuckDB: registered names of tables, no schemas in columns, no zones in types, and the
    current time as a parameter; True if it uses the current time."""
    for node, label in tables:
        if not node.args.get("alias"):
            node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name, quoted=True)))
        node.set("this", exp.to_identifier(label, quoted=True))
        node.set("db", None)
        node.set("catalog", None)
    for column in statement.find_all(exp.Column):
        column.set("db", None)
        column.set("catalog", None)
    for type_ in statement.find_all(exp.DataType):
        if type_.this is _ZONED:
            type_.set("this", _PLAIN)
    now = False
    for node in list(statement.find_all(exp.CurrentTimestamp, exp.CurrentDate, exp.Localtimestamp)):
        now = True
        target = "DATE" if isinstance(node, exp.CurrentDate) else "TIMESTAMP"
        instant = exp.cast(exp.Placeholder(this=str(next_parameter)), "TIMESTAMP", dialect=language.DIALECT)
        node.replace(exp.cast(instant, target, dialect=language.DIALECT) if target == "DATE" else instant)
    return now
