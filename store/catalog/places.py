"""The places of snapshots in the histories of their tables, cached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from store.catalog.entries import TableEntries
from store.duckdb.arrow_sql import execute, within
from store.duckdb.layout import Connection
from store.duckdb.lru import LruCache
from store.history.spans import SnapshotPlace
from store.model.catalog_entries import Place

CACHED_SNAPSHOTS: Final = 65_536  # cached snapshots, which are not looked up again


class Places:
    """The places of registered snapshots, as the writer's transaction sees them."""

    def __init__(self, entries: TableEntries):
        self._entries = entries
        # (table key, snapshot id) → place
        self._cached: LruCache[tuple[int, int], Place] = LruCache(CACHED_SNAPSHOTS)

    def cached(self, table_key: int, snapshot_id: int) -> Place | None:
        """The place of a snapshot, without what it has as the newest one; None if it is not cached."""
        return self._cached.get((table_key, snapshot_id))

    def cache(self, places: Iterable[tuple[int, int, Place]]) -> None:
        """Caches the places of registered snapshots: (table key, snapshot id, place) of each."""
        for key, snapshot_id, place in places:
            self._cached.put((key, snapshot_id), place)

    def forget(self) -> None:
        """Empties the cache of places."""
        self._cached.clear()

    def of(self, connection: Connection, seen: pa.Table) -> dict[tuple[int, int], Place]:
        """(table key, snapshot id) → place, of the registered ones of `seen`, distinct table_key and snapshot_id."""
        pairs = list(zip(*(seen[name].to_pylist() for name in ("table_key", "snapshot_id")), strict=True))
        found = {pair: place for pair in pairs if (place := self._cached.get(pair)) is not None}
        if len(found) < len(pairs):
            found |= self.stored(connection, seen.filter(pa.array([pair not in found for pair in pairs])))
        return {pair: replace(place, is_newest=self._is_newest(*pair)) for pair, place in found.items()}

    def current(self, connection: Connection, table_keys: Collection[int]) -> dict[int, SnapshotPlace]:
        """Table key → id and place of the current snapshot, of those of the tables whose current snapshot is stored."""
        entries = map(self._entries.uncommitted.by_key.__getitem__, table_keys)
        pairs = [(e.table_key, e.current_snapshot_id) for e in entries if e.current_snapshot_id is not None]
        places = self.of(connection, pairs_table(pairs)) if pairs else {}
        return {key: (snapshot_id, place) for (key, snapshot_id), place in places.items()}

    def stored(self, connection: Connection, seen: pa.Table) -> dict[tuple[int, int], Place]:
        """(table key, snapshot id) → place, of those of the snapshots that are stored."""
        scope = f"{within('n.table_key', seen['table_key'])} AND {within('n.snapshot_id', seen['snapshot_id'])}"
        join = (
            ""
            if seen.num_rows == 1
            else (" SEMI JOIN {seen} s ON s.table_key = n.table_key AND s.snapshot_id = n.snapshot_id")
        )
        rows = execute(
            connection,
            f"SELECT n.table_key, n.snapshot_id, n.ordinal, n.schema_hash FROM snapshots n{join} WHERE {scope}",
            seen=seen,
        )
        return {(key, snapshot_id): Place(ordinal, hash_) for key, snapshot_id, ordinal, hash_ in rows}

    def _is_newest(self, table_key: int, snapshot_id: int) -> bool:
        entry = self._entries.uncommitted.by_key[table_key]
        return entry.current_snapshot_id == snapshot_id and entry.max_snapshots_behind is None


def pairs_table(pairs: Sequence[tuple[int, int]], **marks: Sequence[bool]) -> pa.Table:
    """Tables and snapshots as an Arrow table: table_key, snapshot_id, and columns of booleans."""
    names = {"table_key": 0, "snapshot_id": 1}
    columns = {name: pa.array([pair[at] for pair in pairs], pa.int64()) for name, at in names.items()}
    return pa.table(columns | {name: pa.array(values, pa.bool_()) for name, values in marks.items()})
