"""Iceberg's filter expressions as conditions that keep at least the same files.

What the server cannot decide holds for every file: transforms, NaN tests, literals it cannot read. NOT is moved down to
the comparisons first, so that such a part never makes its negation exclude a file.

To readers of Iceberg, null satisfies `not-eq` and `not-in`, to those of SQL it does not; so both keep files with nulls,
but for readers of which it is known that it does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from store.model.errors import InvalidArgument
from store.model.logical_types import TEMPORAL, Kind
from store.model.predicates.literals import Scalar
from store.model.predicates.plain_conditions import Column
from store.model.predicates.tree import MAX_NODES, MAX_VALUES, And, Leaf, Node, Not, Op, Or, leaves_of

Find = Callable[[str], Column]
"""Name of a column → the column; raises InvalidArgument if there is none."""

_COMPARES: Final = {"eq": Op.EQ, "lt": Op.LT, "lt-eq": Op.LTE, "gt": Op.GT, "gt-eq": Op.GTE}
_WITH_VALUE: Final = frozenset({*_COMPARES, "starts-with"})
_KINDS: Final = _WITH_VALUE | {"in", "is-null", "is-nan"}
OPPOSITES: Final = {
    "not-eq": "eq",
    "not-in": "in",
    "not-starts-with": "starts-with",
    "not-null": "is-null",
    "not-nan": "is-nan",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL: Final = re.compile(r"[^T]+T[\d:.]+")  # a time without a zone
_LAST: Final = 0x10FFFF  # code point


def condition(filter: Any, find: Find, *, null_differs: bool = True) -> Node | bool:
    """The condition of a filter; True if every file may have matching rows, False if none has.

    Args:
        null_differs: To the reader null satisfies `not-eq`, or it may.

    Raises:
        InvalidArgument: The filter is malformed, or names an unknown column.
    """
    try:
        found = _Conditions(find, null_differs).of(filter, negated=False)
    except RecursionError:
        raise InvalidArgument("filter: nested too deeply") from None
    return True if not isinstance(found, bool) and len(list(leaves_of(found))) > MAX_NODES else found


def columns_of(filter: Any) -> set[str]:
    """The names of the columns in a filter, as far as it is well-formed."""
    match filter:
        case {"left": left, "right": right}:
            return columns_of(left) | columns_of(right)
        case {"child": child}:
            return columns_of(child)
        case {"term": str(name)} | {"term": {"term": str(name)}}:
            return {name}
    return set()


def texts(value: Any) -> list[str]:
    """The texts in a JSON array; empty for other values."""
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def literal_of(value: Any) -> Any:
    """A literal, which some clients wrap in an object."""
    return value.get("value") if isinstance(value, dict) else value


class _Conditions:
    def __init__(self, find: Find, null_differs: bool):
        self._find, self._null_differs = find, null_differs

    def of(self, filter: Any, *, negated: bool) -> Node | bool:
        if isinstance(filter, bool):
            return filter is not negated
        match filter:
            case "true" | "false":  # as some clients write the constants
                return (filter == "true") is not negated
            case {"type": "true" | "false" as word}:
                return (word == "true") is not negated
            case {"type": "and" | "or" as word, "left": left, "right": right}:
                sides = [self.of(side, negated=negated) for side in (left, right)]
                return joined(sides, is_and=(word == "and") is not negated)
            case {"type": "not", "child": child}:
                return self.of(child, negated=not negated)
            case {"type": str(kind), "term": term}:
                opposite = OPPOSITES.get(kind)
                return self._test(opposite or kind, term, filter, negated=negated is (opposite is None))
        raise InvalidArgument(
            "filter: not an expression of Iceberg",
            hint='send true, false, {"type": "and" | "or", "left", "right"}, {"type": "not", "child"} or '
            '{"type": "eq" | …, "term", "value"}',
        )

    def _test(self, kind: str, term: Any, filter: Mapping[str, Any], *, negated: bool) -> Node | bool:
        """A comparison or test of one column; `kind` is one without `not-`."""
        name = _name(kind, term)
        values = _values(kind, filter)
        column = self._find(name)
        if isinstance(term, dict) or kind == "is-nan":  # of a transform, or undecided
            return True
        if kind == "is-null":
            return Leaf(name, Op.IS_NOT_NULL if negated else Op.IS_NULL)
        literals = [_literal(value, column) for value in values]
        if None in literals or len(literals) > MAX_VALUES:
            return True
        if kind == "starts-with":
            return True if negated else _starts_with(name, literals[0], column)
        if kind == "in" and not literals:
            return negated
        leaf = Leaf(name, Op.IN if kind == "in" else _COMPARES[kind], tuple(literals))
        return self._negation(leaf) if negated else leaf

    def _negation(self, leaf: Leaf) -> Node:
        """The opposite of a comparison, with the rows that have null where the reader takes them for different."""
        is_of_null = leaf.op is Op.IN or (leaf.op is Op.EQ and self._null_differs)
        return Or((Not(leaf), Leaf(leaf.column, Op.IS_NULL))) if is_of_null else Not(leaf)


def _name(kind: str, term: Any) -> str:
    """The name of the column of a term, which may be a transform of it.

    Raises:
        InvalidArgument: There is no such test, or no name.
    """
    name = term.get("term") if isinstance(term, dict) else term
    if kind not in _KINDS or not isinstance(name, str):
        known = ", ".join(sorted(_KINDS | OPPOSITES.keys()))
        raise InvalidArgument(f'filter: "{kind[:50]}" of a term is not a test: expected one of {known}')
    return name


def _values(kind: str, filter: Mapping[str, Any]) -> list[Any]:
    """The literals of a comparison or test; null for a test, which has none.

    Raises:
        InvalidArgument: They are missing, or those of `in` are no array.
    """
    if kind in _WITH_VALUE and "value" not in filter:
        raise InvalidArgument(f'filter: "{kind}" needs a value')
    values = filter.get("values") if kind == "in" else [filter.get("value")]
    if not isinstance(values, list):
        raise InvalidArgument('filter: "in" needs values: an array of literals')
    return values


def joined(sides: Sequence[Node | bool], *, is_and: bool) -> Node | bool:
    """The conjunction or disjunction of conditions; True and False are those of `condition`."""
    if (not is_and) in sides:
        return not is_and
    kind: type[And] | type[Or] = And if is_and else Or
    children: list[Node] = []
    for side in sides:
        if isinstance(side, kind):
            children += side.children
        elif not isinstance(side, bool):
            children.append(side)
    return is_and if not children else children[0] if len(children) == 1 else kind(tuple(children))


def _literal(value: Any, column: Column) -> Scalar:
    """A literal as the column's type reads it; None if every file is kept for it."""
    value = literal_of(value)
    kind = None if column.type is None else column.type.kind
    if kind is None or kind is Kind.BINARY or isinstance(value, dict | list):
        return None
    if kind not in (*TEMPORAL, Kind.DATE):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return _moment(value, kind)
    if isinstance(value, str) and value.startswith(("+", "-")):
        return None  # Java's form of years outside of 0000 to 9999, which no literal has
    return _with_zone(value, kind)


def _moment(value: int, kind: Kind) -> Scalar:
    """The text of a time that pyiceberg writes as a number: days of a date, else microseconds; None if it has none."""
    try:
        at = _EPOCH + (timedelta(value) if kind is Kind.DATE else timedelta(microseconds=value))
    except OverflowError:
        return None
    if kind is Kind.TIME:
        return at.time().isoformat("microseconds") if at.date() == _EPOCH.date() else None
    return _with_zone(at.date().isoformat() if kind is Kind.DATE else at.replace(tzinfo=None).isoformat(), kind)


def _with_zone(value: Scalar, kind: Kind) -> Scalar:
    """The literal, with the zone of an instant, UTC, which pyiceberg leaves out."""
    is_local = kind is Kind.TIMESTAMPTZ and isinstance(value, str) and _LOCAL.fullmatch(value)
    return f"{value}Z" if is_local else value


def _starts_with(name: str, prefix: Scalar, column: Column) -> Node | bool:
    if not isinstance(prefix, str) or column.type is None or column.type.kind is not Kind.STRING:
        return True
    low = Leaf(name, Op.GTE, (prefix,))
    bare = prefix.rstrip(chr(_LAST))
    if not bare:
        return low
    after = ord(bare[-1]) + 1
    return And((low, Leaf(name, Op.LT, (bare[:-1] + chr(0xE000 if 0xD800 <= after <= 0xDFFF else after),))))
