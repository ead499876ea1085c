"""The Flight SQL endpoint, loaded at first use: importing its SQL parser is slow, and a build may be without it."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from flight_server.core.app import App
from flight_server.core.auth.principal import Principal
from flight_server.core.reads.streams import never
from flight_server.core.wire import flight_sql
from store.model.errors import PermissionDenied, Unimplemented

if TYPE_CHECKING:
    from flight_server.faces.sql.endpoint import SqlEndpoint


class LazyEndpoint:
    """The endpoint of an app, shared by all servers of the process, so that prepared statements survive a renewal of
    TLS certificates.
    """

    def __init__(self, app: App, release: str):
        self._app, self._release = app, release
        self._lock = threading.Lock()
        self._endpoint: SqlEndpoint | None = None

    def get(self) -> SqlEndpoint:
        """The endpoint; created at the first call.

        Raises:
            Unimplemented: This build has no Flight SQL.
        """
        with self._lock:
            if self._endpoint is None:
                try:
                    from flight_server.faces.sql.endpoint import SqlEndpoint
                except ModuleNotFoundError as missing:
                    if missing.name is None or not missing.name.startswith("flight_server.faces.sql"):
                        raise
                    raise Unimplemented("Flight SQL is not part of this build") from None
                self._endpoint = SqlEndpoint(self._app, self._release)
            return self._endpoint

    def select(self, statement: str, caller: Principal, most: int | None = None) -> pa.Table:
        """Runs a SELECT for code of the server, with the limits and guards of any statement.

        Args:
            most: The number of rows after which no more are read; None for all.

        Raises:
            StatflightError: See `SqlEndpoint.get`; ANALYZE is refused.
        """

        def capture(_: object) -> list[dict[str, object]]:
            raise PermissionDenied("this statement may only read")

        command = flight_sql.write_any("CommandStatementQuery", (1, statement.encode()))
        schema, answer = self.get().get(command, caller, never, capture)
        if isinstance(answer, pa.Table):
            return answer.slice(0, most)
        batches, rows = [], 0
        with closing(answer):
            for batch in answer:
                batches.append(batch)
                rows += len(batch)
                if most is not None and rows >= most:
                    break
        return pa.Table.from_batches(batches, schema).slice(0, most)

    def close(self) -> None:
        """Closes the endpoint if it was created."""
        with self._lock:
            if self._endpoint is not None:
                self._endpoint.close()
