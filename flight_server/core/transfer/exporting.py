"""Exports of a server: one transaction for all files, with what the caller sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from flight_server.core.auth.principal import Principal
from flight_server.core.control.access import Access
from flight_server.core.reads.computed import MaySee, shown_rules, whole_lakes
from flight_server.core.reads.stream import Stream
from flight_server.core.reads.streams import Streams
from flight_server.core.transfer.pieces import SCHEMA, to_batch
from store.catalog.catalog import Catalog
from store.duckdb.database import Connection, Database
from store.duckdb.segments import Segments
from store.model.columns import OF_OTHERS
from store.transfer.export import EVERYTHING, Scope, export

_AT_ONCE: Final = 2  # exports
_SECONDS: Final = 86_400.0  # longest one
_MOST_BYTES: Final = 2**62  # no limit: what is in memory of one is a row group


class Exports:
    """Exports of one database.

    Args:
        stall_seconds: Longest pause of a reader, which keeps a transaction open.
        may_see: Tells whether a caller may see the results of a rule about other tables.
    """

    def __init__(self, database: Database, catalog: Catalog, access: Access, stall_seconds: float, may_see: MaySee):
        self._database, self._catalog, self._access, self._may_see = database, catalog, access, may_see
        self._streams = Streams(_AT_ONCE, _SECONDS, _MOST_BYTES, _AT_ONCE, stall_seconds)

    def start(self, caller: Principal, is_cancelled: Callable[[], bool]) -> pa.Table | Stream:
        """Begins an export of what is committed now.

        Raises:
            PermissionDenied: The caller lacks the scope `admin`.
            ResourceExhausted: Too many are running.
        """
        self._access.require(caller, "admin")
        cursor = self._database.read()
        try:
            scope = self._scope(caller)
        except BaseException:
            cursor.close()
            raise
        segments = self._database.segments
        return self._streams.run(cursor, lambda: _batches(cursor, segments, scope), SCHEMA, is_cancelled)

    def _scope(self, caller: Principal) -> Scope:
        if caller.sees_all:
            return EVERYTHING
        keys = [table.table_key for table in self._catalog.tables() if caller.sees(*table.name)]
        rules = shown_rules(self._database, self._catalog, keys, caller, self._may_see)
        return Scope(keys, whole_lakes(self._database, caller), rules, OF_OTHERS)


def _batches(cursor: Connection, segments: Segments, scope: Scope) -> Iterator[pa.RecordBatch]:
    return map(to_batch, export(cursor, segments, scope))
