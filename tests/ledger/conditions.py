"""Random conditions on a wide table, and their truth for every row by NumPy."""

from __future__ import annotations

import base64
import bisect
import math
import random
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

import numpy as np

from tests.ledger.wide_tables import Read

Tree = Mapping[str, Any]
COMPARES: Final[dict[str, tuple[str, Callable[[np.ndarray, int], np.ndarray]]]] = {
    "EQ": ("=", np.equal),
    "NEQ": ("<>", np.not_equal),
    "LT": ("<", np.less),
    "LTE": ("<=", np.less_equal),
    "GT": (">", np.greater),
    "GTE": (">=", np.greater_equal),
}
USUAL: Final = ("EQ", "EQ", "EQ", "LT", "LTE", "GT", "GTE", "NEQ", "BETWEEN", "BETWEEN", "BETWEEN", "IN", "IN", "IN")
"""Operators as queries have them: most select few files."""


class Truth(NamedTuple):
    """For each row, whether a condition is true, and whether it is unknown."""

    true: np.ndarray
    unknown: np.ndarray


class Literal(NamedTuple):
    """A literal: its text in the protocol, in SQL, and its place among the values of the column, which have the even
    places."""

    text: str
    sql: str
    place: int


class Conditions:
    """Conditions on the columns of a table, with literals that are values of it or lie between two of them."""

    def __init__(self, read: Read, rng: random.Random):
        self._read, self._rng = read, rng
        self._places = {name: np.where(ranks < 0, -9, 2 * ranks) for name, ranks in read.columns.items()}
        self._nulls = {name: ranks < 0 for name, ranks in read.columns.items()}
        self._values: dict[str, list[Any]] = {name: values.to_pylist() for name, values in read.distinct.items()}
        self._nan = {name: 2 * len(found) - 2 for name, found in self._values.items() if found and _is_nan(found[-1])}
        self._names = [name for name, found in self._values.items() if len(found) > (name in self._nan)]

    def tree(self, depth: int = 0) -> dict[str, Any]:
        """A random condition; its literals are `Literal`s."""
        kind = self._rng.random()
        if depth < 2 and kind < 0.25:
            if kind < 0.03:
                return {"not": self.tree(depth + 1)}
            word = "and" if kind < 0.18 else "or"
            return {word: [self.tree(depth + 1) for _ in range(self._rng.randint(2, 3))]}
        name = self._rng.choice(self._names)
        if kind > 0.98:
            return {"column": name, "op": self._rng.choice(("IS_NULL", "IS_NOT_NULL"))}
        op = self._rng.choice(USUAL)
        if op == "BETWEEN":
            low = self.literal(name)
            high = self.literal(name, low.place // 2 + self._rng.randint(0, 9))
            return {"column": name, "op": op, "values": [low, high]}
        count = self._rng.choice((1, 3, 9)) if op == "IN" else 1
        return {"column": name, "op": op, "values": [self.literal(name) for _ in range(count)]}

    def literal(self, name: str, at: int | None = None) -> Literal:
        values = self._values[name]
        count = len(values) - (name in self._nan)
        at = self._rng.randrange(count) if at is None else min(max(at, 0), count - 1)
        value, place = values[at], 2 * at
        if self._rng.random() < 0.2:
            value = _next(value)
            after = bisect.bisect_left(values, value, hi=count)
            place = 2 * after if after < count and values[after] == value else 2 * after - 1
        text = text_of(value)
        type = self._read.types[name]
        sql = f"from_base64('{text}')" if type == "BLOB" else f"CAST('{_escaped(text)}' AS {type})"
        return Literal(text, sql, place)

    def truth(self, tree: Tree, nan_is_greatest: bool = True) -> Truth:
        """The truth of a condition for each row; NaN is the greatest number, or compares with none."""
        if "not" in tree:
            true, unknown = self.truth(tree["not"], nan_is_greatest)
            return Truth(~(true | unknown), unknown)
        for word in ("and", "or"):
            if word in tree:
                return _joined(word, [self.truth(part, nan_is_greatest) for part in tree[word]])
        name, op = tree["column"], tree["op"]
        null = self._nulls[name]
        if op in ("IS_NULL", "IS_NOT_NULL"):
            return Truth(null if op == "IS_NULL" else ~null, np.zeros_like(null))
        places = [literal.place for literal in tree["values"]]
        if op == "BETWEEN":
            low, high = (
                self._compared(name, *part, nan_is_greatest) for part in zip(("GTE", "LTE"), places, strict=True)
            )
            return Truth(low & high, null)
        if op == "IN":
            return Truth(np.isin(self._places[name], places) & ~null, null)
        return Truth(self._compared(name, op, places[0], nan_is_greatest), null)

    def _compared(self, name: str, op: str, place: int, nan_is_greatest: bool) -> np.ndarray:
        places = self._places[name]
        found: np.ndarray = COMPARES[op][1](places, place) & ~self._nulls[name]
        if not nan_is_greatest and name in self._nan and op in ("GT", "GTE"):
            found &= places != self._nan[name]
        return found

    def has_nan(self, tree: Tree) -> bool:
        """True if a condition is on a column with NaN, so that readers may differ."""
        inner = [tree["not"]] if "not" in tree else tree.get("and") or tree.get("or") or ()
        return any(map(self.has_nan, inner)) or tree.get("column") in self._nan


def as_request(tree: Tree) -> dict[str, Any]:
    """A condition as the protocol has it."""
    if "not" in tree:
        return {"not": as_request(tree["not"])}
    for word in ("and", "or"):
        if word in tree:
            return {word: [as_request(part) for part in tree[word]]}
    return {**tree, "values": [literal.text for literal in tree["values"]]} if "values" in tree else dict(tree)


def as_sql(tree: Tree) -> str:
    """A condition in DuckDB's SQL."""
    if "not" in tree:
        return f"(NOT {as_sql(tree['not'])})"
    for word in ("and", "or"):
        if word in tree:
            return "(" + f" {word.upper()} ".join(map(as_sql, tree[word])) + ")"
    name, op = tree["column"], tree["op"]
    if op in ("IS_NULL", "IS_NOT_NULL"):
        return f"({name} {op.replace('_', ' ')})"
    literals = [literal.sql for literal in tree["values"]]
    if op == "BETWEEN":
        return f"({name} BETWEEN {literals[0]} AND {literals[1]})"
    if op == "IN":
        return f"({name} IN ({', '.join(literals)}))"
    return f"({name} {COMPARES[op][0]} {literals[0]})"


def text_of(value: Any) -> str:
    """The text of a value in the protocol, written apart from the server's own writers."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def _next(value: Any) -> Any:
    """A value close above a value, which the column rather does not have."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value + 1 if value < (1 << 63) - 1 else value
    if isinstance(value, float):
        return value + 0.0625
    if isinstance(value, Decimal):
        unit = Decimal(1).scaleb(value.as_tuple().exponent)
        return value + unit
    if isinstance(value, datetime):
        return value + timedelta(microseconds=1)
    if isinstance(value, date):
        return value + timedelta(days=1)
    return value + (b"\x00" if isinstance(value, bytes) else "!")


def _joined(word: str, parts: list[Truth]) -> Truth:
    decisive = parts[0].true if word == "or" else ~(parts[0].true | parts[0].unknown)
    unknown = parts[0].unknown
    for part in parts[1:]:
        decisive = decisive | (part.true if word == "or" else ~(part.true | part.unknown))
        unknown = unknown | part.unknown
    unknown = unknown & ~decisive
    return Truth(decisive if word == "or" else ~(decisive | unknown), unknown)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _escaped(text: str) -> str:
    return text.replace("'", "''")
