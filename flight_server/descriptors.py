"""Whatever names a read — path, JSON command, protobuf command, ticket — becomes one `ScanRequest`."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from store import predicate
from store.errors import InvalidArgument, InvalidField, NotFound, nearest
from store.predicate import Node
from store.schemas import FLIGHTS, Flight

MAX_COMMAND_BYTES: Final = 8 << 20
TICKET_VERSION: Final = 0x01
COMMAND_VERSION: Final = 1
CURRENT: Final = "current"
FORMATS: Final = ("ARROW_IPC", "ROWS")
MAX_LIMIT: Final = 2**62
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")

COMMAND_KEYS: Final = (
    "table", "columns", "predicates", "filter", "snapshot", "allow_stale", "limit", "query_id", "output_format", "version",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A validated read of one flight.

    `columns` are names of the flight's schema in the order asked; None asks for all. `pins` (table key → snapshot id)
    fixes what "current" meant when the ticket was made.
    """

    flight: Flight
    columns: tuple[str, ...] | None = None
    node: Node | None = None
    snapshot: str | int | None = None
    allow_stale: bool = False
    limit: int | None = None
    query_id: str | None = None
    rows: bool = False
    pins: Mapping[int, int] | None = None
    command: Mapping[str, Any] | None = None

    @property
    def names(self) -> list[str]:
        return list(self.flight.schema.names if self.columns is None else self.columns)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        if self.rows:
            return pa.schema([("row", pa.string())])
        return pa.schema([self.flight.schema.field(name) for name in self.names])


def find_flight(name: str) -> Flight:
    if found := FLIGHTS.get(name):
        return found
    raise NotFound(
        f'no flight "{name[:200]}"',
        code="UNKNOWN_FLIGHT",
        hint=nearest(name[:200], list(FLIGHTS)) or "ListFlights names them all",
        params={"flight": name[:200]},
    )


def of_descriptor(descriptor: flight.FlightDescriptor, header_query_id: str | None = None) -> ScanRequest:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return ScanRequest(find_flight(path_name(descriptor)))
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return of_command(descriptor.command, header_query_id)
    raise InvalidArgument("the descriptor has neither a path nor a command", hint='send the path ["stats", "columns"]')


def path_name(descriptor: flight.FlightDescriptor) -> str:
    try:
        return ".".join(part.decode() for part in descriptor.path)
    except UnicodeDecodeError:
        raise InvalidArgument("the descriptor's path is no UTF-8") from None


def of_ticket(ticket: bytes, header_query_id: str | None = None) -> ScanRequest:
    """A ticket of GetFlightInfo, or a JSON command in its place."""
    _check_size(ticket, "ticket")
    if ticket[:1] == b"{" or not ticket:
        return of_command(ticket, header_query_id)
    if ticket[0] != TICKET_VERSION or len(ticket) < 5:
        raise InvalidArgument("the ticket is of an unknown version or no ticket", hint="ask GetFlightInfo for a new one")
    body = ticket[5:]
    if struct.pack("<I", zlib.crc32(body)) != ticket[1:5]:
        raise InvalidArgument("the ticket is damaged", hint="ask GetFlightInfo for a new one")
    try:
        inflater = zlib.decompressobj()
        plain = inflater.decompress(body, MAX_COMMAND_BYTES)
        command = json.loads(plain)
        pins = command.pop("pins", None)
    except (zlib.error, ValueError, AttributeError):
        raise InvalidArgument("the ticket is damaged", hint="ask GetFlightInfo for a new one") from None
    request = of_json(command, header_query_id)
    return replace(request, pins=None if pins is None else {int(k): int(v) for k, v in pins})


def to_ticket(request: ScanRequest) -> flight.Ticket:
    command = dict(request.command or {"table": request.flight.name})
    if request.pins is not None:
        command["pins"] = [list(pair) for pair in request.pins.items()]
    body = zlib.compress(json.dumps(command).encode(), 1)
    return flight.Ticket(bytes([TICKET_VERSION]) + struct.pack("<I", zlib.crc32(body)) + body)


def of_command(command: bytes, header_query_id: str | None = None) -> ScanRequest:
    """A JSON command, or one of another protocol: those have control characters in them, and JSON has none."""
    _check_size(command, "command")
    if command[:1] == b"{" or not _CONTROL.search(command):
        return of_json(parse_json(command, "command"), header_query_id)
    from flight_server.protocols import floecat

    return of_json(floecat.to_command(command, header_query_id), header_query_id)


def parse_json(data: bytes, what: str) -> Any:
    _check_size(data, what)
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        raise InvalidArgument(f"the {what} is no JSON", hint="send a UTF-8 JSON object") from None


def of_json(body: Any, header_query_id: str | None = None) -> ScanRequest:
    """The JSON command of the contract; every key is checked before the table is looked up."""
    if not isinstance(body, dict):
        raise InvalidArgument("the command is no JSON object", hint='such as {"table": "stats.columns"}')
    refuse_unknown_keys(body, COMMAND_KEYS, "command")
    name = body.get("table")
    if not isinstance(name, str):
        raise InvalidField("table", "is missing or no text", expected="the name of a flight", actual=name)
    columns = body.get("columns")
    if columns is not None and (not isinstance(columns, list) or not all(isinstance(c, str) for c in columns)):
        raise InvalidField("columns", "is no list of names", expected='["ndv"]', actual=columns)
    node = _tree(body)
    snapshot = _snapshot(body.get("snapshot"))
    allow_stale = body.get("allow_stale", False)
    if not isinstance(allow_stale, bool):
        raise InvalidField("allow_stale", "is no truth value", expected="true | false", actual=allow_stale)
    limit = body.get("limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MAX_LIMIT):
        raise InvalidField("limit", "is no count", expected="an integer ≥ 0", actual=limit)
    output = body.get("output_format", "ARROW_IPC")
    if output not in FORMATS:
        raise InvalidField("output_format", "is unknown", expected=" | ".join(FORMATS), actual=output)
    version = body.get("version", COMMAND_VERSION)
    if isinstance(version, bool) or version != COMMAND_VERSION:
        raise InvalidField("version", "is unknown", expected=COMMAND_VERSION, actual=version)
    query_id = check_query_id(body.get("query_id"), header_query_id)
    found = find_flight(name)
    if snapshot is not None and not name.startswith("stats."):
        raise InvalidField("snapshot", f"does not apply to {name}", expected="a stats.* flight", actual=snapshot)
    return ScanRequest(
        found, project(found, columns), node, snapshot, allow_stale, limit, query_id, output == "ROWS", None, body
    )


def check_query_id(query_id: Any, header: str | None) -> str | None:
    if query_id is not None and not isinstance(query_id, str):
        raise InvalidField("query_id", "is no text", expected="text", actual=query_id)
    if query_id and header and query_id != header:
        raise InvalidField("query_id", "differs from the header x-query-id", expected=header, actual=query_id)
    return query_id or header


def refuse_unknown_keys(body: Mapping[str, Any], known: tuple[str, ...] | frozenset[str], what: str) -> None:
    for key in body:
        if key not in known:
            hint = nearest(key, list(known)) or f"it takes {', '.join(sorted(known))}"
            raise InvalidArgument(f'the {what} has no key "{key[:100]}"', hint=hint, params={"key": key[:100]})


def project(found: Flight, columns: list[str] | None) -> tuple[str, ...] | None:
    """Names of the flight's schema: trimmed, any case, unknown dropped, the first of duplicates; None for all."""
    if not columns:
        return None
    known = {name.lower(): name for name in found.schema.names}
    asked = (known.get(column.strip().lower()) for column in columns)
    return tuple(dict.fromkeys(name for name in asked if name is not None))


def _tree(body: Mapping[str, Any]) -> Node | None:
    parts = []
    if body.get("predicates") is not None:
        parts.append(predicate.parse_predicates(body["predicates"]))
    if "filter" in body and body["filter"] is not None:
        parts.append(predicate.parse(body["filter"]))
    nodes = [part for part in parts if part is not None]
    return nodes[0] if len(nodes) == 1 else predicate.And(tuple(nodes)) if nodes else None


def _snapshot(value: Any) -> str | int | None:
    if value is None or value == CURRENT:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidField("snapshot", "is no snapshot", expected='"current" or an id', actual=value)
    return value


def _check_size(data: bytes, what: str) -> None:
    if len(data) > MAX_COMMAND_BYTES:
        raise InvalidArgument(f"the {what} has {len(data)} bytes; at most {MAX_COMMAND_BYTES} are taken")
