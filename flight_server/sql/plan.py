"""Plans of statements: the flights to read, and the SQL that DuckDB runs over them.

A plan does not depend on the caller, so it can be cached and shared. A statement that only filters and limits one
flight needs no DuckDB: its plan is `direct`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from flight_server.sql import flights, language, parameter_types, pushdown, text_sizes
from flight_server.sql.flights import NAIVE, Table
from flight_server.sql.language import Query
from flight_server.sql.pushdown import Slot
from store.model.predicates.tree import Node, fields_of
from store.model.schemas import Flight

log = logging.getLogger("statflight.server")

_NO_TYPES: Final[Mapping[int, pa.DataType]] = MappingProxyType({})
_ZONED: Final = exp.DataType.Type.TIMESTAMPTZ
_PLAIN: Final = exp.DataType.Type.TIMESTAMP


@dataclass(frozen=True)
class Source:
    """A flight in a statement: its name in the SQL (`label`), the columns that the statement may use, and the condition
    of a direct read (`node`)."""

    table: Table
    label: str
    columns: tuple[str, ...]
    node: Node | None = None


@dataclass(frozen=True)
class Direct:
    """A scan whose rows are the statement's result: the names of its columns in the result, and a limit."""

    names: tuple[str, ...]
    limit: int | Slot | None


@dataclass(frozen=True)
class Plan:
    """The plan of a statement.

    `parameters` are the types of its `?`, and `untold` the numbers of those, from 0, of which the text says nothing;
    if `now` is true, `sql` has one more parameter, for the current time. A direct plan has no `sql`.
    """

    sources: tuple[Source, ...]
    parameters: tuple[pa.DataType, ...]
    sql: str
    typed_sql: str  # `sql` with typed nulls for parameters, to determine the schema
    now: bool
    direct: Direct | None
    untold: tuple[int, ...] = ()


def make(sql: str, types: Mapping[int, pa.DataType] = _NO_TYPES) -> Plan:
    """Plans a statement.

    Args:
        sql: The statement.
        types: Types of `untold` parameters, by their numbers from 0; text for those that are absent, and the type null
            for those that may be anything.

    Raises:
        InvalidArgument: The statement is not allowed; the message has the refused part.
        NotFound: A table does not exist.
    """
    try:
        return _make(language.parse(sql), types)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        # sqlglot parses some text that is not SQL, and then fails on its own tree.
        log.info("a statement cannot be planned: %r", error)
        raise language.refusal("the statement cannot be read") from None


def _make(statement: Query, types: Mapping[int, pa.DataType]) -> Plan:
    text_sizes.check(statement)
    nodes: dict[type, list[Any]] = {}
    for node, _ in language.nodes(statement):
        nodes.setdefault(type(node), []).append(node)
    common = {node.alias.lower() for node in nodes.get(exp.CTE, [])}
    reads = [(node, table) for node in nodes.get(exp.Table, []) if (table := flights.find(node, common)) is not None]
    if len(reads) > language.MAX_TABLES:
        raise language.refusal(f"the statement reads more than {language.MAX_TABLES} tables")
    wanted = {node.name.lower() for node in nodes.get(exp.Identifier, [])}
    star = any(not isinstance(node.parent, exp.Count) for node in nodes.get(exp.Star, []))
    sources: list[Source] = []
    for number, (node, table) in enumerate(reads, 1):
        all_ = star or flights.renames_columns(node)  # which renames by position
        columns = tuple(n for n in table.flight.schema.names if all_ or n in wanted) or (_narrowest(table.flight),)
        sources.append(Source(table, f"{table.schema}.{table.name} {number}", columns))
    found = parameter_types.find(nodes.get(exp.Placeholder, []), [table for _, table in reads])
    untold = tuple(number for number, type_ in enumerate(found) if type_ is None)
    parameters = tuple(
        types.get(number, parameter_types.TEXT) if type_ is None else type_ for number, type_ in enumerate(found)
    )
    if len(reads) == 1 and (direct := _direct(statement, sources[0], reads[0][0])) is not None:
        return Plan((direct[0],), parameters, "", "", False, direct[1])
    now = _rewrite(
        statement, [(node, source.label) for (node, _), source in zip(reads, sources, strict=True)], len(parameters) + 1
    )
    typed = statement.copy() if parameters or now else None  # copied first, because generating SQL changes some trees
    text = language.write(statement)
    typed_text = text if typed is None else _typed(typed, parameters)
    return Plan(tuple(sources), parameters, text, typed_text, now, None, untold)


def _typed(statement: exp.Expression, parameters: Sequence[pa.DataType]) -> str:
    """SQL of the statement with typed nulls in place of its parameters."""
    for node in list(statement.find_all(exp.Placeholder)):
        number = int(node.name)
        type_ = parameters[number - 1] if number <= len(parameters) else NAIVE
        null = exp.Null()
        if not pa.types.is_null(type_):
            null = exp.cast(null, parameter_types.sql_name(type_), dialect=language.DIALECT)
        node.replace(null)
    return language.write(statement)


def _narrowest(flight: Flight) -> str:
    """The column to read if only the number of rows is needed."""
    fixed = [field.name for field in flight.schema if pa.types.is_integer(field.type)]
    return fixed[0] if fixed else flight.schema.names[0]


# Statements that need no DuckDB.


def _direct(statement: Query, source: Source, node: exp.Table) -> tuple[Source, Direct] | None:
    """The flight's columns and condition, and the direct read; None if the statement needs DuckDB."""
    args = {name for name, value in statement.args.items() if value}
    from_ = statement.args.get("from_") or statement.args.get("from")
    if not args <= {"expressions", "from_", "from", "where", "limit"} or from_ is None or from_.this is not node:
        return None
    if flights.renames_columns(node):
        return None
    fields, alias = fields_of(source.table.flight.schema), (node.alias or node.name).lower()

    def field_of(column: exp.Expression) -> pa.Field | None:
        if not isinstance(column, exp.Column) or not isinstance(column.this, exp.Identifier):
            return None
        return fields.get(column.name.lower()) if column.table.lower() in ("", alias) else None

    columns: list[str] = []
    names: list[str] = []
    for item in statement.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        if isinstance(inner, exp.Star) and not any(inner.args.values()):
            columns += source.table.flight.schema.names
            names += source.table.flight.schema.names
            continue
        if (field := field_of(inner)) is None:
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
    where = statement.args.get("where")
    condition = None if where is None else pushdown.tree_of(where.this, field_of)
    if len(set(columns)) < len(columns) or (where is not None and condition is None):
        return None
    return Source(source.table, source.label, tuple(columns), condition), Direct(tuple(names), limit)


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
