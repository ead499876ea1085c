"""Tables that may have rows, by family, in memory: the first rows of a table are stored without a lookup.

Most captures are the first of their table, and each statement costs more to plan than its rows to store. The sets are
supersets: a table whose rows were deleted, or whose transaction was rolled back, only costs a lookup.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from store.duckdb.commit_log import Applied
from store.duckdb.database import Database
from store.duckdb.layout import BY_SNAPSHOT, Connection, parts

STAGED: Final = "staged_listings"
_LISTINGS: Final = "file_snapshots"
_TABLES: Final = {flight: parts(flight) for flight in BY_SNAPSHOT} | {STAGED: (STAGED,)}
_SOURCES = [
    "SELECT family, table_key FROM file_snapshots",
    "SELECT family, table_key FROM staged_listings",
    f"SELECT '{STAGED}', table_key FROM staged_listings",
    *(f"SELECT '{flight}', table_key FROM {table}" for flight in BY_SNAPSHOT for table in parts(flight)),
]


class Presence:
    """Families by which tables may have rows: flights of `BY_SNAPSHOT` and of `BY_SPAN`, staged rows included; and
    `STAGED` of tables that may have a listing that is staged."""

    def __init__(self, database: Database):
        self._keys: dict[str, set[int]] = {}
        with database.reading() as cursor:
            self.load(cursor)

    def load(self, connection: Connection) -> None:
        """Reads the tables that have rows again."""
        keys: dict[str, set[int]] = {}
        for family, key in connection.execute(" UNION ".join(_SOURCES)).fetchall():
            keys.setdefault(family, set()).add(key)
        self._keys = keys

    def applied(self, connection: Connection, applied: Applied) -> None:
        """Registers what others have stored."""
        if applied.is_whole:
            self.load(connection)
        for family, tables in _TABLES.items():
            self.add(family, {key for table in tables for key in applied.keys.get(table, ())})
        for table, rows in applied.rows.items():
            if table in (_LISTINGS, STAGED):
                for row in rows.select(["family", "table_key"]).to_pylist():
                    self.add(row["family"], [row["table_key"]])

    def has_any(self, family: str, table_keys: Collection[int]) -> bool:
        """True if any of these tables may have rows of a family."""
        return not self._keys.get(family, set()).isdisjoint(table_keys)

    def of(self, family: str, table_keys: Collection[int]) -> set[int]:
        """Returns the tables, among those given, that may have rows of a family."""
        return self._keys.get(family, set()).intersection(table_keys)

    def add(self, family: str, table_keys: Collection[int]) -> None:
        """Registers tables of which rows are stored; called before, inside of the write."""
        self._keys.setdefault(family, set()).update(table_keys)
