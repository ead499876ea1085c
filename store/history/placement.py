"""Facts about tables and snapshots that the merges of one transaction share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from store.duckdb.layout import SPAN, Connection, insert_rows
from store.duckdb.segments import Segments
from store.history.file_listings import Marks
from store.history.presence import Presence
from store.history.spans import Spans
from store.history.staged import NameOf
from store.model.catalog_entries import Place


class NewListings:
    """New rows of `file_snapshots`, stored with one statement for all families of a put."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def add(self, key: int, family: str, snapshot_id: int, pos: int, rest: Sequence[Any]) -> None:
        """Adds a listing: its table, family, snapshot and position, then the columns of its span and its mark."""
        self._rows.append((key, family, snapshot_id, pos, *rest))

    def store(self, connection: Connection, family: str | None = None) -> None:
        """Stores what was added.

        Args:
            family: The family whose listings are about to be read: nothing is stored if none was added. None for any.
        """
        if family is None or any(of == family for _, of, *_ in self._rows):
            columns = f"table_key, family, snapshot_id, pos, {', '.join(SPAN)}, mark"
            insert_rows(connection, f"file_snapshots ({columns})", self._rows)
            self._rows = []


@dataclass(frozen=True, slots=True)
class Placement:
    """Tables and snapshots of a transaction's puts.

    Attributes:
        name_of: Table key → full name, for messages.
        places: (table key, snapshot id) → place of the snapshot in the table's history.
        spans: Registers the tables whose spans change.
        presence: The tables that may have rows of a family.
        segments: The segments with rows of files.
        marks: (table key, snapshot id) → mark of the listings of files.
        listings: The listings of files that the puts add.
    """

    name_of: NameOf
    places: Mapping[tuple[int, int], Place]
    spans: Spans
    presence: Presence
    segments: Segments
    marks: Marks = field(default_factory=dict)
    listings: NewListings = field(default_factory=NewListings)
