"""The commands of Flight SQL: metadata, statements, prepared statements, sessions.

Statements read flights by the same scans as JSON commands, with the same permissions and limits. Prepared statements
are kept in an LRU cache; a client whose statement was evicted prepares it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.core.auth.principal import Principal
from flight_server.core.reads.null_slots import zeroed
from flight_server.core.reads.streams import MAX_QUERIES, FairSemaphore, Stream, never
from flight_server.core.wire import flight_sql
from flight_server.core.wire.protobuf import Message, read_message, write_message
from flight_server.core.wire.scan_request import ScanRequest
from flight_server.faces.sql import (
    metadata,
    parameter_types,
    parameters,
    plan,
    pushdown,
    sessions,
    shapes,
    statement_answers,
    statements,
)
from flight_server.faces.sql.flights import naive
from flight_server.faces.sql.kept_tables import KeptTable, WholeColumns
from flight_server.faces.sql.plan import Plan, Source
from flight_server.faces.sql.pushdown import Slot
from flight_server.faces.sql.relations import Reads, schema_of, with_schema
from flight_server.faces.sql.running import RunningStatements
from flight_server.faces.sql.sandbox import Sandbox
from flight_server.faces.sql.statement_answers import Capture, StatementCall
from flight_server.faces.sql.statements import Explain, Statement
from store.duckdb.lru import LruCache
from store.model.errors import Cancelled, InvalidArgument, NotFound, ShuttingDown
from store.model.predicates import tree
from store.model.predicates.arrow import to_mask

if TYPE_CHECKING:
    from flight_server.core.app import App

MAX_TRIED: Final = 16  # most parameters of a statement whose types are found by trying
BIND_SECONDS: Final = 10.0  # longest time to bind a statement
SMALL_ROWS: Final = 16_384  # most rows of an answer computed from whole columns
_PLANS_BYTES: Final = 16 << 20
_PREPARED_BYTES: Final = 32 << 20
_PLAN_COST: Final = 8192  # estimated bytes of a plan besides its text
_NULL: Final = "CAST(NULL AS "  # of `Plan.typed_sql`, in the names of columns that are expressions


@dataclass(frozen=True)
class _Planned:
    plan: Plan
    schema: pa.Schema
    statement: Statement | None = None  # then the plan is empty
    of_all_tables: dict[str, int] = field(default_factory=dict)
    """Label of a source whose last scan was of all tables → number of the newest commit then."""


@dataclass(frozen=True)
class _Prepared:
    caller: str
    planned: _Planned
    values: tuple[Any, ...] | None
    size: int


Answer: TypeAlias = pa.Table | Stream
_NO_PLAN: Final = Plan((), (), "", "", False, None)


class SqlEndpoint:
    """Answers the commands of Flight SQL."""

    def __init__(self, app: App, release: str):
        self._app, self._release = app, release
        self._sandbox = Sandbox()
        self._whole = WholeColumns(lambda: app.versions.epoch, app.settings.cache_bytes)
        self._plans: LruCache[str, _Planned] = LruCache(_PLANS_BYTES)
        self._prepared: LruCache[bytes, _Prepared] = LruCache(_PREPARED_BYTES)
        self._running = RunningStatements()
        self._slots = FairSemaphore(MAX_QUERIES)  # its own, as statements wait for reads

    def close(self) -> None:
        """Closes the DuckDB instance for statements."""
        self._whole.clear()
        self._sandbox.close()

    def schema(self, data: bytes, caller: Principal, is_cancelled: Callable[[], bool] = never) -> pa.Schema:
        """Returns the schema of a command's result.

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
        given = () if planned.statement is not None else parameters.require(planned.plan, values)
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
        """Binds the parameters of a prepared statement; the response has the handle.

        Args:
            data: The command, an `Any`.
            batches: Batches with one row in all, the values.

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
        return write_message((1, handle))

    def act(self, name: str, body: bytes, caller: Principal, is_cancelled: Callable[[], bool] = never) -> list[bytes]:
        """Executes one of `flight_sql.ACTIONS`; its body and results are serialized messages."""
        if name == "CancelFlightInfo":
            return [self._running.cancel(read_message(name, body), caller)]
        if name in sessions.ACTIONS:
            return [sessions.answer(name, body)]
        request = flight_sql.read_any(body) if body else Message(name, {})
        match name:
            case "CreatePreparedStatement":
                return [self._prepare(request, caller, is_cancelled)]
            case "ClosePreparedStatement":
                with suppress(NotFound):
                    self._find(request.data(1), caller)
                    self._prepared.drop(request.data(1))
                return []
        raise InvalidArgument(f"{name} is not supported", hint="statements only read")

    # Statements.

    def _plan(self, sql: str, is_cancelled: Callable[[], bool] = never) -> _Planned:
        planned = self._plans.get(sql)
        if planned is None:
            planned = self._by_shape(sql, is_cancelled)
            if planned is None:
                if (statement := statements.parse(sql)) is not None:
                    schema = statement_answers.schema(statement, lambda sql: self._plan(sql, is_cancelled))
                    explained = self._plan(statement.sql, is_cancelled).plan if isinstance(statement, Explain) else None
                    parameters = explained.parameters if explained is not None else ()
                    planned = _Planned(replace(_NO_PLAN, parameters=parameters), schema, statement)
                else:
                    planned = self._bound(sql, is_cancelled)
            self._plans.put(sql, planned, 4 * len(sql) + _PLAN_COST)
        return planned

    def _bound(self, sql: str, is_cancelled: Callable[[], bool]) -> _Planned:
        """The plan of a SELECT with the first types of its untold parameters with which DuckDB can bind it."""
        parsed = plan.make(sql)
        try:
            return _Planned(parsed, self._schema(parsed, is_cancelled))
        except InvalidArgument:
            if not 0 < len(parsed.untold) <= MAX_TRIED:
                raise
            types = self._types_that_bind(sql, parsed.untold, is_cancelled)
            if types is None:
                raise
            typed = plan.make(sql, types)
            return _Planned(typed, self._schema(typed, is_cancelled))

    def _types_that_bind(
        self, sql: str, untold: Sequence[int], is_cancelled: Callable[[], bool]
    ) -> dict[int, pa.DataType] | None:
        """A type for each of these parameters, one found after the other; None if there is none for one of them."""
        types: dict[int, pa.DataType] = dict.fromkeys(untold, pa.null())
        for number in untold:
            for candidate in parameter_types.CANDIDATES:
                types[number] = candidate
                with suppress(InvalidArgument):
                    self._schema(plan.make(sql, types), is_cancelled)
                    break
            else:
                return None
        return types

    def _by_shape(self, sql: str, is_cancelled: Callable[[], bool]) -> _Planned | None:
        """The plan of a statement, from one for statements with other literals; None if there is none."""
        if (parts := shapes.split(sql)) is not None:
            with suppress(InvalidArgument, NotFound):
                shared = self._plan(parts[0], is_cancelled)
                is_named = not any(_NULL in name for name in shared.schema.names)  # else by a literal
                if shared.statement is None and is_named and (own := shapes.filled(shared.plan, parts[1])) is not None:
                    return replace(shared, plan=own)
        return None

    def _schema(self, parsed: Plan, is_cancelled: Callable[[], bool]) -> pa.Schema:
        if parsed.direct is not None:
            (source,) = parsed.sources
            fields = schema_of(source)
            return pa.schema([field.with_name(n) for field, n in zip(fields, parsed.direct.names, strict=True)])
        tables = {source.label: schema_of(source) for source in parsed.sources}
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
                return self._plan(command.text(1) or "", is_cancelled), None
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
            "ActionCreatePreparedStatementResult",
            (1, handle),
            (2, planned.schema.serialize().to_pybytes()),
            (3, declared.serialize().to_pybytes()),
        )

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
            return self._direct(planned, values, caller, is_cancelled)
        reads = Reads(self._app, caller, is_cancelled)
        tables = {
            source.label: self._kept_table(source, planned, reads, caller) or reads.relation(source)
            for source in parsed.sources
        }
        cursor, epoch = self._sandbox.cursor(), self._app.versions.epoch
        given = [parameters.for_duckdb(value) for value in values]
        if parsed.now:
            given.append(datetime.now(UTC).replace(tzinfo=None))

        def rows() -> Iterator[pa.RecordBatch]:
            try:
                for batch in self._sandbox.rows(cursor, parsed.sql, given, tables, schema):
                    yield batch if caller.sees_all else zeroed(batch)
            except Exception:
                if reads.error is not None:
                    raise reads.error from None
                raise
            planned.of_all_tables.update(dict.fromkeys(reads.of_all_tables, epoch))

        return self._app.streams.run(cursor, rows, schema, is_cancelled, slots=self._slots)

    def _direct(
        self, planned: _Planned, values: Sequence[Any], caller: Principal, is_cancelled: Callable[[], bool]
    ) -> Answer:
        """The answer to a statement that needs no DuckDB."""
        parsed, schema = planned.plan, planned.schema
        (source,) = parsed.sources
        request = ScanRequest(
            source.table.flight,
            source.columns,
            pushdown.bind(source.node, values),
            source.table.snapshot,
            limit=None if parsed.direct is None else _limit(parsed.direct.limit, values),
        )
        if (small := self._filtered(request, planned, caller, is_cancelled)) is not None:
            return small
        epoch = self._app.versions.epoch
        answer = self._app.scanner.read(request, caller, is_cancelled)
        self._app.usage.read(request, caller)
        planned.of_all_tables[source.label] = epoch
        if isinstance(answer, pa.Table):
            return pa.Table.from_batches([with_schema(batch, schema) for batch in answer.to_batches()], schema)
        return answer.map(lambda batch: with_schema(batch, schema))

    # Whole columns of flights: kept once a plan has read them, until the next commit.

    def _may_keep(self, source: Source, planned: _Planned, caller: Principal) -> bool:
        read = planned.of_all_tables.get(source.label) == self._app.versions.epoch
        return read and caller.sees_all and source.table.flight.family == "stats"

    def _kept_table(self, source: Source, planned: _Planned, reads: Reads, caller: Principal) -> KeptTable | None:
        if not self._may_keep(source, planned, caller):
            return None
        request = ScanRequest(source.table.flight, source.columns, snapshot=source.table.snapshot)

        def read(most: int) -> KeptTable | None:
            rows = reads.table(request, most)
            return None if rows is None else self._sandbox.keep(rows)

        key = (self._sandbox.restarts, request.flight.name, request.snapshot, request.columns)
        kept: KeptTable | None = self._whole.get(key, read)
        return kept

    def _filtered(
        self, request: ScanRequest, planned: _Planned, caller: Principal, is_cancelled: Callable[[], bool]
    ) -> pa.Table | None:
        """A small answer to a direct read, computed from kept columns, which takes a tenth of the time of a query; None
        if the condition uses other columns than numbers and booleans, or the answer is not small."""
        (source,) = planned.plan.sources
        schema = request.flight.schema
        if request.node is None or not self._may_keep(source, planned, caller):
            return None
        compared = {name.strip().lower() for name in tree.columns_of(request.node)}
        types = [schema.field(name).type for name in compared]
        if not all(pa.types.is_primitive(type) and not pa.types.is_timestamp(type) for type in types):
            return None
        columns = tuple(name for name in schema.names if name in compared.union(source.columns))
        whole = ScanRequest(request.flight, columns, snapshot=request.snapshot)

        def read(most: int) -> pa.RecordBatch | None:
            rows = Reads(self._app, caller, is_cancelled).table(whole, most)
            return None if rows is None else _encoded(rows)

        batch = self._whole.get(("arrow", whole.flight.name, whole.snapshot, columns), read)
        if batch is None:
            return None
        kept = batch.filter(to_mask(request.node, schema)(batch))
        if kept.num_rows > SMALL_ROWS:
            return None
        shown = [_decoded(kept[name]) for name in source.columns]
        batch = pa.RecordBatch.from_arrays(shown, schema=planned.schema)
        return pa.Table.from_batches([batch]).slice(0, request.limit)


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
