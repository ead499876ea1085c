"""Literals of predicates, read as values of a column's type (store/SEMANTICS.md §6)."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

Scalar = str | int | float | Decimal | bool | None
"""A literal as JSON has it; a Decimal is a number that no float represents."""

_BLANKS: Final = " \t\n\r\f\v"
_SHORT_INT: Final = re.compile(r"[+-]?[0-9]{1,19}")
_FLOAT: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FLOAT_NAMES: Final = {sign + name for sign in ("", "+", "-") for name in ("NaN", "Infinity")}
_INSTANT: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(?:(?<=:[0-9]{2}:[0-9]{2})\.([0-9]{1,100}))?"
    r"(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?)"
)
_EPOCH: Final = datetime(1970, 1, 1)  # wall clock of UTC; a literal's offset is subtracted separately
_MICROSECOND: Final = timedelta(microseconds=1)
_TRUTHS: Final = {"true": True, "t": True, "false": False, "f": False}


def literal_text(value: Scalar) -> str | None:
    """A literal as text: strings verbatim, numbers and booleans in JSON form, null as None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return str(value)
    return str(value) if type(value) is int else json.dumps(value)  # equal, and a fifth of the time


def typed_literal(value: Scalar, type: pa.DataType) -> Any:
    """A JSON literal as a value of an Arrow type, an instant as microseconds since 1970; None if it is not of it."""
    text = literal_text(value)
    if text is None:
        return None
    if is_text(type):
        try:
            text.encode()
        except UnicodeEncodeError:
            return None  # no column contains a lone surrogate
        return text
    if pa.types.is_integer(type):
        return _integer(text, type)
    if pa.types.is_floating(type):
        text = text.strip(_BLANKS)
        return float(text) if text in _FLOAT_NAMES or _FLOAT.fullmatch(text) else None
    if pa.types.is_boolean(type):
        return _TRUTHS.get(text.lower())
    if pa.types.is_timestamp(type) and type.unit == "us" and type.tz:
        return _instant(text)
    if is_binary(type):
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return None
        return data if base64.b64encode(data).decode() == text else None  # excess bits are not valid base64
    return None


def is_readable(value: Scalar, type: pa.DataType) -> bool:
    """True if a literal suits the type of its column; numbers and null suit every type."""
    if value is None or (isinstance(value, int | float | Decimal) and not isinstance(value, bool)):
        return True
    text = literal_text(value) or ""
    if pa.types.is_integer(type):
        return exact_number(text) is not None
    if pa.types.is_timestamp(type):
        return _INSTANT.fullmatch(text) is not None and _instant(re.sub(r"\.[0-9]+", "", text)) is not None
    return typed_literal(value, type) is not None


def exact_number(text: str) -> int | Decimal | None:
    """The number in a text, without rounding; NaN and infinities as Decimal; None if the text is not a number."""
    text = text.strip(_BLANKS)
    if _SHORT_INT.fullmatch(text):
        return int(text)
    if text not in _FLOAT_NAMES and not _FLOAT.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:  # the exponent exceeds Decimal's range
        mantissa, _, exponent = text.lower().partition("e")
        sign = "-" if text.startswith("-") else ""
        if not mantissa.strip("+-0."):
            return 0
        return Decimal(f"{sign}0.5") if exponent.startswith("-") else Decimal(f"{sign}Infinity")


def integer_range(type: pa.DataType) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    if pa.types.is_signed_integer(type):
        return -(1 << (type.bit_width - 1)), (1 << (type.bit_width - 1)) - 1
    return 0, (1 << type.bit_width) - 1


def _integer(text: str, type: pa.DataType) -> int | None:
    number = exact_number(text)
    if number is None or number != number:
        return None
    low, high = integer_range(type)
    if not low <= number <= high:
        return None
    whole = math.floor(number)
    return whole if whole == number else None


def _instant(text: str) -> int | None:
    """Microseconds since 1970 of an ISO-8601 instant with a zone; None for a finer fraction, which equals no value."""
    match = _INSTANT.fullmatch(text)
    if not match:
        return None
    fraction = (match[2] or "").ljust(6, "0")
    if fraction[6:].strip("0"):
        return None
    hours, minutes = int(match[4] or 0), int(match[5] or 0)
    if hours > 18 or minutes > 59:
        return None
    try:
        wall = datetime.fromisoformat(match[1])
    except ValueError:
        return None
    offset = (hours * 60 + minutes) * 60_000_000 * (-1 if match[3] == "-" else 1)
    return (wall - _EPOCH) // _MICROSECOND + int(fraction[:6]) - offset


def is_text(type: pa.DataType) -> bool:
    """True for the string types: utf8, large utf8, utf8 view."""
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def is_binary(type: pa.DataType) -> bool:
    """True for the variable-width binary types."""
    return bool(pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_binary_view(type))
