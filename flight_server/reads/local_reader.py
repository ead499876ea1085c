"""Reads inside the server's process, by the path that every client's reads take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flight_server.wire import scan_request

if TYPE_CHECKING:
    from flight_server.auth.principal import Principal
    from flight_server.reads.scanner import Scanner


class LocalReader:
    """Reads flights as one caller may see them, in the form of `StatsClient.read`."""

    def __init__(self, scanner: Scanner, principal: Principal):
        self._scanner, self._principal = scanner, principal

    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Any = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
    ) -> pa.Table:
        """The rows of a flight.

        Args:
            flight: Its name.
            columns: In this order; all when None.
            where: A list of conditions in JSON form, all of which must hold.
            snapshot: `stats.*` only: "current" or an id.
            allow_stale: With `snapshot`: rows of older snapshots, too.
            limit: The most rows.

        Raises:
            StatflightError: As a client is told.
        """
        command: dict[str, Any] = {"table": flight, "strict": True, "predicates": where, "snapshot": snapshot}
        if columns is not None:
            command["columns"] = list(columns)
        command |= {"allow_stale": allow_stale} | ({} if limit is None else {"limit": limit})
        return self._scanner.table(scan_request.of_json(command), self._principal)
