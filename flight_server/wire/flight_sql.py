"""Messages of Flight SQL, parsed and serialized without generated code.

A protobuf message is a sequence of fields; a field is a number and a varint, eight or four bytes, or length-prefixed
bytes. Commands are wrapped in `google.protobuf.Any` (1 type_url · 2 value), whose type URL distinguishes them from
Floecat's command. Fields that are not listed here are ignored.

    ActionCreatePreparedStatementRequest   1 query
    ActionCreatePreparedStatementResult    1 prepared_statement_handle · 2 dataset_schema · 3 parameter_schema
    ActionClosePreparedStatementRequest    1 prepared_statement_handle
    CancelFlightInfoRequest                1 info: FlightInfo (3 endpoint: 1 ticket: 1 ticket)
    CommandGetDbSchemas                    1 catalog · 2 db_schema_filter_pattern
    CommandGetPrimaryKeys, -ImportedKeys   1 catalog · 2 db_schema · 3 table
    CommandGetSqlInfo                      1 info*
    CommandGetTables                       1 catalog · 2 db_schema_filter_pattern · 3 table_name_filter_pattern
                                           4 table_types* · 5 include_schema
    CommandPreparedStatementQuery          1 prepared_statement_handle
    CommandStatementQuery                  1 query
    DoPutPreparedStatementResult           1 prepared_statement_handle
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from store.model.errors import InvalidArgument

FAMILY: Final = "sql"  # label of statements where reads of flights have the flight's family
ACTIONS: Final = {
    "CreatePreparedStatement": "Flight SQL: prepares a statement",
    "ClosePreparedStatement": "Flight SQL: forgets a prepared statement",
    "CancelFlightInfo": "Flight SQL: cancels a statement that is being read",
    "CloseSession": "Flight SQL: ends a session",
    "GetSessionOptions": "Flight SQL: options of the session; there are none",
    "SetSessionOptions": "Flight SQL: sets options of the session; there are none",
}
_GOOGLE: Final = b"type.googleapis.com/"
_PACKAGE: Final = "arrow.flight.protocol.sql."
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # wire types
_MAX_FIELDS: Final = 10_000  # most fields of a message

Value = int | bytes


@dataclass(frozen=True)
class Message:
    """A message of Flight SQL: its name and fields."""

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


def is_command(data: bytes) -> bool:
    """True if the bytes of a descriptor or ticket are an `Any`, as all commands of Flight SQL are."""
    return data[:1] == b"\x0a" and _GOOGLE in data[2:24]


def read_any(data: bytes) -> Message:
    """Parses the message inside of an `Any`; its name is without the package.

    Raises:
        InvalidArgument: The bytes are malformed, or the message is not one of Flight SQL.
    """
    outer = read_message("Any", data)
    url = outer.text(1) or ""
    name = url.removeprefix(_GOOGLE.decode())
    if not name.startswith(_PACKAGE):
        raise InvalidArgument(f'"{name[:100]}" is not a message of Flight SQL')
    return read_message(name.removeprefix(_PACKAGE), outer.data(2))


def read_message(name: str, data: bytes) -> Message:
    """Parses a message that is not inside of an `Any`.

    Args:
        name: Name of the message.
        data: The bytes.

    Raises:
        InvalidArgument: The bytes are malformed, or have too many fields.
    """
    fields: dict[int, list[Value]] = {}
    for count, (number, value) in enumerate(_fields(data)):
        if count >= _MAX_FIELDS:
            raise InvalidArgument(f"the message {name} has more than {_MAX_FIELDS} fields")
        fields.setdefault(number, []).append(value)
    return Message(name, fields)


def write_any(name: str, *fields: tuple[int, Value]) -> bytes:
    """Serializes a message of Flight SQL inside of an `Any`.

    Args:
        name: Name of the message without the package.
        fields: Number and value of each field.
    """
    return write_message((1, _GOOGLE + (_PACKAGE + name).encode()), (2, write_message(*fields)))


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
        if kind == _VARINT:
            integer, at = _varint(data, at)
            yield number, integer
            continue
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
        if kind == _LENGTH:
            size, at = _varint(data, at)
        if size is None or at + size > len(data) or not number:
            raise InvalidArgument("the Flight SQL message is damaged")
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
    raise InvalidArgument("the Flight SQL message is damaged")


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
        raise InvalidArgument("a text of the Flight SQL message is not UTF-8") from None
