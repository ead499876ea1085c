"""`StatsStore` in a file of SQLite: what another package would plug in by the entry point group `statflight.stores`.

The records are those of the reference store; a put, delete or registration writes what it changed in one transaction.
"""

from __future__ import annotations

import pickle
import sqlite3
from pathlib import Path
from typing import Any

from tests.store.reference_store import MemoryStatsStore, State


class SqliteStatsStore(MemoryStatsStore):
    """Few records: all are in memory while the store is open."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._file.execute("PRAGMA synchronous = FULL")
        self._file.execute("CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, entry BLOB)")
        for (entry,) in self._file.execute("SELECT entry FROM entries"):
            _insert(self.state, *pickle.loads(entry))
        generations = (row["generation"] for rows in self.state.records.values() for row in rows.values())
        self.generation = max(generations, default=0)

    def commit(self, state: State) -> None:
        before, after = _entries(self.state), _entries(state)
        changed = [item for item in after.items() if item[0] not in before or before[item[0]] != item[1]]
        with self._file:
            self._file.execute("BEGIN")
            self._file.executemany("DELETE FROM entries WHERE key = ?", [(repr(key),) for key in before.keys() - after])
            rows = [(repr(item[0]), pickle.dumps(item)) for item in changed]
            self._file.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", rows)
        super().commit(state)

    def close(self) -> None:
        self._file.close()


def _entries(state: State) -> dict[tuple[Any, ...], Any]:
    """All entries of a state by part and key."""
    found: dict[tuple[Any, ...], Any] = {
        ("records", place, target): row for place, rows in state.records.items() for target, row in rows.items()
    }
    for part in ("tables", "snapshots", "column_ids", "keys"):
        found |= {(part, key): value for key, value in getattr(state, part).items()}
    return found


def _insert(state: State, key: tuple[Any, ...], value: Any) -> None:
    if key[0] == "records":
        state.records.setdefault(key[1], {})[key[2]] = value
    else:
        getattr(state, key[0])[key[1]] = value
