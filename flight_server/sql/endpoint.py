"""The commands of Flight SQL: metadata, statements, prepared statements, sessions.

Statements read flights by the same scans as JSON commands, with the same permissions and limits. Prepared statements
are kept in an LRU cache; a client whose statement was evicted prepares it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.auth.principal import Principal
from flight_server.reads.null_slots import zeroed
from flight_server.reads.streams import Stream, never
from flight_server.sql import metadata, parameters, plan, pushdown, shapes, statement_answers, statements
from flight_server.sql.flights import NAIVE, naive
from flight_server.sql.kept_tables import KeptTable
from flight_server.sql.plan import Plan, Source
from flight_server.sql.pushdown import Slot
from flight_server.sql.running import RunningStatements
from flight_server.sql.sandbox import Rows, Sandbox, View
from flight_server.sql.statement_answers import Capture, StatementCall
from flight_server.sql.statements import Statement
from flight_server.sql.whole_columns import Kept, WholeColumns
from flight_server.wire import flight_sql
from flight_server.wire.flight_sql import Message
from flight_server.wire.scan_request import ScanRequest
from store.duckdb.lru import LruCache
from store.model.errors import Cancelled, InvalidArgument, NotFound, ResourceExhausted, ShuttingDown
from store.model.predicates import tree
from store.model.predicates.arrow import to_mask
from store.model.predicates.tree import And, Leaf, Op

if TYPE_CHECKING:
    from flight_server.app import App

MAX_SOURCE_BYTES: Final = 256 << 20  # most bytes that a statement reads from flights
BIND_SECONDS: Final = 10.0  # longest time to bind a statement
SMALL_ROWS: Final = 16_384  # most rows of an answer computed from whole columns
_PLANS_BYTES: Final = 16 << 20
_SHARED_BYTES: Final = 1 << 20  # size of the cache of statements that share plans
_PREPARED_BYTES: Final = 32 << 20
_PLAN_COST: Final = 8192  # estimated bytes of a plan besides its text
_NAMES: Final = ("table_catalog", "table_schema", "table_name")
_CLOSED: Final = 1  # status of the Flight SQL standard


@dataclass(frozen=True)
class _Planned:
    plan: Plan
    schema: pa.Schema
    filtered: Source | None  # the whole columns that can answer it
    statement: Statement | None = None  # then the plan is empty


@dataclass(frozen=True)
class _Prepared:
    caller: str
    planned: _Planned
    values: tuple[Any, ...] | None
    size: int


Answer: TypeAlias = pa.Table | Stream
_NO_PLAN: Final = Plan((), (), "", "", False, None)


class SqlEndpoint:
    """Answers the commands of Flight SQL.

    Args:
        app: The application, which runs the scans.
        release: The server's version, for clients.
    """

    def __init__(self, app: App, release: str):
        self._app, self._release = app, release
        self._sandbox = Sandbox()
        self._whole = WholeColumns(lambda: app.versions.epoch, app.settings.cache_bytes)
        self._plans: LruCache[str, _Planned] = LruCache(_PLANS_BYTES)
        self._shared: LruCache[str, tuple[_Planned, tuple[Any, ...]]] = LruCache(_SHARED_BYTES, 512)
        self._prepared: LruCache[bytes, _Prepared] = LruCache(_PREPARED_BYTES)
        self._running = RunningStatements()

    def close(self) -> None:
        """Closes the DuckDB instance for statements."""
        self._whole.clear()
        self._sandbox.close()

    def schema(self, data: bytes, caller: Principal, is_cancelled: Callable[[], bool] = never) -> pa.Schema:
        """Returns the schema of a command's result.

        Args:
            data: The command, an `Any`.
            caller: The caller.
            is_cancelled: True once the caller has disconnected.

        Raises:
            InvalidArgument: The command or its statement is not supported.
            NotFound: A table or the prepared statement does not exist.
            DeadlineExceeded: DuckDB needs more than BIND_SECONDS to bind the statement.
        """
        command = flight_sql.read_any(data)
        if command.name in metadata.SCHEMAS:
            return metadata.schema_of(command)
        return self._statement(command, caller, is_cancelled)[0].schema

    def get(
        self, data: bytes, caller: Principal, is_cancelled: Callable[[], bool], capture: Capture
    ) -> tuple[pa.Schema, Answer]:
        """Executes a command, which is its own ticket.

        Args:
            data: The command, an `Any`.
            caller: The caller.
            is_cancelled: True once the caller has disconnected.
            capture: The action `capture`, for ANALYZE.

        Returns:
            The schema, and the rows: a table if they are few, else a stream, which the caller closes.

        Raises:
            InvalidArgument: The command or its statement is not supported, or a parameter is not bound.
            NotFound: A table or the prepared statement does not exist.
            PermissionDenied: The caller may not capture, or does not see the table that the statement names.
            ResourceExhausted: The statement exceeds a memory limit.
        """
        command = flight_sql.read_any(data)
        if command.name in metadata.SCHEMAS:
            table = metadata.answer(command, self._release)
            return table.schema, table
        planned, values = self._statement(command, caller, is_cancelled)
        given = parameters.require(planned.plan, values)
        running = self._running.begin(caller, data)
        try:
            stops = lambda: running.is_set() or is_cancelled()  # noqa: E731
            if planned.statement is not None:
                answer: Answer = self._answer(planned.statement, caller, stops, capture)
            else:
                answer = self._run(planned, given, caller, stops)
        except BaseException:
            self._running.end(caller, data, running)
            raise
        if isinstance(answer, pa.Table):
            self._running.end(caller, data, running)
            return planned.schema, answer
        return planned.schema, answer.then(lambda: self._running.end(caller, data, running))

    def put(self, data: bytes, batches: Iterable[pa.RecordBatch], caller: Principal) -> bytes:
        """Binds the parameters of a prepared statement.

        Args:
            data: The command, an `Any`.
            batches: Batches with one row in all, the values.
            caller: The caller.

        Returns:
            The response, with the handle.

        Raises:
            InvalidArgument: There is not one row with a value for each parameter.
            NotFound: The statement does not exist, or belongs to another caller.
        """
        command = flight_sql.read_any(data)
        if command.name != "CommandPreparedStatementQuery":
            raise InvalidArgument(f"{command.name} is not supported", hint="statements only read")
        handle = command.data(1)
        prepared = self._find(handle, caller)
        size, values = parameters.read(batches, prepared.planned.plan)
        self._prepared.put(handle, replace(prepared, values=values), prepared.size + size)
        return flight_sql.write_message((1, handle))

    def act(self, name: str, body: bytes, caller: Principal, is_cancelled: Callable[[], bool] = never) -> list[bytes]:
        """Executes an action.

        Args:
            name: One of `flight_sql.ACTIONS`.
            body: Serialized message of the action.
            caller: The caller.
            is_cancelled: True once the caller has disconnected.

        Returns:
            The results, serialized messages.
        """
        if name == "CancelFlightInfo":
            return [self._running.cancel(flight_sql.read_message(name, body), caller)]
        request = flight_sql.read_any(body) if body else Message(name, {})
        match name:
            case "CreatePreparedStatement":
                return [self._prepare(request, caller, is_cancelled)]
            case "ClosePreparedStatement":
                with suppress(NotFound):
                    self._find(request.data(1), caller)
                    self._prepared.drop(request.data(1))
                return []
            case "CloseSession":
                return [flight_sql.write_any("CloseSessionResult", (1, _CLOSED))]
        return [flight_sql.write_any(f"{name}Result")]

    # Statements.

    def _plan(self, sql: str, is_cancelled: Callable[[], bool] = never) -> _Planned:
        planned = self._plans.get(sql)
        if planned is None:
            if (statement := statements.parse(sql)) is not None:
                schema = statement_answers.schema(statement, lambda sql: self._plan(sql, is_cancelled))
                planned = _Planned(_NO_PLAN, schema, None, statement)
            else:
                parsed = plan.make(sql)
                planned = _Planned(parsed, self._schema(parsed, is_cancelled), _filtered_source(parsed))
            self._plans.put(sql, planned, 4 * len(sql) + _PLAN_COST)
        return planned

    def _shared_plan(self, sql: str, is_cancelled: Callable[[], bool]) -> tuple[_Planned, tuple[Any, ...] | None]:
        """A plan for a statement, and the values of its parameters, which are literals of the statement; None if the
        plan has no such parameters."""
        if (cached := self._shared.get(sql)) is not None:
            return cached
        if (parts := shapes.split(sql)) is not None:
            shape, literals = parts
            with suppress(InvalidArgument, NotFound):
                shared = self._plan(shape, is_cancelled)
                values = shapes.values_for(shared.plan, literals)
                if values is not None:
                    self._shared.put(sql, (shared, values), 4 * len(sql))
                    return shared, values
        return self._plan(sql, is_cancelled), None

    def _schema(self, parsed: Plan, is_cancelled: Callable[[], bool]) -> pa.Schema:
        if parsed.direct is not None:
            (source,) = parsed.sources
            fields = naive(_schema_of(source))
            return pa.schema([field.with_name(n) for field, n in zip(fields, parsed.direct.names, strict=True)])
        tables = {source.label: naive(_schema_of(source)) for source in parsed.sources}
        known = {name for source in parsed.sources for name in source.table.flight.schema.names}
        queue, cursor = self._app.queue, self._sandbox.cursor()
        stops = lambda: queue.closing or is_cancelled()  # noqa: E731
        try:
            return self._app.streams.whole(
                cursor,
                lambda: naive(self._sandbox.schema(cursor, parsed.typed_sql, tables, known)),
                stops,
                BIND_SECONDS,
            )
        except Cancelled:
            if queue.closing:
                raise ShuttingDown("the server is shutting down", hint="ask again once it is back") from None
            raise

    def _statement(
        self, command: Message, caller: Principal, is_cancelled: Callable[[], bool]
    ) -> tuple[_Planned, tuple[Any, ...] | None]:
        match command.name:
            case "CommandStatementQuery":
                return self._shared_plan(command.text(1) or "", is_cancelled)
            case "CommandPreparedStatementQuery":
                prepared = self._find(command.data(1), caller)
                return prepared.planned, prepared.values
        raise InvalidArgument(f"{command.name[:100]} is not supported", hint="statements only read")

    def _prepare(self, request: Message, caller: Principal, is_cancelled: Callable[[], bool]) -> bytes:
        sql = request.text(1) or ""
        planned = self._plan(sql, is_cancelled)
        handle, size = secrets.token_bytes(16), 4 * len(sql) + _PLAN_COST
        self._prepared.put(handle, _Prepared(caller.name, planned, None, size), size)
        declared = parameters.schema(planned.plan)
        return flight_sql.write_any(
            "ActionCreatePreparedStatementResult", (1, handle), (2, planned.schema.serialize().to_pybytes()),
            (3, declared.serialize().to_pybytes()),
        )  # fmt: skip

    def _find(self, handle: bytes, caller: Principal) -> _Prepared:
        prepared = self._prepared.get(handle)
        if prepared is None or prepared.caller != caller.name:
            raise NotFound("the prepared statement does not exist", code="UNKNOWN_STATEMENT", hint="prepare it again")
        return prepared

    def _answer(
        self, statement: Statement, caller: Principal, is_cancelled: Callable[[], bool], capture: Capture
    ) -> pa.Table:
        def select(sql: str, values: Sequence[Any]) -> pa.Table:
            planned = self._plan(sql, is_cancelled)
            answer = self._run(planned, values, caller, is_cancelled)
            if isinstance(answer, pa.Table):
                return answer
            with closing(answer):
                return pa.Table.from_batches(answer, planned.schema)

        call = StatementCall(self._app, caller, is_cancelled, select, capture)
        return statement_answers.answer(statement, call, lambda sql: self._plan(sql, is_cancelled).plan)

    def _run(
        self, planned: _Planned, values: Sequence[Any], caller: Principal, is_cancelled: Callable[[], bool]
    ) -> Answer:
        parsed, schema = planned.plan, planned.schema
        if parsed.direct is not None:
            (source,) = parsed.sources
            request = self._narrowed(_request(source, values, _limit(parsed.direct.limit, values)))
            if (small := self._filtered(request, planned, caller, is_cancelled)) is not None:
                return small
            answer = self._app.scanner.read(request, caller, is_cancelled)
            self._app.usage.read(request)
            if isinstance(answer, pa.Table):
                return pa.Table.from_batches([_shown(batch, schema) for batch in answer.to_batches()], schema)
            return answer.map(lambda batch: _shown(batch, schema))
        tables = self._tables(parsed.sources, values, caller, is_cancelled)
        cursor = self._sandbox.cursor()
        given = [parameters.for_duckdb(value) for value in values]
        if parsed.now:
            given.append(datetime.now(UTC).replace(tzinfo=None))
        rows = self._sandbox.rows(cursor, parsed.sql, given, tables, schema)
        shown = rows if caller.sees_all else map(zeroed, rows)
        return self._app.streams.run(cursor, lambda: shown, schema, is_cancelled)

    def _narrowed(self, request: ScanRequest) -> ScanRequest:
        """Completes the table's full name in a request about one table, because caches use full names."""
        named = [tree.equal_values(request.node, column) for column in _NAMES]
        if request.node is None or named[2] is None or len(named[2]) != 1 or None not in named:
            return request
        tables = [
            table.name for table in self._app.catalog.tables()
            if all(parts is None or part in parts for part, parts in zip(table.name, named, strict=True))
        ]  # fmt: skip
        if len(tables) != 1:
            return request
        more = [Leaf(column, Op.EQ, (part,)) for column, part, parts in zip(_NAMES, tables[0], named, strict=True)
                if parts is None]  # fmt: skip
        return replace(request, node=And((request.node, *more)))

    def _filtered(
        self, request: ScanRequest, planned: _Planned, caller: Principal, is_cancelled: Callable[[], bool]
    ) -> pa.Table | None:
        """A small answer computed from cached whole columns; None if they are not cached, the condition uses other
        columns than numbers and booleans, or the answer is not small."""
        if planned.filtered is None or request.node is None:
            return None
        read = replace(request, columns=planned.filtered.columns)
        whole = self._whole_columns("arrow", read, planned.filtered, caller, is_cancelled, _encoded)
        if whole is None:
            return None
        kept = whole.filter(to_mask(request.node, request.flight.schema)(whole))
        if kept.num_rows > SMALL_ROWS:
            return None
        shown = [_decoded(kept[name]) for name in request.columns or ()]
        batch = pa.RecordBatch.from_arrays(shown, schema=planned.schema)
        return pa.Table.from_batches([batch]).slice(0, request.limit)

    def _whole_columns(
        self, form: str, request: ScanRequest, source: Source, caller: Principal, is_cancelled: Callable[[], bool],
        keep: Callable[[pa.Table], Kept | None],
    ) -> Kept | None:  # fmt: skip
        """The columns of all rows of a flight, if they are cached or worth caching, else None.

        Args:
            form: Name of the cached form, part of the cache key.
            request: The scan; its condition and limit are ignored.
            source: The source of the statement.
            caller: The caller.
            is_cancelled: True once the caller has disconnected.
            keep: Converts the rows to the cached form; returns None if that fails.
        """
        if not caller.sees_all or request.flight.family != "stats" or _is_of_tables(request):
            return None
        whole = replace(request, node=None, limit=None)

        def read(most: int) -> Kept | None:
            rows = self._read(whole, source, caller, is_cancelled, most)
            return None if rows is None else keep(rows)

        key = (form, request.flight.name, source.table.snapshot, source.columns)
        return self._whole.get(key, read)

    def _tables(
        self, sources: Sequence[Source], values: Sequence[Any], caller: Principal, is_cancelled: Callable[[], bool]
    ) -> dict[str, Rows]:
        """The rows of the flights that a statement reads, by label; equal sources are read once."""
        tables: dict[str, Rows] = {}
        read: list[tuple[ScanRequest, pa.Table | KeptTable]] = []
        left = MAX_SOURCE_BYTES
        form = f"table {self._sandbox.restarts}"
        for source in sources:
            request = self._narrowed(_request(source, values, None))
            rows = next((rows for other, rows in read if other == request), None)
            if rows is None:
                rows = self._whole_columns(form, request, source, caller, is_cancelled, self._sandbox.keep)
                if rows is None:
                    rows = self._rows(request, source, caller, is_cancelled, left)
                    left -= rows.nbytes
                read.append((request, rows))
            tables[source.label] = View(rows, source.keys) if isinstance(rows, KeptTable) else rows
        return tables

    def _rows(
        self, request: ScanRequest, source: Source, caller: Principal, is_cancelled: Callable[[], bool], most: int
    ) -> pa.Table:
        """The rows of a flight that a statement reads, with naive timestamps; at most `most` bytes."""
        rows = self._read(request, source, caller, is_cancelled, most)
        if rows is None:
            raise ResourceExhausted(
                f"the statement reads more than {MAX_SOURCE_BYTES >> 20} MiB, the last of it from "
                f"{source.table.flight.name}",
                hint="narrow it by WHERE, or read the flight itself",
            )
        return rows

    def _read(
        self, request: ScanRequest, source: Source, caller: Principal, is_cancelled: Callable[[], bool], most: int
    ) -> pa.Table | None:
        """The rows of a scan with naive timestamps; None if they have more than `most` bytes."""
        schema = naive(_schema_of(source))
        shown, size = [], 0
        with self._app.scanner.reader(request, caller, is_cancelled) as batches:
            self._app.usage.read(request)
            for batch in batches:
                size += batch.nbytes
                if size > most:
                    return None
                shown.append(_shown(batch, schema))
        return pa.Table.from_batches(shown, schema)


def _schema_of(source: Source) -> pa.Schema:
    return pa.schema([source.table.flight.schema.field(name) for name in source.columns])


def _request(source: Source, values: Sequence[Any], limit: int | None) -> ScanRequest:
    return ScanRequest(
        source.table.flight, source.columns, pushdown.bind(source.node, values), source.table.snapshot, limit=limit
    )


def _filtered_source(parsed: Plan) -> Source | None:
    """The columns that a plan without DuckDB shows or compares, if it only compares numbers and booleans."""
    if parsed.direct is None:
        return None
    (source,) = parsed.sources
    schema = source.table.flight.schema
    compared = [name.strip().lower() for name in tree.columns_of(source.node)]
    for name in compared:
        type_ = schema.field(name).type
        if not (pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)):
            return None
    return replace(source, columns=tuple(name for name in schema.names if name in {*source.columns, *compared}))


def _is_of_tables(request: ScanRequest) -> bool:
    """True if the request is restricted to tables by name, so that a scan reads their rows only."""
    return any(tree.equal_values(request.node, name) is not None for name in _NAMES)


def _encoded(rows: pa.Table) -> pa.RecordBatch:
    """The rows as one batch, with dictionary encoding of texts that repeat."""
    columns = []
    for column in rows.columns:
        encoded = pc.dictionary_encode(column).unify_dictionaries() if pa.types.is_string(column.type) else column
        few = encoded is column or encoded.num_chunks == 0 or len(encoded.chunk(0).dictionary) <= len(column) // 4
        columns.append((encoded if few else column).combine_chunks())
    return pa.RecordBatch.from_arrays(columns, names=rows.column_names)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _limit(limit: int | Slot | None, values: Sequence[Any]) -> int | None:
    if not isinstance(limit, Slot):
        return limit
    value = values[limit.number]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidArgument(f"parameter {limit.number + 1}: a LIMIT must be an integer ≥ 0", code="BAD_LITERAL")
    return value


def _shown(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the names of a schema and naive timestamps."""
    columns = [column.view(NAIVE) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
