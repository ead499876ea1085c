"""Marks of tables and lakes (`capture.connectors.spi.Connector.mark`): what they looked like when they were described.

A look sends them to the worker, which describes only what differs. They are in memory: after a start each table is
described once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from store.model.catalog_entries import TableEntry


class Marks:
    """The marks of all tables, and of the lakes around them. Its methods are atomic by those of a dict."""

    def __init__(self) -> None:
        self._tables: dict[int, tuple[int | None, str]] = {}  # by key: with the snapshot that was current
        self._lakes: dict[str, str] = {}

    def of(self, tables: Iterable[TableEntry]) -> dict[int, str]:
        """The marks of tables by key, without those whose entry is not what was described."""
        found = {}
        for table in tables:
            snapshot_id, mark = self._tables.get(table.table_key, (None, ""))
            if mark and table.last_error is None and snapshot_id == table.current_snapshot_id:
                found[table.table_key] = mark
        return found

    def put(self, tables: Mapping[int, tuple[int | None, str | None]], failed: Collection[int] = ()) -> None:
        """Replaces the marks of tables that were described, and drops those of tables that could not be.

        Args:
            tables: Table key → current snapshot and mark; None for a table of which the connector has none.
        """
        for key, (snapshot_id, mark) in tables.items():
            if mark is None:
                self._tables.pop(key, None)
            else:
                self._tables[key] = snapshot_id, mark
        for key in failed:
            self._tables.pop(key, None)

    def lake(self, catalog: str) -> str | None:
        """The mark of a lake; None if it is not known."""
        return self._lakes.get(catalog)

    def put_lake(self, catalog: str, mark: str | None) -> None:
        """Replaces the mark of a lake."""
        if mark is None:
            self._lakes.pop(catalog, None)
        else:
            self._lakes[catalog] = mark


def found_marks(found: Mapping[str, Any]) -> dict[tuple[str, str], tuple[int | None, str | None]]:
    """The marks in findings, by schema and name."""
    return {(t["schema"], t["name"]): (t["current_snapshot_id"], t.get("mark")) for t in found["tables"]}
