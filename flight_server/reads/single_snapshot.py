"""Tables that have the rows of a flight at one snapshot alone: read at that one, nothing is inherited or to be chosen.

Which they are is read once for all tables, and again for a table whose generation has moved (`store.table_versions`).
"""

from __future__ import annotations

import threading
from typing import Final

from store.database import BY_SNAPSHOT, Database
from store.table_versions import Changes

FLIGHTS: Final = frozenset(BY_SNAPSHOT) - {"stats.sketches"}


class LoneSnapshots:
    """For a flight and a table, the one snapshot that has rows."""

    def __init__(self, database: Database, changes: Changes):
        self._database, self._changes = database, changes
        self._known: dict[str, dict[int, tuple[int, int | None]]] = {}  # flight → table key → generation, snapshot
        self._lock = threading.Lock()

    def of(self, flight: str, table_key: int, generation: int) -> int | None:
        """The snapshot as of a settled generation of the table; None where there are several, or none.

        Args:
            flight: The name of a flight of `FLIGHTS`.
            table_key: Of the table.
            generation: What `Changes.settled` said before.
        """
        known = self._known.get(flight) or self._read_all(flight)
        found = known.get(table_key)
        if found is None or found[0] != generation:
            found = known[table_key] = (generation, self._read(flight, "WHERE table_key = ?", table_key).get(table_key))
        return found[1]

    def _read_all(self, flight: str) -> dict[int, tuple[int, int | None]]:
        with self._lock:
            if flight not in self._known:
                before = self._changes.generations()
                rows = self._read(flight, "")
                self._known[flight] = {key: (before[key], snapshot) for key, snapshot in rows.items()}
            return self._known[flight]

    def _read(self, flight: str, where: str, *parameters: int) -> dict[int, int | None]:
        rows = self._database.rows(
            "SELECT table_key, min(snapshot_id), max(snapshot_id)"
            f" FROM {BY_SNAPSHOT[flight]} {where} GROUP BY table_key", *parameters
        )  # fmt: skip
        return {key: first if first == last else None for key, first, last in rows}
