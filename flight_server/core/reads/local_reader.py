"""Reads inside the server's process, on the same path as reads of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flight_server.core.reads.table_listing import TableListing
from flight_server.core.wire import scan_request
from store.model.errors import Unimplemented

if TYPE_CHECKING:
    from flight_server.core.auth.principal import Principal
    from flight_server.core.reads.scanner import Scanner


class LocalReader:
    """Reads flights with the permissions of one caller; `read` has the signature of `StatsClient.read`.

    Args:
        sql: Runs a SELECT with the caller's permissions; None where there is no Flight SQL.
        unique: Reads a column of a table at a snapshot; None where no column may be read.
    """

    def __init__(
        self,
        scanner: Scanner,
        principal: Principal,
        sql: Callable[[str], pa.Table] | None = None,
        unique: Callable[[str, int, str | int], bool] | None = None,
    ):
        self._scanner, self._principal, self._sql, self._unique = scanner, principal, sql, unique

    def read(
        self,
        flight: str,
        columns: Sequence[str] | None = None,
        where: Any = None,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        limit: int | None = None,
    ) -> pa.Table:
        """The rows of a flight; `where` is a list of predicates in JSON form, combined by AND.

        Raises:
            StatflightError: The request is not valid, or the flight does not exist.
        """
        command: dict[str, Any] = {"table": flight, "strict": True, "predicates": where, "snapshot": snapshot}
        if columns is not None:
            command["columns"] = list(columns)
        command |= {"allow_stale": allow_stale} | ({} if limit is None else {"limit": limit})
        return self._scanner.table(scan_request.of_json(command), self._principal)

    def tables(self, about: Sequence[str], statistics: Sequence[str]) -> TableListing:
        """The visible tables, for lists with these columns of `sys.tables` and `stats.tables`."""
        return TableListing(self._scanner, self._principal, about, statistics)

    def sql(self, statement: str) -> pa.Table:
        """Runs a SELECT by the server's Flight SQL.

        Raises:
            StatflightError: The statement is refused, or there is no Flight SQL here.
        """
        if self._sql is None:
            raise Unimplemented("statements are not run here")
        return self._sql(statement)

    def unique(self, table: str, column_id: int, snapshot: str | int) -> bool:
        """Reads a column; True if no value of it occurs twice.

        Raises:
            StatflightError: It cannot be read, or no column may be read here.
        """
        if self._unique is None:
            raise Unimplemented("columns are not read here")
        return self._unique(table, column_id, snapshot)
