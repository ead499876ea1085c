"""Flight SQL's endpoint, loaded when it is first asked: its parser takes a moment, and most servers are never asked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from flight_server.app import App

if TYPE_CHECKING:
    from flight_server.sql.endpoint import SqlEndpoint


class LazyEndpoint:
    """The endpoint of an app, shared by all servers of the process: prepared statements outlive a renewal of TLS.

    Args:
        app: answers scans.
        release: the version that clients are told.
    """

    def __init__(self, app: App, release: str):
        self._app, self._release = app, release
        self._lock = threading.Lock()
        self._made: SqlEndpoint | None = None

    def get(self) -> SqlEndpoint:
        """Returns the endpoint, after it is made at the first call."""
        with self._lock:
            if self._made is None:
                from flight_server.sql.endpoint import SqlEndpoint

                self._made = SqlEndpoint(self._app, self._release)
            return self._made

    def close(self) -> None:
        """Closes the endpoint if it was made."""
        with self._lock:
            if self._made is not None:
                self._made.close()
