"""Statements → plans: which flights are read, with what columns and conditions, and what DuckDB does with the rows.

A plan says nothing of a caller, so it is kept and shared. Where one flight is read, filtered and cut alone, there is
nothing left for DuckDB: the plan is `direct`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import pyarrow as pa
from sqlglot import exp

from flight_server.sql import language, pushdown
from flight_server.sql.language import Query
from flight_server.sql.pushdown import Slot
from store.errors import NotFound, nearest
from store.predicates.tree import And, Node
from store.schemas import FLIGHTS, Flight

log = logging.getLogger("statflight.server")

CATALOG: Final = "statflight"
STORED_SCHEMA: Final = "stats_all"  # every stored row, where `stats` has the current ones
NAIVE: Final = pa.timestamp("us")  # UTC without saying so: drivers cannot read zoned instants
_TYPES: Final = {
    "BOOLEAN": pa.bool_(), "TINYINT": pa.int64(), "SMALLINT": pa.int64(), "INT": pa.int64(), "BIGINT": pa.int64(),
    "FLOAT": pa.float64(), "DOUBLE": pa.float64(), "DECIMAL": pa.float64(), "DATE": pa.date32(), "TIMESTAMP": NAIVE,
    "TIMESTAMPNTZ": NAIVE, "TIMESTAMPTZ": NAIVE, "DATETIME": NAIVE,
}  # fmt: skip
_ZONED: Final = exp.DataType.Type.TIMESTAMPTZ
_PLAIN: Final = exp.DataType.Type.TIMESTAMP


@dataclass(frozen=True)
class Table:
    """A flight under the name that SQL has for it."""

    schema: str
    name: str
    flight: Flight

    @property
    def snapshot(self) -> str | None:
        """The snapshot of a scan of it: "current", or None for all stored rows."""
        return "current" if self.schema == "stats" else None


def _tables() -> Iterator[Table]:
    for flight in FLIGHTS.values():
        schema, _, name = flight.name.partition(".")
        yield Table(schema, name, flight)
        if schema == "stats":
            yield Table(STORED_SCHEMA, name, flight)


TABLES: Final = {f"{table.schema}.{table.name}": table for table in _tables()}


@cache
def _fields(flight: str) -> Mapping[str, pa.Field]:
    return pushdown.fields_of(FLIGHTS[flight].schema)


def _fields_of(table: Table) -> Mapping[str, pa.Field]:
    """The fields of a table by name in lower case."""
    return _fields(table.flight.name)


@dataclass(frozen=True)
class Source:
    """One reading of a flight: its columns, the rows wanted of it, and the name by which the statement knows it."""

    table: Table
    label: str
    columns: tuple[str, ...]
    node: Node | None


@dataclass(frozen=True)
class Direct:
    """A read of one flight that answers the statement by itself: the names of its columns there, and a limit."""

    names: tuple[str, ...]
    limit: int | Slot | None


@dataclass(frozen=True)
class Plan:
    """The plan of a statement.

    `parameters` are the types of its `?`; `now` says that DuckDB's statement has one more, for the present instant. A
    direct plan has no statement for DuckDB.
    """

    sources: tuple[Source, ...]
    parameters: tuple[pa.DataType, ...]
    sql: str
    typed_sql: str  # with nulls of the right types for parameters: it tells the schema
    now: bool
    direct: Direct | None


def naive(schema: pa.Schema) -> pa.Schema:
    """Makes instants naive.

    Args:
        schema: Of a flight, or of a statement's answer.

    Returns:
        The schema with instants as Flight SQL hands them out.
    """
    return pa.schema([field.with_type(NAIVE) if pa.types.is_timestamp(field.type) else field for field in schema])


def make(sql: str) -> Plan:
    """Plans a statement.

    Args:
        sql: The text.

    Returns:
        The plan.

    Raises:
        InvalidArgument: It is not taken; the message says which part.
        NotFound: It names a table that does not exist.
    """
    try:
        return _make(language.parse(sql))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as trouble:
        # sqlglot takes some statements that are not SQL, and stumbles over its own trees of them.
        log.info("a statement cannot be planned: %r", trouble)
        raise language.refusal("the statement cannot be read") from None


def _make(statement: Query) -> Plan:
    nodes: dict[type, list[Any]] = {}
    for node, _ in language.nodes(statement):
        nodes.setdefault(type(node), []).append(node)
    common = _common(nodes.get(exp.CTE, []), nodes.get(exp.Table, []))
    found = [(node, table) for node in nodes.get(exp.Table, []) if (table := _table(node, common)) is not None]
    if len(found) > language.MAX_TABLES:
        raise language.refusal(f"the statement reads more than {language.MAX_TABLES} tables")
    wanted = {node.name.lower() for node in nodes.get(exp.Identifier, [])}
    star = any(not isinstance(node.parent, exp.Count) for node in nodes.get(exp.Star, []))
    sources: list[Source] = []
    exact = True
    for number, (node, table) in enumerate(found, 1):
        columns = tuple(n for n in table.flight.schema.names if star or n in wanted) or (_narrowest(table.flight),)
        tree, whole = _pushed(node, table, common)
        exact = exact and whole
        sources.append(Source(table, f"{table.schema}.{table.name} {number}", columns, tree))
    parameters = _parameter_types(nodes.get(exp.Placeholder, []), [table for _, table in found])
    direct = _direct(statement, sources[0], found[0][0]) if len(found) == 1 and exact else None
    if direct is not None:
        (source,) = sources
        alone = Source(source.table, source.label, direct[0], source.node)
        return Plan((alone,), tuple(parameters), "", "", False, direct[1])
    now = _rewrite(statement, [(node, source.label) for (node, _), source in zip(found, sources, strict=True)],
                   len(parameters) + 1)  # fmt: skip
    text = language.write(statement)
    for node in list(statement.find_all(exp.Placeholder)):
        number = int(node.name)
        type_ = parameters[number - 1] if number <= len(parameters) else NAIVE
        node.replace(exp.cast(exp.Null(), _sql_type(type_), dialect=language.DIALECT))
    return Plan(
        tuple(sources), tuple(parameters), text,
        statement.sql(dialect=language.DIALECT, comments=False, copy=False), now, None,
    )  # fmt: skip


def _common(expressions: list[exp.CTE], tables: list[exp.Table]) -> dict[str, exp.Table | None]:
    """The names of common table expressions, each with its use where there is one use of one expression."""
    names = [cte.alias.lower() for cte in expressions]
    uses: dict[str, list[exp.Table]] = {name: [] for name in names}
    for table in tables:
        if not table.args.get("db") and table.name.lower() in uses:
            uses[table.name.lower()].append(table)
    return {name: used[0] if len(used) == 1 and names.count(name) == 1 else None for name, used in uses.items()}


def _table(node: exp.Table, common: Mapping[str, exp.Table | None]) -> Table | None:
    """The flight that a table of the statement is; None for a common table expression."""
    parts = [part.name.lower() for part in (node.args.get("catalog"), node.args.get("db"), node.this) if part]
    if len(parts) == 1 and parts[0] in common:
        return None
    if len(parts) == 3 and parts[0] == CATALOG:
        parts = parts[1:]
    name = ".".join(parts)
    if found := TABLES.get(name):
        return found
    shown = ".".join(part.name for part in (node.args.get("catalog"), node.args.get("db"), node.this) if part)[:200]
    alike = [full for full in TABLES if full.endswith(f".{name}")]
    hint = f'did you mean "{alike[0]}"?' if alike else nearest(name, list(TABLES))
    raise NotFound(f'no table "{shown}"', code="UNKNOWN_TABLE", hint=hint or "sys.flights lists them all")


def _narrowest(flight: Flight) -> str:
    """The column that is read where only the number of rows is wanted."""
    fixed = [field.name for field in flight.schema if pa.types.is_integer(field.type)]
    return fixed[0] if fixed else flight.schema.names[0]


# Conditions of one flight.


Columns: TypeAlias = Mapping[str, pa.Field]
"""The columns of a flight by the name, in lower case, that a SELECT has for them."""


def _pushed(node: exp.Table, table: Table, common: Mapping[str, exp.Table | None]) -> tuple[Node | None, bool]:
    """The condition on every row of a flight, and whether it is the whole condition of the SELECT.

    Conditions come from the SELECT that reads the flight, and from those around it as long as each hands columns on as
    they are: tools wrap a table before they filter it.
    """
    found: list[Node] = []
    exact = False
    item: exp.Expression | None = node
    columns = _fields_of(table)
    while item is not None and (select := _reader(item)) is not None:
        condition, whole = _condition(select, item, columns, common)
        exact = exact or (item is node and whole)
        if condition is not None:
            found.append(condition)
        around = _wrapped(select, common)
        columns = {} if around is None else _handed_on(select, item, columns)
        item = around if columns else None
    return (And(tuple(found)) if len(found) > 1 else found[0] if found else None), exact


def _reader(item: exp.Expression) -> exp.Select | None:
    """The SELECT in whose FROM clause or join an item is."""
    within = item.parent.parent if isinstance(item.parent, exp.From | exp.Join) else None
    return within if isinstance(within, exp.Select) else None


def _condition(
    select: exp.Select, item: exp.Expression, columns: Columns, common: Mapping[str, exp.Table | None]
) -> tuple[Node | None, bool]:
    """The condition of a SELECT on each row of an item of its FROM clause, and whether it is all of its condition."""
    joins = select.args.get("joins") or []
    inner = all(
        not join.side and not join.args.get("method") and (join.kind or "INNER").upper() in ("INNER", "CROSS")
        for join in joins
    )
    if joins and not inner and not (isinstance(item.parent, exp.From) and _preserves_first(joins)):
        return None, False
    alias = _name_of(item)
    others = _other_names(select, item, common)

    def column(named: exp.Column) -> pa.Field | None:
        if not isinstance(named.this, exp.Identifier):
            return None
        name, of = named.name.lower(), named.table.lower()
        if of:
            return columns.get(name) if of == alias else None
        return None if others is None or name in others else columns.get(name)

    where = select.args.get("where")
    conditions = [] if where is None else [where.this]
    if inner:
        conditions += [join.args["on"] for join in joins if join.args.get("on") is not None]
    return pushdown.tree_of(pushdown.conjuncts(conditions), column)


def _name_of(item: exp.Expression) -> str:
    name = item.alias or (item.name if isinstance(item, exp.Table) else "")
    return str(name).lower()


def _handed_on(select: exp.Select, item: exp.Expression, columns: Columns) -> Columns:
    """The columns that a SELECT of nothing but an item and a WHERE hands on unchanged, by their new names."""
    args = {name for name, value in select.args.items() if value}
    if not args <= {"expressions", "from_", "from", "where"} or select.find(exp.Window) is not None:
        return {}
    handed: dict[str, pa.Field | None] = {}
    alias = _name_of(item)
    for shown in select.expressions:
        inner = shown.this if isinstance(shown, exp.Alias) else shown
        if isinstance(inner, exp.Star):
            if any(inner.args.values()):
                return {}
            given: Columns = columns
        elif isinstance(inner, exp.Column) and isinstance(inner.this, exp.Identifier):
            own = columns.get(inner.name.lower()) if inner.table.lower() in ("", alias) else None
            given = {} if own is None else {(shown.alias or inner.name).lower(): own}
            handed |= {} if given else {(shown.alias or inner.name).lower(): None}
        else:
            given = {}
            handed |= {str(shown.alias).lower(): None}
        for name, field in given.items():
            handed[name] = None if name in handed else field  # of two columns of one name, none is meant
    return {name: field for name, field in handed.items() if field is not None}


def _wrapped(select: exp.Select, common: Mapping[str, exp.Table | None]) -> exp.Expression | None:
    """The item of a FROM clause that a SELECT is: a subquery, or the only use of a common table expression."""
    around = select.parent
    alias = around.args.get("alias") if isinstance(around, exp.Subquery | exp.CTE) else None
    if alias is not None and alias.args.get("columns"):
        return None
    if isinstance(around, exp.CTE):
        return common.get(around.alias.lower())
    return around if isinstance(around, exp.Subquery) else None


def _preserves_first(joins: Iterable[exp.Join]) -> bool:
    return all((join.side or "").upper() in ("", "LEFT") and not join.args.get("method") for join in joins)


def _other_names(select: exp.Select, item: exp.Expression, common: Mapping[str, exp.Table | None]) -> set[str] | None:
    """The columns of the other tables of a SELECT; None where they are not known."""
    names: set[str] = set()
    joined = [join.this for join in select.args.get("joins") or []]
    first = select.args.get("from_") or select.args.get("from")
    for other in [*([first.this] if first is not None else []), *joined]:
        if other is item:
            continue
        table = _table(other, common) if isinstance(other, exp.Table) else None
        if table is None:
            return None
        names |= {name.lower() for name in table.flight.schema.names}
    return names


# Statements that need no DuckDB.


def _direct(statement: Query, source: Source, node: exp.Table) -> tuple[tuple[str, ...], Direct] | None:
    """The flight's columns and the direct read, where the statement is one."""
    args = {name for name, value in statement.args.items() if value}
    from_ = statement.args.get("from_") or statement.args.get("from")
    if not args <= {"expressions", "from_", "from", "where", "limit"} or from_ is None or from_.this is not node:
        return None
    fields, alias = _fields_of(source.table), (node.alias or node.name).lower()
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


# Parameters.


def _parameter_types(placeholders: list[exp.Placeholder], tables: list[Table]) -> list[pa.DataType]:
    """The type of each parameter, that of the column it is compared with; text where nothing tells."""
    if not placeholders:
        return []
    types: dict[str, pa.DataType] = {}
    for table in tables:
        for field in naive(table.flight.schema):
            types.setdefault(field.name.lower(), field.type)
    found = {int(node.name): _parameter_type(node, types) for node in placeholders}
    return [found.get(number, pa.string()) for number in range(1, max(found, default=0) + 1)]


def _parameter_type(node: exp.Placeholder, types: Mapping[str, pa.DataType]) -> pa.DataType:
    parent = node.parent
    while isinstance(parent, exp.Paren | exp.Tuple | exp.Neg):
        parent = parent.parent
    if isinstance(parent, exp.Limit | exp.Offset):
        return pa.int64()
    if isinstance(parent, exp.Cast):
        return _TYPES.get(parent.to.this.name, pa.string())
    if isinstance(parent, exp.Binary | exp.Between | exp.In):
        beside = [each for each in parent.iter_expressions() if isinstance(each, exp.Column)]
        for column in beside:
            if (type_ := types.get(column.name.lower())) is not None:
                return type_
    return pa.string()


def _sql_type(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_):
        return "BIGINT"
    if pa.types.is_floating(type_):
        return "DOUBLE"
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP"
    named = {pa.bool_(): "BOOLEAN", pa.date32(): "DATE", pa.binary(): "BLOB"}
    return named.get(type_, "VARCHAR")


# What DuckDB is given.


def _rewrite(statement: Query, tables: list[tuple[exp.Table, str]], next_parameter: int) -> bool:
    """Names tables as they are registered, takes schemas off columns and zones off types; whether it asks for `now`."""
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
