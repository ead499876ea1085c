"""Flight SQL messages: round trips, and rejection of damaged bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.core.wire import flight_sql
from flight_server.core.wire.flight_sql import read_any, write_any
from flight_server.core.wire.protobuf import read_message, write_message
from store.model.errors import InvalidArgument

VALUES = st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300))


@given(st.lists(st.tuples(st.integers(1, 1000), VALUES), max_size=20))
def test_written_message_reads_back(fields):
    found = read_message("M", write_message(*fields)).fields
    expected: dict[int, list] = {}
    for number, value in fields:
        expected.setdefault(number, []).append(value)
    assert found == expected


def test_any_message_reads_its_fields():
    data = write_any("CommandGetTables", (2, b"st%"), (4, b"BASE TABLE"), (4, b"VIEW"), (5, 1))
    assert flight_sql.is_command(data)
    message = read_any(data)
    assert (message.name, message.text(2), message.text(3)) == ("CommandGetTables", "st%", None)
    assert message.texts(4) == ["BASE TABLE", "VIEW"] and message.flag(5) and not message.flag(6)


def test_repeated_integers_are_read_packed_and_unpacked():
    assert read_message("M", write_message((1, b"\x08\xac\x02"), (1, 7))).integers(1) == [8, 300, 7]


def test_other_messages_are_not_flight_sql_commands():
    assert not flight_sql.is_command(b'{"table": "stats.columns"}')
    assert not flight_sql.is_command(b"\x0a\x10\x0a\x0e\x12\x03sys\x1a\x07flights")  # Floecat's
    assert not flight_sql.is_command(b"")
    with pytest.raises(InvalidArgument, match="not a message of Flight SQL"):
        read_any(write_message((1, b"type.googleapis.com/google.protobuf.Empty")))


@given(st.binary(max_size=60))
def test_damaged_bytes_are_rejected_with_a_short_reason(data):
    for read in (lambda: read_message("M", data), lambda: read_any(write_any("X")[:-1] + data)):
        try:
            message = read()
            message.integers(1), message.flag(2), message.texts(3)
        except InvalidArgument as error:
            assert len(str(error)) < 300


@pytest.mark.parametrize("data", [b"\x00\x01", b"\x02\x01a", b"\x08\x01\x00\x00"], ids=["integer", "bytes", "second"])
def test_fields_with_the_number_0_are_refused(data):
    with pytest.raises(InvalidArgument, match="field numbers begin with 1"):
        read_message("M", data)


def test_message_with_too_many_fields_is_rejected():
    with pytest.raises(InvalidArgument, match="70000 fields"):
        read_message("M", write_message(*[(1, 1)] * 70_001))
