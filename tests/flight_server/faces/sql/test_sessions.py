"""Sessions of Flight, in the bytes that ADBC and JDBC drivers send: plain messages, without an `Any`."""

import pytest

from flight_server.core.wire.protobuf import read_message, write_message
from flight_server.faces.sql import sessions
from store.model.errors import InvalidArgument


def option(name, *value):
    return 1, write_message((1, name.encode()), (2, write_message(*value)))


def errors(body):
    answer = read_message("SetSessionOptionsResult", sessions.answer("SetSessionOptions", body))
    entries = [answer.nested(1, place, "Errors") for place in range(len(answer.fields.get(1, ())))]
    return {entry.text(1): read_message("Error", entry.data(2)).integers(1)[0] for entry in entries}


def test_a_session_has_the_catalog():
    assert sessions.answer("GetSessionOptions", b"").hex(" ") == (
        "0a 17 0a 07 63 61 74 61 6c 6f 67 12 0c 0a 0a 73 74 61 74 66 6c 69 67 68 74"
    )


def test_closing_a_session_closes_it():
    assert sessions.answer("CloseSession", b"") == b"\x08\x01"


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ([], {}),
        ([option("catalog", (1, b"statflight"))], {}),
        ([option("catalog", (1, b"lake"))], {"catalog": 2}),
        ([option("catalog", (2, 1))], {"catalog": 2}),
        ([option("catalog", (1, b"\xff"))], {"catalog": 2}),
        ([option("catalog")], {"catalog": 2}),  # without a value: unset
        ([option("catalog", (1, b"statflight")), option("schema", (1, b"stats"))], {"schema": 1}),
    ],
)
def test_options_are_refused_one_by_one(options, refused):
    assert errors(write_message(*options)) == refused


def test_damaged_requests_are_refused():
    with pytest.raises(InvalidArgument, match="damaged"):
        sessions.answer("SetSessionOptions", b"\x0a\x05")
