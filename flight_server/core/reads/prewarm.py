"""Prewarming: caches the slices that planners read, of all tables after a start and of changed ones after a commit.

Slices are cached until the cache is half full; the rest is for slices requested by readers. Tables are read in the
order of their last read (`sys.column_usage`), then those never read, many with one query. The generations that tickets
pin are determined with them: alone, each would take a query of 4 ms. The thread sleeps as long as
it works.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator
from typing import Final

from flight_server.core.reads.scanner import Scanner
from flight_server.core.reads.slice_cache import SliceKey
from flight_server.core.reads.usage import Usage
from store.model.catalog_entries import TableEntry
from store.model.flight import Flight
from store.model.schemas import FLIGHTS

log = logging.getLogger("statflight.server")

WARMED: Final = (FLIGHTS["stats.tables"], FLIGHTS["stats.columns"])
CHUNK_ROWS: Final = 20_000  # most stored rows read by one query; a table is never split
REST_SECONDS: Final = 0.25  # least time between two passes, so that frequent commits share one
ANSWER_SECONDS: Final = 0.03  # after a commit, which answers its callers first


class Prewarmer:
    """Prewarms tables in a background thread."""

    def __init__(self, scanner: Scanner, usage: Usage):
        self._scanner, self._usage = scanner, usage
        self._stopped, self._woken = threading.Event(), scanner.versions.changed
        self._seen = scanner.versions.generations()  # at the last call of `changed`
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="prewarm", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits until it no longer uses the store."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        keys: Collection[int] | None = None
        while True:
            try:
                self.warm(keys)
            except Exception:  # slices that are missing are loaded by readers
                log.exception("prewarming failed")
            if self._stopped.wait(REST_SECONDS):
                return
            self._woken.wait()
            if self._stopped.wait(ANSWER_SECONDS):
                return
            self._woken.clear()
            keys = self.changed()

    def changed(self) -> set[int]:
        """Keys of the tables that commits changed since the last call."""
        versions = self._scanner.versions
        now, before = versions.generations(), self._seen
        self._seen = now
        return {key for key, generation in now.items() if generation != before.get(key, versions.first)}

    def warm(self, keys: Collection[int] | None = None) -> None:
        """Prewarms these tables, in the second half of the cache only those that are cached; None for all."""
        cache = self._scanner.rows.slices
        if not cache.budget or (keys is not None and not keys):
            return
        for tables in self._chunks(keys):
            began = time.monotonic()
            wanted = {flight.name: self._wanted(flight, tables) for flight in WARMED}
            for flight in WARMED:
                for table, slice_ in self._scanner.rows.current(flight, wanted[flight.name]):
                    cache.put(_key(flight.name, table), slice_)
            self._scanner.generations.warm(wanted)
            if self._stopped.wait(time.monotonic() - began):
                return

    def _wanted(self, flight: Flight, tables: Collection[TableEntry]) -> list[TableEntry]:
        """The tables of a chunk whose slices of a flight are cached."""
        cache = self._scanner.rows.slices
        return [table for table in tables if not cache.is_half_full or cache.has(_key(flight.name, table))]

    def _chunks(self, keys: Collection[int] | None) -> Iterator[list[TableEntry]]:
        """Tables with rows, in chunks; if all tables are prewarmed, the most recently read first."""
        # a table is never split, so the rows of one alone need not be counted
        is_one = keys is not None and len(keys) == 1
        sizes = dict.fromkeys(keys or (), 0) if is_one else self._scanner.queries.stored_rows(WARMED, keys)
        tables = {table.table_key: table for table in self._scanner.catalog.tables()}
        chunk: list[TableEntry] = []
        size = 0
        for key in dict.fromkeys([*(self._usage.latest() if keys is None else ()), *sorted(sizes)]):
            if key not in sizes or key not in tables:
                continue
            if chunk and size + sizes[key] > CHUNK_ROWS:
                yield chunk
                chunk, size = [], 0
            chunk.append(tables[key])
            size += sizes[key]
        if chunk:
            yield chunk


def _key(flight: str, table: TableEntry) -> SliceKey:
    return flight, table.table_key, table.current_snapshot_id, False
