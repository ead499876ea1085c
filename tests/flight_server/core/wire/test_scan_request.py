"""Commands, paths and tickets: parsing, rejection, and caching."""

from __future__ import annotations

import json
import random
import struct
import zlib
from dataclasses import replace

import pyarrow.flight as flight
import pytest

from flight_server.core.wire import scan_request
from flight_server.core.wire.scan_request import Part, of_command, of_descriptor
from flight_server.core.wire.tickets import decoded, of_ticket, to_ticket
from store.model.errors import InvalidArgument, NotFound, StatflightError

COMMAND = {
    "table": "stats.columns",
    "columns": ["ndv", "NDV ", "no", "min"],
    "snapshot": "current",
    "limit": 5,
    "predicates": [{"column": "table_name", "op": "EQ", "values": ["t"]}],
    "allow_stale": True,
}


def data(**changes) -> bytes:
    return json.dumps(COMMAND | changes).encode()


def sealed(command: object) -> bytes:
    """A ticket with a valid checksum for any command."""
    body = zlib.compress(command if isinstance(command, bytes) else json.dumps(command).encode())
    return b"\x01" + struct.pack("<I", zlib.crc32(body)) + body


def test_ticket_round_trips_the_request():
    request = replace(of_command(data()), pins={3: 2**63 - 1, 1: 0}, part=Part(1, 4, 0, 1))
    ticket = to_ticket(request).ticket
    assert of_ticket(ticket) is request  # not even parsed
    found = decoded(ticket)
    assert (found.names, found.limit, found.pins, found.part) == (["ndv", "min"], 5, request.pins, request.part)
    assert found == request


def test_ticket_of_another_server_is_parsed_once():
    ticket = sealed(COMMAND | {"pins": [[1, 7]]})
    found = of_ticket(ticket)
    assert found.pins == {1: 7}
    assert of_ticket(ticket) is found


def test_partitions_are_not_in_a_ticket():
    request = of_command(data(partitions=7))
    assert request.partitions == 7
    ticket = to_ticket(request).ticket
    assert of_ticket(ticket).partitions == decoded(ticket).partitions == 1


def test_path_may_have_one_part_or_two():
    for path in (["stats", "columns"], ["stats.columns"]):
        assert of_descriptor(flight.FlightDescriptor.for_path(*path)).flight.name == "stats.columns"


@pytest.mark.parametrize(
    "ticket",
    [
        b"\x02" + sealed(COMMAND)[1:],
        b"\x01",
        b"\x01abcd",
        b"\xff" * 50,
        sealed(COMMAND)[:-1],
        sealed(b"[" * 100_000),
        sealed(b"[]"),
        sealed(b"null"),
        sealed(COMMAND | {"pins": 7}),
        sealed(COMMAND | {"pins": [[1]]}),
        sealed(COMMAND | {"pins": [[1, 2**63]]}),
        sealed(COMMAND | {"pins": [["1", "2"]]}),
        sealed(COMMAND | {"part": [1]}),
        sealed(COMMAND | {"part": [0, 1, 3, 2]}),
        sealed(COMMAND | {"part": [0, 1, 0, 0]}),
        sealed(COMMAND | {"part": "x"}),
        sealed(COMMAND | {"part": [0, 1, 0, 1.5]}),
        sealed(COMMAND | {"partitions": 2}),
        data(partitions=2),
        data(pins=[]),
        b"",
        b"{",
        data(part=[0, 1, 0, 1]),
    ],
)
def test_damaged_or_foreign_ticket_is_rejected(ticket):
    with pytest.raises(InvalidArgument):
        of_ticket(ticket)


def test_any_flipped_bit_of_a_ticket_is_detected():
    ticket = to_ticket(of_command(data())).ticket
    for place in range(len(ticket)):
        mutant = bytearray(ticket)
        mutant[place] ^= 1 << place % 8
        with pytest.raises(StatflightError):
            of_ticket(bytes(mutant))


def test_oversized_ticket_is_rejected():
    with pytest.raises(InvalidArgument):
        of_ticket(sealed(b'{"table": "' + b" " * (scan_request.MAX_COMMAND_BYTES + 10) + b'"}'))
    with pytest.raises(InvalidArgument, match="at most"):
        of_ticket(b"{" * (scan_request.MAX_COMMAND_BYTES + 1))


def test_command_nested_too_deeply_is_refused_as_such():
    command = b'{"table": "stats.columns", "filter": ' + b'{"not": ' * 2000 + b"1" + b"}" * 2001
    with pytest.raises(InvalidArgument, match=r"nested (too deeply|deeper)"):  # 3.14 reads more levels
        of_command(command)


def test_mutated_commands_are_rejected_or_parsed():
    chance = random.Random(7)
    for _ in range(3000):
        mutant = bytearray(data(columns=["ndv"]))
        for _ in range(chance.randint(1, 4)):
            mutant[chance.randrange(len(mutant))] = chance.randrange(256)
        try:
            request = of_ticket(bytes(mutant))
        except StatflightError:
            continue
        assert request.schema is not None and request.plan is not None


@pytest.mark.parametrize("partitions", [0, -1, 1.5, True, "4", None, scan_request.MAX_PARTITIONS + 1])
def test_partitions_must_be_a_count(partitions):
    with pytest.raises(InvalidArgument, match="partitions"):
        of_command(data(partitions=partitions))


def test_query_id_is_checked_for_cached_and_new_commands():
    command = data(query_id="q-1", limit=77)
    for _ in range(2):
        assert of_ticket(command, "q-1").query_id == "q-1"
        assert of_ticket(command).query_id == "q-1"
        with pytest.raises(InvalidArgument, match="query_id"):
            of_ticket(command, "q-2")
    plain = data(limit=78)
    assert {of_ticket(plain, given).query_id for given in (None, "a", "b", None)} == {None}  # any header suits it


def test_unknown_flight_is_not_found_and_the_nearest_named():
    with pytest.raises(NotFound, match=r"stats\.columns"):
        of_command(data(table="stats.colums"))
