"""Drafts: rows that a worker puts under a lease, invisible until they are committed."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

import pyarrow as pa

from store.duckdb.database import Connection
from store.duckdb.spill import SpillBuffer
from store.history.file_listings import Listing, continue_listing, mark_listings
from store.model.catalog_entries import TableEntry
from store.stats_store import DuckDBStatsStore, Put, PutMode


class Draft:
    """Rows put under a lease; large ones are spilled to files in the directory."""

    def __init__(self, directory: Path | None = None):
        self._directory = directory
        self._lock = threading.Lock()
        self._buffers: dict[tuple[str, PutMode, pa.Schema], SpillBuffer] = {}
        self._few: list[Put] = []
        self._merged: list[Put] | None = None
        self._listings: dict[int, Listing] = {}  # by snapshot

    def __bool__(self) -> bool:
        return bool(self._buffers or self._few or self._listings)

    def declare(self, listing: Listing) -> None:
        """Adds the file listing of a snapshot."""
        with self._lock:
            self._listings[listing.snapshot_id] = listing

    @property
    def continues(self) -> bool:
        """True if the draft has a listing that is based on an earlier one."""
        return any(listing.base_snapshot_id is not None for listing in self._listings.values())

    def commit(self, connection: Connection, store: DuckDBStatsStore, table: TableEntry) -> None:
        """Stores the draft.

        Args:
            connection: The writer's.
            store: The store.
            table: The table of the draft.
        """
        for listing in self._listings.values():
            if listing.base_snapshot_id is not None:
                continue_listing(connection, table.table_key, listing)
                store.catalog.current_rows.invalidate_listings([table.table_key])
        store.put_in(connection, self.merged())
        mark_listings(connection, self.listings(table))

    def listings(self, table: TableEntry) -> list[tuple[int, Listing]]:
        """The declared listings with the key of their table, for `mark_listings` once their rows are stored."""
        return [(table.table_key, listing) for listing in self._listings.values()]

    def add(self, put: Put, whole: bool, *, few: bool = False) -> None:
        """Adds rows.

        Args:
            put: The rows.
            whole: True if they are all rows of their flight at their snapshots.
            few: Keep them in memory; others may be spilled to a file.
        """
        mode = PutMode.REPLACE_SNAPSHOT if whole else put.mode
        with self._lock:
            if few:
                self._few.append(Put(put.flight, put.rows, mode))
                return
            key = (put.flight, mode, put.rows.schema)
            if key not in self._buffers:
                self._buffers[key] = SpillBuffer(put.rows.schema, self._directory)
            self._buffers[key].add(put.rows)

    def merged(self) -> list[Put]:
        """The puts in the order of the commit: requested statistics first, then additional ones (mode FILL)."""
        with self._lock:
            if self._merged is None:  # cached, because a write may run twice and a buffer returns its rows once
                buffers = self._buffers.items()
                puts = [Put(flight, buffer.table(), mode) for (flight, mode, _), buffer in buffers]
                self._merged = together(puts + self._few)
            return self._merged


class DraftGroup:
    """Stores all drafts committed in one group of writes as one put, whose cost depends on rows, not on tables.

    If the put is refused, the writer repeats each write on its own, so that only the draft at fault fails.
    """

    def __init__(self, store: DuckDBStatsStore):
        self._store = store
        self._drafts: list[tuple[Draft, TableEntry]] = []  # of the running transaction
        store.database.before_commit.insert(0, self._store_all)  # before hooks that depend on the stored rows
        store.database.on_rollback.append(lambda _: self._drafts.clear())

    def commit(self, connection: Connection, draft: Draft, table: TableEntry) -> None:
        """Stores a draft by the end of the writer's transaction; called inside of it.

        Args:
            connection: The writer's.
            draft: The draft.
            table: The table of the draft.
        """
        if draft.continues:
            draft.commit(connection, self._store, table)
        else:
            self._drafts.append((draft, table))

    def _store_all(self, connection: Connection, _: AbstractSet[int]) -> None:
        drafts, self._drafts = self._drafts, []
        if len(drafts) == 1:
            ((draft, table),) = drafts
            draft.commit(connection, self._store, table)
        elif drafts:
            self._store.put_in(connection, together(put for draft, _ in drafts for put in draft.merged()))
            mark_listings(connection, [listing for draft, table in drafts for listing in draft.listings(table)])


def together(puts: Iterable[Put]) -> list[Put]:
    """Merges puts into one for each flight and mode, in the order of the commit: sketches after their records."""
    groups: dict[tuple[str, PutMode], list[pa.Table]] = {}
    for put in puts:
        groups.setdefault((put.flight, put.mode), []).append(put.rows)
    ordered = sorted(groups.items(), key=lambda item: (item[0][1] is PutMode.FILL, item[0][0] == "stats.sketches"))
    return [
        Put(flight, tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default"), mode)
        for (flight, mode), tables in ordered
    ]
