"""The part of the server that speaks Flight SQL. Its endpoint is made at first use: its parser is slow to import."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from flight_server.core.actions.reads import release
from flight_server.core.app import App
from flight_server.core.part import Asking, Commands, Part, Rows
from flight_server.core.wire import flight_sql

if TYPE_CHECKING:
    from flight_server.faces.sql.endpoint import SqlEndpoint


class Sql(Part):
    """Flight SQL: its commands and its actions.

    One endpoint is shared by all servers of the process, so that prepared statements survive a renewal of TLS
    certificates.
    """

    def attach(self, *, app: App) -> None:
        """Takes what statements read."""
        self._app = app
        self._lock = threading.Lock()
        self._endpoint: SqlEndpoint | None = None

    def commands(self) -> Iterable[Commands]:
        return (_Statements(self),)

    def endpoint(self) -> SqlEndpoint:
        """The endpoint; created at the first call."""
        with self._lock:
            if self._endpoint is None:
                from flight_server.faces.sql.endpoint import SqlEndpoint

                self._endpoint = SqlEndpoint(self._app, release())
            return self._endpoint

    def close(self) -> None:
        with self._lock:
            if self._endpoint is not None:
                self._endpoint.close()


class _Statements:
    """The language: metadata, statements and prepared statements."""

    actions: Collection[str] = flight_sql.ACTIONS

    def __init__(self, part: Sql):
        self._part = part

    def find(self, data: bytes, asking: Asking) -> _Command | None:
        return _Command(self._part, data, asking) if flight_sql.is_command(data) else None

    def act(self, name: str, body: bytes, asking: Asking) -> list[bytes]:
        return self._part.endpoint().act(name, body, asking.principal, asking.is_cancelled)


class _Command(NamedTuple):
    part: Sql
    data: bytes
    asking: Asking

    def schema(self) -> pa.Schema:
        return self.part.endpoint().schema(self.data, self.asking.principal, self.asking.is_cancelled)

    def info(self) -> tuple[pa.Schema, bytes, int]:
        return self.schema(), self.data, -1  # a command is its own ticket

    def get(self) -> tuple[str, pa.Schema, Rows]:
        asking = self.asking
        endpoint = self.part.endpoint()
        schema, rows = endpoint.get(self.data, asking.principal, asking.is_cancelled, asking.capture)
        return flight_sql.FAMILY, schema, rows

    def put(self, chunks: Iterator[pa.RecordBatch]) -> bytes:
        return self.part.endpoint().put(self.data, chunks, self.asking.principal)
