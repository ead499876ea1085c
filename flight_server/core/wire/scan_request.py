"""`ScanRequest`: a validated read, parsed from a path, a JSON command, or a protobuf command."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight
from msgspec import Meta

from flight_server.client.conditions import exact_json
from flight_server.client.conditions.one_table import TableCondition
from flight_server.client.conditions.one_table import plan as plan_of
from flight_server.core.wire import lag
from store.duckdb.lru import LruCache
from store.model.errors import InvalidArgument, InvalidField, NotFound, nearest
from store.model.flight import Flight
from store.model.predicates import tree
from store.model.predicates.tree import Node
from store.model.schemas import FLIGHTS
from store.model.structs import Count, Snapshot, Truth, read

MAX_COMMAND_BYTES: Final = 8 << 20
CURRENT: Final = "current"
ALL: Final = "all"
MAX_PARTITIONS: Final = 1024
REMEMBERED_BYTES: Final = 64 << 20  # size of the cache of parsed commands and tickets
REMEMBERED_UP_TO: Final = 16 << 10  # most bytes of a cached command or ticket
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class Query(lag.Read):
    """Keys of every command."""

    columns: Annotated[list[str], Meta(title="must be a list of names", description='["ndv"]')] | None = None
    snapshot: Snapshot | None = None
    query_id: Annotated[str, Meta(title="must be a string")] | None = None
    version: Literal[1] = 1


class Command(Query, kw_only=True):
    """The JSON command of a read (see PROTOCOL.md)."""

    table: Annotated[str, Meta(title="must be a string", description="the name of a flight")]
    predicates: Any = None
    filter: Any = None
    allow_stale: Truth = False
    limit: Annotated[int, Meta(ge=0, le=2**62, title="must be an integer ≥ 0")] | None = None
    output_format: Literal["ARROW_IPC", "ROWS"] = "ARROW_IPC"
    partitions: Annotated[
        int, Meta(ge=1, le=MAX_PARTITIONS, title="must be an integer", description=f"1 to {MAX_PARTITIONS}")
    ] = 1
    strict: Truth = False


class Part(NamedTuple):
    """A part of a scan's rows: those of tables with `low` <= key < `high`, or those whose hash has a residue."""

    low: Count | None
    high: Count | None
    residue: Count
    modulus: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)]


@dataclass(frozen=True)
class ScanRequest:
    """A validated read of one flight. Immutable and shared between calls; derived properties are cached.

    Attributes:
        columns: Names of the flight's columns in the requested order; None for all.
        snapshot: "current" or an id; None for all stored rows.
        query_id: The caller's id of the request, if its body has one.
        rows: Return rows as JSON texts (format ROWS).
        pins: Table key → snapshot id that "current" meant when the ticket was created; None without a ticket.
        command: The JSON command; None for a path.
        partitions: Number of endpoints requested from GetFlightInfo, each with a `part`.
        part: Part of the rows to return; None for all.
        max_lag_ms: Greatest age of what is served, in milliseconds; None for any.
        min_generation: Commit that is served at least; None for none.
        generation: Generation of the stored rows that a ticket reads (`reads.generations`); None for the newest.
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
    partitions: int = 1
    part: Part | None = None
    max_lag_ms: int | None = None
    min_generation: int | None = None
    generation: tuple[int, ...] | None = None

    @cached_property
    def names(self) -> list[str]:
        """The columns of the answer, in order."""
        return list(self.flight.schema.names if self.columns is None else self.columns)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return _stream_of(self.flight.name, self.columns, self.rows)[0]

    @cached_property
    def head(self) -> bytes:
        """The schema as the first message of an IPC stream."""
        return _stream_of(self.flight.name, self.columns, self.rows)[1]

    @cached_property
    def plan(self) -> TableCondition:
        """The decomposed condition."""
        return plan_of(self.node, self.flight.schema)

    def changed(self, **attributes: Any) -> ScanRequest:
        """The request with other attributes; its flight and condition stay, so they are not decomposed again."""
        other = replace(self, **attributes)
        other.__dict__["plan"] = self.plan
        return other


@lru_cache(maxsize=1024)
def _stream_of(name: str, columns: tuple[str, ...] | None, rows: bool) -> tuple[pa.Schema, bytes]:
    """The schema of a stream of a flight, and its first message."""
    schema = FLIGHTS[name].schema
    if rows:
        schema = pa.schema([("row", pa.string())])
    elif columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    return schema, schema.serialize().to_pybytes()


def find_flight(name: str) -> Flight:
    """The flight with this name.

    Raises:
        NotFound: The flight does not exist; the hint has the nearest name.
    """
    if flight := FLIGHTS.get(name):
        return flight
    raise NotFound(
        f'no flight "{name[:200]}"',
        code="UNKNOWN_FLIGHT",
        hint=nearest(name[:200], list(FLIGHTS)) or "ListFlights names them all",
        params={"flight": name[:200]},
    )


def of_descriptor(descriptor: flight.FlightDescriptor, header_query_id: str | None = None) -> ScanRequest:
    """The request of a descriptor with a path or command.

    Raises:
        InvalidArgument: The descriptor is not valid.
        NotFound: The flight does not exist.
    """
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return ScanRequest(find_flight(path_name(descriptor)))
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return of_command(descriptor.command, header_query_id)
    raise InvalidArgument("the descriptor has neither a path nor a command", hint='send the path ["stats", "columns"]')


def path_name(descriptor: flight.FlightDescriptor) -> str:
    """The parts of a path, joined by dots.

    Raises:
        InvalidArgument: The path is not UTF-8.
    """
    try:
        return ".".join(part.decode() for part in descriptor.path)
    except UnicodeDecodeError:
        raise InvalidArgument("the descriptor's path is not valid UTF-8") from None


_remembered: LruCache[bytes, ScanRequest] = LruCache(REMEMBERED_BYTES)


def remember(data: bytes, request: ScanRequest) -> ScanRequest:
    """Caches the request of a command or ticket, and returns it."""
    if len(data) <= REMEMBERED_UP_TO:
        _remembered.put(data, request, 8192 + 16 * len(data))
    return request


recall = _remembered.get  # the cached request of a command or ticket; None if it is not cached


def of_command(command: bytes, header_query_id: str | None = None) -> ScanRequest:
    """The request of a JSON command, or of a protobuf command, which is recognized by control characters.

    Raises:
        InvalidField: The command has another query id than the header x-query-id.
    """
    check_size(command, "command")
    if (request := recall(command)) is None:
        if command[:1] != b"{" and _CONTROL.search(command):
            from flight_server.core.wire import floecat

            return of_json(floecat.to_command(command, header_query_id))
        request = remember(command, of_json(parse_json(command, "command", exact=True)))
    check_query_id(request.query_id, header_query_id)
    return request


def parse_json(data: bytes, what: str, *, exact: bool = False) -> Any:
    """The value of a JSON text in UTF-8, which messages call `what`.

    Args:
        exact: Return a Decimal for a fraction that no float represents.

    Raises:
        InvalidArgument: The text is too large, nested too deeply, not JSON, or not valid Unicode.
    """
    check_size(data, what)
    try:
        value = (exact_json.loads if exact else json.loads)(data.decode())
        if _SURROGATE.search(data):  # of which a lone one cannot be encoded in UTF-8
            json.dumps(value, ensure_ascii=False, default=str).encode()
        return value
    except RecursionError:
        raise InvalidArgument(f"the {what} is nested too deeply", hint="send at most some hundred levels") from None
    except ValueError:
        raise InvalidArgument(f"the {what} is not JSON", hint="send a UTF-8 JSON object") from None


def of_json(body: Any) -> ScanRequest:
    """The request of a parsed command (see PROTOCOL.md); all keys are validated before the flight is looked up.

    Raises:
        InvalidArgument: The command is not valid.
        NotFound: The flight does not exist.
    """
    command = read(body, Command, "command")
    node = None if command.predicates is None else tree.parse_predicates(command.predicates)
    if command.filter is not None:
        condition = tree.parse(command.filter)
        node = condition if node is None else tree.And((node, condition))
    of_flight = find_flight(command.table)
    if command.snapshot is not None and not command.table.startswith("stats."):
        reason = f"does not apply to {command.table}"
        raise InvalidField("snapshot", reason, expected="a stats.* flight", actual=command.snapshot)
    if command.strict:
        _check_strictly(of_flight, command.columns, node)
    return ScanRequest(
        of_flight,
        project(of_flight, command.columns),
        node,
        command.snapshot,
        command.allow_stale,
        command.limit,
        command.query_id,
        command.output_format == "ROWS",
        None,
        body,
        command.partitions,
        max_lag_ms=command.max_lag_ms,
        min_generation=command.min_generation,
    )


def check_query_id(query_id: str | None, header: str | None) -> None:
    """Checks the caller's id of a request against the header `x-query-id`.

    Raises:
        InvalidField: The two differ.
    """
    if query_id and header and query_id != header:
        raise InvalidField("query_id", "differs from the header x-query-id", expected=header, actual=query_id)


def project(flight: Flight, columns: list[str] | None) -> tuple[str, ...] | None:
    """The requested columns by their names in the flight's schema, without unknown ones and repetitions; None for all.

    Args:
        columns: Names, case-insensitive, with surrounding spaces allowed; None or empty for all.
    """
    if not columns:
        return None
    by_lower_case = {name.lower(): name for name in flight.schema.names}
    names = (by_lower_case.get(column.strip().lower()) for column in columns)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _check_strictly(flight: Flight, columns: list[str] | None, node: Node | None) -> None:
    """Refuses columns that the flight does not have and literals that do not suit the type of their column."""
    for column in columns or ():
        if project(flight, [column]) == ():
            raise tree.unknown_column(column, flight.schema)
    tree.check(node, flight.schema)


def check_size(data: bytes, what: str) -> None:
    """Checks the size of a body before it is parsed.

    Raises:
        InvalidArgument: The body has more than `MAX_COMMAND_BYTES`.
    """
    if len(data) > MAX_COMMAND_BYTES:
        raise InvalidArgument(f"the {what} has {len(data)} bytes; at most {MAX_COMMAND_BYTES} are taken")
