"""Conditions of a statement on the rows of one flight: what its scan may leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pyarrow as pa
from sqlglot import exp

from flight_server.sql import flights, pushdown
from flight_server.sql.flights import Table
from store.predicates.tree import And, Node

Columns: TypeAlias = Mapping[str, pa.Field]
"""The columns of a flight by the name, in lower case, that a SELECT has for them."""
Uses: TypeAlias = Mapping[str, exp.Table | None]
"""Common table expressions by name, each with its only use."""


def uses_of(expressions: list[exp.CTE], tables: list[exp.Table]) -> Uses:
    """Finds where common table expressions are used.

    Args:
        expressions: All of a statement.
        tables: All of the statement.

    Returns:
        Their names, each with its use where there is one use of one expression.
    """
    names = [cte.alias.lower() for cte in expressions]
    uses: dict[str, list[exp.Table]] = {name: [] for name in names}
    for table in tables:
        if not table.args.get("db") and table.name.lower() in uses:
            uses[table.name.lower()].append(table)
    return {name: used[0] if len(used) == 1 and names.count(name) == 1 else None for name, used in uses.items()}


def of_flight(node: exp.Table, table: Table, common: Uses) -> tuple[Node | None, bool]:
    """Collects the condition on every row of a flight.

    Conditions come from the SELECT that reads the flight, and from those around it as long as each hands columns on as
    they are: tools wrap a table before they filter it.

    Args:
        node: The flight as the statement names it.
        table: The flight.
        common: As `uses_of` returns it.

    Returns:
        The condition, None without any; and whether it is the whole condition of the SELECT that reads the flight.
    """
    found: list[Node] = []
    exact = False
    item: exp.Expression | None = node
    columns = flights.fields_of(table)
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


def _condition(select: exp.Select, item: exp.Expression, columns: Columns, common: Uses) -> tuple[Node | None, bool]:
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


def _wrapped(select: exp.Select, common: Uses) -> exp.Expression | None:
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


def _other_names(select: exp.Select, item: exp.Expression, common: Uses) -> set[str] | None:
    """The columns of the other tables of a SELECT; None where they are not known."""
    names: set[str] = set()
    joined = [join.this for join in select.args.get("joins") or []]
    first = select.args.get("from_") or select.args.get("from")
    for other in [*([first.this] if first is not None else []), *joined]:
        if other is item:
            continue
        table = flights.find(other, common) if isinstance(other, exp.Table) else None
        if table is None:
            return None
        names |= {name.lower() for name in table.flight.schema.names}
    return names
