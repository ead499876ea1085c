"""Changes of the records of statistics, told to another place that keeps them."""

from __future__ import annotations

import pyarrow as pa

from store.model.catalog_entries import TableEntry
from store.model.targets import Target


class Changes:
    """Is told of each change inside of the writer's transaction, and does nothing about it."""

    def registered(self, table: TableEntry) -> None:
        """A table got its entry; it has no records."""

    def stored(self, flight: str, places: pa.Table) -> None:
        """Records of a flight, or `file_sketches`, may differ at some places: `table_key` and `snapshot_id`."""

    def deleted(self, table: TableEntry, snapshot_id: int | None, target: Target | None) -> None:
        """Records were deleted: those of a snapshot, or of all; about a target, or about all."""


def one_place(table_key: int, snapshot_id: int) -> pa.Table:
    """One place."""
    return pa.table({"table_key": [table_key], "snapshot_id": [snapshot_id]})
