"""What a worker puts under a lease, until it is published or forgotten."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa

from store.catalog_store import TableEntry
from store.database import Connection
from store.file_listings import Listing, continue_listing, mark_listing
from store.spill import Spool
from store.stats_store import DuckDBStatsStore, Put, PutMode


class Draft:
    """Rows put under a lease, unseen until they are published; many of them wait in files in the directory."""

    def __init__(self, directory: Path | None = None):
        self._directory = directory
        self._lock = threading.Lock()
        self._spools: dict[tuple[str, PutMode, pa.Schema], Spool] = {}
        self._merged: list[Put] | None = None
        self._listings: dict[int, Listing] = {}  # by snapshot

    def __bool__(self) -> bool:
        return bool(self._spools or self._listings)

    def declare(self, listing: Listing) -> None:
        with self._lock:
            self._listings[listing.snapshot_id] = listing

    def publish(self, connection: Connection, store: DuckDBStatsStore, table: TableEntry) -> None:
        """Stores all of it."""
        for listing in self._listings.values():
            if listing.base_snapshot_id is not None:
                continue_listing(connection, table.table_key, listing)
                store.catalog.settling.listed([table.table_key])
        store.put_in(connection, self.merged())
        for listing in self._listings.values():
            mark_listing(connection, table.table_key, listing)

    def add(self, put: Put, whole: bool) -> None:
        """Takes rows; `whole`: they are all there are at their snapshots."""
        mode = PutMode.REPLACE_SNAPSHOT if whole else put.mode
        with self._lock:
            key = (put.flight, mode, put.rows.schema)
            if key not in self._spools:
                self._spools[key] = Spool(put.rows.schema, self._directory)
            self._spools[key].add(put.rows)

    def merged(self) -> list[Put]:
        """Puts in the order of publishing: what was asked for first, then what was found besides."""
        with self._lock:
            if self._merged is None:  # a write may be tried twice, a spool gives its rows once
                groups: dict[tuple[str, PutMode], list[pa.Table]] = {}
                for (flight, mode, _), spool in self._spools.items():
                    groups.setdefault((flight, mode), []).append(spool.table())
                ordered = sorted(groups.items(), key=lambda item: item[0][1] is PutMode.FILL)
                self._merged = [
                    Put(flight, pa.concat_tables(tables, promote_options="default"), mode)
                    for (flight, mode), tables in ordered
                ]
            return self._merged
