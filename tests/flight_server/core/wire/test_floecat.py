"""The protobuf command of Floecat: its meaning, and rejection of malformed bytes."""

from __future__ import annotations

import random

import pytest

from flight_server.core.wire.floecat import to_command
from flight_server.core.wire.scan_request import of_command
from store.model.errors import InvalidArgument, NotFound, StatflightError
from store.model.predicates.tree import MAX_NODES, MAX_VALUES
from tests.flight_server.core.wire.floecat_messages import SystemTableFlightCommand


def message(table="stats.columns", columns=(), predicates=(), query_id="q", **name):
    """A command built by the protobuf runtime."""
    built = SystemTableFlightCommand()
    *path, last = table.split(".")
    built.target.name.path.extend(path)
    built.target.name.name = last
    for field, value in name.items():
        setattr(built.target.name, field, value)
    built.required_columns.extend(columns)
    for column, op, *values in predicates:
        built.predicates.add(column=column, op=op, values=values)
    built.query_id = query_id
    return built


def command(*arguments, **options) -> bytes:
    return message(*arguments, **options).SerializeToString()


# The same bytes written by hand, with the field numbers and wire types of Floecat.


def field(number: int, data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def test_encoding_matches_the_field_numbers_of_floecat():
    name_ref = field(2, "stats") + field(3, "columns")
    leaf = field(1, "ndv") + b"\x10\x06" + field(3, "1") + field(3, "9")
    data = field(1, field(1, name_ref)) + field(2, "ndv") + field(2, "min") + field(3, leaf) + field(4, "q-7")
    assert data == command("stats.columns", ("ndv", "min"), (("ndv", 6, "1", "9"),), "q-7")
    assert to_command(data, None) == {
        "table": "stats.columns",
        "columns": ["ndv", "min"],
        "predicates": [{"column": "ndv", "op": "BETWEEN", "values": ["1", "9"]}],
        "query_id": "q-7",
    }


def test_operators_are_mapped_by_number():
    names = ["EQ", "NEQ", "LT", "LTE", "GT", "GTE", "BETWEEN", "IN", "IS_NULL", "IS_NOT_NULL"]
    parsed = to_command(command(predicates=tuple(("c", number) for number in range(10))), None)
    assert [leaf["op"] for leaf in parsed["predicates"]] == names
    # zero is not written at all, and is EQ
    (leaf,) = to_command(field(1, field(1, field(3, "a.b"))) + field(3, field(1, "c")) + field(4, "q"), None)[
        "predicates"
    ]
    assert leaf == {"column": "c", "op": "EQ", "values": []}


@pytest.mark.parametrize("number", [10, 99, 2**31 - 1, -1])
def test_unknown_operator_is_rejected(number):
    data = message(predicates=(("c", 9),))
    data.predicates[0].op = number
    with pytest.raises(InvalidArgument, match=r"predicates\[0\].op: is unknown"):
        to_command(data.SerializeToString(), None)


@pytest.mark.parametrize(
    "name",
    [
        {"table": "stats.columns"},
        {"table": "columns", "name": " Stats.Columns "},
        {"table": "STATS.Columns"},
        {"table": "stats.columns", "catalog": "anything"},
    ],
)
def test_table_names_are_normalized(name):
    assert to_command(command(**name), None)["table"] == "stats.columns"


@pytest.mark.parametrize(
    "data",
    [
        field(4, "q"),
        field(1, b"") + field(4, "q"),
        field(1, field(1, b"")) + field(4, "q"),
        field(1, field(1, field(2, "stats"))) + field(4, "q"),
        field(1, field(1, field(3, "  "))) + field(4, "q"),
        field(1, field(2, field(2, "some-id"))) + field(4, "q"),
        b"",
    ],
)
def test_missing_name_is_rejected(data):
    with pytest.raises(InvalidArgument, match="target"):
        to_command(data, None)


def test_last_of_name_and_id_wins():
    name, id = field(1, field(3, "sys.flights")), field(2, field(2, "x"))
    assert to_command(field(1, id + name) + field(4, "q"), None)["table"] == "sys.flights"
    with pytest.raises(InvalidArgument, match="target"):
        to_command(field(1, name + id) + field(4, "q"), None)


@pytest.mark.parametrize(("in_command", "header"), [("", None), ("", ""), ("  ", None), ("", " ")])
def test_query_id_is_required(in_command, header):
    with pytest.raises(InvalidArgument, match="query_id: is missing"):
        to_command(command(query_id=in_command), header)


@pytest.mark.parametrize(("in_command", "header"), [("q", None), ("", "q"), ("q", "q"), ("q", " "), (" ", "q")])
def test_query_id_comes_from_the_command_or_the_header(in_command, header):
    assert to_command(command(query_id=in_command), header)["query_id"] == "q"


def test_different_query_ids_are_rejected():
    with pytest.raises(InvalidArgument, match="differs from the header x-query-id"):
        to_command(command(query_id="q"), "p")


def test_unknown_fields_are_accepted_anywhere():
    name_ref = field(9, "x") + field(2, "stats") + field(3, "columns") + field(4, field(2, "id"))
    leaf = field(1, "ndv") + b"\x10\x08" + b"\x78\x07"
    data = (
        field(15, "first") + field(1, field(7, "y") + field(1, name_ref)) + field(3, leaf) + field(4, "q") + b"\x50\x01"
    )
    assert to_command(data, None) == to_command(command(predicates=(("ndv", 8),)), None)
    assert of_command(data).flight.name == "stats.columns"


def test_condition_may_have_as_many_values_as_in_json():
    values = [str(number) for number in range(MAX_VALUES)]
    (leaf,) = to_command(command(predicates=(("ndv", 7, *values),)), None)["predicates"]
    assert leaf["values"] == values


def test_too_many_predicates_are_rejected():
    with pytest.raises(InvalidArgument, match="more than"):
        to_command(command() + field(3, b"") * (MAX_NODES + 1), None)


def test_commands_of_any_length_are_distinguished_from_json():
    # the length bytes look like text: line feeds, quotes, braces, digits, letters
    for length in range(1, 140):
        data = command("sys.flights", catalog="c" * length)
        assert of_command(data).flight.name == "sys.flights"
        data = field(4, "q" * length) + field(1, field(1, field(3, "sys.flights")))
        assert of_command(data).query_id == "q" * length


def test_command_becomes_a_scan_request():
    request = of_command(command("stats.columns", (" NDV", "none", "ndv"), (("table_name", 0, "t"),)), "q")
    assert request.names == ["ndv"]
    assert request.query_id == "q"
    with pytest.raises(NotFound, match="no flight"):
        of_command(command("sys.query"))
    with pytest.raises(InvalidArgument, match="EQ takes 1 value"):
        of_command(command(predicates=(("c", 0),)))


@pytest.mark.parametrize(
    "data",
    [
        bytes(range(256)),
        b"\x00",
        b"\x0a",
        b"\x0a\xff",
        b"\xff" * 64,
        b"\x0b" * 500,
        field(1, b"\xff\xfe"),
        field(4, b"\xff\xfe"),
    ],
)
def test_random_bytes_are_rejected(data):
    with pytest.raises(InvalidArgument):
        of_command(data)


def mutate(data: bytes, chance: random.Random) -> bytes:
    mutant = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(mutant) + 1)
        match chance.randrange(5):
            case 0 if at < len(mutant):
                mutant[at] = chance.randrange(256)
            case 1:
                mutant[at:at] = chance.randbytes(chance.randint(1, 4))
            case 2:
                del mutant[at : at + chance.randint(1, 4)]
            case 3 if at < len(mutant):
                mutant[at] ^= 1 << chance.randrange(8)
            case 4:
                mutant[at:at] = mutant[: chance.randint(0, len(mutant))]
    return bytes(mutant)


def test_mutated_commands_are_read_or_rejected():
    chance = random.Random(20261)
    seeds = [
        command(),
        command("sys.flights", ("name", "writable"), (("name", 7, "a", "b", "ü"), ("name", 9)), "query-1"),
        command("information_schema.columns", predicates=tuple(("c", op % 10, "1") for op in range(20))),
    ]
    rejected = 0
    for _ in range(5000):
        mutant = mutate(chance.choice(seeds), chance)
        try:
            of_command(mutant, chance.choice([None, "q", ""]))
        except StatflightError as error:
            assert error.status in ("INVALID_ARGUMENT", "NOT_FOUND")
            str(error).encode()
            rejected += 1
    assert 0 < rejected < 5000
