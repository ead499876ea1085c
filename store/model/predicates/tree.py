"""Predicate trees: parsed from JSON and resolved against a schema.

They follow three-valued logic (store/SEMANTICS.md §6). A literal is read as its column's type, for `min` and `max` as
the row's logical type (`bounds`); an invalid literal, a null or an unknown column makes its leaf unknown, and NOT of
unknown is unknown, so such a leaf never selects a row. Integers are compared with numbers by value: `< 1.5` selects 1,
`= 1.5` selects nothing. NaN equals nothing and has no order. `sql` and `arrow` evaluate a tree; a property test checks
that they select the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from store.model.errors import InvalidArgument, InvalidField, nearest
from store.model.logical_types import Kind
from store.model.predicates import bounds
from store.model.predicates.literals import (
    Scalar,
    exact_number,
    integer_range,
    is_binary,
    is_readable,
    literal_text,
    typed_literal,
)

MAX_DEPTH: Final = 32
MAX_NODES: Final = 1024  # DuckDB optimizes some conjunctions in time that grows with the square of their length
NODES_PER_BOUND: Final = 4  # for a comparison of `min` or `max`, which is one for each logical type
MAX_VALUES: Final = 65_536  # of one IN
MAX_LITERAL_BYTES: Final = 1 << 20  # of all literals of one tree


class Op(StrEnum):
    """Comparisons of a column with literals."""

    EQ = "EQ"
    NEQ = "NEQ"
    LT = "LT"
    LTE = "LTE"
    GT = "GT"
    GTE = "GTE"
    BETWEEN = "BETWEEN"
    IN = "IN"
    IS_NULL = "IS_NULL"
    IS_NOT_NULL = "IS_NOT_NULL"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column compared with literals, as many as the operator takes.

    Attributes:
        as_text: Compare `min` and `max` as text instead of by the row's logical type.
    """

    column: str
    op: Op
    values: tuple[Scalar, ...] = ()
    as_text: bool = False


@dataclass(frozen=True, slots=True)
class And:
    """True if all children are true."""

    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True if any child is true."""

    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True if the child is false; unknown stays unknown."""

    child: Node


Node = Leaf | And | Or | Not

_FORMS: Final = '{"column": …, "op": …, "values": […]}, {"and": […]}, {"or": […]} or {"not": …}'
COMPARES: Final = {Op.EQ: "=", Op.NEQ: "<>", Op.LT: "<", Op.LTE: "<=", Op.GT: ">", Op.GTE: ">="}
_ARITY: Final = {Op.BETWEEN: 2, Op.IS_NULL: 0, Op.IS_NOT_NULL: 0} | dict.fromkeys(COMPARES, 1)


# From JSON.


def parse(tree: Any, where: str = "filter", *, as_text: bool = False) -> Node:
    """The tree of a JSON value.

    Args:
        as_text: See `Leaf`.

    Raises:
        InvalidArgument: The value is malformed, has an unknown operator, missing or surplus values, or exceeds a limit.
    """
    return _Parser(as_text).node(tree, where, 1)


def parse_predicates(trees: Any, where: str = "predicates") -> Node | None:
    """The conjunction of a JSON array of trees; None for an empty array."""
    if not isinstance(trees, list):
        raise InvalidArgument(f"{where}: expected an array of predicates, got {_json_kind(trees)}")
    parser = _Parser()
    nodes = [parser.node(tree, f"{where}[{i}]", 1) for i, tree in enumerate(trees)]
    return nodes[0] if len(nodes) == 1 else And(tuple(nodes)) if nodes else None


class _Parser:
    """Parses one tree and counts its nodes and literal bytes, to bound the work of evaluating it."""

    def __init__(self, as_text: bool = False) -> None:
        self._as_text = as_text
        self._nodes = 0
        self._bytes = 0

    def _spend(self, nodes: int, where: str) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise InvalidArgument(f"{where}: more than {MAX_NODES} conditions", hint="use IN for many values")

    def node(self, tree: Any, where: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise InvalidArgument(f"{_cut(where)}: nested deeper than {MAX_DEPTH} levels")
        if not isinstance(tree, dict):
            raise InvalidArgument(f"{where}: expected {_FORMS}, got {_json_kind(tree)}")
        self._spend(1, where)
        if "column" in tree or "op" in tree:
            return self._leaf(tree, where)
        if len(tree) != 1:
            raise InvalidArgument(f"{where}: expected {_FORMS}, got keys {_keys(tree)}")
        ((word, inner),) = tree.items()
        if word == "not":
            return Not(self.node(inner, f"{where}.not", depth + 1))
        if word not in ("and", "or"):
            raise InvalidArgument(f'{where}: unknown key "{_cut(word)}": expected {_FORMS}')
        if not isinstance(inner, list) or not inner:
            actual = "an empty array" if inner == [] else _json_kind(inner)
            raise InvalidArgument(f'{where}: "{word}" takes an array of at least one condition, got {actual}')
        children = tuple(self.node(child, f"{where}.{word}[{i}]", depth + 1) for i, child in enumerate(inner))
        return And(children) if word == "and" else Or(children)

    def _leaf(self, tree: dict[str, Any], where: str) -> Leaf:
        if surplus := tree.keys() - {"column", "op", "values"}:
            raise InvalidArgument(f"{where}: unknown key {_keys(surplus)}: a condition has column, op and values")
        column, word, values = tree.get("column"), tree.get("op"), tree.get("values", [])
        if not isinstance(column, str):
            raise InvalidArgument(f"{where}: column: expected the name of a column, got {_json_kind(column)}")
        if not isinstance(word, str) or word not in Op.__members__:
            shown = f'"{_cut(word)}"' if isinstance(word, str) else _json_kind(word)
            guess = nearest(word.upper(), list(Op)) if isinstance(word, str) else ""
            raise InvalidArgument(f"{where}: op: no operator {shown}: expected one of {', '.join(Op)}", hint=guess)
        op = Op(word)
        if not isinstance(values, list):
            raise InvalidArgument(f"{where}: values: expected an array, got {_json_kind(values)}")
        if op is Op.IN:
            if not 1 <= len(values) <= MAX_VALUES:
                raise InvalidArgument(f"{where}: values: IN takes 1 to {MAX_VALUES} values, got {len(values)}")
        elif len(values) != _ARITY[op]:
            noun = "value" if _ARITY[op] == 1 else "values"
            raise InvalidArgument(f"{where}: values: {op} takes {_ARITY[op]} {noun}, got {len(values)}")
        if values and not self._as_text and folded(column) in bounds.BOUNDS:
            self._spend(NODES_PER_BOUND - 1, where)
        for i, value in enumerate(values):
            if not isinstance(value, str | int | float | Decimal | None):
                raise InvalidArgument(
                    f"{where}: values[{i}]: expected text, a number, a boolean or null, got an "
                    f"{_json_kind(value).split()[-1]}"
                )
            self._bytes += _size(value)
        if self._bytes > MAX_LITERAL_BYTES:
            raise InvalidArgument(f"{where}: values: more than {MAX_LITERAL_BYTES} bytes of literals")
        return Leaf(column, op, tuple(values), self._as_text)


def _size(value: Scalar) -> int:
    """Approximate size of a literal in bytes; a number too long to print exceeds the whole limit."""
    if isinstance(value, str):
        return len(value) * 4 if not value.isascii() else len(value)
    if isinstance(value, int) and value.bit_length() > 8192:
        return MAX_LITERAL_BYTES + 1
    return len(value.as_tuple().digits) if isinstance(value, Decimal) else 8


def _json_kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float() | Decimal():
            return "a number"
        case str():
            return "text"
        case list():
            return "an array"
        case _:
            return "an object"


def _cut(text: Any) -> str:
    text = str(text).encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent to the client
    return text if len(text) <= 100 else f"{text[:100]}…"


def _keys(keys: Any) -> str:
    return _cut(", ".join(f'"{_cut(key)}"' for key in sorted(keys, key=str)) or "none")


# Leaves over the columns of a schema.


@dataclass(frozen=True, slots=True)
class ResolvedLeaf:
    """A leaf with a column of the schema and literals of the column's type."""

    field: pa.Field
    op: Op
    values: tuple[Any, ...]  # without the unreadable ones
    unread: bool  # a literal was null or not a value of the type
    is_always: bool = False  # true for every value; the literal is the least value of the type


def resolve(leaf: Leaf, fields: Mapping[str, pa.Field]) -> ResolvedLeaf | None:
    """The leaf resolved against the fields of a schema; None if it is unknown for every row."""
    field = fields.get(folded(leaf.column))
    if field is None:
        return None
    if pa.types.is_integer(field.type) and leaf.values:
        return _by_value(leaf, field)
    values = tuple(typed_literal(value, field.type) for value in leaf.values)
    read = tuple(value for value in values if value is not None)
    unread = len(read) < len(values)
    if unread and (leaf.op is not Op.IN or not read):
        return None
    if leaf.op is Op.IN:
        # NaN equals nothing, so it is never a member; ±0 are one value, though Arrow's lookup distinguishes them.
        read = tuple(dict.fromkeys(value for value in read if value == value))
    return ResolvedLeaf(field, leaf.op, read, unread)


def resolve_bound(leaf: Leaf, fields: Mapping[str, pa.Field]) -> Mapping[Kind, ResolvedLeaf] | None:
    """A leaf that compares `min` or `max`, resolved for each kind of logical type that reads its literals.

    Returns:
        Kind → the leaf over the kind's sort key, unknown for rows of other kinds; None if the leaf does not compare
        bounds.
    """
    name = folded(leaf.column)
    if leaf.as_text or not leaf.values or not bounds.is_bound(name, fields):
        return None
    resolved = {}
    for kind, key in bounds.KEYS.items():
        values = tuple(bounds.read(value, kind) for value in leaf.values)
        if one := resolve(Leaf(name, leaf.op, values), {name: pa.field(fields[name].name, key.type)}):
            resolved[kind] = one
    return resolved


def _by_value(leaf: Leaf, field: pa.Field) -> ResolvedLeaf | None:
    """A leaf over an integer column, its literals of any size and fraction reduced to a range of whole numbers."""
    numbers = [None if (text := literal_text(value)) is None else exact_number(text) for value in leaf.values]
    if leaf.op is Op.IN:
        return _members(leaf, field, numbers)
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    low, high = integer_range(field.type)
    if any(number != number for number in known):  # NaN
        return _every(field, low) if leaf.op is Op.NEQ else _no(field)
    least, most = _whole_range(leaf.op, known[0], known[-1], (low, high))
    if leaf.op is Op.NEQ:
        return ResolvedLeaf(field, Op.NEQ, (least,), False) if least == most else _every(field, low)
    if least > most:
        return _no(field)
    if least == most:
        return ResolvedLeaf(field, Op.EQ, (least,), False)
    if most == high:
        return ResolvedLeaf(field, Op.GTE, (least,), False)
    if least == low:
        return ResolvedLeaf(field, Op.LTE, (most,), False)
    return ResolvedLeaf(field, Op.BETWEEN, (least, most), False)


def _members(leaf: Leaf, field: pa.Field, numbers: list[Any]) -> ResolvedLeaf | None:
    """An IN over an integer column; None if no literal is a number."""
    if all(number is None for number in numbers):
        return None
    whole = (typed_literal(value, field.type) for value in leaf.values)
    members = tuple(dict.fromkeys(value for value in whole if value is not None))
    return ResolvedLeaf(field, Op.IN, members, None in numbers)


def _no(field: pa.Field) -> ResolvedLeaf:
    """A leaf that holds for no value."""
    return ResolvedLeaf(field, Op.IN, (), False)


def _every(field: pa.Field, least: int) -> ResolvedLeaf:
    """A leaf that holds for every value of a type with this least one."""
    return ResolvedLeaf(field, Op.GTE, (least,), False, True)


def _whole_range(op: Op, first: Any, last: Any, limits: tuple[int, int]) -> tuple[int, int]:
    """The least and greatest whole number within limits for which a comparison holds; the least is above the greatest
    if there is none. Of NEQ, the range that it leaves out.

    Args:
        first: The first literal, a number of any size and fraction.
        last: The last literal: that of BETWEEN's upper end, else the same.
        limits: The least and greatest number of the column's type.
    """
    low, high = limits

    def rounded(number: Any, to_whole: Callable[[Any], int]) -> int:
        """The rounded number, clamped to one below or above the limits."""
        if number < low:
            return low - 1
        return high + 1 if number > high else to_whole(number)

    match op:
        case Op.GT:
            least, most = rounded(first, math.floor) + 1, high
        case Op.GTE:
            least, most = rounded(first, math.ceil), high
        case Op.LT:
            least, most = low, rounded(last, math.ceil) - 1
        case Op.LTE:
            least, most = low, rounded(last, math.floor)
        case _:
            least, most = rounded(first, math.ceil), rounded(last, math.floor)
    return max(least, low), min(most, high)


def check(node: Node | None, schema: pa.Schema) -> None:
    """Refuses a tree with unknown columns of a flight, or with literals that do not suit the type of their column.

    Raises:
        InvalidArgument: UNKNOWN_COLUMN or BAD_LITERAL, with the name of the column.
    """
    for leaf in leaves_of(node):
        field = fields_of(schema).get(folded(leaf.column))
        if field is None:
            raise unknown_column(leaf.column, schema)
        for value in leaf.values:
            if not is_readable(value, field.type):
                raise BadLiteral(
                    field.name,
                    f"a literal cannot be read as {field.type}",
                    expected=_kind_of(field.type),
                    actual=str(_cut(value)),
                )


class BadLiteral(InvalidField):
    """A literal that does not suit the type of its column."""

    code = "BAD_LITERAL"


def unknown_column(name: str, schema: pa.Schema) -> InvalidArgument:
    """The error for a column that the schema does not have."""
    hint = nearest(folded(name), schema.names) or f"there are {', '.join(schema.names)}"
    shown = _cut(name)
    return InvalidArgument(f'no column "{shown}"', code="UNKNOWN_COLUMN", hint=hint, params={"column": shown})


def _kind_of(type: pa.DataType) -> str:
    if pa.types.is_integer(type) or pa.types.is_floating(type):
        return "a number"
    if pa.types.is_boolean(type):
        return "true or false"
    if pa.types.is_timestamp(type):
        return "an instant such as 2026-01-31T12:34:56Z"
    return "base64" if is_binary(type) else "no condition on a list" if pa.types.is_list(type) else "text"


def folded(name: str) -> str:
    """A column name as schemas write it: in lower case, without spaces around it."""
    return name.strip().lower()


def fields_of(schema: pa.Schema) -> Mapping[str, pa.Field]:
    """The fields of a schema by lower-case name; the first of several fields with one name."""
    known = _by_schema.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_by_schema) >= _SCHEMAS:
            _by_schema.clear()
        known = _by_schema[id(schema)] = (schema, {folded(field.name): field for field in reversed(list(schema))})
    return known[1]


_SCHEMAS: Final = 256
# By id, because hashing a schema takes as long as building the mapping.
_by_schema: Final[dict[int, tuple[pa.Schema, Mapping[str, pa.Field]]]] = {}


# Questions about one column.


def equal_values(node: Node | None, column: str) -> set[str] | None:
    """The only values of a utf8 column that selected rows can have; not every row with such a value is selected.

    Args:
        column: A utf8 column, in lower case.

    Returns:
        The values; None if the tree does not restrict the column to a list.
    """
    match node:
        case Leaf(name, Op.EQ | Op.IN, values) if folded(name) == column:
            texts = (typed_literal(value, pa.string()) for value in values)
            return {text for text in texts if text is not None}
        case And(children):
            restricted = [allowed for child in children if (allowed := equal_values(child, column)) is not None]
            return set.intersection(*restricted) if restricted else None
        case Or(children) if children:
            united: set[str] = set()
            for child in children:
                if (allowed := equal_values(child, column)) is None:
                    return None
                united |= allowed
            return united
    return None


def columns_of(node: Node | None) -> set[str]:
    """The column names in a tree, as schemas write them."""
    return {folded(leaf.column) for leaf in leaves_of(node)}


def leaves_of(node: Node | None) -> Iterator[Leaf]:
    """The leaves of a tree, in order."""
    match node:
        case Leaf():
            yield node
        case And(children) | Or(children):
            for child in children:
                yield from leaves_of(child)
        case Not(child):
            yield from leaves_of(child)
