"""Plans of statements: the flights to read, and the SQL that DuckDB runs over them.

A plan does not depend on the caller, so it can be cached and shared. A statement that only filters and limits one
flight needs no DuckDB: its plan is `direct`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import pyarrow as pa
from sqlglot import exp

from flight_server.faces.sql import flights, language, parameter_types, pushdown, text_sizes
from flight_server.faces.sql.flights import NAIVE, Table
from flight_server.faces.sql.language import Query
from flight_server.faces.sql.pushdown import Slot
from store.model.flight import Flight
from store.model.predicates.tree import Node, fields_of

log = logging.getLogger("statflight.server")

_NO_TYPES: Final[Mapping[int, pa.DataType]] = MappingProxyType({})
_ZONED: Final = exp.DataType.Type.TIMESTAMPTZ
_PLAIN: Final = exp.DataType.Type.TIMESTAMP
_DIRECT_PARTS: Final = frozenset({"expressions", "from_", "from", "where", "limit"})


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
    nodes = _by_kind(statement)
    reads = _reads(nodes)
    sources = _sources(nodes, reads)
    found = parameter_types.find(nodes.get(exp.Placeholder, []), [table for _, table in reads])
    untold = tuple(number for number, type_ in enumerate(found) if type_ is None)
    parameters = tuple(
        types.get(number, parameter_types.TEXT) if type_ is None else type_ for number, type_ in enumerate(found)
    )
    if len(reads) == 1 and (direct := _direct(statement, sources[0], reads[0][0])) is not None:
        return Plan((direct[0],), parameters, "", "", False, direct[1])
    labels = [(node, source.label) for (node, _), source in zip(reads, sources, strict=True)]
    now = _rewrite(statement, labels, len(parameters) + 1)
    typed = statement.copy() if parameters or now else None  # copied first, because generating SQL changes some trees
    text = language.write(statement)
    typed_text = text if typed is None else _typed(typed, parameters)
    return Plan(tuple(sources), parameters, text, typed_text, now, None, untold)


_Nodes: TypeAlias = Mapping[type, Sequence[Any]]
"""The nodes of a statement by their class, each in the order of the text."""


def _by_kind(statement: Query) -> _Nodes:
    """Groups the nodes of a statement."""
    nodes: dict[type, list[Any]] = {}
    for node, _ in language.nodes(statement):
        nodes.setdefault(type(node), []).append(node)
    return nodes


def _reads(nodes: _Nodes) -> list[tuple[exp.Table, Table]]:
    """The references to flights, each with its flight.

    Raises:
        InvalidArgument: There are too many.
        NotFound: A table does not exist.
    """
    common = {node.alias.lower() for node in nodes.get(exp.CTE, [])}
    reads = [(node, table) for node in nodes.get(exp.Table, []) if (table := flights.find(node, common)) is not None]
    if len(reads) > language.MAX_TABLES:
        raise language.refusal(f"the statement reads more than {language.MAX_TABLES} tables")
    return reads


def _sources(nodes: _Nodes, reads: Sequence[tuple[exp.Table, Table]]) -> list[Source]:
    """The flights that a statement reads, each with the columns whose names occur anywhere in it."""
    wanted = {node.name.lower() for node in nodes.get(exp.Identifier, [])}
    star = any(not isinstance(node.parent, exp.Count) for node in nodes.get(exp.Star, []))
    sources: list[Source] = []
    for number, (node, table) in enumerate(reads, 1):
        all_ = star or flights.renames_columns(node)  # which renames by position
        columns = tuple(n for n in table.flight.schema.names if all_ or n in wanted) or (_narrowest(table.flight),)
        sources.append(Source(table, f"{table.schema}.{table.name} {number}", columns))
    return sources


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
    if not _only_filters(statement, node):
        return None
    schema = source.table.flight.schema
    fields = _Fields(fields_of(schema), (node.alias or node.name).lower())
    selected = _selected(statement.expressions, schema, fields)
    if selected is None:
        return None
    columns = tuple(column for column, _ in selected)
    clause, where = statement.args.get("limit"), statement.args.get("where")
    limit = None if clause is None else _limit(clause.expression)
    if clause is not None and limit is None:
        return None
    condition = None if where is None else pushdown.tree_of(where.this, fields.find)
    if len(set(columns)) < len(columns) or (where is not None and condition is None):
        return None
    return Source(source.table, source.label, columns, condition), Direct(tuple(name for _, name in selected), limit)


def _only_filters(statement: Query, node: exp.Table) -> bool:
    """True if a statement at most selects, filters and limits the rows of this one table."""
    args = {name for name, value in statement.args.items() if value}
    from_ = statement.args.get("from_") or statement.args.get("from")
    if not args <= _DIRECT_PARTS or from_ is None or from_.this is not node:
        return False
    return not flights.renames_columns(node)


@dataclass(frozen=True)
class _Fields:
    """The fields of a statement's one table by their names in lower case, and the table's name in the statement."""

    by_name: Mapping[str, pa.Field]
    table: str

    def find(self, column: exp.Expression) -> pa.Field | None:
        """The field that an expression is; None if it is no column, or one of another table."""
        if not isinstance(column, exp.Column) or not isinstance(column.this, exp.Identifier):
            return None
        return self.by_name.get(column.name.lower()) if column.table.lower() in ("", self.table) else None


def _selected(items: Sequence[exp.Expression], schema: pa.Schema, fields: _Fields) -> list[tuple[str, str]] | None:
    """The columns that a SELECT lists, each with its name in the result; None if it lists more than columns."""
    selected: list[tuple[str, str]] = []
    for item in items:
        inner = item.this if isinstance(item, exp.Alias) else item
        if isinstance(inner, exp.Star) and not any(inner.args.values()):
            selected += [(name, name) for name in schema.names]
            continue
        if (field := fields.find(inner)) is None:
            return None
        selected.append((field.name, item.alias if isinstance(item, exp.Alias) else field.name))
    return selected


def _limit(value: exp.Expression) -> int | Slot | None:
    """The number of rows of a LIMIT, or its parameter; None if it is neither."""
    if isinstance(value, exp.Placeholder):
        return Slot(int(value.name) - 1, pa.field("limit", pa.int64()))
    if isinstance(value, exp.Literal) and not value.is_string and str(value.this).isdecimal():
        return min(int(value.this), 2**62)
    return None


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
