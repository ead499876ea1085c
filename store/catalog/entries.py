"""The entries of tables: stored in DuckDB, held in memory, with those that a transaction has changed apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from store.duckdb.arrow_sql import among, execute, keys_table
from store.duckdb.database import Connection, Database, insert_rows
from store.model.catalog_entries import Entries, TableEntry

_TYPES: Final = {  # of columns of `tables` that are no text
    "current_snapshot_id": pa.int64(),
    "dropped": pa.bool_(),
    "partition_keys": pa.list_(pa.string()),
    "max_snapshots_behind": pa.int64(),
    "watch_seconds": pa.float64(),
}


class TableEntries:
    """The entries of all tables. Changes are made inside of the writer's transaction.

    Attributes:
        uncommitted: The state inside the writer's transaction.
        committed: The state that readers see.
        description_digests, state_digests: Table key → digests of the table at its last inspection
            (`store.catalog.found_tables.Digests`).
    """

    def __init__(self, database: Database):
        self._database = database
        self.uncommitted, self.committed = Entries(), Entries()
        self.description_digests: dict[int, str] = {}
        self.state_digests: dict[int, str] = {}
        self._changed = False
        self._next_key = 1

    @property
    def seen(self) -> Entries:
        """The entries as the calling thread is to see them: the writer its own changes, too."""
        return self.uncommitted if self._database.is_writing else self.committed

    def read(self, connection: Connection) -> None:
        """Reads all entries from the database; readers see them once they are published."""
        entries = _stored(connection)
        self.uncommitted = Entries(
            {entry.name: entry for entry in entries if not entry.dropped}, {entry.table_key: entry for entry in entries}
        )
        staged = connection.execute("SELECT table_key FROM staged_listings").fetchall()  # maybe of tables to come
        self._next_key = max([*self.uncommitted.by_key, *(key for (key,) in staged)], default=0) + 1
        self._changed = True
        self.description_digests.clear()
        self.state_digests.clear()

    def forget_digests(self, table_keys: Iterable[int]) -> None:
        """Forgets the digests of tables that others have inspected."""
        for key in table_keys:
            self.description_digests.pop(key, None)
            self.state_digests.pop(key, None)

    def read_again(self, connection: Connection, table_keys: Collection[int]) -> None:
        """Reads the entries of tables that others have changed."""
        found = {entry.table_key: entry for entry in _stored(connection, among("table_key", table_keys))}
        for key in table_keys:
            self._replace(key, found.get(key))

    def _replace(self, key: int, entry: TableEntry | None) -> None:
        """Makes an entry that is stored visible; None removes it."""
        draft, self._changed = self.uncommitted, True
        old = draft.by_key.pop(key, None)
        if old is not None and draft.by_name.get(old.name) == old:
            del draft.by_name[old.name]
        if entry is not None:
            draft.by_key[key] = entry
            self._next_key = max(self._next_key, key + 1)
            if not entry.dropped:
                draft.by_name[entry.name] = entry

    def publish(self) -> None:
        """Makes changed entries visible to readers."""
        if self._changed:
            self.committed = Entries(dict(self.uncommitted.by_name), dict(self.uncommitted.by_key))
            self._changed = False

    def reserve_key(self) -> int:
        """The key of a table to come; called inside of a write."""
        self._next_key += 1
        return self._next_key - 1

    def set(self, entry: TableEntry) -> None:
        """Makes an entry visible to the writer, and to readers once it is committed."""
        self._database.touch(entry.table_key)
        self.state_digests.pop(entry.table_key, None)
        draft, self._changed = self.uncommitted, True
        old = draft.by_key.get(entry.table_key)
        if old is not None and (old.name != entry.name or entry.dropped) and draft.by_name.get(old.name) == old:
            del draft.by_name[old.name]
        draft.by_key[entry.table_key] = entry
        if not entry.dropped:
            draft.by_name[entry.name] = entry


def _stored(connection: Connection, where: str = "true") -> list[TableEntry]:
    """The stored entries of tables that meet a condition."""
    rows = connection.execute(
        "SELECT table_key, table_catalog, table_schema, table_name, table_id, format, location,"
        f" current_snapshot_id, dropped, last_error, capture_error, max_snapshots_behind FROM tables WHERE {where}"
    ).fetchall()
    return [TableEntry(*row) for row in rows]


def insert_tables(connection: Connection, entries: Iterable[TableEntry]) -> None:
    """Stores the entries of new tables."""
    now = datetime.now(UTC)
    fields = ("table_key", "table_catalog", "table_schema", "table_name", "table_id", "format")
    columns = (*fields, "current_snapshot_id", "dropped", "discovered_at")
    values = [
        [*(getattr(entry, field) for field in fields), entry.current_snapshot_id, False, now] for entry in entries
    ]
    insert_rows(connection, f"tables ({', '.join(columns)})", values)


def update_tables(connection: Connection, changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Updates columns of `tables`: table key → new values, of the same columns for each."""
    names, keys = list(next(iter(changes.values()))), list(changes)
    if len(keys) == 1:  # the usual case, at half the cost
        sets = ", ".join(f"{name} = ?" for name in names)
        connection.execute(f"UPDATE tables SET {sets} WHERE table_key = ?", [*changes[keys[0]].values(), keys[0]])
        return
    columns = {
        name: pa.array([values[name] for values in changes.values()], _TYPES.get(name, pa.string())) for name in names
    }
    sets = ", ".join(f"{name} = v.{name}" for name in names)
    execute(
        connection,
        f"UPDATE tables SET {sets} FROM {{values}} v WHERE tables.table_key = v.table_key"
        f" AND {among('tables.table_key', keys)}",
        values=pa.table({"table_key": pa.array(keys, pa.int64()), **columns}),
        moved=keys_table(keys),
    )
