"""What the server has of one table at all its snapshots: records, summaries and sketches, each read once."""

from __future__ import annotations

import json
import math
from functools import cached_property
from itertools import takewhile
from typing import Final

from flight_server.core.views import history, snapshot_words, table_summary
from flight_server.core.views.reader import Reader, equal, read_table
from flight_server.core.views.table_summary import Row, TableSummary
from flight_server.insight import measures, references
from store.model.sketches import is_partial, theta_bounds

DEVIATIONS: Final = 5.0  # of a sketch: values beyond are impossible


class Records:
    """The stored statistics of a table.

    Args:
        table: Full name.
        at: The snapshot that is judged, an id or "current"; others are earlier or later than it.

    Attributes:
        older: Summaries of other snapshots that were read, or are known.
    """

    def __init__(self, reader: Reader, table: str, at: int | str):
        self._reader, self._table, self._at = reader, table, at
        self.older: dict[int | str, TableSummary] = {}
        self._stored: dict[int | None, list[Row]] = {}  # by column id, None for the table
        self._sketches: dict[tuple[int | str, str], dict[int, Row]] = {}  # by snapshot and role, then by column id

    def stored(self, row: Row | None) -> list[Row]:
        """The stored records of a column, or of the table, oldest first."""
        column_id = None if row is None else row["column_id"]
        if column_id not in self._stored:
            if row is None:
                self._stored[None] = history.table_rows(self._reader, self._table)
            else:
                of_column = equal("column_id", column_id)
                rows = read_table(self._reader, "stats.columns", self._table, None, of_column).to_pylist()
                self._stored[column_id] = history.in_order(self._reader, self._table, rows)
        return self._stored[column_id]

    def earlier(self, row: Row | None, before: int | None = None) -> list[Row]:
        """The stored records of a column, or of the table, at snapshots before the one judged, oldest first.

        Args:
            before: The snapshot that an inherited value is of, whose own verdict is repeated; None for the one judged.
        """
        earlier = (one for one in self.stored(row) if one["snapshot_id"] not in self._not_earlier)
        return list(takewhile(lambda one: one["snapshot_id"] != before, earlier))

    def at(self, snapshot: int | str, row: Row | None) -> Row | None:
        """The record of a column, or of the table, at another snapshot."""
        summary = self.summary(snapshot)
        if row is None:
            return summary.table
        return next((one for one in summary.rows if one["column_id"] == row["column_id"]), None)

    def summary(self, snapshot: int | str) -> TableSummary:
        """The statistics of an earlier snapshot."""
        if snapshot not in self.older:
            self.older[snapshot] = table_summary.gather(self._reader, self._table, snapshot)
        return self.older[snapshot]

    def sketch(self, snapshot: int | str, column_id: int, role: str = "QUANTILES") -> Row | None:
        """The sketch of a column at a snapshot; None if there is none."""
        if (snapshot, role) not in self._sketches:
            rows = references.sketches(self._reader, self._table, role, snapshot)
            self.take_sketches(snapshot, role, {row["column_id"]: row for row in rows})
        return self._sketches[snapshot, role].get(column_id)

    def distinct(self, row: Row) -> tuple[float, float] | None:
        """The numbers of distinct values that agree with the sketch of a record's distribution; None without one."""
        at = measures.snapshot_of(row, "ndv")
        sketch = None if at is None else self.sketch(at, row["column_id"], "NDV")
        if sketch is None or sketch["snapshot_id"] != at:
            return None
        low, high = theta_bounds(sketch["data"], DEVIATIONS)
        if is_partial(sketch["params"]):
            told = json.loads(sketch["params"] or "{}")
            high += max(told["rows"] - told["rows_seen"], 0) if {"rows", "rows_seen"} <= told.keys() else math.inf
        return low, high

    def take_sketches(self, snapshot: int | str, role: str, by_column: dict[int, Row]) -> None:
        """Takes sketches of a snapshot, which are not read then."""
        self._sketches[snapshot, role] = by_column

    def snapshots(self) -> list[Row]:
        """The snapshots of the table, oldest first."""
        return history.snapshots(self._reader, self._table)

    def is_now(self, snapshot: Row) -> bool:
        """True for the snapshot that is judged."""
        return bool(snapshot["is_current"] if self._at == "current" else snapshot["snapshot_id"] == self._at)

    @cached_property
    def previous(self) -> int | None:
        """The captured snapshot before the one judged."""
        older = self.earlier(None)
        return older[-1]["snapshot_id"] if older else None

    @cached_property
    def first(self) -> int | None:
        """The oldest captured snapshot."""
        stored = self.stored(None)
        return stored[0]["snapshot_id"] if stored else None

    @cached_property
    def _not_earlier(self) -> set[int]:
        """The snapshot judged, and those that did not come before it: a table that was rolled back has some, and one
        with branches."""
        snapshots = self.snapshots()
        place = next((place for place, row in enumerate(snapshots) if self.is_now(row)), None)
        if place is None:
            return set()
        before = {row["snapshot_id"] for row in snapshot_words.before(snapshots, place)}
        return {row["snapshot_id"] for row in snapshots} - before
