"""After a start: what was read most lately before it is made ready, so that no planner has to wait for DuckDB first.

Tables come in the order of their last read (`sys.column_usage`), those that nobody has read not at all. The thread
leaves as much time to others as it takes, and stops once half of the cache is full: the rest is for what is asked now.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from flight_server.scan import Scanner
from flight_server.usage import Usage
from store.schemas import FLIGHTS

log = logging.getLogger("statflight.server")

MAX_TABLES: Final = 1000
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
        cache, catalog = self._scanner.slices, self._scanner.catalog
        try:
            for key in self._usage.latest(MAX_TABLES):
                table = catalog.by_key(key)
                if table.current_snapshot_id is None:
                    continue
                for flight in READIED:
                    began = time.monotonic()
                    if cache.is_half_full:
                        return
                    self._scanner.slice(flight, table, table.current_snapshot_id, at_once=True)
                    if self._stopped.wait(time.monotonic() - began):
                        return
        except Exception:  # what is not ready is read when it is asked for
            log.exception("what was read before the start could not be made ready")
