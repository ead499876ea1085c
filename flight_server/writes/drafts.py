"""Drafts: rows that a worker puts under a lease, until they are published or dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path

import pyarrow as pa

from store.catalog_store import TableEntry
from store.database import Connection
from store.file_listings import Listing, continue_listing, mark_listings
from store.spill import SpillBuffer
from store.stats_store import DuckDBStatsStore, Put, PutMode


class Draft:
    """Rows put under a lease, unseen until they are published; many of them wait in files in the directory."""

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
        """Notes how the files of a snapshot are listed."""
        with self._lock:
            self._listings[listing.snapshot_id] = listing

    @property
    def continues(self) -> bool:
        """True if its file rows are the difference from an earlier listing."""
        return any(listing.base_snapshot_id is not None for listing in self._listings.values())

    def publish(self, connection: Connection, store: DuckDBStatsStore, table: TableEntry) -> None:
        """Stores all of it.

        Args:
            connection: The writer's.
            store: Where to.
            table: The table that the draft is about.
        """
        for listing in self._listings.values():
            if listing.base_snapshot_id is not None:
                continue_listing(connection, table.table_key, listing)
                store.catalog.settling.listed([table.table_key])
        store.put_in(connection, self.merged())
        mark_listings(connection, self.listings(table))

    def listings(self, table: TableEntry) -> list[tuple[int, Listing]]:
        """The declared listings with the key of their table; their marks are kept once their rows are stored."""
        return [(table.table_key, listing) for listing in self._listings.values()]

    def add(self, put: Put, whole: bool, *, few: bool = False) -> None:
        """Takes rows.

        Args:
            whole: They are all there are of their flight at their snapshots.
            few: They stay in memory; others may go to a file.
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
        """Puts in the order of publishing: what was asked for first, then what was found besides."""
        with self._lock:
            if self._merged is None:  # a write may be tried twice, a buffer gives its rows once
                buffers = self._buffers.items()
                puts = [Put(flight, buffer.table(), mode) for (flight, mode, _), buffer in buffers]
                self._merged = together(puts + self._few)
            return self._merged


class DraftGroup:
    """Stores the drafts that one transaction publishes as one put, which costs by its rows and not by their tables.

    Where the put is refused, the writer tries each transaction alone, and only the draft at fault hears of it.
    """

    def __init__(self, store: DuckDBStatsStore):
        self._store = store
        self._drafts: list[tuple[Draft, TableEntry]] = []  # of the transaction that runs
        store.database.before_commit.insert(0, self._store_all)  # before anything that looks at what was put
        store.database.on_rollback.append(lambda _: self._drafts.clear())

    def publish(self, connection: Connection, draft: Draft, table: TableEntry) -> None:
        """Stores a draft by the end of the writer's transaction, inside of which this is called.

        Args:
            connection: The writer's.
            table: The table that it is about.
        """
        if draft.continues:
            draft.publish(connection, self._store, table)
        else:
            self._drafts.append((draft, table))

    def _store_all(self, connection: Connection, _: AbstractSet[int]) -> None:
        drafts, self._drafts = self._drafts, []
        if len(drafts) == 1:
            ((draft, table),) = drafts
            draft.publish(connection, self._store, table)
        elif drafts:
            self._store.put_in(connection, together(put for draft, _ in drafts for put in draft.merged()))
            mark_listings(connection, [listing for draft, table in drafts for listing in draft.listings(table)])


def together(puts: Iterable[Put]) -> list[Put]:
    """One put for each flight and mode, in the order of publishing: sketches after what they belong to."""
    groups: dict[tuple[str, PutMode], list[pa.Table]] = {}
    for put in puts:
        groups.setdefault((put.flight, put.mode), []).append(put.rows)
    ordered = sorted(groups.items(), key=lambda item: (item[0][1] is PutMode.FILL, item[0][0] == "stats.sketches"))
    return [
        Put(flight, tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default"), mode)
        for (flight, mode), tables in ordered
    ]
