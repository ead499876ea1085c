"""Conditions on the rows of a table without NOT: comparisons of columns with literals, combined by AND and OR.

NOT moves down to the comparisons, because a comparison with null is unknown, and so is its negation (`pruning`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from store.model.logical_types import FLOATING, Kind, LogicalType
from store.model.predicates import bounds
from store.model.predicates.bounds import KEYS
from store.model.predicates.literals import Scalar, literal_text
from store.model.predicates.tree import And, BadLiteral, Leaf, Node, Not, Op, Or

MAX_LISTED: Final = 16  # most members of an IN that become a comparison each; more are looked up in a sorted list

_NEGATED: Final = {
    Op.EQ: Op.NEQ,
    Op.NEQ: Op.EQ,
    Op.LT: Op.GTE,
    Op.GTE: Op.LT,
    Op.GT: Op.LTE,
    Op.LTE: Op.GT,
    Op.IS_NULL: Op.IS_NOT_NULL,
    Op.IS_NOT_NULL: Op.IS_NULL,
}
_TRUE_FOR_NAN: Final = frozenset({Op.NEQ, Op.GT, Op.GTE})  # to readers that order NaN above every number


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        type: Its type in the schema of the snapshot; None if not known.
    """

    id: int
    name: str
    type: LogicalType | None


class Constant(Enum):
    """A condition that no column decides."""

    NEVER = False  # no row satisfies it, nor its negation
    UNDECIDED = None  # any row may


@dataclass(frozen=True)
class Comparison:
    """A comparison within a condition, NOT moved into its operator.

    Attributes:
        op: The operator; IN for a lookup.
        values: The literals, at most one unless `op` is IN.
        negated: True if the operator is the opposite of the one asked for: NOT IN, or a comparison below a NOT.
    """

    column: Column
    op: Op
    values: tuple[Scalar, ...]
    negated: bool

    @property
    def opposite(self) -> Comparison:
        """The comparison that holds for every value, except null and NaN, that this one does not hold for."""
        return replace(self, op=_NEGATED.get(self.op, self.op), negated=not self.negated)

    @property
    def may_take_nan(self) -> bool:
        """True if some readers let a NaN satisfy it: those that order NaN above every number, or compare it with
        nothing."""
        return self.negated or self.op in _TRUE_FOR_NAN


@dataclass(frozen=True)
class Every:
    """A condition that holds where each of its children does."""

    children: tuple[Plain, ...]


@dataclass(frozen=True)
class AnyOf:
    """A condition that holds where one of its children does."""

    children: tuple[Plain, ...]


Plain = Every | AnyOf | Comparison | Constant


def comparisons(node: Plain) -> list[Comparison]:
    """The different comparisons of a condition, in order."""
    match node:
        case Every(children) | AnyOf(children):
            return list(dict.fromkeys(test for child in children for test in comparisons(child)))
        case Comparison():
            return [node]
    return []


def plain(node: Node, find: Callable[[str], Column]) -> Plain:
    """The condition without NOT, BETWEEN and short INs.

    Args:
        find: Name of a column → the column; raises if there is none.

    Raises:
        BadLiteral: A literal cannot be read as its column's type.
    """
    return _plain(node, find, negated=False)


def _plain(node: Node, find: Callable[[str], Column], *, negated: bool) -> Plain:
    """The condition without NOT, BETWEEN and short INs."""
    match node:
        case Not(child):
            return _plain(child, find, negated=not negated)
        case And(children) | Or(children):
            parts = tuple(_plain(child, find, negated=negated) for child in children)
            return Every(parts) if isinstance(node, And) is not negated else AnyOf(parts)
    column = find(node.column)
    if node.op in (Op.IS_NULL, Op.IS_NOT_NULL):
        return Comparison(column, _NEGATED[node.op] if negated else node.op, (), negated)
    return _comparison(node, column, negated)


def _comparison(leaf: Leaf, column: Column, negated: bool) -> Plain:
    if column.type is None or column.type.kind not in KEYS:
        return Constant.UNDECIDED
    values = _literals(leaf, column.name, column.type)
    if column.type.kind in FLOATING and any(map(_is_nan, values)):
        return Constant.UNDECIDED
    if leaf.op is Op.BETWEEN:
        sides = tuple(_single(column, op, v, negated) for op, v in zip((Op.GTE, Op.LTE), values, strict=True))
        return AnyOf(sides) if negated else Every(sides)
    if leaf.op is not Op.IN:
        return _single(column, leaf.op, values[0], negated)
    if len(values) <= MAX_LISTED:
        members = tuple(_single(column, Op.EQ, value, negated) for value in values)
        return Every(members) if negated else AnyOf(members)
    return _lookup(column, column.type, values, negated)


def _literals(leaf: Leaf, name: str, type: LogicalType) -> tuple[Scalar, ...]:
    """The literals of a leaf as a column's type reads them; raises BadLiteral if it cannot."""
    values = tuple(None if value is None else _local(value, type.kind) for value in leaf.values)
    for given, value in zip(leaf.values, values, strict=True):
        if value is not None and bounds.read(value, type.kind) is None:
            message = f"a literal cannot be read as {type}"
            raise BadLiteral(name, message, expected=_expected(type.kind), actual=str(given)[:100])
    return values


def _lookup(column: Column, type: LogicalType, values: Sequence[Scalar], negated: bool) -> Plain:
    """The comparison with the members of a long list."""
    if negated and None in values:
        return Constant.NEVER
    known = tuple(value for value in values if value is not None)
    if type.kind is not Kind.FLOAT and any(len(bounds.readings(value, type)) > 1 for value in known):
        return Constant.UNDECIDED  # a lookup finds the readings of a literal, and not what is between them
    return Comparison(column, Op.IN, known, negated)


def _single(column: Column, op: Op, value: Scalar, negated: bool) -> Plain:
    return Constant.NEVER if value is None else Comparison(column, _NEGATED[op] if negated else op, (value,), negated)


def _local(value: Scalar, kind: Kind) -> Scalar:
    """A text as the kind reads it: a time without a zone may be written with `Z`, with a blank, or as a date alone."""
    if kind is not Kind.TIMESTAMP or not isinstance(value, str):
        return value
    text = value.strip().removesuffix("Z").replace(" ", "T", 1)
    return text if "T" in text else f"{text}T00:00"


def _is_nan(value: Scalar) -> bool:
    return (literal_text(value) or "").strip().lstrip("+-").lower() == "nan"


def _expected(kind: Kind) -> str:
    return {
        Kind.INT: "a number",
        Kind.FLOAT: "a number",
        Kind.DOUBLE: "a number",
        Kind.DECIMAL: "a number",
        Kind.BOOLEAN: "true or false",
        Kind.DATE: "a date such as 2026-01-31",
        Kind.TIME: "a time such as 12:34:56",
        Kind.TIMESTAMP: "a time without a zone such as 2026-01-31T12:34:56",
        Kind.TIMESTAMPTZ: "an instant such as 2026-01-31T12:34:56Z",
        Kind.BINARY: "base64",
        Kind.UUID: "a UUID",
    }.get(kind, "text")


def equalities(node: Plain) -> Iterator[tuple[Column, tuple[Scalar, ...]]]:
    """Yields columns and literals one of which every row that satisfies the condition has in the column."""
    match node:
        case Every(children):
            for child in children:
                yield from equalities(child)
        case AnyOf(children):
            tests = [child for child in children if isinstance(child, Comparison) and child.op is Op.EQ]
            if len(tests) == len(children) > 0 and len({test.column.id for test in tests}) == 1:
                yield tests[0].column, tuple(value for test in tests for value in test.values)
        case Comparison(column, op, values, negated):
            if op is Op.EQ or (op is Op.IN and not negated):
                yield column, values
