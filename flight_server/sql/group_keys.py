"""Text columns that a statement only groups by, which may be ENUMs: DuckDB groups these in a fifth of the time."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from sqlglot import exp

from flight_server.sql import flights
from flight_server.sql.flights import Table


def separate(node: exp.Table, table: Table, identifiers: Iterable[exp.Identifier]) -> frozenset[str]:
    """Finds the text columns of a flight that may be ENUMs, and casts them to text in the results of the SELECT.

    Such a column is a GROUP BY key of a SELECT that reads this flight only, and is otherwise just selected, sorted by
    or counted in that SELECT. Any other use in the statement excludes it.

    Args:
        node: The table in the statement; the SELECT that reads it is changed.
        table: The flight.
        identifiers: All identifiers of the statement.

    Returns:
        The names of the columns.
    """
    select = node.parent.parent if isinstance(node.parent, exp.From) else None
    if not isinstance(select, exp.Select) or (group := select.args.get("group")) is None:
        return frozenset()
    if select.args.get("joins") or flights.renames_columns(node) or any(each.is_star for each in select.expressions):
        return frozenset()
    used: dict[str, list[exp.Identifier]] = {}
    for identifier in identifiers:
        used.setdefault(identifier.name.lower(), []).append(identifier)
    source = (node.alias or node.name).lower()
    if any(isinstance(each.parent, exp.Column) and each.arg_key == "this" for each in used.get(source, [])):
        return frozenset()  # the name of a table used as a column means the whole row
    fields = flights.fields_of(table)
    separate_keys = set()
    for key in list(group.expressions):
        grouped = _column_of(key, select)
        field = None if grouped is None else fields.get(grouped.name.lower())
        if field is None or not pa.types.is_string(field.type) or field.name in separate_keys:
            continue
        columns = [each.parent for each in used[field.name] if not _renames_to_same(each, select)]
        if all(_is_harmless(column, select, source) for column in columns):
            separate_keys.add(field.name)
            for column in [*columns, key]:
                _cast(column, field.name, source)
    return frozenset(separate_keys)


def _column_of(key: exp.Expression, select: exp.Select) -> exp.Column | None:
    """The column of a GROUP BY key, given by name or by its number in the SELECT list; None if it is not a column."""
    if isinstance(key, exp.Literal) and not key.is_string and str(key.this).isdecimal():
        places = select.expressions[max(int(key.this) - 1, 0) : int(key.this)]
        key = places[0].unalias() if places else key
    return key if isinstance(key, exp.Column) else None


def _renames_to_same(identifier: exp.Identifier, select: exp.Select) -> bool:
    """True for the alias in `x AS x`."""
    alias = identifier.parent
    return (
        isinstance(alias, exp.Alias) and identifier.arg_key == "alias" and alias.parent is select
        and isinstance(alias.this, exp.Column) and alias.this.name.lower() == identifier.name.lower()
    )  # fmt: skip


def _is_harmless(column: exp.Expression | None, select: exp.Select, source: str) -> bool:
    if not isinstance(column, exp.Column) or column.table.lower() not in ("", source):
        return False
    around = column.parent
    match around:
        case exp.Select():
            return around is select and column.arg_key == "expressions"
        case exp.Group():
            return around.parent is select and column.arg_key == "expressions"
        case exp.Alias():
            return around.parent is select and around.arg_key == "expressions"
        case exp.Ordered():
            return isinstance(around.parent, exp.Order) and around.parent.parent is select
        case exp.Distinct():
            around = around.parent if len(around.expressions) == 1 else None
    return isinstance(around, exp.Count) and around.find_ancestor(exp.Select) is select


def _cast(column: exp.Expression, name: str, source: str) -> None:
    plain = exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(source, quoted=True))
    text = exp.Cast(this=plain, to=exp.DataType(this=exp.DataType.Type.VARCHAR))
    match column.parent:
        case exp.Select():
            column.replace(exp.Alias(this=text, alias=exp.to_identifier(name, quoted=True)))
        case exp.Alias() | exp.Ordered():
            column.replace(text)
        case exp.Group():
            column.replace(plain)
