"""Sessions of Flight, as ADBC and JDBC drivers open them: messages of `arrow.flight.protocol`, without an `Any`.

The server keeps no state of a session: statements name their schemas, and there is one catalog. So that catalog is the
one option, and setting it to its own name is accepted.

    SetSessionOptionsRequest   1 session_options: map of name (1) and SessionOptionValue (2)
    SetSessionOptionsResult    1 errors: map of name (1) and Error (2)
    Error                      1 value: 1 INVALID_NAME · 2 INVALID_VALUE
    GetSessionOptionsResult    1 session_options, as in the request
    SessionOptionValue         one of 1 string · 2 bool · 3 sfixed64 · 4 double · 5 list of strings
    CloseSessionResult         1 status: 1 CLOSED
"""

from __future__ import annotations

from typing import Final

from flight_server.core.wire.protobuf import Message, read_message, write_message
from flight_server.faces.sql.flights import CATALOG
from store.model.errors import InvalidArgument

ACTIONS: Final = ("CloseSession", "GetSessionOptions", "SetSessionOptions")
_CATALOG_OPTION: Final = "catalog"  # the name that the standard gives it
_INVALID_NAME, _INVALID_VALUE = 1, 2
_CLOSED: Final = 1


def answer(action: str, body: bytes) -> bytes:
    """The serialized result of one of ACTIONS.

    Args:
        action: Its name.
        body: The serialized request.

    Raises:
        InvalidArgument: The body is not a message.
    """
    request = read_message(f"{action}Request", body)
    match action:
        case "CloseSession":
            return write_message((1, _CLOSED))
        case "GetSessionOptions":
            return write_message((1, _entry(_CATALOG_OPTION, write_message((1, CATALOG.encode())))))
    errors = [(name, error) for name, error in map(_judged, _options(request)) if error is not None]
    return write_message(*((1, _entry(name, write_message((1, error)))) for name, error in errors))


def _options(request: Message) -> list[tuple[str, Message]]:
    """Names and values of a request's options."""
    options = []
    for place in range(len(request.fields.get(1, ()))):
        entry = request.nested(1, place, "SessionOptions")
        options.append((entry.text(1) or "", read_message("SessionOptionValue", entry.data(2))))
    return options


def _judged(option: tuple[str, Message]) -> tuple[str, int | None]:
    """The name of an option, and the number of the error; None if it can be set."""
    name, value = option
    if name != _CATALOG_OPTION:
        return name, _INVALID_NAME
    try:
        is_known = value.text(1) == CATALOG
    except InvalidArgument:  # bytes that are not UTF-8
        is_known = False
    return name, None if is_known else _INVALID_VALUE


def _entry(name: str, value: bytes) -> bytes:
    """A serialized entry of a map."""
    return write_message((1, name.encode()), (2, value))
