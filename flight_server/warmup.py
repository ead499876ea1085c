"""After a start: what planners will ask for is made ready, so that none of them has to wait for DuckDB first.

Tables come in the order of their last read (`sys.column_usage`), then those that nobody has read, many with one query.
The thread leaves as much time to others as it takes, and stops once half of the cache is full: the rest is for what is
asked now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Final

from flight_server.scan import Scanner
from flight_server.usage import Usage
from store.catalog_store import TableEntry
from store.schemas import FLIGHTS

log = logging.getLogger("statflight.server")

CHUNK_ROWS: Final = 20_000  # stored ones, that one query reads; a table is never parted
READIED: Final = (FLIGHTS["stats.tables"], FLIGHTS["stats.columns"])


class WarmUp:
    """Fills the scanner's cache with current rows, once, in a thread of its own."""

    def __init__(self, scanner: Scanner, usage: Usage):
        self._scanner, self._usage = scanner, usage
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="warm-up", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns once it does not use the store any more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        cache = self._scanner.slices
        if cache.largest <= 0:
            return
        try:
            for tables in self._chunks():
                for flight in READIED:
                    if cache.is_half_full:
                        return
                    began = time.monotonic()
                    self._scanner.make_ready(flight, tables)
                    if self._stopped.wait(time.monotonic() - began):
                        return
        except Exception:  # what is not ready is read when it is asked for
            log.exception("what will be asked for could not be made ready")

    def _chunks(self) -> Iterator[list[TableEntry]]:
        """All tables that have rows, those read last first."""
        sizes = {key: rows for flight in READIED for key, rows in self._scanner.stored_rows(flight).items()}
        tables = {table.table_key: table for table in self._scanner.catalog.tables()}
        chunk: list[TableEntry] = []
        size = 0
        for key in dict.fromkeys([*self._usage.latest(), *sorted(sizes)]):
            if key not in sizes or key not in tables:
                continue
            if chunk and size + sizes[key] > CHUNK_ROWS:
                yield chunk
                chunk, size = [], 0
            chunk.append(tables[key])
            size += sizes[key]
        if chunk:
            yield chunk
