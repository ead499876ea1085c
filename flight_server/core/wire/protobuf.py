"""Messages of protobuf, parsed and serialized without generated code.

A message is a sequence of fields; a field is a number and a varint, eight or four bytes, or length-prefixed bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from store.model.errors import InvalidArgument

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # wire types
_MAX_FIELDS: Final = 70_000  # most fields of a message, more than the values of a condition may be

Value = int | bytes


@dataclass(frozen=True)
class Message:
    """A message: its name, and the values of its fields by number, in the order of the last value of each."""

    name: str
    fields: dict[int, list[Value]]

    def data(self, number: int) -> bytes:
        """The bytes of a field; empty if it is absent."""
        value = self.fields.get(number, [b""])[-1]
        return value if isinstance(value, bytes) else b""

    def text(self, number: int) -> str | None:
        """The text of a field; None if it is absent."""
        return _text(self.data(number)) if number in self.fields else None

    def texts(self, number: int) -> list[str]:
        """All texts of a repeated field."""
        return [_text(value) for value in self.fields.get(number, []) if isinstance(value, bytes)]

    def nested(self, number: int, at: int, name: str) -> Message:
        """The message in a value of a field."""
        value = self.fields[number][at]
        if isinstance(value, int):
            raise InvalidArgument("the message is damaged")
        return read_message(name, value)

    def flag(self, number: int) -> bool:
        """The boolean of a field; False if it is absent."""
        return self.fields.get(number, [0])[-1] not in (0, b"")

    def integers(self, number: int) -> list[int]:
        """All integers of a repeated field, packed or not."""
        integers: list[int] = []
        for value in self.fields.get(number, []):
            if isinstance(value, int):
                integers.append(value)
                continue
            at = 0
            while at < len(value):
                integer, at = _varint(value, at)
                integers.append(integer)
        return integers


def read_message(name: str, data: bytes) -> Message:
    """Parses a message. Its fields are in the order in which each occurs last: of a oneof, the last one counts.

    Raises:
        InvalidArgument: The bytes are malformed, or have too many fields.
    """
    fields: dict[int, list[Value]] = {}
    for count, (number, value) in enumerate(_fields(data)):
        if count >= _MAX_FIELDS:
            raise InvalidArgument(f"the message {name} has more than {_MAX_FIELDS} fields")
        values = fields.pop(number, [])
        values.append(value)
        fields[number] = values
    return Message(name, fields)


def write_message(*fields: tuple[int, Value]) -> bytes:
    """Serializes a message from the number and value of each field."""
    return b"".join(_written(fields))


def _written(fields: Iterable[tuple[int, Value]]) -> Iterator[bytes]:
    for number, value in fields:
        if isinstance(value, int):
            yield _to_varint(number << 3 | _VARINT) + _to_varint(value)
        else:
            yield _to_varint(number << 3 | _LENGTH) + _to_varint(len(value)) + value


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise InvalidArgument("the message is damaged: field numbers begin with 1")
        if kind == _VARINT:
            integer, at = _varint(data, at)
            yield number, integer
            continue
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
        if kind == _LENGTH:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise InvalidArgument("the message is damaged")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at an offset, and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise InvalidArgument("the message is damaged")


def _to_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("a text of the message is not UTF-8") from None
