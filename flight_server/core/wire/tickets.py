"""Tickets: opaque bytes of a scan request, returned by GetFlightInfo and accepted by DoGet.

A ticket is a version byte, a checksum, and the compressed JSON command with the snapshot ids that "current" meant, the
generation of the rows, and the part of them. To save a round trip, DoGet accepts the JSON command itself too.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Final

import pyarrow.flight as flight

from flight_server.client.conditions.exact_json import dumps
from flight_server.core.wire.scan_request import (
    MAX_COMMAND_BYTES,
    Part,
    ScanRequest,
    check_size,
    loads,
    of_command,
    of_json,
    recall,
    remember,
)
from store.model.errors import InvalidArgument, InvalidField
from store.model.structs import Count, Struct, read

TICKET_VERSION: Final = 0x01


class _Fixed(Struct):
    """Fields of a ticket that its command does not have."""

    pins: list[tuple[Count, Count]] | None
    part: Part | None
    generation: tuple[Count, ...] | None


def of_ticket(ticket: bytes, header_query_id: str | None = None) -> ScanRequest:
    """The request of a ticket, or of a JSON command in its place.

    Raises:
        InvalidArgument: The ticket is damaged or of another version, or the command is not valid.
        NotFound: The flight does not exist.
    """
    check_size(ticket, "ticket")
    if remembered := recall(ticket):
        return _unparted(remembered.asked_as(header_query_id))
    if ticket[:1] == b"{" or not ticket:
        return _unparted(of_command(ticket, header_query_id))
    if ticket[0] != TICKET_VERSION or len(ticket) < 5:
        raise InvalidArgument(
            "the ticket is of an unknown version, or not a ticket", hint="ask GetFlightInfo for a new one"
        )
    body = ticket[5:]
    if struct.pack("<I", zlib.crc32(body)) != ticket[1:5]:
        raise InvalidArgument("the ticket is damaged", hint="ask GetFlightInfo for a new one")
    try:
        inflater = zlib.decompressobj()
        plain = inflater.decompress(body, MAX_COMMAND_BYTES)
        command = loads(plain, exact=True)
        fixed = read({name: command.pop(name, None) for name in ("pins", "part", "generation")}, _Fixed)
        if fixed.part is not None and fixed.part.residue >= fixed.part.modulus:
            raise ValueError
    except (zlib.error, ValueError, AttributeError, TypeError, RecursionError, InvalidArgument):
        raise InvalidArgument("the ticket is damaged", hint="ask GetFlightInfo for a new one") from None
    request = _unparted(of_json(command))
    pins = None if fixed.pins is None else dict(fixed.pins)
    request = replace(request, pins=pins, part=fixed.part, generation=fixed.generation)
    return remember(ticket, request).asked_as(header_query_id)


def _unparted(request: ScanRequest) -> ScanRequest:
    if request.partitions > 1:
        raise InvalidField(
            "partitions", "is for GetFlightInfo", expected="a ticket of one of its endpoints", actual=request.partitions
        )
    return request


def to_ticket(request: ScanRequest) -> flight.Ticket:
    """The ticket of a request, with its pinned snapshots, generation and part; `of_ticket` is the inverse."""
    command = dict(request.command or {"table": request.flight.name})
    command.pop("partitions", None)
    if request.pins is not None:
        command["pins"] = [list(pair) for pair in request.pins.items()]
    if request.generation is not None:
        command["generation"] = list(request.generation)
    if request.part is not None:
        command["part"] = list(request.part)
    body = zlib.compress(dumps(command).encode(), 1)
    return flight.Ticket(bytes([TICKET_VERSION]) + struct.pack("<I", zlib.crc32(body)) + body)
