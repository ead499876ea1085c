"""Predicate pushdown: the conditions of a statement that apply to the rows of one flight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pyarrow as pa
from sqlglot import exp

from flight_server.sql import flights, pushdown
from flight_server.sql.flights import Table
from store.model.predicates.tree import And, Node

Columns: TypeAlias = Mapping[str, pa.Field]
"""The columns of a flight by their name (lower case) in a SELECT."""
Uses: TypeAlias = Mapping[str, exp.Table | None]
"""Names of common table expressions → their only use; None if they have several."""


def uses_of(expressions: list[exp.CTE], tables: list[exp.Table]) -> Uses:
    """Finds where common table expressions are used.

    Args:
        expressions: All common table expressions of a statement.
        tables: All tables of the statement.

    Returns:
        Name → use, None if an expression is used several times or several have the name.
    """
    names = [cte.alias.lower() for cte in expressions]
    uses: dict[str, list[exp.Table]] = {name: [] for name in names}
    for table in tables:
        if not table.args.get("db") and table.name.lower() in uses:
            uses[table.name.lower()].append(table)
    return {name: used[0] if len(used) == 1 and names.count(name) == 1 else None for name, used in uses.items()}


def of_flight(node: exp.Table, table: Table, common: Uses) -> tuple[Node | None, bool]:
    """Collects the conditions that every row of a flight must satisfy.

    They are those of the SELECT that reads the flight, and of enclosing ones while each passes columns on unchanged,
    because tools wrap a table before they filter it.

    Args:
        node: The table in the statement.
        table: The flight.
        common: Result of `uses_of`.

    Returns:
        The condition, None if there is none; and True if it is the whole condition of the SELECT that reads the flight.
    """
    terms: list[Node] = []
    exact = False
    item: exp.Expression | None = node
    columns = flights.fields_of(table)
    while item is not None and (select := _reader(item)) is not None:
        condition, whole = _condition(select, item, columns, common)
        exact = exact or (item is node and whole)
        if condition is not None:
            terms.append(condition)
        around = _wrapped(select, common)
        columns = {} if around is None else _passed_on(select, item, columns)
        item = around if columns else None
    return (And(tuple(terms)) if len(terms) > 1 else terms[0] if terms else None), exact


def _reader(item: exp.Expression) -> exp.Select | None:
    """The SELECT that has an item in its FROM clause or a join; None if there is none."""
    within = item.parent.parent if isinstance(item.parent, exp.From | exp.Join) else None
    return within if isinstance(within, exp.Select) else None


def _condition(select: exp.Select, item: exp.Expression, columns: Columns, common: Uses) -> tuple[Node | None, bool]:
    """The condition of a SELECT on each row of an item of its FROM clause, and True if that is its whole condition."""
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


def _passed_on(select: exp.Select, item: exp.Expression, columns: Columns) -> Columns:
    """The columns that a SELECT passes on unchanged, by their new names; empty unless it only filters the item."""
    args = {name for name, value in select.args.items() if value}
    if not args <= {"expressions", "from_", "from", "where"} or select.find(exp.Window) is not None:
        return {}
    passed: dict[str, pa.Field | None] = {}
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
            passed |= {} if given else {(shown.alias or inner.name).lower(): None}
        else:
            given = {}
            passed |= {str(shown.alias).lower(): None}
        for name, field in given.items():
            passed[name] = None if name in passed else field  # a name of two columns is ambiguous
    return {name: field for name, field in passed.items() if field is not None}


def _wrapped(select: exp.Select, common: Uses) -> exp.Expression | None:
    """The FROM item that a SELECT defines: a subquery, or the only use of a common table expression; None if none."""
    around = select.parent
    use = common.get(around.alias.lower()) if isinstance(around, exp.CTE) else around
    if not isinstance(around, exp.Subquery | exp.CTE) or any(map(flights.renames_columns, filter(None, (around, use)))):
        return None
    return use


def _preserves_first(joins: Iterable[exp.Join]) -> bool:
    return all((join.side or "").upper() in ("", "LEFT") and not join.args.get("method") for join in joins)


def _other_names(select: exp.Select, item: exp.Expression, common: Uses) -> set[str] | None:
    """The column names of the other tables of a SELECT; None if they are unknown."""
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
