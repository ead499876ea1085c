"""The commands of Flight SQL: metadata, statements, prepared statements, sessions.

Statements read flights by the same scans as JSON commands, with the same permissions and limits. Prepared statements
are kept in an LRU cache; a client whose statement was evicted prepares it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from flight_server.core.auth.principal import Principal
from flight_server.core.reads.stream import never
from flight_server.core.wire import flight_sql
from flight_server.core.wire.protobuf import Message, read_message, write_message
from flight_server.faces.sql import metadata, parameters, sessions, statement_answers
from flight_server.faces.sql.planner import PLAN_COST, Planned, Planner
from flight_server.faces.sql.running import RunningStatements
from flight_server.faces.sql.runs import Answer, Runs
from flight_server.faces.sql.sandbox import Sandbox
from flight_server.faces.sql.statement_answers import Capture, StatementCall
from flight_server.faces.sql.statements import Statement
from store.duckdb.lru import LruCache
from store.model.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from flight_server.core.app import App

_PREPARED_BYTES: Final = 32 << 20


@dataclass(frozen=True)
class _Prepared:
    caller: str
    planned: Planned
    values: tuple[Any, ...] | None
    size: int


class SqlEndpoint:
    """Answers the commands of Flight SQL."""

    def __init__(self, app: App, release: str):
        self._app, self._release = app, release
        self._sandbox = Sandbox()
        self._planner, self._runs = Planner(app, self._sandbox), Runs(app, self._sandbox)
        self._prepared: LruCache[bytes, _Prepared] = LruCache(_PREPARED_BYTES)
        self._running = RunningStatements()

    def close(self) -> None:
        """Closes the DuckDB instance for statements."""
        self._runs.close()
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
                answer = self._runs.run(planned, given, caller, stops)
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

    def _statement(
        self, command: Message, caller: Principal, is_cancelled: Callable[[], bool]
    ) -> tuple[Planned, tuple[Any, ...] | None]:
        match command.name:
            case "CommandStatementQuery":
                return self._planner.plan(command.text(1) or "", is_cancelled), None
            case "CommandPreparedStatementQuery":
                prepared = self._find(command.data(1), caller)
                return prepared.planned, prepared.values
        raise InvalidArgument(f"{command.name[:100]} is not supported", hint="statements only read")

    def _prepare(self, request: Message, caller: Principal, is_cancelled: Callable[[], bool]) -> bytes:
        sql = request.text(1) or ""
        planned = self._planner.plan(sql, is_cancelled)
        handle, size = secrets.token_bytes(16), 4 * len(sql) + PLAN_COST
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
            planned = self._planner.plan(sql, is_cancelled)
            answer = self._runs.run(planned, values, caller, is_cancelled)
            if isinstance(answer, pa.Table):
                return answer
            with closing(answer):
                return pa.Table.from_batches(answer, planned.schema)

        call = StatementCall(self._app, caller, is_cancelled, select, capture)
        return statement_answers.answer(statement, call, lambda sql: self._planner.plan(sql, is_cancelled).plan)
