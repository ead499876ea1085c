"""Structs: the keys of a JSON object as typed fields, and one way from a parsed value to a struct or to its refusal.

Not imported by what clients and Spark's executors import: they need not have `msgspec`.
"""

from __future__ import annotations

import threading
import types
from enum import Enum
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from store.model.errors import InvalidArgument, InvalidField, nearest
from store.model.names import split_name

T = TypeVar("T")
_MAX: Final = 2**63 - 1
_WORDS: Final[dict[Any, str]] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true | false",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}


class Struct(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of structs, which refuse other keys. A key that may be null has a type with None.

    An id of a snapshot that comes as text, as JSON has it for readers that round large integers, becomes an integer.
    """

    def __post_init__(self) -> None:
        for name in _IDS:
            text = getattr(self, name, None)
            if isinstance(text, str) and text.isdecimal():
                if int(text) > _MAX:
                    raise InvalidField(name, "is not a snapshot", expected="an id below 2^63", actual=text)
                setattr(self, name, int(text))


class TableName(str):
    """A full table name, `catalog.schema.table`."""

    __slots__ = ()


# Types of fields. A title is the reason of a refusal, a description what was expected.

Text = Annotated[str, Meta(min_length=1)]
Truth = Annotated[bool, Meta(title="must be true or false")]
Table = Annotated[TableName, Meta(title="is not a full table name", description="catalog.schema.table")]
_IDS: Final = ("snapshot", "snapshot_id")  # keys of snapshots
SnapshotId = Annotated[int, Meta(ge=0, le=_MAX, title="is not a snapshot", description="an id")]


def _text_or(words: str) -> Meta:
    """Limits a text to digits or one of these words, parts of a pattern."""
    return Meta(pattern=f"^({words}[0-9]{{1,19}})$")


Snapshot = Annotated[
    SnapshotId | Annotated[str, _text_or("current|")], Meta(title="is not a snapshot", description='"current" or an id')
]
AnySnapshot = Annotated[
    SnapshotId | Annotated[str, _text_or("current|all|")],
    Meta(title="is not a snapshot", description='"current", "all" or an id'),
]
Count = Annotated[int, Meta(ge=0, le=_MAX, title="must be an integer ≥ 0", description="an integer ≥ 0")]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]  # finite
Options = Annotated[dict[str, str], Meta(description="an object of texts")]


def read(value: Any, type_: type[T], what: str = "body", where: str = "") -> T:
    """Converts a parsed value.

    Args:
        value: Of JSON or TOML.
        type_: A struct, or the type of a field.
        what: Name of the whole, for errors.
        where: Path of the value in the whole; empty for the whole itself.

    Raises:
        InvalidArgument: The value does not fit; names the first field that does not, and what it should be.
    """
    if type_ not in _prepared:
        with _preparing:
            _fits(value, type_)
            _prepared.add(type_)
    try:
        return msgspec.convert(value, type_, dec_hook=_custom)
    except msgspec.ValidationError:
        _refuse(value, type_, what, where)


# The library describes a type to itself when it is first read; two threads that do so at once end the process.
_preparing: Final = threading.Lock()
_prepared: Final[set[Any]] = set()


def describe(type_: Any) -> str:
    """The keys of a struct as text, `{"table", "snapshot"?}`; optional ones come last and have a question mark."""
    keys = []
    for field in sorted(msgspec.structs.fields(type_), key=lambda field: not field.required):
        inner, _ = _unwrapped(field.type)
        form = next((_form(option) for option in inner if _form(option)), "")
        keys.append(f'"{field.encode_name}"' + ("" if field.required else "?") + (form and f": {form}"))
    return "{" + ", ".join(keys) + "}"


def _form(type_: Any) -> str:
    if get_origin(type_) in (list, tuple) and _is_struct(get_args(type_)[0]):
        return f"[{describe(get_args(type_)[0])}]"
    return describe(type_) if _is_struct(type_) else ""


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _custom(type_: Any, value: Any) -> Any:
    if type_ is not TableName or not isinstance(value, str):
        raise ValueError
    split_name(value)
    return TableName(value)


def _fits(value: Any, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_, dec_hook=_custom)
    except msgspec.ValidationError:
        return False
    return True


def _unwrapped(type_: Any, meta: Meta | None = None) -> tuple[tuple[Any, ...], Meta]:
    """The types of a union except None, and the outermost title and description."""
    if get_origin(type_) is Annotated:
        metas = [*([meta] if meta else []), *reversed(type_.__metadata__)]
        titles, descriptions = ([getattr(each, of) for each in metas] for of in ("title", "description"))
        text = Meta(title=next(filter(None, titles), None), description=next(filter(None, descriptions), None))
        return _unwrapped(type_.__origin__, text)
    if get_origin(type_) in (Union, types.UnionType):
        options = [option for option in get_args(type_) if option is not type(None)]
        if len(options) == 1:
            return _unwrapped(options[0], meta)
        return tuple(option for each in options for option in _unwrapped(each)[0]), meta or Meta()
    return (type_,), meta or Meta()


def _refuse(value: Any, type_: Any, what: str, where: str) -> NoReturn:
    """Raises the error about the first part of a value that does not fit its type."""
    options, meta = _unwrapped(type_)
    for option in options:
        _refuse_part(value, option, what, where)
    if not where and _is_struct(options[0]):
        names = ", ".join(field.encode_name for field in msgspec.structs.fields(options[0])) or "no keys"
        raise InvalidArgument(f"the {what} must be a JSON object", hint=f"it takes {names}")
    words = [str(word) for option in options for word in _words(option)]
    expected = meta.description or " | ".join(words) or _expected(options[0])
    reason = meta.title or _reason(value, options[0], words)
    hint = nearest(value, words) if isinstance(value, str) else ""
    raise InvalidField(where, reason, expected=expected, actual=value, hint=hint)


def _reason(value: Any, type_: Any, words: list[str]) -> str:
    """What is wrong with a value as a whole, whose type has these words, if any."""
    if value is None:
        return "is missing"
    if value == "" and type_ is str:
        return "is empty"
    return "is unknown" if words else "has the wrong type"


def _refuse_part(value: Any, option: Any, what: str, where: str) -> None:
    """Refuses the first part of a value that does not fit, if the value is of an option's form."""
    origin, arguments = get_origin(option) or option, get_args(option)
    if isinstance(value, dict) and _is_struct(option):
        _refuse_object(value, option, what, where)
    elif isinstance(value, list | tuple) and origin in (list, tuple):
        for at, item in enumerate(value):
            if not _fits(item, arguments[0]):
                _refuse(item, arguments[0], what, f"{where}[{at}]")
    elif isinstance(value, dict) and origin is dict:
        for key, item in value.items():
            if not _fits(item, arguments[1]):
                _refuse(item, arguments[1], what, f"{where}.{key}" if where else key)


def _refuse_object(value: dict[str, Any], type_: Any, what: str, where: str) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(type_)}
    if type_.__struct_config__.forbid_unknown_fields:
        refuse_unknown_keys(value, tuple(fields), where or what)
    for name, field in fields.items():
        if (name in value or field.required) and not _fits(value.get(name), field.type):
            _refuse(value.get(name), field.type, what, f"{where}.{name}" if where else name)


def _words(type_: Any) -> tuple[Any, ...]:
    """The members of an enumeration or literal; empty for other types."""
    if get_origin(type_) is Literal:
        return get_args(type_)
    return tuple(type_) if isinstance(type_, type) and issubclass(type_, Enum) else ()


def _expected(type_: Any) -> str:
    return "an object" if _is_struct(type_) else _WORDS.get(get_origin(type_) or type_, "a value")


def refuse_unknown_keys(body: Any, known: tuple[str, ...] | frozenset[str], what: str) -> None:
    """Checks that an object has only known keys.

    Raises:
        InvalidArgument: A key is unknown; the hint has the nearest known one.
    """
    for key in body:
        if key not in known:
            hint = nearest(key, list(known)) or f"it takes {', '.join(sorted(known)) or 'no keys'}"
            raise InvalidArgument(f'the {what} has no key "{key[:100]}"', hint=hint, params={"key": key[:100]})
