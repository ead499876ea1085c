"""Translation of `pyarrow.compute` expressions to filter trees.

pyarrow offers no way to walk an expression: its text is ambiguous (`b"x"` and `"x"` print alike) and its Substrait form
doubles with each level. So its pickled form is read: an Arrow IPC file of one row, whose columns are the literals and
whose schema metadata lists the calls in order: `call`, its arguments (`field_ref`, `literal` or another `call`),
`options`, `end`. These keys repeat, and pyarrow returns metadata as a dict, so the flatbuffer with them is parsed here.

Imports only pyarrow, because the client requires nothing else.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.client.conditions.flatbuffers import follow, slot, unsigned
from flight_server.client.conditions.literals import FLIPPED

Tree = dict[str, Any]

_COMPARES: Final = {
    "equal": "EQ",
    "not_equal": "NEQ",
    "less": "LT",
    "less_equal": "LTE",
    "greater": "GT",
    "greater_equal": "GTE",
}
_LANGUAGE: Final = "a condition may use ==, !=, <, <=, >, >=, isin, is_null, is_valid, &, | and ~"
_MATCH, _SKIP = 0, 1  # SetLookupOptions: a null in the set matches null, or not


@dataclass(frozen=True, slots=True)
class _Column:
    name: str


@dataclass(frozen=True, slots=True)
class _Call:
    function: str
    arguments: list[Any] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Untranslatable:
    """A part without a filter tree, and the tree of those terms ANDed with it that have one."""

    error: ValueError
    weaker: Tree | None = None


def from_expression(expression: pc.Expression, *, naive_is_utc: bool = False) -> Tree:
    """The filter tree that selects the same rows as an expression.

    Args:
        naive_is_utc: Read timestamps without a time zone as UTC; they are refused otherwise.

    Raises:
        ValueError: The expression is not a condition on columns, or has no filter tree.
    """
    whole = _read(expression, naive_is_utc)
    if isinstance(whole, _Untranslatable):
        raise whole.error
    return _condition(whole)


def weakened(expression: pc.Expression, *, naive_is_utc: bool = False) -> Tree | None:
    """A filter tree, as of `from_expression`, that selects at least an expression's rows; None if all are."""
    try:
        whole = _read(expression, naive_is_utc)
    except ValueError:
        return None
    if isinstance(whole, _Untranslatable):
        return whole.weaker
    return whole if isinstance(whole, dict) else None


def compared_columns(expression: pc.Expression) -> set[str]:
    """The columns that an expression compares with values."""
    names: set[str] = set()
    open_: list[str] = []
    for key, value in _metadata(memoryview(expression.__reduce__()[1][0])):
        if key == "call":
            open_.append(value)
        elif key == "end":
            open_.pop()
        elif key == "field_ref" and open_ and (open_[-1] in _COMPARES or open_[-1] == "is_in"):
            names.add(value)
    return names


def named_columns(expression: pc.Expression) -> set[str] | None:
    """The top-level columns that an expression names; None if it names fields within columns."""
    entries = list(_metadata(memoryview(expression.__reduce__()[1][0])))
    if any(key == "nested_field_ref" for key, _ in entries):
        return None
    return {value for key, value in entries if key == "field_ref"}


def _read(expression: pc.Expression, naive_is_utc: bool) -> Any:
    if not isinstance(expression, pc.Expression):
        raise ValueError(f"expected a pyarrow.compute expression, got {type(expression).__name__}")
    try:
        buffer = expression.__reduce__()[1][0]
    except pa.ArrowNotImplementedError as error:
        raise ValueError(f"the expression cannot be read: {error}") from None
    literals = pa.ipc.open_file(buffer).get_batch(0)
    open_, nested = [_Call("")], 0
    for key, value in _metadata(memoryview(buffer)):
        match key:
            case "call":
                open_.append(_Call(value))
            case "end":
                call = open_.pop()
                open_[-1].arguments.append(_translated(call))
            case "field_ref" if nested:
                nested -= 1
            case "field_ref":
                open_[-1].arguments.append(_Column(value))
            case "literal":
                scalar = literals.column(int(value))[0]
                open_[-1].arguments.append(_scalar_in_utc(scalar) if naive_is_utc else scalar)
            case "options":
                # Besides the options, the struct has a field with the name of its type.
                options = literals.column(int(value))[0].as_py()
                open_[-1].options.append(_options_in_utc(options) if naive_is_utc else options)
            case _:
                raise ValueError(f"a nested field is not a column of a flight; {_LANGUAGE}")
    (whole,) = open_[0].arguments
    return whole


def _translated(call: _Call) -> Tree | _Untranslatable:
    untranslatable = [part for part in call.arguments if isinstance(part, _Untranslatable)]
    weaker: list[Tree] = []
    if call.function == "and_kleene":
        sides = [part.weaker if isinstance(part, _Untranslatable) else part for part in call.arguments]
        weaker = [side for side in sides if isinstance(side, dict)]
    try:
        if untranslatable:
            raise untranslatable[0].error
        return _tree(call)
    except ValueError as error:
        return _Untranslatable(error, _joined("and", *weaker) if len(weaker) == 2 else next(iter(weaker), None))


def _tree(call: _Call) -> Tree:
    arguments = call.arguments
    match call.function:
        case "and_kleene" | "or_kleene":
            word = call.function[: -len("_kleene")]
            return _joined(word, *map(_condition, arguments))
        case "invert":
            return {"not": _condition(arguments[0])}
        case "is_valid":
            return {"column": _column(arguments[0]), "op": "IS_NOT_NULL"}
        case "is_null":
            if any(options.get("nan_is_null") for options in call.options):
                raise ValueError("is_null(nan_is_null=True) cannot be a filter: NaN is a value")
            return {"column": _column(arguments[0]), "op": "IS_NULL"}
        case "if_else":
            return _if_else(*arguments)
        case "is_in":
            return _is_in(_column(arguments[0]), call.options[0])
    return _comparison(call)


def _comparison(call: _Call) -> Tree:
    op = _COMPARES.get(call.function)
    if op is None:
        raise ValueError(f"{call.function}() cannot be a filter; {_LANGUAGE}")
    left, right = call.arguments
    if isinstance(left, pa.Scalar):
        left, right, op = right, left, FLIPPED[op]
    if not isinstance(right, pa.Scalar):
        raise ValueError(f"a filter compares a column with a value; {_LANGUAGE}")
    return {"column": _column(left), "op": op, "values": [_value(right)]}


def _scalar_in_utc(scalar: pa.Scalar) -> pa.Scalar:
    """The literal, a timestamp as one in UTC."""
    is_timestamp = pa.types.is_timestamp(scalar.type)
    return scalar.cast(pa.timestamp(scalar.type.unit, "UTC")) if is_timestamp else scalar


def _options_in_utc(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a call, with timestamps in a set of values in UTC."""
    values = options.get("value_set")
    return options | {"value_set": [_in_utc(value) for value in values]} if isinstance(values, list) else options


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _joined(word: str, left: Tree, right: Tree) -> Tree:
    """Combines two trees, `a & b & c` as one flat array, because nesting is limited by the server."""
    more = right[word] if set(right) == {word} else [right]
    if set(left) == {word}:
        left[word].extend(more)  # in place, as the left side is part of no other tree
        return left
    return {word: [left, *more]}


def _condition(part: Any) -> Tree:
    if isinstance(part, dict):
        return part
    if isinstance(part, _Column):
        raise ValueError(f'column "{part.name}" alone is not a condition; compare it, as in == True')
    raise ValueError(f"a value alone is not a condition; {_LANGUAGE}")


def _column(part: Any) -> str:
    if not isinstance(part, _Column):
        raise ValueError(f"expected a column, got {'a value' if isinstance(part, pa.Scalar) else 'a condition'}")
    return part.name


def _is_in(column: str, options: dict[str, Any]) -> Tree:
    """The tree of `is_in`, which in pyarrow is never unknown for null, so that a null test is added."""
    if options["null_matching_behavior"] not in (_MATCH, _SKIP):
        raise ValueError("is_in() can be a filter only with null_matching_behavior MATCH or SKIP")
    values = [_value(value) for value in options["value_set"]]
    has_null = None in values and options["null_matching_behavior"] == _MATCH
    values = [value for value in values if value is not None]
    null, valid = {"column": column, "op": "IS_NULL"}, {"column": column, "op": "IS_NOT_NULL"}
    if not values:
        return null if has_null else {"and": [null, valid]}
    test = {"column": column, "op": "IN", "values": values}
    return {"or": [null, test]} if has_null else {"and": [valid, test]}


def _if_else(condition: Any, chosen: Any, other: Any) -> Tree:
    """The tree of `if_else(is_valid(x), p, null)`, DuckDB's form of IN: unknown if x is null, else p."""
    tree = condition if isinstance(condition, dict) else {}
    null = isinstance(other, pa.Scalar) and not other.is_valid
    if tree.get("op") != "IS_NOT_NULL" or not null:
        raise ValueError(f"if_else() can be a filter only as if_else(is_valid(x), …, null); {_LANGUAGE}")
    column, inner = tree["column"], _condition(chosen)
    for word, test in (("and", "IS_NOT_NULL"), ("or", "IS_NULL")):
        match inner.get(word):
            case [{"column": tested, "op": first}, {"column": compared, "op": "IN"} as membership] | [
                {"column": compared, "op": "IN"} as membership,
                {"column": tested, "op": first},
            ] if tested == compared == column and first == test:
                return membership  # IN itself is unknown for null
    null_test, unknown = {"column": column, "op": "IS_NULL"}, {"column": column, "op": "EQ", "values": [None]}
    return {"or": [{"and": [tree, inner]}, {"and": [null_test, unknown]}]}


def _value(value: Any) -> str | int | float | Decimal | bool | None:
    """A literal in the form of filter trees: bytes in base64, dates and timestamps in ISO 8601."""
    match value:
        case pa.TimestampScalar():
            return _instant(value)
        case pa.Scalar():
            return _value(value.as_py())
        case None | bool() | int() | float() | Decimal() | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
        case datetime():
            raise ValueError(f"the timestamp {value} has no time zone")
        case date():
            return value.isoformat()
    raise ValueError(f"a value of type {type(value).__name__} cannot be used in a filter")


_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _instant(value: pa.TimestampScalar) -> str | None:
    if not value.is_valid:
        return None
    if not value.type.tz:
        raise ValueError(f"the timestamp {value} has no time zone")
    seconds, fraction = divmod(value.value, _PER_SECOND[value.type.unit])
    micros, finer = divmod(fraction * 1_000_000, _PER_SECOND[value.type.unit])
    if finer:
        raise ValueError(f"the timestamp {value} is finer than a microsecond")
    try:
        instant = datetime(1970, 1, 1) + timedelta(seconds=seconds, microseconds=micros)
    except OverflowError:
        raise ValueError(f"the timestamp {value.value} {value.type.unit} is outside the years 1 to 9999") from None
    return instant.isoformat() + "Z"


# The schema message of an IPC file: magic (8 bytes), continuation (4), length (4), then a flatbuffer.

_MESSAGE: Final = 16
_HEADER, _CUSTOM_METADATA, _KEY, _VALUE = 2, 2, 0, 1  # slots of Message, Schema and KeyValue in Arrow's format


def _metadata(data: memoryview) -> Iterator[tuple[str, str]]:
    """The metadata of the schema in order, including repeated keys."""
    message = follow(data, _MESSAGE)
    schema = follow(data, slot(data, message, _HEADER))
    at = slot(data, schema, _CUSTOM_METADATA)
    if not at:
        return
    vector = follow(data, at)
    for i in range(unsigned(data, vector)):
        pair = follow(data, vector + 4 + 4 * i)
        yield _text(data, slot(data, pair, _KEY)), _text(data, slot(data, pair, _VALUE))


def _text(data: memoryview, at: int) -> str:
    if not at:
        return ""
    start = follow(data, at)
    return bytes(data[start + 4 : start + 4 + unsigned(data, start)]).decode()
