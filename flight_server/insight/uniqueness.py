"""Whether the values of a column are distinct, read by a worker and kept for as long as the snapshot is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from flight_server.core.control.lakes import Lakes
from store.catalog.catalog import Catalog
from store.duckdb.lru import LruCache
from store.model.catalog_entries import TableEntry

Key: TypeAlias = tuple[int, int, int]  # table key, snapshot id, column id

_KEPT_BYTES: Final = 1 << 20
_ENTRY_BYTES: Final = 100


class Uniqueness:
    """Reads columns by the workers. A snapshot never changes, so neither does an answer about it."""

    def __init__(self, catalog: Catalog, lakes: Lakes):
        self._catalog, self._lakes = catalog, lakes
        self._known: LruCache[Key, bool] = LruCache(_KEPT_BYTES)

    def of_name(self, name: str, column_id: int, snapshot: str | int, is_cancelled: Callable[[], bool]) -> bool:
        """`of` a table by its full name, at "current" or a snapshot's id."""
        table = self._catalog.get(name)
        return self.of(table, self._catalog.snapshot_id(table, snapshot), column_id, is_cancelled)

    def of(self, table: TableEntry, snapshot_id: int, column_id: int, is_cancelled: Callable[[], bool]) -> bool:
        """True if no value of a column occurs twice among the live rows of a snapshot.

        Raises:
            NotFound: The table is of no connected lake, or has no such snapshot any more.
            UpstreamError: A file cannot be read, or no worker is connected.
        """
        key = (table.table_key, snapshot_id, column_id)
        if (known := self._known.get(key)) is None:
            found = self._lakes.inspect(
                "unique",
                self._lakes.config(table.table_catalog),
                is_cancelled,
                table=[table.table_schema, table.table_name],
                snapshot_id=snapshot_id,
                column_id=column_id,
                column_ids=self._catalog.column_ids(table),
            )
            known = bool(found["unique"])
            self._known.put(key, known, _ENTRY_BYTES)
        return known
