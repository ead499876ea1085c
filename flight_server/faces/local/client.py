"""A client of this process: the calls of `StatsClient`, answered by the parts of a server without Flight."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Literal, overload

import pyarrow as pa

from flight_server.client import StatsClient
from flight_server.client.conditions.exact_json import dumps
from flight_server.core.app import App
from flight_server.core.auth.principal import ANONYMOUS, Principal
from flight_server.core.part import Asking
from flight_server.core.reads.stream import Stream, never
from flight_server.core.wire import status, tickets
from store.model.errors import InvalidArgument, Unimplemented

Unique = Callable[[str, int, "str | int"], bool]


class LocalClient(StatsClient):
    """Reads what an app in this process has; it is open for as long as the app is.

    Args:
        unique: Reads a column of a table, as `Connection.unique` does.
        principal: Whose permissions reads have; the caller has checked that it may read at all.
    """

    def __init__(self, app: App, unique: Unique, principal: Principal = ANONYMOUS):
        self.uri = "this process"
        self._app, self._is_unique, self._principal = app, unique, principal

    def close(self) -> None:
        """Closes nothing: the parts of the app end with it."""

    @overload
    def get(self, ticket: bytes | Mapping[str, Any], stream: Literal[False] = False) -> pa.Table: ...

    @overload
    def get(self, ticket: bytes | Mapping[str, Any], stream: Literal[True]) -> pa.RecordBatchReader: ...

    def get(self, ticket: bytes | Mapping[str, Any], stream: bool = False) -> pa.Table | pa.RecordBatchReader:
        """Reads the rows of a ticket or a JSON command, as `Connection.get` does."""
        data = ticket if isinstance(ticket, bytes) else dumps(ticket).encode()
        if (command := self._app.parts.find(data, Asking(self._principal, never, None, _no_capture))) is not None:
            _, schema, rows = command.get()
            return _given(schema, rows, stream)
        request = tickets.of_ticket(data)
        return _given(request.schema, self._app.scanner.read(request, self._principal, never), stream)

    @overload
    def sql(self, statement: str, stream: Literal[False] = False) -> pa.Table: ...

    @overload
    def sql(self, statement: str, stream: Literal[True]) -> pa.RecordBatchReader: ...

    def sql(self, statement: str, stream: bool = False) -> pa.Table | pa.RecordBatchReader:
        """Runs a SELECT, as `Connection.sql` does."""
        rows = self._app.parts.select(statement, self._principal)
        return rows.to_reader() if stream else rows

    def unique(self, table: str, column_id: int, snapshot: str | int = "current") -> bool:
        """Reads a column; true if no value of it occurs twice among the live rows."""
        return self._is_unique(table, column_id, snapshot)

    def act(
        self,
        name: str,
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ARG002  of the signature
        correlation_id: str | None = None,  # noqa: ARG002
    ) -> list[Any]:
        """Runs an action that reads; returns its results, in order."""
        from flight_server.core import actions  # loads what captures and writes

        entry = (actions.ACTIONS | self._app.parts.actions).get(name)
        if entry is None:
            raise Unimplemented(f'no action "{name}"')
        call = actions.Call(self._app, self._principal, str(uuid.uuid4()), never)
        return [_json(result) for result in entry.run(call, json.dumps(body or {}).encode())]


def _no_capture(_: bytes) -> list[Any]:
    raise InvalidArgument("a table that is named by its path is captured before it is read")


def _json(result: Any) -> Any:
    """A result of an action as a client reads it."""
    body = result if isinstance(result, bytes) else status.to_json(result)
    return json.loads(body)


def _given(schema: pa.Schema, answer: pa.Table | Stream, stream: bool) -> pa.Table | pa.RecordBatchReader:
    """An answer as `get` returns it."""
    if isinstance(answer, pa.Table):
        return answer.to_reader() if stream else answer

    def batches() -> Iterator[pa.RecordBatch]:
        with closing(answer):
            yield from answer

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    return reader if stream else reader.read_all()
