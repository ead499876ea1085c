"""The Python client: statistics as Arrow tables, over one Flight connection.

    with StatsClient("grpc://127.0.0.1:8815") as client:
        client.columns("lake.sales.orders", snapshot="current")

Needs pyarrow and nothing else; conditions written as SQL text or as `pyarrow.compute` expressions load their
translator on first use. Errors are pyarrow's own classes with the server's message in plain: `reason()` words one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self, overload

import pyarrow as pa
import pyarrow.flight as flight

from store.names import join_name, split_name

__all__ = ["DEFAULT_URI", "Actions", "StatsClient", "full_name", "join_name", "of_table", "reason", "split_name"]

DEFAULT_URI = "grpc://127.0.0.1:8815"
TABLE_KINDS = frozenset({"ROW_COUNT", "FILE_COUNT", "TOTAL_BYTES"})  # the rest are kinds of a column
CONTAINERS = ("ARRAY", "MAP", "STRUCT", "VARIANT")  # no statistics of their own: their leaves are columns
PUT_ROWS = 65_536  # rows of a batch on its way to the server

Where = Any
"""A condition: a `pyarrow.compute` expression, SQL text, a filter tree, or a list of trees that must all hold."""


def of_table(name: str) -> list[dict[str, Any]]:
    """The predicates that pick one table."""
    values = zip(("table_catalog", "table_schema", "table_name"), split_name(name), strict=True)
    return [{"column": column, "op": "EQ", "values": [value]} for column, value in values]


# Errors.

_PREFIX = re.compile(r"^(?:(?:Flight|gRPC) returned [a-z ]+ error, with message: )+")
_DETAIL = "Python exception|Internal|Unavailable|Unauthenticated|Unauthorized|TimedOut|Cancelled|Failed"
_SUFFIX = re.compile(rf"\. (?:Detail: (?:{_DETAIL})\b|gRPC client debug context:|Client context:).*", re.DOTALL)
_CODES: tuple[tuple[type[BaseException], str], ...] = (
    (flight.FlightUnavailableError, "UNAVAILABLE"),
    (flight.FlightTimedOutError, "DEADLINE_EXCEEDED"),
    (flight.FlightCancelledError, "CANCELLED"),
    (flight.FlightUnauthenticatedError, "UNAUTHENTICATED"),
    (flight.FlightUnauthorizedError, "PERMISSION_DENIED"),
    (pa.ArrowNotImplementedError, "UNIMPLEMENTED"),
    (pa.ArrowKeyError, "NOT_FOUND"),
    (pa.ArrowInvalid, "INVALID_ARGUMENT"),
)


def reason(error: BaseException) -> str:
    """`[CODE] message` of an error, without what gRPC and pyarrow wrap around it."""
    message = _plain(error)
    if message.startswith("["):
        return message
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "INTERNAL")
    return f"[{code}] {message}"


def _plain(error: BaseException) -> str:
    text = str(error.args[0]) if error.args else str(error)
    return _SUFFIX.sub("", _PREFIX.sub("", text)).strip() or type(error).__name__


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Raises pyarrow's errors again with a readable message; class and extra_info stay."""
    try:
        yield
    except (pa.ArrowException, flight.FlightError) as error:
        message = _plain(error)
        if message == str(error.args[0] if error.args else ""):
            raise
        extra = getattr(error, "extra_info", None)
        raise (type(error)(message, extra) if extra else type(error)(message)) from None


# The client.


class StatsClient:
    """A connection to a statflight server.

    Args:
        uri: `grpc://host:port`, or `grpc+tls://host:port`; when None, STATFLIGHT_SERVER or the default address, and
            then the token may come from STATFLIGHT_TOKEN.
        token: bearer token sent with every call.
        tls_roots: PEM certificates the server's is checked against: a path, or the bytes.
        tls_cert, tls_key: the client's own PEM certificate and key, for a server that asks for one.
        timeout: seconds a call may take, unless a method says otherwise; None waits as long as it takes.
        connection: passed on to `pyarrow.flight.connect`.
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
        **connection: Any,
    ):
        certificates = {"tls_root_certs": tls_roots, "cert_chain": tls_cert, "private_key": tls_key}
        for name, value in certificates.items():
            if value is not None:
                connection[name] = value if isinstance(value, bytes) else Path(value).read_bytes()
        if uri is None:
            uri, token = os.environ.get("STATFLIGHT_SERVER", DEFAULT_URI), token or os.environ.get("STATFLIGHT_TOKEN")
        self.uri = uri
        self._timeout = timeout
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        with _clear_errors():
            self._flight = flight.connect(uri, **connection)
        self.actions = Actions(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._flight.close()

    def _options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=timeout or self._timeout, headers=self._headers)

    # Reading.

    @overload
    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
        stream: Literal[False] = False,
    ) -> pa.Table: ...

    @overload
    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
        *,
        stream: Literal[True],
    ) -> pa.RecordBatchReader: ...

    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
        stream: bool = False,
    ) -> pa.Table | pa.RecordBatchReader:
        """Reads any flight, such as `stats.columns`, in one round trip.

        Args:
            flight: its name; `client.read("sys.flights")` lists them.
            columns: the columns wanted, in this order; all when None.
            where: the condition on its rows.
            snapshot: `stats.*` only: "current" or an id gives one valid row a target; None gives all stored rows.
            allow_stale: with `snapshot`: also rows of older snapshots, labelled STALE.
            limit: at most so many rows.
            stream: a RecordBatchReader instead of a Table, for results larger than memory.
        """
        command: dict[str, Any] = {"table": flight, "strict": True}
        if columns is not None:
            command["columns"] = list(columns)
        if where is not None:
            command |= _condition(where)
        if snapshot is not None:
            command["snapshot"] = snapshot
        if allow_stale:
            command["allow_stale"] = True
        if limit is not None:
            command["limit"] = limit
        return self._get(command, stream)

    def _get(self, command: dict[str, Any], stream: bool) -> pa.Table | pa.RecordBatchReader:
        # The command itself is a ticket: one round trip instead of GetFlightInfo and DoGet.
        ticket = flight.Ticket(json.dumps(command).encode())
        with _clear_errors():
            reader = self._flight.do_get(ticket, self._options())
            return _batches(reader) if stream else reader.read_all()

    def tables(self, catalog: str | None = None) -> pa.Table:
        """The tables the server knows."""
        where = None if catalog is None else [{"column": "table_catalog", "op": "EQ", "values": [catalog]}]
        return self.read("information_schema.tables", where=where)

    def columns(
        self,
        table: str,
        *,
        snapshot: str | int | None = None,
        columns: Sequence[str] | None = None,
        where: Where = None,
        allow_stale: bool = False,
    ) -> pa.Table:
        """Column statistics of a table, by its full name."""
        return self.read_table("stats.columns", table, columns, where, snapshot, allow_stale)

    def files(
        self,
        table: str,
        *,
        snapshot: str | int | None = None,
        columns: Sequence[str] | None = None,
        where: Where = None,
        allow_stale: bool = False,
    ) -> pa.Table:
        """Files of a table, by its full name."""
        return self.read_table("stats.files", table, columns, where, snapshot, allow_stale)

    def read_table(
        self,
        flight: str,
        table: str,
        columns: Sequence[str] | None = None,
        where: Where = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
    ) -> pa.Table:
        """The rows of one table in any flight that has table_catalog, table_schema and table_name.

        Raises:
            pa.ArrowKeyError: UNKNOWN_TABLE, where no table has this name.
        """
        tree = [] if where is None else _tree(where)
        scope = of_table(table) + (tree if isinstance(tree, list) else [tree])
        found = self.read(flight, columns, scope, snapshot, allow_stale)
        if not found.num_rows:
            self.require_table(table)
        return found

    # Writing.

    def put(self, flight: str, table: Any, mode: str = "create", idempotency_key: str | None = None) -> dict[str, int]:
        """Puts rows into a writable flight, all of them or none.

        Args:
            flight: such as `stats.columns`.
            table: a Table, RecordBatch, RecordBatchReader, or anything with `__arrow_c_stream__`.
            mode: `create` refuses to change what is stored, `upsert` replaces a target's row, `replace_snapshot`
                replaces all rows of the snapshot.
            idempotency_key: the same key with the same rows may be put again, and is answered as the first time.

        Returns:
            Counts: received, created, unchanged, replaced.
        """
        command = {"table": flight, "mode": mode}
        if idempotency_key is not None:
            command["idempotency_key"] = idempotency_key
        return self._put(json.dumps(command).encode(), table)

    def _put(self, command: bytes, table: Any) -> dict[str, int]:
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        elif not isinstance(table, pa.Table | pa.RecordBatchReader):
            table = pa.RecordBatchReader.from_stream(table)
        batches = table.to_batches(max_chunksize=PUT_ROWS) if isinstance(table, pa.Table) else table
        reply: dict[str, int] = {}
        with _clear_errors():
            descriptor = flight.FlightDescriptor.for_command(command)
            writer, metadata = self._flight.do_put(descriptor, table.schema, self._options())
            try:
                for batch in batches:
                    writer.write_batch(batch)
                writer.done_writing()
                while (message := metadata.read()) is not None:
                    reply = json.loads(message.to_pybytes())
            except (pa.ArrowException, flight.FlightError, OSError):
                # A write into a stream that the server has ended fails without saying why; close tells the reason.
                writer.close()
                raise
            writer.close()
        return reply

    # Capture.

    def capture_requests(
        self,
        table: str,
        *,
        snapshot: str | int = "current",
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        mode: str = "SYNC",
        partitions: Sequence[Mapping[str, Any]] | None = None,
        sampling: str | Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """The requests for a table and its columns, as `capture` and `resolve` take them.

        Args:
            table: its full name.
            snapshot: "current", an id, or "all".
            columns: names of columns, in any case; None means each that can have statistics.
            kinds: such as MIN_MAX or NDV; None means any.
            mode: SYNC waits for the outcome, ASYNC answers QUEUED with a job id.
            partitions: such as [{"day": "2024-05-01"}]: only statistics of the files in them; not for `resolve`.
            sampling: of the columns, such as "RANDOM_ROW_GROUP" or {"method": "METADATA_GUIDED", "max_rows": 100_000}.

        Raises:
            pa.ArrowKeyError: the server knows no such table or column.
        """
        known = self.read_table("information_schema.columns", table, ["column_name", "column_id", "data_type"])
        found = {row["column_name"]: row for row in known.to_pylist()}
        columns = None if columns is None else [_known_as(name, found) for name in columns]
        if missing := [name for name in columns or () if name not in found]:
            raise pa.ArrowKeyError(
                f'[UNKNOWN_COLUMN] table "{table}" has no column "{missing[0]}"; it has {", ".join(found)}'
            )
        of_columns = None if kinds is None else [kind for kind in kinds if kind not in TABLE_KINDS]
        common: dict[str, Any] = {"table": table, "snapshot": snapshot, "mode": mode}
        if partitions is not None:
            common["partitions"] = list(partitions)
        selected = {} if columns is None else {"column_selectors": list(columns)}
        requests: list[dict[str, Any]] = [common | {"target": {"kind": "TABLE"}} | selected]
        if of_columns == []:
            return requests
        for row in found.values():
            if row["column_name"] in columns if columns is not None else not _is_container(row["data_type"]):
                target = {"kind": "COLUMN", "column_id": row["column_id"]}
                more: dict[str, Any] = {"kinds": of_columns} if of_columns else {}
                if sampling is not None:
                    more["sampling"] = sampling
                requests.append(common | {"target": target} | more)
        return requests

    def require_table(self, table: str) -> None:
        """Raises `pa.ArrowKeyError` unless the server knows the table."""
        if self.read("information_schema.tables", ["table_name"], of_table(table)).num_rows:
            return
        import difflib

        near = difflib.get_close_matches(table, [full_name(row) for row in self.tables().to_pylist()], 1, 0.6)
        hint = f'; did you mean "{near[0]}"?' if near else "; `statflight query information_schema.tables` lists them"
        raise pa.ArrowKeyError(f'[UNKNOWN_TABLE] no table "{table}"{hint}')

    def capture(
        self,
        tables: str | Iterable[str | Mapping[str, Any]],
        *,
        snapshot: str | int = "current",
        columns: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        mode: str = "SYNC",
        partitions: Sequence[Mapping[str, Any]] | None = None,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Captures statistics of tables (the table and its columns), or of requests as the wire has them.

        Returns:
            The requests in order, each with its `outcome`, `engine_id`, `job_id`, `detail` and `attributes`.
        """
        requests: list[Mapping[str, Any]] = []
        for item in [tables] if isinstance(tables, str) else tables:
            if isinstance(item, str):
                requests += self.capture_requests(
                    item, snapshot=snapshot, columns=columns, kinds=kinds, mode=mode, partitions=partitions
                )
            else:
                requests.append({"snapshot": snapshot, "target": {"kind": "TABLE"}, "mode": mode, **item})
        outcomes = self.actions.call("capture", {"requests": requests}, timeout=timeout)
        return [{**request, **outcome} for request, outcome in zip(requests, outcomes, strict=True)]

    def resolve(self, requests: Iterable[Mapping[str, Any]], *, timeout: float | None = None) -> list[dict[str, Any]]:
        """Statistics from the store, or captured within a budget: per request `outcome`, `detail` and `record`."""
        body = {"requests": [{"snapshot": "current", "mode": "SYNC", **request} for request in requests]}
        answer: list[dict[str, Any]] = self.actions.call("resolve", body, timeout=timeout)
        return answer


def _known_as(name: str, known: Iterable[str]) -> str:
    """The one column of this name, its case ignored unless several differ by it alone; else the name as given."""
    folded = [other for other in known if other.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else name


_ONE_RESULT = frozenset({
    "register_connector", "validate_connector", "drop_connector", "get_job", "cancel_job", "wait_job", "delete_stats",
    "stats_meta", "health",
})  # fmt: skip


class Actions:
    """The server's actions: `client.actions.health()`, `client.actions.wait_job(job_id="…")`."""

    def __init__(self, client: StatsClient):
        self._client = client

    def call(self, name: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> list[Any]:
        """All results of an action, in order."""
        return [json.loads(result) for result in self.call_raw(name, body, timeout=timeout)]

    def call_raw(
        self, name: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Iterator[bytes]:
        """The results as bytes, one by one as they arrive; `scan_system_table` answers Arrow messages."""
        client = self._client
        with _clear_errors():
            action = flight.Action(name, json.dumps(body or {}).encode())
            for result in client._flight.do_action(action, client._options(timeout)):
                yield result.body.to_pybytes()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def action(**body: Any) -> Any:
            results = self.call(name, body)
            return results[0] if name in _ONE_RESULT and len(results) == 1 else results

        return action


def full_name(row: Mapping[str, Any]) -> str:
    """The full name of the table a row speaks of."""
    return join_name(row["table_catalog"], row["table_schema"], row["table_name"])


def _is_container(data_type: str | None) -> bool:
    return re.split(r"[<(\s]", (data_type or "").upper(), maxsplit=1)[0] in CONTAINERS


def _tree(where: Where) -> Any:
    """The JSON form of a condition. Translators load here, so that the client itself needs pyarrow only."""
    if isinstance(where, str):
        from flight_server.conditions.sql import parse_where

        return parse_where(where)
    if isinstance(where, Mapping | list | tuple):
        return list(where) if isinstance(where, tuple) else where
    from flight_server.conditions.arrow_expressions import from_expression

    return from_expression(where)


def _condition(where: Where) -> dict[str, Any]:
    """The keys of the command that say it: predicates hold leaves only, anything else is a filter."""
    tree = _tree(where)
    if not isinstance(tree, list):
        return {"filter": tree}
    return {"predicates": tree} if all("column" in leaf for leaf in tree) else {"filter": {"and": tree}}


def _batches(reader: flight.FlightStreamReader) -> pa.RecordBatchReader:
    """A reader of the stream's batches. Flight's own `to_reader` would turn every error into an OSError."""

    def batches() -> Iterator[pa.RecordBatch]:
        with _clear_errors():
            for chunk in reader:
                yield chunk.data

    return pa.RecordBatchReader.from_batches(reader.schema, batches())
