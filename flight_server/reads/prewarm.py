"""Prewarming: builds the slices that planners read, for all tables after a start and for changed ones after a commit.

The current rows of a table are packed into one value in the database (`store.history.materialized`), once per change,
and loaded into the cache until it is half full; the rest is for slices requested by readers. Tables are processed in
the order of their last read (`sys.column_usage`), then those never read, many with one query. The thread sleeps as long
as it works.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from flight_server.reads.scanner import PACKED, Scanner
from flight_server.reads.slice_cache import Slice, SliceKey
from flight_server.reads.usage import Usage
from store.history.materialized import MOST_BYTES, Value
from store.model.catalog_entries import TableEntry
from store.model.schemas import FLIGHTS

log = logging.getLogger("statflight.server")

CHUNK_ROWS: Final = 20_000  # most stored rows read by one query; a table is never split
LOOK_SECONDS: Final = 1.0  # interval between two checks for changed tables


class Prewarmer:
    """Prewarms tables in a background thread."""

    def __init__(self, scanner: Scanner, usage: Usage):
        self._scanner, self._usage = scanner, usage
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="ready", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits until it no longer uses the store."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        keys: Collection[int] | None = None
        while True:
            try:
                if keys is None or keys:
                    self.warm(keys)
            except Exception:  # slices that are missing are loaded by readers
                log.exception("prewarming failed")
            if self._stopped.wait(LOOK_SECONDS):
                return
            keys = self._scanner.materialized.take_changed()

    def warm(self, keys: Collection[int] | None = None) -> None:
        """Prewarms these tables; None for all."""
        for tables in self._chunks(keys):
            began = time.monotonic()
            self._warm(tables, again=keys is not None)
            if self._stopped.wait(time.monotonic() - began):
                return

    def _warm(self, tables: Iterable[TableEntry], again: bool) -> None:
        """Prewarms tables from materialized values, else from rows.

        Args:
            tables: The tables.
            again: In the second half of the cache, replace cached slices only.
        """
        scanner, known = self._scanner, {table.table_key: table for table in tables}
        generations = {key: scanner.versions.generation(key) for key in known}
        valid = set()
        for name, key, snapshot, data in scanner.materialized.of_tables(known):
            slice_ = scanner.unpack(FLIGHTS[name], data, generations[key])
            if slice_ is not None and snapshot == known[key].current_snapshot_id:
                valid.add((name, key))
                self._cache((name, key, snapshot, False), slice_, again)
        values = []
        for flight in PACKED:
            missing = [table for key, table in known.items() if (flight.name, key) not in valid]
            for key, snapshot, slice_ in scanner.current(flight, missing):
                self._cache((flight.name, key, snapshot, False), slice_, again)
                data = scanner.pack(flight, slice_)
                if len(data) <= MOST_BYTES:
                    values.append(Value(flight.name, key, snapshot, slice_.generation, data))
        if values:
            scanner.materialized.put(values)

    def _cache(self, key: SliceKey, slice_: Slice, again: bool) -> None:
        cache = self._scanner.slices
        if not cache.is_half_full or (again and cache.has(key)):
            cache.put(key, slice_)

    def _chunks(self, keys: Collection[int] | None) -> Iterator[list[TableEntry]]:
        """Tables with rows, in chunks; if all tables are prewarmed, the most recently read first."""
        queries = self._scanner.queries
        sizes = {key: rows for flight in PACKED for key, rows in queries.stored_rows(flight, keys).items()}
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
