"""Casts of arriving columns to a flight's own types where only widths differ, and normal forms of single values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from store.errors import InvalidField


def castable(source: pa.DataType, target: pa.DataType) -> bool:
    """True if only widths differ; a lossy value is found when it is cast."""
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
            is_.is_struct(source) and source.names == target.names
            and all(castable(a.type, b.type) for a, b in zip(source.fields, target.fields, strict=True))
        )  # fmt: skip
    families: tuple[tuple[Callable[[pa.DataType], bool], ...], ...] = (
        (is_.is_integer,),
        (is_.is_floating,),
        (is_.is_string, is_.is_large_string, is_.is_string_view),
        (is_.is_binary, is_.is_large_binary, is_.is_binary_view, is_.is_fixed_size_binary),
    )
    return any(any(f(source) for f in family) and any(f(target) for f in family) for family in families)


def cast(name: str, array: pa.Array, target: pa.DataType) -> pa.Array:
    """Casts a column to a flight's own type.

    Args:
        name: The column, for messages.
        array: Values of a type that is `castable`.
        target: The type of the flight's column.

    Raises:
        InvalidField: A value does not fit; names the column `name`.
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
    """The error of a column that has another type than its flight's."""
    return InvalidField(name, "is of another type", expected=type_name(expected), actual=actual)


def type_name(type: pa.DataType) -> str:
    """A type as messages name it."""
    return "utf8" if pa.types.is_string(type) else str(type)


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return str(error).partition("\n")[0][:200]


def like(counts: pa.Array, other: pa.Array) -> pa.Array:
    """Counts as numbers of another column's type; the nearest double where they are beyond 2^53."""
    return counts if counts.type == other.type else counts.cast(other.type, safe=False)


def trimmed(text: str) -> str:
    """A name without spaces around it.

    Raises:
        ValueError: Nothing is left.
    """
    text = text.strip()
    if not text:
        raise ValueError("is blank")
    return text


def json_object(text: str) -> str:
    """The text itself, if it is a JSON object; ValueError if not."""

    def refuse(word: str) -> Any:
        raise ValueError(f"is not JSON: {word}")

    try:
        value = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at {error.pos}") from None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    return text


def shown(text: str) -> str:
    """A text as messages show it: short."""
    return text if len(text) <= 100 else f"{text[:100]}…"


def lists(lengths: np.ndarray, values: pa.Array, type: pa.DataType, null: np.ndarray | None = None) -> pa.Array:
    """A list column from lengths and values.

    Args:
        lengths: Items of each list, N integers.
        values: The items, as many as the sum of `lengths`.
        type: The list type; values are cast to its item type.
        null: Lists that are null, N booleans.
    """
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = None if null is None else pa.array(null)
    return pa.ListArray.from_arrays(offsets, values.cast(type.value_type), type, mask=mask)
