"""The tables that have rows in each flight, to skip lookups for those that have none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN

_KEYS: Final = (
    {flight: f"SELECT DISTINCT table_key FROM {table}" for flight, table in BY_SNAPSHOT.items()}
    | {family: f"SELECT DISTINCT table_key FROM file_snapshots WHERE family = '{family}'" for family in BY_SPAN}
    | {"staged": "SELECT DISTINCT table_key FROM staged_listings"}
)


class Presence:
    """The tables that may have rows in each flight; a superset, since a false positive only costs a lookup.

    A flight's tables are read from the database at first use. Writes add the tables of new rows with `add`, before they
    commit; deletes and rollbacks remove none. Other threads than the writer's may call `among`.

    Args:
        rows: Runs a query on committed rows and returns the result.
    """

    def __init__(self, rows: Callable[[str], Iterable[tuple[Any, ...]]]):
        self._rows = rows
        self._tables: dict[str, set[int]] = {}

    def _of(self, flight: str) -> set[int]:
        if (known := self._tables.get(flight)) is None:  # setdefault, because the writer may have added to its own
            known = self._tables.setdefault(flight, {key for (key,) in self._rows(_KEYS[flight])})
        return known

    def among(self, flight: str, table_keys: Iterable[int]) -> list[int]:
        """Keeps the tables that may have rows in a flight, in order.

        Args:
            flight: A stored flight, `file_sketches`, or `staged` for the tables with a listing in `staged_listings`.
            table_keys: Keys of tables.
        """
        known = self._of(flight)
        return [key for key in table_keys if key in known]

    def is_any(self, flight: str, table_keys: Iterable[int]) -> bool:
        """True if any of the tables may have rows in a flight."""
        return not self._of(flight).isdisjoint(table_keys)

    def add(self, flight: str, table_keys: Collection[int]) -> None:
        """Adds tables that have stored rows now."""
        self._of(flight).update(table_keys)
