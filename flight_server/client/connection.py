"""A Flight connection to a server, shared by the Python client, the Spark reader and capture workers.

Commands are JSON, results are Arrow or JSON. Errors are pyarrow's own classes, with the server's message only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar, overload

import pyarrow as pa
import pyarrow.flight as flight

from flight_server.client.conditions.exact_json import dumps
from flight_server.client.errors import UNAVAILABLE, clear_errors, reason
from flight_server.client.unreachable import address_of, explained, without_proxy_on_loopback

T = TypeVar("T")

_READS: Final = frozenset(
    {  # of the actions
        "read",
        "scan_system_table",
        "health",
        "stats_meta",
        "merge_sketches",
        "answer",
        "estimate",
    }
)

DEFAULT_URI: Final = "grpc://127.0.0.1:8815"
READ_SECONDS: Final = 3600.0  # that a column may take to be read
PUT_ROWS: Final = 65_536  # most rows of a batch sent to the server


class _Fork:
    """Whether this process was forked from one that had a connection: gRPC's threads are not in it, so that every call
    of the old connection, and of a new one, would wait for ever."""

    def __init__(self) -> None:
        self._is_used = self._is_child = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._is_child = self._is_used

    def use(self) -> None:
        """Notes that the process has a connection.

        Raises:
            RuntimeError: The process was forked from one that had one.
        """
        self._is_used = True
        self.check()

    def check(self) -> None:
        """Raises RuntimeError if the process was forked from one that had a connection."""
        if self._is_child:
            raise RuntimeError(
                "this process was forked from one with a connection to statflight, and gRPC does not work in it;"
                ' connect only after the fork, or start processes by multiprocessing.get_context("spawn")'
            )


_fork: Final = _Fork()


class Connection:
    """A connection to a statflight server. Thread-safe.

    Args:
        uri: `grpc://host:port`, which `host:port` means too, or `grpc+tls://host:port`, or several with commas between
            them: reads go to the first that answers, writes to the writer; None for STATFLIGHT_SERVER or the default
            address, and then for the token of STATFLIGHT_TOKEN unless one is given.
        token: Bearer token sent with every call.
        tls_roots: PEM certificates of the authorities to trust: a path, or the bytes.
        tls_cert: The client's PEM certificate, for mutual TLS: a path, or the bytes.
        tls_key: The private key of `tls_cert`: a path, or the bytes.
        timeout: Timeout of a call in seconds, unless a method has its own; None for no timeout.
        attempts: Number of attempts while the server is unavailable (restarting, or over a limit), with backoff. More
            than 1 requires the extra `client`.
        connection: Further arguments of `pyarrow.flight.connect`. On loopback no proxy is used, whatever variables
            such as `http_proxy` say, unless `generic_options` has `grpc.enable_http_proxy`.

    Raises:
        ImportError: `attempts` is greater than 1, and the extra `client` is not installed.
        pa.ArrowInvalid: The address is of another kind, such as that of pages.
        RuntimeError: The process was forked from one with a connection; calls raise it too.
    """

    def __init__(
        self,
        uri: str | None = None,
        token: str | None = None,
        tls_roots: str | Path | bytes | None = None,
        *,
        tls_cert: str | Path | bytes | None = None,
        tls_key: str | Path | bytes | None = None,
        timeout: float | None = None,
        attempts: int = 1,
        **connection: Any,
    ):
        _fork.use()
        certificates = {"tls_root_certs": tls_roots, "cert_chain": tls_cert, "private_key": tls_key}
        connection |= {name: _contents(value) for name, value in certificates.items() if value is not None}
        if uri is None:
            uri, token = os.environ.get("STATFLIGHT_SERVER", DEFAULT_URI), token or os.environ.get("STATFLIGHT_TOKEN")
        self.uri = uri
        self._at = {False: 0, True: 0}  # the address that reads, and the one that writes, went to last
        self._timeout, self._attempts = timeout, attempts
        if attempts > 1:
            require("stamina", "retries")
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        with clear_errors():
            addresses = [address_of(part) for part in uri.split(",") if part.strip()] or [uri]
            self._flights = [flight.connect(at, **without_proxy_on_loopback(at, connection)) for at in addresses]
        self._addresses = addresses

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.uri}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and its streams."""
        for client in self._flights:
            client.close()

    def options(self, timeout: float | None = None, correlation_id: str | None = None) -> flight.FlightCallOptions:
        """The options of a call, with the token as header.

        Args:
            timeout: Timeout in seconds; None for that of the connection.
            correlation_id: The id of the call in the server's log; None for one that the server makes.
        """
        _fork.check()
        own = [(b"x-correlation-id", correlation_id.encode())] if correlation_id else []
        return flight.FlightCallOptions(timeout=timeout or self._timeout, headers=self._headers + own)

    def call(self, call: Callable[[], T]) -> T:
        """Makes a call, with up to `attempts` attempts while the server is unavailable.

        Raises:
            pa.ArrowException: The error of the call, with the server's message only.
        """
        with clear_errors():
            if self._attempts <= 1:
                return call()
            import stamina

            for attempt in stamina.retry_context(on=flight.FlightUnavailableError, attempts=self._attempts):
                with attempt:
                    return call()
        raise AssertionError("the last attempt returns or raises")

    def _reach(self, call: Callable[[flight.FlightClient], T], *, writes: bool = False) -> T:
        """Makes a call at the first address that takes it, the one of the last such call first.

        Args:
            call: The call; repeated at the next address if one is unavailable, which a follower is for writes.
            writes: True if only the writer takes it.
        """
        first, count = self._at[writes], len(self._flights)
        for step in range(count):
            at = (first + step) % count
            try:
                result = call(self._flights[at])
            except flight.FlightUnavailableError as error:
                if step == count - 1:
                    raise self._explained(at, error) from None
            else:
                self._at[writes] = at
                return result
        raise AssertionError("the last address answers or raises")

    def _explained(self, at: int, error: flight.FlightUnavailableError) -> flight.FlightUnavailableError:
        """The error, with the cause in words if the connection failed and the cause is known."""
        message = reason(error)
        is_of_server = not message.startswith(UNAVAILABLE)
        why = "" if is_of_server else explained(self._addresses[at], message.removeprefix(UNAVAILABLE).strip())
        return flight.FlightUnavailableError(why) if why else error

    def _ask(self, call: Callable[[flight.FlightClient], T], *, writes: bool = False) -> T:
        """Makes a call as `call` and `_reach` do."""
        return self.call(lambda: self._reach(call, writes=writes))

    def _find_writer(self) -> None:
        """Looks for the writer, for a call that cannot be repeated."""
        role = flight.Ticket(b'{"table": "sys.replication", "columns": ["role"]}')
        for at, client in enumerate(self._flights if len(self._flights) > 1 else ()):
            with suppress(flight.FlightUnavailableError):
                if client.do_get(role, self.options()).read_all()["role"][0].as_py() in ("WRITER", "ALONE"):
                    self._at[True] = at
                    return

    # Calls.

    def schema(self, command: Mapping[str, Any]) -> pa.Schema:
        """The schema of the rows of a JSON command (see PROTOCOL.md)."""
        return self._ask(lambda client: client.get_schema(_descriptor(command), self.options()).schema)

    def tickets(self, command: Mapping[str, Any]) -> list[bytes]:
        """The tickets of a JSON command (see PROTOCOL.md): one, or one per part if it has `partitions`."""
        info = self._ask(lambda client: client.get_flight_info(_descriptor(command), self.options()))
        return [endpoint.ticket.ticket for endpoint in info.endpoints]

    @overload
    def get(self, ticket: bytes | Mapping[str, Any], stream: Literal[False] = False) -> pa.Table: ...

    @overload
    def get(self, ticket: bytes | Mapping[str, Any], stream: Literal[True]) -> pa.RecordBatchReader: ...

    def get(self, ticket: bytes | Mapping[str, Any], stream: bool = False) -> pa.Table | pa.RecordBatchReader:
        """Reads the rows of a ticket.

        Args:
            ticket: A ticket, or a JSON command, which saves the round trip of GetFlightInfo.
            stream: Return a RecordBatchReader instead of a Table.
        """
        data = flight.Ticket(ticket if isinstance(ticket, bytes) else dumps(ticket).encode())
        if stream:
            return _batches(self._ask(lambda client: client.do_get(data, self.options())))
        return self._ask(lambda client: client.do_get(data, self.options()).read_all())

    @overload
    def sql(self, statement: str, stream: Literal[False] = False) -> pa.Table: ...

    @overload
    def sql(self, statement: str, stream: Literal[True]) -> pa.RecordBatchReader: ...

    def sql(self, statement: str, stream: bool = False) -> pa.Table | pa.RecordBatchReader:
        """Runs a statement of Flight SQL: SELECT, SHOW TABLES, SHOW STATS FOR, DESCRIBE, EXPLAIN, ANALYZE.

        Args:
            statement: The statement, without a semicolon.
            stream: Return a RecordBatchReader instead of a Table.

        Returns:
            The rows.

        Raises:
            pa.ArrowInvalid: The statement is not of this language, or names an unknown column.
            pa.ArrowKeyError: It names an unknown flight or table.
        """
        descriptor = flight.FlightDescriptor.for_command(_statement(statement))
        writes = statement.lstrip()[:7].upper() == "ANALYZE"

        def run(client: flight.FlightClient) -> flight.FlightStreamReader:
            (endpoint,) = client.get_flight_info(descriptor, self.options()).endpoints
            return client.do_get(endpoint.ticket, self.options())

        if stream:
            return _batches(self._ask(run, writes=writes))
        return self._ask(lambda client: run(client).read_all(), writes=writes)

    def unique(self, table: str, column_id: int, snapshot: str | int = "current") -> bool:
        """Has a column read; true if no value of it occurs twice among the live rows.

        Args:
            table: Full name.
            column_id: Id of the column.
            snapshot: "current" or an id.

        Raises:
            pa.ArrowKeyError: There is no such table, column or snapshot.
            pyarrow.flight.FlightError: The column cannot be read, or the token lacks the scope `capture.run`.
        """
        body = {"table": table, "column_id": column_id, "snapshot": snapshot}
        (found,) = self.act("unique", body, READ_SECONDS)
        return bool(found["unique"])

    def put_rows(self, command: Mapping[str, Any], rows: Any) -> dict[str, int]:
        """Puts rows into a flight. A put of a RecordBatchReader is not retried, because its rows can be read only once.

        Args:
            command: The command: `table`, `mode`, optionally `idempotency_key`.
            rows: A Table, RecordBatch, RecordBatchReader, or any object with `__arrow_c_stream__`.

        Returns:
            Counts of rows: received, created, unchanged, replaced.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        elif not isinstance(rows, pa.Table | pa.RecordBatchReader):
            rows = pa.RecordBatchReader.from_stream(rows)
        if isinstance(rows, pa.Table):
            batches = rows.to_batches(max_chunksize=PUT_ROWS)
            return self._ask(lambda client: self._put(client, command, rows.schema, batches), writes=True)
        with clear_errors():
            self._find_writer()
            return self._put(self._flights[self._at[True]], command, rows.schema, rows)

    def _put(
        self,
        client: flight.FlightClient,
        command: Mapping[str, Any],
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
    ) -> dict[str, int]:
        reply: dict[str, int] = {}
        writer, metadata = client.do_put(_descriptor(command), schema, self.options())
        try:
            for batch in batches:
                writer.write_batch(batch)
            writer.done_writing()
            while (message := metadata.read()) is not None:
                reply = json.loads(message.to_pybytes())
        except (pa.ArrowException, flight.FlightError, OSError):
            # A write to a stream that the server has ended fails without a reason; `close` raises the server's error.
            writer.close()
            raise
        writer.close()
        return reply

    def act(
        self,
        name: str,
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        correlation_id: str | None = None,
    ) -> list[Any]:
        """Calls an action with JSON results; returns all of them, in order.

        Args:
            name: Name of the action.
            body: Arguments of the action.
            timeout: Timeout in seconds; None for that of the connection.
            correlation_id: See `options`.
        """
        return self.call(lambda: [json.loads(result) for result in self.act_raw(name, body, timeout, correlation_id)])

    def act_raw(
        self,
        name: str,
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        correlation_id: str | None = None,
    ) -> Iterator[bytes]:
        """Calls an action without parsing its results.

        Args:
            name: Name of the action.
            body: Arguments of the action.
            timeout: Timeout in seconds; None for that of the connection.
            correlation_id: See `options`.

        Yields:
            The results as bytes, as they arrive.
        """
        with clear_errors():
            action = flight.Action(name, _encoded(body or {}))
            first, rest = self._reach(
                lambda client: _begun(client.do_action(action, self.options(timeout, correlation_id))),
                writes=name not in _READS,
            )
            for result in chain(first, rest):
                yield result.body.to_pybytes()


def _begun(results: Iterator[flight.Result]) -> tuple[list[flight.Result], Iterator[flight.Result]]:
    """The first result, if any, and the others: an unavailable server fails at the first one."""
    return list(islice(results, 1)), results


def _contents(value: str | Path | bytes) -> bytes:
    """A certificate or key, given as itself or by its file."""
    return value if isinstance(value, bytes) else Path(value).read_bytes()


def _encoded(body: Mapping[str, Any]) -> bytes:
    """The body of an action: JSON, in which Arrow buffers are replaced by their lengths, followed by these buffers."""
    streams: list[pa.Buffer] = []

    def length_of(value: Any) -> int:
        if not isinstance(value, pa.Buffer):
            raise TypeError(f"{type(value).__name__} is not a value of JSON")
        streams.append(value)
        return int(value.size)

    text = json.dumps(body, default=length_of).encode()
    if not streams:
        return text
    text += b" " * (-len(text) % 8)
    return b"".join([bytes(4), len(text).to_bytes(4, "little"), text, *streams])


def _statement(sql: str) -> bytes:
    """The message CommandStatementQuery of Flight SQL, in a `google.protobuf.Any`."""

    def field(number: int, data: bytes) -> bytes:
        size, length = len(data), bytearray()
        while size > 0x7F:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes([number << 3 | 2, *length, size]) + data

    kind = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
    return field(1, kind) + field(2, field(1, sql.encode()))


def _descriptor(command: Mapping[str, Any]) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(dumps(command).encode())


def _batches(reader: flight.FlightStreamReader) -> pa.RecordBatchReader:
    """A reader of a stream's batches; Flight's own `to_reader` would convert all errors to OSError."""

    def batches() -> Iterator[pa.RecordBatch]:
        with clear_errors():
            for chunk in reader:
                yield chunk.data

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def require(module: str, what: str) -> None:
    """Checks that a library of the extra `client` is installed; `what` requires it, for the message.

    Raises:
        ImportError: The library is not installed; the message has the command to install it.
    """
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ImportError(f"{what} needs {module}: pip install 'statflight[client]'", name=module)
