"""Which tables a commit touched: what caches stand on.

Every table has a generation. It grows after each commit that may have changed what a reader sees of the table, and
before whoever asked for the commit hears of it. What was read at a generation may be served while it is still that one:
nobody is then shown less than what was acknowledged to anybody. A generation is taken before reading, never after.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from store.catalog_store import Catalog, TableEntry
from store.database import Connection, Database
from store.stats_store import Counts, DuckDBStatsStore, Put
from store.targets import Target

T = TypeVar("T")


class Changes:
    """Generations by table key, and `epoch`: how many commits touched any table."""

    def __init__(self) -> None:
        self.epoch = 0
        self._generations: dict[int, int] = {}
        self._lock = threading.Lock()

    def generation(self, table_key: int) -> int:
        return self._generations.get(table_key, 0)

    def note(self, table_keys: Iterable[int]) -> None:
        with self._lock:
            for key in table_keys:
                self._generations[key] = self._generations.get(key, 0) + 1
            self.epoch += 1


class TrackedDatabase(Database):
    """A database whose writes tell which tables they touch, by `touch` inside of the transaction."""

    def __init__(self, path: Any):
        self.changes = Changes()
        self._touched: set[int] = set()  # of the write that runs; the writer's thread alone uses it
        super().__init__(path)

    def touch(self, table_key: int) -> None:
        self._touched.add(table_key)

    def write(self, function: Callable[[Connection], T]) -> T:
        touched: set[int] = set()

        def run(connection: Connection) -> T:
            self._touched = touched
            return function(connection)

        try:
            return super().write(run)
        finally:  # whatever became of it: a generation too many costs one read
            if touched:
                self.changes.note(touched)


class TrackedCatalog(Catalog):
    def __init__(self, database: TrackedDatabase):
        self._tracked = database
        super().__init__(database)

    def register(self, connection: Connection, *args: Any, **named: Any) -> TableEntry:
        return self._told(super().register(connection, *args, **named))

    def change(self, connection: Connection, entry: TableEntry, **changes: Any) -> TableEntry:
        return self._told(super().change(connection, entry, **changes))

    def sight_external_snapshots(
        self, connection: Connection, entry: TableEntry, snapshots: Mapping[int, str | None]
    ) -> TableEntry:
        return self._told(super().sight_external_snapshots(connection, entry, snapshots))

    def discovered(self, connection: Connection, *args: Any, **named: Any) -> TableEntry:
        return self._told(super().discovered(connection, *args, **named))

    def _told(self, entry: TableEntry) -> TableEntry:
        self._tracked.touch(entry.table_key)
        return entry


class TrackedStore(DuckDBStatsStore):
    database: TrackedDatabase

    def put_in(self, connection: Connection, puts: Sequence[Put], *args: Any, **named: Any) -> Counts:
        counts = super().put_in(connection, puts, *args, **named)
        for put in puts:
            names = put.rows.select(["table_catalog", "table_schema", "table_name"])
            for row in names.group_by(names.column_names).aggregate([]).to_pylist():
                entry = self.catalog.find((row["table_catalog"], row["table_schema"], row["table_name"]))
                if entry is not None:
                    self.database.touch(entry.table_key)
        return counts

    def delete_in(
        self, connection: Connection, table: TableEntry, snapshot_id: int | None, target: Target | None = None
    ) -> int:
        self.database.touch(table.table_key)
        return super().delete_in(connection, table, snapshot_id, target)
