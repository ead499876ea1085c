"""JSON of commands, whose numbers keep all their digits: a fraction that no float represents is a Decimal."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any


def exact(digits: str) -> float | Decimal:
    """The number with these digits: a float if its shortest form is the same number, else a Decimal."""
    nearest = float(digits)
    try:
        number = Decimal(digits)
    except InvalidOperation:  # the exponent exceeds Decimal's range
        return nearest
    return nearest if Decimal(str(nearest)) == number else number


def dumps(value: Any) -> str:
    """`json.dumps`, with Decimals as numbers."""
    try:
        return json.dumps(value)
    except TypeError:
        return _dumped(value)


def _dumped(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(str(key))}: {_dumped(member)}" for key, member in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_dumped, value)) + "]"
        case Decimal() if value.is_finite():
            return str(value)
    return json.dumps(value)


def loads(text: str) -> Any:
    """`json.loads`, with a Decimal for a fraction that no float represents."""
    return json.loads(text, parse_float=exact)
