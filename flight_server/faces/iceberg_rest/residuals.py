"""Filters as the residuals of tasks, in a form that the client which sent them can read.

Iceberg's libraries write an infinity as a text or as null, and cannot read either back: Java binds no text to a double,
pyiceberg takes no null for a literal. So a comparison with an infinity becomes one with the largest finite number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final

from flight_server.faces.iceberg_rest.expressions import Find, literal_of
from store.model.logical_types import FLOATING, Kind

_LARGEST: Final = {Kind.FLOAT: 3.4028234663852886e38, Kind.DOUBLE: 1.7976931348623157e308}
_INFINITIES: Final = {"Infinity": 1, "+Infinity": 1, "-Infinity": -1, float("inf"): 1, float("-inf"): -1}
_MEMBERS: Final = {"in": ("eq", "or"), "not-in": ("not-eq", "and")}


def residual_of(filter: Any, find: Find) -> Any:
    """The filter, or one that selects the same rows for clients that order NaN above all numbers.

    Args:
        filter: A filter that `expressions.condition` reads.
    """
    match filter:
        case {"type": "and" | "or", "left": left, "right": right}:
            sides = {"left": residual_of(left, find), "right": residual_of(right, find)}
            return filter if sides["left"] is left and sides["right"] is right else filter | sides
        case {"type": "not", "child": child}:
            inner = residual_of(child, find)
            return filter if inner is child else filter | {"child": inner}
        case {"type": "in" | "not-in" as kind, "term": str(name), "values": list(values)}:
            return _of_members(filter, kind, name, values, find)
        case {"type": str(kind), "term": str(name), "value": value}:
            if literal_of(value) is None:
                return _any_row(name)
            sign = _sign(value, name, find)
            return filter if sign is None else _of_infinity(kind, name, sign, find)
    return filter


def _of_members(filter: Mapping[str, Any], kind: str, name: str, values: Sequence[Any], find: Find) -> Any:
    if any(literal_of(value) is None for value in values):
        return _any_row(name)
    signs = [_sign(value, name, find) for value in values]
    if not any(signs):
        return filter
    single, word = _MEMBERS[kind]
    finite = [value for value, sign in zip(values, signs, strict=True) if sign is None]
    parts = [{"type": kind, "term": name, "values": finite}] if finite else []
    parts += [_of_infinity(single, name, sign, find) for sign in sorted({sign for sign in signs if sign is not None})]
    return reduce(lambda left, right: _joined(word, left, right), parts)


def _sign(value: Any, name: str, find: Find) -> int | None:
    """1 or -1 for an infinity that is compared with a column of floating numbers; else None."""
    plain = literal_of(value)
    if not isinstance(plain, str | float) or (sign := _INFINITIES.get(plain)) is None:
        return None
    type = find(name).type
    return sign if type is not None and type.kind in FLOATING else None


def _of_infinity(kind: str, name: str, sign: int, find: Find) -> Any:
    """A comparison with an infinity, without one. NaN is above it."""
    type = find(name).type
    assert type is not None  # it is one of floating numbers

    def test(kind: str) -> dict[str, Any]:
        return {"type": kind, "term": name}

    def finite(kind: str) -> dict[str, Any]:
        return test(kind) | {"value": sign * _LARGEST[type.kind]}

    if sign > 0:
        told: dict[str, Any] = {
            "eq": _joined("and", finite("gt"), test("not-nan")),
            "not-eq": _joined("or", _joined("or", finite("lt-eq"), test("is-nan")), test("is-null")),
            "lt": finite("lt-eq"),
            "lt-eq": _joined("and", test("not-null"), test("not-nan")),
            "gt": test("is-nan"),
            "gt-eq": finite("gt"),
        }
    else:
        told = {
            "eq": finite("lt"),
            "not-eq": _joined("or", finite("gt-eq"), test("is-null")),
            "lt": False,
            "lt-eq": finite("lt"),
            "gt": finite("gt-eq"),
            "gt-eq": test("not-null"),
        }
    return told[kind] if kind in told else _any_row(name)


def _joined(word: str, left: Any, right: Any) -> dict[str, Any]:
    return {"type": word, "left": left, "right": right}


def _any_row(name: str) -> dict[str, Any]:
    """A test that every row passes, and that is not the constant: pyiceberg counts no rows of files that have that.
    pyiceberg, which alone sends such literals, evaluates the filter of its caller, not the residual.
    """
    return _joined("or", {"type": "is-null", "term": name}, {"type": "not-null", "term": name})
