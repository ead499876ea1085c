"""The pyarrow.flight methods, thin: authenticate, parse, hand on.

Every method checks in this order: the size, the caller, the command, and then the objects it names. All errors leave
through `wire.status.to_flight`.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from flight_server.core import actions, audit_log
from flight_server.core.app import App
from flight_server.core.auth.handshake import Greeting, NoHandshake, greet
from flight_server.core.auth.principal import ANONYMOUS, Principal
from flight_server.core.auth.tokens import Authenticator, Guard
from flight_server.core.part import Asking
from flight_server.core.reads.stream import Stream
from flight_server.core.transfer import pieces
from flight_server.core.wire import flight_sql, lag, scan_request, status, tickets
from flight_server.core.writes import ingest
from store.model.errors import (
    Cancelled,
    InvalidArgument,
    StatflightError,
    Unauthenticated,
    Unimplemented,
)
from store.model.schemas import FLIGHTS
from store.role import Role

if TYPE_CHECKING:
    from flight_server.process.metrics import Metrics

MAX_BODY_BYTES: Final = 64 << 20
WRITTEN: Final = pa.ipc.IpcWriteOptions()  # the default, made once: making it reads the environment


class _Arrivals(flight.ServerMiddlewareFactory):
    """Headers of calls; the method of each call takes them, in the same thread.

    We create no per-call middleware: Flight would re-enter Python three more times (headers sent, call completed,
    destructor), each waiting for the GIL.
    """

    def __init__(self, authenticator: Authenticator | Guard) -> None:
        self._authenticator = authenticator
        self._by_thread: dict[int, dict[str, list[str | bytes]]] = {}

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> Greeting | None:
        if info.method == flight.FlightMethod.HANDSHAKE:
            return greet(self._authenticator.authenticate, headers)
        self._by_thread[threading.get_ident()] = headers  # HTTP/2 header names are in lower case
        return None

    def take(self) -> dict[str, list[str | bytes]]:
        return self._by_thread.pop(threading.get_ident())


_LATE: Final = ("DoGet", "DoPut", "DoAction")  # whose headers about generations are added with the answer
_WITH_ROWS: Final = ("finish_job", "finish_jobs")  # actions whose bodies have Arrow data


class _Answering:
    """The headers of one call. Maps its errors to their status, and counts and logs the call.

    A stream enters it a second time, before the method returns, for its batches: only their errors are counted.

    Args:
        headers: Headers of the call. The correlation id is returned with the answer.
        method: Name of the RPC, such as DoGet.
        action: Name of the action of a DoAction, else empty.
        role: Role of the server when the call began.

    Attributes:
        is_late: True if the headers about generations are added with the answer: that of a write is of the generation
            that it has made.
    """

    __slots__ = (
        "_action",
        "_context",
        "_counted",
        "_entered",
        "_headers",
        "_lock",
        "_method",
        "_metrics",
        "_started",
        "_told",
        "caller",
        "correlation_id",
        "is_late",
        "role",
    )

    def __init__(
        self,
        metrics: Metrics | None,
        context: flight.ServerCallContext,
        headers: dict[str, list[str | bytes]],
        method: str,
        action: str,
        role: Role,
    ):
        self.role, self.is_late, self._told = role, method in _LATE, False
        self._started = time.perf_counter()
        self._metrics, self._context, self._headers = metrics, context, headers
        self._method, self._action, self._counted, self.caller = method, action, False, ""
        self._entered = 0
        self._lock = threading.RLock()  # a generator may be closed by the garbage collector while this thread holds it
        given = self.get("x-correlation-id")
        own = given and given.isprintable() and given[:200]
        # ids need not be hard to guess, and `os.urandom` is a system call
        self.correlation_id = own or f"{random.getrandbits(128):032x}"
        context.add_header("x-correlation-id", self.correlation_id)

    def tell(self, generation: int | None = None) -> None:
        """Adds the headers of answers that may be of before, unless they are there.

        Args:
            generation: That of the answer; None for the newest that this server has.
        """
        role = self.role
        if self._told or not role.tells:
            return
        self._told = True
        generation = role.generation if generation is None else generation
        for name, value in lag.headers(role.lag_ms, generation).items():
            self._context.add_header(name, value)

    def get(self, name: str) -> str | None:
        values = self._headers.get(name)
        if not values:
            return None
        return values[0] if isinstance(values[0], str) else values[0].decode("latin-1")

    def is_cancelled(self) -> bool:
        """True once the caller has disconnected or the call has ended; from any thread, at any time.

        Flight frees the context at the end of the call, and pyarrow would follow a pointer to it.
        """
        with self._lock:
            return not self._entered or self._context.is_cancelled()

    def __enter__(self) -> _Answering:
        self._entered += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, _: object) -> None:
        with self._lock:
            self._entered -= 1
        if raised is None:
            if self._metrics is not None and not self._counted:
                self._count("OK")
            self._counted = True
        elif not isinstance(raised, GeneratorExit):  # raised when the caller of a stream leaves
            self.tell()
            has_stream = self._method == "DoPut" or self._action in _WITH_ROWS
            error = status.to_flight(raised, self.correlation_id, has_stream=has_stream)
            code = status.code_of(error)
            polling = self._action == "lease_job" and code == "SHUTTING_DOWN"  # tells workers that the lease is over
            if code != "CANCELLED" and not polling:
                message = str(raised) if isinstance(raised, StatflightError) else str(error)
                what = f"{self._method}/{self._action}" if self._action else self._method
                audit_log.refusal(what, self.caller, self.correlation_id, code, message, self._context.peer())
            self._count(code)
            raise error from None

    def _count(self, code: str) -> None:
        if self._metrics is not None:
            self._metrics.answered(self._method, self._action, code, time.perf_counter() - self._started)


class StatflightServer(flight.FlightServerBase):
    """Every method checks size, caller and command, in this order, and raises only what `status.to_flight` makes."""

    def __init__(
        self,
        app: App,
        authenticator: Authenticator | Guard,
        location: str,
        metrics: Metrics | None = None,
        **options: Any,
    ):
        self._arrivals = _Arrivals(authenticator)
        super().__init__(location, NoHandshake(), middleware={"headers": self._arrivals}, **options)
        self.app, self.authenticator = app, authenticator
        self._actions = actions.ACTIONS | app.parts.actions
        followers = app.settings.followers
        self._locations = ["arrow-flight-reuse-connection://?", *followers.split(",")] if followers else []
        self.metrics = metrics

    def _answering(self, context: flight.ServerCallContext, method: str, action: str = "") -> _Answering:
        return _Answering(self.metrics, context, self._arrivals.take(), method, action, self.app.role)

    def _caller(self, call: _Answering) -> Principal:
        caller = self.authenticator.authenticate(call.get("authorization"))
        call.caller = caller.name
        lag.check(call.role, call.get)
        if not call.is_late:
            call.tell()
        return caller

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with self._answering(context, "ListFlights") as call:
            self._reader(call)
            prefix = criteria.decode("utf-8", "replace")
            infos = []
            for name in FLIGHTS:
                if name.startswith(prefix):
                    descriptor = flight.FlightDescriptor.for_path(*name.split("."))
                    infos.append(self._info(descriptor, scan_request.ScanRequest(FLIGHTS[name])))
        return iter(infos)

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        with self._answering(context, "GetFlightInfo") as call:
            caller = self._reader(call)
            if (command := self.app.parts.find(descriptor.command, self._asking(call, caller))) is not None:
                schema, ticket, rows = command.info()
                return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], rows, -1)
            request = scan_request.of_descriptor(descriptor, call.get("x-query-id"))
            call.role.check_read(request.max_lag_ms, request.min_generation)
            pinned = self.app.scanner.pin(request, caller)
            return self._info(descriptor, *self.app.scanner.parts(pinned, caller))

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        with self._answering(context, "GetSchema") as call:
            asking = self._asking(call, self._reader(call))
            if (command := self.app.parts.find(descriptor.command, asking)) is not None:
                return flight.SchemaResult(command.schema())
            return flight.SchemaResult(scan_request.of_descriptor(descriptor, call.get("x-query-id")).schema)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        with self._answering(context, "DoGet") as call:
            caller, role = self._reader(call), call.role
            with self.app.streams.asked_by(lambda: _who(caller, context.peer())):
                if role.tells:
                    (name, schema, answer), generation = role.consistently(
                        lambda: self._read(call, caller, ticket.ticket), _discard
                    )
                    call.tell(generation)
                else:
                    name, schema, answer = self._read(call, caller, ticket.ticket)
            if isinstance(answer, pa.Table):
                if self.metrics is not None:
                    self.metrics.rows_read(name, answer.num_rows)
                return flight.RecordBatchStream(answer, options=WRITTEN)
            batches = self._batches(call, name, answer)
            next(batches)
            return flight.GeneratorStream(schema, batches, options=WRITTEN)

    def _read(self, call: _Answering, caller: Principal, ticket: bytes) -> tuple[str, pa.Schema, pa.Table | Stream]:
        """The name of what a ticket reads, for metrics, its schema and its rows."""
        if (command := self.app.parts.find(ticket, self._asking(call, caller))) is not None:
            return command.get()
        if pieces.is_export(ticket):
            return "export", pieces.SCHEMA, self.app.exports.start(caller, call.is_cancelled)
        request = tickets.of_ticket(ticket, call.get("x-query-id"))
        call.role.check_read(request.max_lag_ms, request.min_generation)
        answer = self.app.scanner.read(request, caller, call.is_cancelled)
        self.app.usage.read(request, caller)
        return request.flight.name, request.schema, answer

    def _batches(self, call: _Answering, name: str, batches: Stream) -> Iterator[pa.RecordBatch | None]:
        """None, then the batches. Flight drops its reference at the end of the call, which closes a generator that has
        begun, and so the stream, before the call's context is freed; one that has not begun would skip the `with`."""
        with closing(batches), call:
            yield None
            for batch in batches:
                if self.metrics is not None:
                    self.metrics.rows_read(name, batch.num_rows)
                yield batch

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        with self._answering(context, "DoPut") as call, ingest.freed_if_refused():
            caller = self._caller(call)
            if (command := self.app.parts.find(descriptor.command, self._asking(call, caller))) is not None:
                self.app.access.require(caller, "stats.read")
                answer = command.put(chunk.data for chunk in reader)
            else:
                answer = json.dumps(self._put(call, caller, descriptor, reader)).encode()
            call.tell()
            try:
                writer.write(pa.py_buffer(answer))
            except OSError:
                raise Cancelled("the caller disconnected before the answer to its put") from None

    def _put(
        self,
        call: _Answering,
        caller: Principal,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
    ) -> dict[str, Any]:
        """Stores the rows of a put or adds them to a draft; returns the answer."""
        if pieces.is_import(descriptor.command):
            answer = self.app.imports.run(caller, reader, call.is_cancelled)
            audit_log.write("DoPut", caller, call.correlation_id, flight="import", **answer)
            return answer
        request = ingest.parse_put(descriptor)
        if request.draft is None:
            self.app.access.require(caller, "stats.write")
        else:
            self.app.access.require_worker(caller)
        directory = self.app.database.directory
        rows = ingest.read_rows(request, reader, caller, self.app.policy, call.is_cancelled, directory)
        put = ingest.to_put(request, rows)
        if request.draft is not None:
            self.app.queue.drafts.add(request.draft, put, request.whole)
            return {"received": rows.num_rows}
        given = request.idempotency_key
        own = None if given is None else json.dumps([caller.name, given])  # callers do not know each other's keys
        counts = self.app.store.put([put], idempotency_key=own)
        answer = counts._asdict()
        audit_log.write(
            "DoPut", caller, call.correlation_id, flight=request.flight.name, mode=str(request.mode), **answer
        )
        if self.metrics is not None:
            self.metrics.put(request.flight.name, counts)
        return answer

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterable[flight.Result]:
        if action.type in flight_sql.ACTIONS:
            return self._act(context, action)
        entry = self._actions.get(action.type)
        name = entry.name if entry is not None else "unknown"  # a label of a metric, which callers must not invent
        with self._answering(context, "DoAction", name) as call:
            caller = self._caller(call) if entry is None or not entry.open else self._anyone(call)
            if entry is None:
                raise Unimplemented(f'no action "{action.type[:100]}"', hint="the flight sys.functions lists them")
            body = _body(action)
            results = entry.run(self._called(call, caller), body)
            # the first result is made before anything is sent, so that an error is a refusal, not a broken stream
            items = results if isinstance(results, list) else list(islice(results, 1))
            first = [_result(item) for item in items]
            audit_log.action(name, body, caller, call.correlation_id, items)
            call.tell()
            if isinstance(results, list) or not first:
                return first
            stream = self._stream(call, first, results)
            next(stream)
            return stream

    def _act(self, context: flight.ServerCallContext, action: flight.Action) -> Iterable[flight.Result]:
        """An action of Flight SQL."""
        with self._answering(context, "DoAction", action.type) as call:
            caller = self._reader(call)
            results = self.app.parts.act(action.type, _body(action), self._asking(call, caller))
            call.tell()
            return [_result(item) for item in results]

    def _capture(self, call: _Answering, caller: Principal, body: bytes) -> list[dict[str, Any]]:
        """The action `capture`, for a statement."""
        outcomes = list(actions.ACTIONS["capture"].run(self._called(call, caller), body))
        audit_log.action("capture", body, caller, call.correlation_id)
        return outcomes

    def _stream(
        self, call: _Answering, first: list[flight.Result], rest: Iterator[Any]
    ) -> Iterator[flight.Result | None]:
        """None, then the results, within the call as those of `_batches`."""
        with call:
            yield None
            yield from first
            for item in rest:
                yield _result(item)

    def list_actions(self, context: flight.ServerCallContext) -> list[flight.ActionType]:
        with self._answering(context, "ListActions") as call:
            self._caller(call)
            return [
                *(flight.ActionType(a.name, f"{a.description}. Body: {a.arguments}") for a in self._actions.values()),
                *(flight.ActionType(name, description) for name, description in flight_sql.ACTIONS.items()),
            ]

    def do_exchange(self, context: flight.ServerCallContext, *_: Any) -> None:
        with self._answering(context, "DoExchange"):
            raise Unimplemented("DoExchange is not offered", hint="put with DoPut, read with DoGet")

    def _anyone(self, call: _Answering) -> Principal:
        try:
            return self._caller(call)
        except Unauthenticated:
            return Principal("anonymous", frozenset())

    def _asking(self, call: _Answering, caller: Principal) -> Asking:
        capture = partial(self._capture, call, caller)
        return Asking(caller, call.is_cancelled, call.get("x-query-id"), capture, call.role.check_read)

    def _called(self, call: _Answering, caller: Principal) -> actions.Call:
        return actions.Call(self.app, caller, call.correlation_id, call.is_cancelled, call.get("x-query-id"))

    def _reader(self, call: _Answering) -> Principal:
        caller = self._caller(call)
        self.app.access.require(caller, "stats.read")
        return caller

    def _info(self, descriptor: flight.FlightDescriptor, *parts: scan_request.ScanRequest) -> flight.FlightInfo:
        """Endpoints of the parts, in the order of the rows unless they are partitioned by hash."""
        endpoints = [flight.FlightEndpoint(tickets.to_ticket(part), self._locations) for part in parts]
        ordered = not any(part.part is not None and part.part.modulus > 1 for part in parts)
        return flight.FlightInfo(parts[0].schema, descriptor, endpoints, -1, -1, ordered=ordered)


def _who(caller: Principal, peer: str) -> str:
    """A caller among which the places of streams are shared: a token's name, else the host."""
    return peer.rpartition(":")[0] if caller is ANONYMOUS else caller.name


def _discard(answer: tuple[str, pa.Schema, pa.Table | Stream]) -> None:
    if isinstance(answer[2], Stream):
        answer[2].close()


def _body(action: flight.Action) -> bytes:
    buffer = action.body
    body: bytes = buffer.to_pybytes() if buffer is not None else b""
    if len(body) > MAX_BODY_BYTES:
        raise InvalidArgument(f"the body has {len(body)} bytes; at most {MAX_BODY_BYTES} are taken")
    return body


def _result(item: Any) -> flight.Result:
    if isinstance(item, pa.Buffer):
        return flight.Result(item)
    body = item if isinstance(item, bytes) else status.to_json(item).encode()
    return flight.Result(pa.py_buffer(body))
