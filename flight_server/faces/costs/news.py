"""Tables that stores said have changed, until they are looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from flight_server.core.reads.stream import never
from store.model.catalog_entries import TableEntry

TOGETHER_SECONDS: Final = 0.5  # from the first notification to the look: a commit writes many objects
_IDLE_SECONDS: Final = 0.1

Look = Callable[[Sequence[TableEntry], Callable[[], bool]], Any]


class News:
    """Collects tables and looks at them together; one that is named often meanwhile is looked at once.

    Args:
        look: Looks at tables (`Lakes.changed`).
    """

    def __init__(self, look: Look):
        self._look_at = look
        self._tables: dict[int, TableEntry] = {}
        self._came = threading.Event()
        self._lock = threading.Lock()

    def add(self, tables: Iterable[TableEntry]) -> None:
        """Notes that tables changed; returns at once."""
        with self._lock:
            self._tables |= {table.table_key: table for table in tables}
            if self._tables:
                self._came.set()

    def wait(self) -> float:
        """Seconds until there may be something to do; waits for news for a while."""
        return TOGETHER_SECONDS if self._came.is_set() else _IDLE_SECONDS

    def step(self) -> None:
        """Looks at the tables that were named until now."""
        with self._lock:
            tables, self._tables = list(self._tables.values()), {}
            self._came.clear()
        if tables:
            self._look_at(tables, never)
