"""The Flight SQL endpoint, loaded at first use, because importing its SQL parser is slow."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from flight_server.app import App

if TYPE_CHECKING:
    from flight_server.sql.endpoint import SqlEndpoint


class LazyEndpoint:
    """The endpoint of an app, shared by all servers of the process, so that prepared statements survive a renewal of
    TLS certificates.

    Args:
        app: The application, which runs the scans.
        release: The server's version, for clients.
    """

    def __init__(self, app: App, release: str):
        self._app, self._release = app, release
        self._lock = threading.Lock()
        self._endpoint: SqlEndpoint | None = None

    def get(self) -> SqlEndpoint:
        """The endpoint; created at the first call."""
        with self._lock:
            if self._endpoint is None:
                from flight_server.sql.endpoint import SqlEndpoint

                self._endpoint = SqlEndpoint(self._app, self._release)
            return self._endpoint

    def close(self) -> None:
        """Closes the endpoint if it was created."""
        with self._lock:
            if self._endpoint is not None:
                self._endpoint.close()
