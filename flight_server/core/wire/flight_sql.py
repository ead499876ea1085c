"""Messages of Flight SQL.

Commands are wrapped in `google.protobuf.Any` (1 type_url · 2 value), whose type URL distinguishes them from
Floecat's command. The messages of sessions are Flight's own and come plain (`flight_server/faces/sql/sessions.py`).
Fields that are not listed here are ignored.

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

from typing import Final

from flight_server.core.wire.protobuf import Message, Value, read_message, write_message
from store.model.errors import InvalidArgument

FAMILY: Final = "sql"  # label of statements where reads of flights have the flight's family
ACTIONS: Final = {
    "CreatePreparedStatement": "Flight SQL: prepares a statement",
    "ClosePreparedStatement": "Flight SQL: forgets a prepared statement",
    "CancelFlightInfo": "Flight SQL: cancels a statement that is being read",
    "CloseSession": "Flight SQL: ends a session",
    "GetSessionOptions": "Flight SQL: options of the session, which are the catalog",
    "SetSessionOptions": "Flight SQL: sets options of the session; the catalog alone, to the one there is",
}
_GOOGLE: Final = b"type.googleapis.com/"
_PACKAGE: Final = "arrow.flight.protocol.sql."


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


def write_any(name: str, *fields: tuple[int, Value]) -> bytes:
    """Serializes a message of Flight SQL, by its name without the package and its fields, inside of an `Any`."""
    return write_message((1, _GOOGLE + (_PACKAGE + name).encode()), (2, write_message(*fields)))
