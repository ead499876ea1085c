"""Casts of a put's columns to the types of its flight, where only widths differ, and normal forms of single values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from store.model.errors import InvalidField, first_line


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """True if the types differ in width only; values that do not fit are found by `cast`."""
    is_ = pa.types
    if is_.is_dictionary(source):
        return not is_.is_dictionary(source.value_type) and castable(source.value_type, target)
    if source == target or is_.is_null(source):
        return True
    if is_.is_timestamp(target):
        return bool(is_.is_timestamp(source) and source.tz)
    if is_.is_list(target):
        lists = is_.is_list(source) or is_.is_large_list(source) or is_.is_fixed_size_list(source)
        return bool(lists and castable(source.value_type, target.value_type))
    if is_.is_struct(target):
        return bool(
            is_.is_struct(source)
            and source.names == target.names
            and all(castable(a.type, b.type) for a, b in zip(source.fields, target.fields, strict=True))
        )
    families: tuple[tuple[Callable[[pa.DataType], bool], ...], ...] = (
        (is_.is_integer,),
        (is_.is_floating,),
        (is_.is_string, is_.is_large_string, is_.is_string_view),
        (is_.is_binary, is_.is_large_binary, is_.is_binary_view, is_.is_fixed_size_binary),
    )
    return any(any(f(source) for f in family) and any(f(target) for f in family) for family in families)


def cast(name: str, array: pa.Array, target: pa.DataType) -> pa.Array:
    """Casts a column to the type it has in its flight.

    Args:
        array: Values of a type that is `castable`.

    Raises:
        InvalidField: A value does not fit.
    """
    source = array.type
    if source == target:
        return array
    if pa.types.is_null(source):
        return pa.nulls(len(array), target)
    try:
        if pa.types.is_dictionary(source):
            array = array.dictionary_decode()
        return array.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidField(
            name, f"does not fit: {first_line(error)}", expected=type_name(target), actual=source
        ) from None


def other_type(name: str, expected: pa.DataType, actual: pa.DataType) -> InvalidField:
    """The error for a column whose type cannot be cast to the flight's."""
    return InvalidField(name, "has the wrong type", expected=type_name(expected), actual=actual)


def type_name(type: pa.DataType) -> str:
    """The name of a type in messages."""
    return "utf8" if pa.types.is_string(type) else str(type)


def like(counts: pa.Array, other: pa.Array) -> pa.Array:
    """Counts cast to another column's type; counts beyond 2^53 become the nearest double."""
    return counts if counts.type == other.type else counts.cast(other.type, safe=False)


def trimmed(text: str) -> str:
    """A name without leading and trailing whitespace.

    Raises:
        ValueError: The name is blank.
    """
    text = text.strip()
    if not text:
        raise ValueError("is blank")
    return text


def are_trimmed(texts: pa.StringArray) -> bool:
    """True if `trimmed` leaves texts as they are, known without a look at each; of unusual ones it is not known."""
    return bool(pc.all(pc.match_substring_regex(texts, r"^[!-~](?s:.*[!-~])?$"), min_count=0).as_py())


def json_object(text: str) -> str:
    """The text itself; ValueError if it is not a JSON object."""

    def refuse(word: str) -> Any:
        raise ValueError(f"is not JSON: {word}")

    try:
        value = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at {error.pos}") from None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    return text
