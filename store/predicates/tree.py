"""Predicate trees: one meaning, two forms — DuckDB SQL with parameters, and Arrow's kernels over a batch.

The meaning is three-valued logic (store/SEMANTICS.md §6). A literal is read as its column's type; one that does not
parse, a null one and an unknown column make their leaf unknown, and NOT of unknown is unknown, so no row is kept by
what was not understood. Integers are compared with numbers by value: `< 1.5` keeps 1, `= 1.5` keeps nothing. NaN equals
nothing and has no order. The two forms agree row by row: a property test holds them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from store.errors import InvalidArgument, InvalidField, nearest
from store.predicates.literals import (
    Scalar,
    exact_number,
    integer_range,
    is_binary,
    is_readable,
    literal_text,
    typed_literal,
)

MAX_DEPTH: Final = 32
MAX_NODES: Final = 4096
MAX_VALUES: Final = 65_536  # of one IN
MAX_LITERAL_BYTES: Final = 1 << 20  # of all literals of one tree
_LISTED: Final = 64  # members of an IN written one by one; more go as a single list parameter


class Op(StrEnum):
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
    column: str
    op: Op
    values: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class And:
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    child: Node


Node = Leaf | And | Or | Not

_FORMS: Final = '{"column": …, "op": …, "values": […]}, {"and": […]}, {"or": […]} or {"not": …}'
_COMPARES: Final = {Op.EQ: "=", Op.NEQ: "<>", Op.LT: "<", Op.LTE: "<=", Op.GT: ">", Op.GTE: ">="}
_ARITY: Final = {Op.BETWEEN: 2, Op.IS_NULL: 0, Op.IS_NOT_NULL: 0} | dict.fromkeys(_COMPARES, 1)


# From JSON.


def parse(tree: Any, where: str = "filter") -> Node:
    """The tree of a JSON value; `where` names it in refusals.

    Raises:
        InvalidArgument: malformed, an unknown operator, missing or surplus values, or over a cap.
    """
    return _Parser().node(tree, where, 1)


def parse_predicates(trees: Any, where: str = "predicates") -> Node | None:
    """The conjunction of a JSON array of trees; None for an empty one."""
    if not isinstance(trees, list):
        raise InvalidArgument(f"{where}: expected an array of predicates, got {_json_kind(trees)}")
    parser = _Parser()
    parser.spend_nodes(len(trees), where)
    nodes = [parser.node(tree, f"{where}[{i}]", 1) for i, tree in enumerate(trees)]
    return nodes[0] if len(nodes) == 1 else And(tuple(nodes)) if nodes else None


class _Parser:
    """Counts nodes and literal bytes over one tree, so that a small command cannot ask for unbounded work."""

    def __init__(self) -> None:
        self._nodes = 0
        self._bytes = 0

    def spend_nodes(self, count: int, where: str) -> None:
        self._nodes += count
        if self._nodes > MAX_NODES:
            raise InvalidArgument(f"{where}: more than {MAX_NODES} conditions", hint="use IN for many values")

    def node(self, tree: Any, where: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise InvalidArgument(f"{_cut(where)}: nested deeper than {MAX_DEPTH} levels")
        if not isinstance(tree, dict):
            raise InvalidArgument(f"{where}: expected {_FORMS}, got {_json_kind(tree)}")
        self.spend_nodes(1, where)
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
        for i, value in enumerate(values):
            if not isinstance(value, str | int | float | None):
                raise InvalidArgument(f"{where}: values[{i}]: expected text, number, truth or null, got an "
                                      f"{_json_kind(value).split()[-1]}")  # fmt: skip
            self._bytes += _size(value)
        if self._bytes > MAX_LITERAL_BYTES:
            raise InvalidArgument(f"{where}: values: more than {MAX_LITERAL_BYTES} bytes of literals")
        return Leaf(column, op, tuple(values))


def _size(value: Scalar) -> int:
    """About the bytes of a literal; a number too long to print costs more than the whole budget."""
    if isinstance(value, str):
        return len(value) * 4 if not value.isascii() else len(value)
    if isinstance(value, int) and value.bit_length() > 8192:
        return MAX_LITERAL_BYTES + 1
    return 8


def _json_kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "an array"
        case _:
            return "an object"


def _cut(text: Any) -> str:
    text = str(text).encode("utf-8", "replace").decode()  # a lone surrogate would not go over the wire
    return text if len(text) <= 100 else f"{text[:100]}…"


def _keys(keys: Any) -> str:
    return _cut(", ".join(f'"{_cut(key)}"' for key in sorted(keys, key=str)) or "none")


# Leaves over the columns that are there.


@dataclass(frozen=True, slots=True)
class _Known:
    """A leaf over a column that is there, its literals read as the column's type."""

    field: pa.Field
    op: Op
    values: tuple[Any, ...]  # without the unreadable ones
    unread: bool  # a literal was null or no value of the type


def _resolve(leaf: Leaf, fields: Mapping[str, pa.Field]) -> _Known | None:
    """The leaf in terms of the schema, None if it is unknown for every row."""
    field = fields.get(_folded(leaf.column))
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
        # NaN equals nothing, so it is no member; ±0 are one value and Arrow's lookup would tell them apart.
        read = tuple(dict.fromkeys(value for value in read if value == value))
    return _Known(field, leaf.op, read, unread)


def _by_value(leaf: Leaf, field: pa.Field) -> _Known | None:
    """A leaf over an integer column: the whole numbers between what its literals, of any size and fraction, allow."""
    numbers = [None if (text := literal_text(value)) is None else exact_number(text) for value in leaf.values]
    if leaf.op is Op.IN:
        whole = (typed_literal(value, field.type) for value in leaf.values)
        members = tuple(dict.fromkeys(value for value in whole if value is not None))
        return _Known(field, Op.IN, members, None in numbers) if any(n is not None for n in numbers) else None
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return None
    low, high = integer_range(field.type)
    never, always = _Known(field, Op.IN, (), False), _Known(field, Op.GTE, (low,), False)
    if any(number != number for number in known):  # NaN
        return always if leaf.op is Op.NEQ else never

    def whole_number(number: Any, rounded: Callable[[Any], int]) -> int:
        """The number rounded; the next one outside of the type where it lies beyond."""
        return low - 1 if number < low else high + 1 if number > high else rounded(number)

    first, last = known[0], known[-1]
    match leaf.op:
        case Op.GT:
            least, most = whole_number(first, math.floor) + 1, high
        case Op.GTE:
            least, most = whole_number(first, math.ceil), high
        case Op.LT:
            least, most = low, whole_number(last, math.ceil) - 1
        case Op.LTE:
            least, most = low, whole_number(last, math.floor)
        case _:
            least, most = whole_number(first, math.ceil), whole_number(last, math.floor)
    least, most = max(least, low), min(most, high)
    if leaf.op is Op.NEQ:
        return _Known(field, Op.NEQ, (least,), False) if least == most else always
    if least > most:
        return never
    if least == most:
        return _Known(field, Op.EQ, (least,), False)
    if most == high:
        return _Known(field, Op.GTE, (least,), False)
    return _Known(field, Op.LTE, (most,), False) if least == low else _Known(field, Op.BETWEEN, (least, most), False)


def check(node: Node | None, schema: pa.Schema) -> None:
    """Refuses a tree that speaks of unknown columns, or of literals that are not of their column's kind.

    Raises:
        InvalidArgument: UNKNOWN_COLUMN or BAD_LITERAL; it names the column.
    """
    match node:
        case Leaf(column, _, values):
            field = _fields(schema).get(_folded(column))
            if field is None:
                raise unknown_column(column, schema)
            for value in values:
                if not is_readable(value, field.type):
                    raise BadLiteral(
                        field.name, f"a literal cannot be read as {field.type}", expected=_kind_of(field.type),
                        actual=f'"{_cut(value)}"',
                    )  # fmt: skip
        case And(children) | Or(children):
            for child in children:
                check(child, schema)
        case Not(child):
            check(child, schema)


class BadLiteral(InvalidField):
    """A literal that cannot be read as its column's kind."""

    code = "BAD_LITERAL"


def unknown_column(name: str, schema: pa.Schema) -> InvalidArgument:
    """The refusal of a column that the schema does not have."""
    hint = nearest(_folded(name), schema.names) or f"there are {', '.join(schema.names)}"
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


def _folded(name: str) -> str:
    return name.strip().lower()


def _fields(schema: pa.Schema) -> Mapping[str, pa.Field]:
    known = _fields_of.get(id(schema))
    if known is None or known[0] is not schema:
        if len(_fields_of) >= _SCHEMAS:
            _fields_of.clear()
        known = _fields_of[id(schema)] = (schema, {_folded(field.name): field for field in reversed(list(schema))})
    return known[1]


_SCHEMAS: Final = 256
_fields_of: Final[dict[int, tuple[pa.Schema, Mapping[str, pa.Field]]]] = {}  # to hash a schema takes as long as this


# DuckDB.

_UNKNOWN_SQL: Final = "CAST(NULL AS BOOLEAN)"


def to_sql(node: Node, schema: pa.Schema, column_sql: Callable[[str], str]) -> tuple[str, list[Any]]:
    """A DuckDB condition and its parameters, in the order of their `?`.

    Args:
        node: the tree.
        schema: the columns that may be named, with the types that literals are read as.
        column_sql: trusted SQL for a column of the schema; a caller's text never becomes SQL.
    """
    parameters: list[Any] = []
    return _sql(node, _fields(schema), column_sql, parameters), parameters


def _sql(node: Node, fields: Mapping[str, pa.Field], column_sql: Callable[[str], str], parameters: list[Any]) -> str:
    match node:
        case And(children) | Or(children):
            word, empty = (" AND ", "TRUE") if isinstance(node, And) else (" OR ", "FALSE")
            return f"({word.join(_sql(child, fields, column_sql, parameters) for child in children) or empty})"
        case Not(child):
            return f"(NOT {_sql(child, fields, column_sql, parameters)})"
    leaf = _resolve(node, fields)
    return _leaf_sql(leaf, column_sql(leaf.field.name), parameters) if leaf else _UNKNOWN_SQL


def _leaf_sql(leaf: _Known, column: str, parameters: list[Any]) -> str:
    if leaf.op is Op.IS_NULL:
        return f"({column} IS NULL)"
    if leaf.op is Op.IS_NOT_NULL:
        return f"({column} IS NOT NULL)"
    if leaf.op is Op.IN:
        return _in_sql(leaf, column, parameters)
    if any(value != value for value in leaf.values):
        return _if_present(column, leaf.op is Op.NEQ)
    cast = _parameter_sql(leaf.field.type)
    parameters.extend(leaf.values)
    if leaf.op is Op.BETWEEN:
        return f"({column} BETWEEN {cast} AND {cast})"
    compared = f"{column} {_COMPARES[leaf.op]} {cast}"
    if leaf.op in (Op.GT, Op.GTE) and pa.types.is_floating(leaf.field.type):
        return f"({compared} AND NOT isnan({column}))"  # to DuckDB NaN is the greatest number
    return f"({compared})"


def _in_sql(leaf: _Known, column: str, parameters: list[Any]) -> str:
    if not leaf.values:
        found = _if_present(column, False)
    elif len(leaf.values) <= _LISTED:
        cast = _parameter_sql(leaf.field.type)
        parameters.extend(leaf.values)
        found = f"({column} IN ({', '.join([cast] * len(leaf.values))}))"
    else:
        parameters.append(list(leaf.values))
        found = f"({column} IN (SELECT {_list_sql(leaf.field.type)}))"
    return f"({found} OR {_UNKNOWN_SQL})" if leaf.unread else found


def _if_present(column: str, truth: bool) -> str:
    """The truth where the column has a value, else unknown."""
    return f"(CASE WHEN {column} IS NOT NULL THEN {'TRUE' if truth else 'FALSE'} END)"


def _sql_type(type: pa.DataType) -> str:
    if pa.types.is_integer(type):
        return "BIGINT" if type.bit_width <= 32 or pa.types.is_signed_integer(type) else "UBIGINT"
    if pa.types.is_floating(type):
        return "DOUBLE"
    if pa.types.is_boolean(type):
        return "BOOLEAN"
    if pa.types.is_timestamp(type):
        return "BIGINT"
    return "BLOB" if is_binary(type) else "VARCHAR"


def _parameter_sql(type: pa.DataType) -> str:
    if pa.types.is_timestamp(type):
        return "make_timestamptz(?::BIGINT)"
    return f"?::{'INTEGER' if type == pa.int32() else _sql_type(type)}"


def _list_sql(type: pa.DataType) -> str:
    members = f"unnest(?::{_sql_type(type)}[])"
    return f"make_timestamptz({members})" if pa.types.is_timestamp(type) else members


# Arrow. Its kernels are called one by one: `Table.filter` takes thirty times as long to set out on a few rows.

Mask: TypeAlias = Callable[[pa.RecordBatch], Any]
"""For a batch, a truth of each row or one of all; null where it is unknown."""


@cache
def _unknown() -> pa.Scalar:
    """Neither true nor false. No constant: the first scalar that pyarrow makes imports pandas, which takes long."""
    return pa.scalar(None, pa.bool_())


def to_arrow(node: Node, schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.Array]:
    """The same condition for batches of the schema: it gives the numbers of the rows that are kept, in order."""
    mask = _mask(node, _fields(schema))

    def kept(batch: pa.RecordBatch) -> pa.Array:
        truth = mask(batch)
        return pc.indices_nonzero(pa.repeat(truth, batch.num_rows) if isinstance(truth, pa.Scalar) else truth)

    return kept


def _mask(node: Node, fields: Mapping[str, pa.Field]) -> Mask:
    match node:
        case And(children) | Or(children):
            join, empty = (pc.and_kleene, True) if isinstance(node, And) else (pc.or_kleene, False)
            masks = [_mask(child, fields) for child in children]
            if not masks:
                return lambda _: pa.scalar(empty)
            return lambda batch: reduce(join, (mask(batch) for mask in masks))
        case Not(child):
            inner = _mask(child, fields)
            return lambda batch: pc.invert(inner(batch))
    leaf = _resolve(node, fields)
    return _leaf_mask(leaf) if leaf else lambda _: _unknown()


def _leaf_mask(leaf: _Known) -> Mask:
    name, type = leaf.field.name, leaf.field.type
    match leaf.op:
        case Op.IS_NULL:
            return lambda batch: pc.is_null(batch[name])
        case Op.IS_NOT_NULL:
            return lambda batch: pc.is_valid(batch[name])
        case Op.IN:
            members = pa.array([*leaf.values, *(-v for v in leaf.values if v == 0 and isinstance(v, float))], type)
            return lambda batch: _is_in(batch[name], members, leaf.unread)
        case Op.BETWEEN:
            low, high = (pa.scalar(value, type) for value in leaf.values)
            return lambda batch: pc.and_kleene(
                pc.greater_equal(batch[name], low), pc.less_equal(batch[name], high)
            )  # fmt: skip
    value, compare = pa.scalar(leaf.values[0], type), _KERNELS[leaf.op]
    return lambda batch: compare(batch[name], value)


_KERNELS: Final[Mapping[Op, Callable[..., Any]]] = {
    Op.EQ: pc.equal, Op.NEQ: pc.not_equal, Op.LT: pc.less, Op.LTE: pc.less_equal,
    Op.GT: pc.greater, Op.GTE: pc.greater_equal,
}  # fmt: skip


def _is_in(column: pa.Array, members: pa.Array, unread: bool) -> pa.Array:
    found = pc.if_else(pc.is_valid(column), pc.is_in(column, members), _unknown())
    return pc.or_kleene(found, _unknown()) if unread else found


# What a tree tells about one column.


def equal_values(node: Node | None, column: str) -> set[str] | None:
    """The texts a utf8 column must equal for a row to be kept, None if the tree does not restrict it so.

    Rows kept always have one of these values; having one does not mean being kept.
    """
    match node:
        case Leaf(name, Op.EQ | Op.IN, values) if _folded(name) == _folded(column):
            texts = (typed_literal(value, pa.string()) for value in values)
            return {text for text in texts if text is not None}
        case And(children):
            restricted = [found for child in children if (found := equal_values(child, column)) is not None]
            return set.intersection(*restricted) if restricted else None
        case Or(children) if children:
            united: set[str] = set()
            for child in children:
                if (found := equal_values(child, column)) is None:
                    return None
                united |= found
            return united
    return None


def columns_of(node: Node | None) -> Iterator[str]:
    """The column names that a tree speaks of, as written, with repetitions."""
    match node:
        case Leaf(column):
            yield column
        case And(children) | Or(children):
            for child in children:
                yield from columns_of(child)
        case Not(child):
            yield from columns_of(child)
