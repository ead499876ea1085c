"""Translation of WHERE clauses to predicate trees, for statements that need no DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
from sqlglot import exp

from flight_server.client.conditions import sql
from store.model.predicates.bounds import BOUNDS
from store.model.predicates.literals import is_readable
from store.model.predicates.tree import And, BadLiteral, Leaf, Node, Not, Op, Or

_INSTANT: Final = re.compile(
    r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?))?(Z|[+-]\d{2}(?::\d{2})?)?", re.ASCII
)
_TIMESTAMPS: Final = frozenset(
    exp.DataType.Type[name] for name in ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPNTZ", "DATETIME", "DATE")
)


@dataclass(frozen=True)
class Slot:
    """A placeholder in a tree for a parameter: its number, from 0, and the column it is compared with."""

    number: int
    field: pa.Field


Column: TypeAlias = Callable[[exp.Column], pa.Field | None]
"""Function from a column of the statement to its field in the flight; None if it is not of this flight."""


class _Untranslatable(Exception):
    """A condition that has no predicate tree."""


def _is_sayable(field: pa.Field, op: str, literals: Sequence[exp.Expression]) -> bool:
    """True if a predicate says the comparison: an empty list is none, and only a truth value is a condition itself."""
    if op == "IN":
        return bool(literals)
    return bool(op) or pa.types.is_boolean(field.type)


def tree_of(condition: exp.Expression, column: Column) -> Node | None:
    """The predicate tree that selects the same rows as a condition; None if it has none."""

    def leaf(node: exp.Expression, op: str, literals: Sequence[exp.Expression]) -> dict[str, Any]:
        field = column(node) if isinstance(node, exp.Column) else None
        if field is None or not _is_sayable(field, op, literals):
            raise _Untranslatable
        values: list[Any] = [_value(literal, field) for literal in literals] if op else [True]
        as_text = bool(literals) and field.name in BOUNDS  # bounds are VARCHAR in SQL
        return {"leaf": Leaf(field.name, Op(op or "EQ"), tuple(values), as_text=as_text)}

    try:
        return _node(sql.tree_of(condition, leaf, lambda _: _Untranslatable()))
    except _Untranslatable:
        return None


def _node(tree: dict[str, Any]) -> Node:
    match tree:
        case {"and": parts}:
            return And(tuple(map(_node, parts)))
        case {"or": parts}:
            return Or(tuple(map(_node, parts)))
        case {"not": part}:
            return Not(_node(part))
    leaf: Node = tree["leaf"]
    return leaf


def bind(node: Node | None, values: Sequence[Any]) -> Node | None:
    """Replaces the slots of a tree by the values of parameters.

    Raises:
        InvalidArgument: A value does not suit the type of its column.
    """
    match node:
        case None:
            return None
        case And(children):
            return And(tuple(bind(child, values) for child in children))  # type: ignore[misc]
        case Or(children):
            return Or(tuple(bind(child, values) for child in children))  # type: ignore[misc]
        case Not(child):
            return Not(bind(child, values))  # type: ignore[arg-type]
    if not any(isinstance(value, Slot) for value in node.values):
        return node
    bound = tuple(_bound(value, values) if isinstance(value, Slot) else value for value in node.values)
    return replace(node, values=bound)


def _bound(slot: Slot, values: Sequence[Any]) -> Any:
    value, type_ = values[slot.number], slot.field.type
    if pa.types.is_boolean(type_) and value in (0, 1):
        return bool(value)
    literal = literal_of(value, slot.number + 1)
    if not _suits(value, literal, type_):
        raise BadLiteral(
            f"parameter {slot.number + 1}",
            f"cannot be compared with {slot.field.name}",
            expected=f"a value of type {type_}",
            actual=literal,
        )
    return literal


def _suits(value: Any, literal: Any, type_: pa.DataType) -> bool:
    """True if predicates and DuckDB compare a parameter with a column of a type in the same way."""
    match value:
        case None:
            return True
        case str():
            return is_readable(literal, type_)
        case bool():
            return False
        case int() | float() | Decimal():
            is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
            return is_number and value == value  # DuckDB orders NaN above all numbers
    return pa.types.is_timestamp(type_)


def literal_of(value: Any, number: int) -> Any:
    """A parameter's value as a predicate's literal: timestamps in ISO 8601 with `Z`, decimals, special floats as text.

    Raises:
        InvalidArgument: Values of this type cannot be compared.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case Decimal():
            return format(value, "f")
        case datetime():
            zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            return zoned.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
        case date():
            return f"{value.isoformat()}T00:00Z"
    raise BadLiteral(
        f"parameter {number}",
        "cannot be compared",
        expected="a number, text, boolean, date or timestamp",
        actual=type(value).__name__,
    )


def _value(node: exp.Expression, field: pa.Field) -> Any:
    type_ = field.type
    if isinstance(node, exp.Placeholder):
        if pa.types.is_nested(type_) or pa.types.is_binary(type_):
            raise _Untranslatable
        return Slot(int(node.name) - 1, field)
    if isinstance(node, exp.Null):
        return None
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    match node:
        case exp.Literal(is_string=False) if is_number:
            return str(node.this)
        case exp.Neg(this=exp.Literal(is_string=False)) if is_number:
            return f"-{node.this.this}"
        case exp.Boolean() if pa.types.is_boolean(type_):
            return bool(node.this)
        case exp.Literal(is_string=True) if pa.types.is_string(type_):
            return str(node.this)
        case exp.Literal(is_string=True) if pa.types.is_timestamp(type_):
            return _instant(str(node.this))
        case exp.Cast(this=exp.Literal(is_string=True)) if pa.types.is_timestamp(type_) and node.to.this in _TIMESTAMPS:
            return _instant(str(node.this.this))
    raise _Untranslatable


def _instant(text: str) -> str:
    match = _INSTANT.fullmatch(text.strip())
    if match is None:
        raise _Untranslatable
    return f"{match[1]}T{match[2] or '00:00'}{match[3] or 'Z'}"
