"""What the merges of a transaction need to know about the tables and snapshots that its puts are about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from store.duckdb.segments import Segments
from store.history.file_listings import Marks
from store.history.presence import Presence
from store.history.spans import Spans
from store.history.staged import NameOf
from store.model.catalog_entries import Place


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
    """

    name_of: NameOf
    places: Mapping[tuple[int, int], Place]
    spans: Spans
    presence: Presence
    segments: Segments
    marks: Marks = field(default_factory=dict)
