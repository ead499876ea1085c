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
    check_query_id,
    check_size,
    of_command,
    of_json,
    parse_json,
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
        InvalidField: It asks for partitions, or has another query id than the header x-query-id.
        NotFound: The flight does not exist.
    """
    check_size(ticket, "ticket")
    if (request := recall(ticket)) is None:
        is_command = ticket[:1] == b"{" or not ticket
        request = of_command(ticket, header_query_id) if is_command else remember(ticket, decoded(ticket))
    if request.partitions > 1:
        raise InvalidField(
            "partitions", "is for GetFlightInfo", expected="a ticket of one of its endpoints", actual=request.partitions
        )
    check_query_id(request.query_id, header_query_id)
    return request


def decoded(ticket: bytes) -> ScanRequest:
    """The request of a ticket of `to_ticket`; raises as `of_ticket` does."""
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
        command = parse_json(plain, "ticket", exact=True)
        fixed = read({name: command.pop(name, None) for name in ("pins", "part", "generation")}, _Fixed)
        if fixed.part is not None and fixed.part.residue >= fixed.part.modulus:
            raise ValueError
    except (zlib.error, ValueError, AttributeError, TypeError, RecursionError, InvalidArgument):
        raise InvalidArgument("the ticket is damaged", hint="ask GetFlightInfo for a new one") from None
    pins = None if fixed.pins is None else dict(fixed.pins)
    return replace(of_json(command), pins=pins, part=fixed.part, generation=fixed.generation)


def to_ticket(request: ScanRequest) -> flight.Ticket:
    """The ticket of a request, with its pinned snapshots, generation and part; `decoded` is the inverse. The request is
    remembered, as the ticket is likely to come back to this server."""
    command = dict(request.command or {"table": request.flight.name})
    command.pop("partitions", None)
    if request.pins is not None:
        command["pins"] = list(request.pins.items())
    if request.generation is not None:
        command["generation"] = request.generation
    if request.part is not None:
        command["part"] = request.part
    body = zlib.compress(dumps(command).encode(), 1)
    ticket = bytes([TICKET_VERSION]) + struct.pack("<I", zlib.crc32(body)) + body
    remember(ticket, request if request.partitions == 1 else request.changed(partitions=1))
    return flight.Ticket(ticket)
