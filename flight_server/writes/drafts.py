"""Drafts: rows that a worker puts under a lease, invisible until they are committed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
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
    def listings(self) -> list[Listing]:
        """The declared listings."""
        return list(self._listings.values())

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


def store_drafts(connection: Connection, store: DuckDBStatsStore, drafts: Sequence[tuple[Draft, TableEntry]]) -> None:
    """Stores drafts: one put takes all, so that its cost depends on rows, not on tables. A draft whose listing
    continues another is put alone, after that one.

    Args:
        connection: The writer's.
        store: The store.
        drafts: Drafts, each with its table.
    """
    together_: list[tuple[Draft, TableEntry]] = []
    alone: list[tuple[Draft, TableEntry]] = []
    for each in drafts:
        (alone if any(listing.base_snapshot_id is not None for listing in each[0].listings) else together_).append(each)
    for group in (*([each] for each in alone), together_):
        listings = [(table.table_key, listing) for draft, table in group for listing in draft.listings]
        for table_key, listing in listings:
            if listing.base_snapshot_id is not None:
                continue_listing(connection, table_key, listing)
                store.catalog.current_rows.invalidate_listings([table_key])
        store.put_in(connection, together(put for draft, _ in group for put in draft.merged()))
        mark_listings(connection, listings)


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
