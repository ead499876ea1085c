"""The rows that each load of a table that only grows brought, by the difference of successive records of a column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from flight_server.core.views.table_summary import Row
from store.model import figures

LEAST_ROWS: Final = 20  # shares of fewer rows vary by chance
MEASURES: Final = ("null_fraction", "mean")


def values(measure: str, rows: Sequence[Row]) -> list[tuple[int, float]] | None:
    """The values of a measure of the rows that were added.

    Args:
        measure: One of `MEASURES`.
        rows: Records of a column, oldest first, all of whole snapshots.

    Returns:
        The place of each record with its load's value, of loads of at least `LEAST_ROWS` rows; None for a table that
        does not only grow, or whose rows were never added to.
    """
    counted = [place for place, row in enumerate(rows) if figures.values(row) is not None]
    found: list[tuple[int, float]] = []
    grew = False
    for before, after in pairwise(counted):
        old, new = rows[before], rows[after]
        added, nulls = new["row_count"] - old["row_count"], new["null_count"] - old["null_count"]
        if added < 0 or not 0 <= nulls <= added:
            return None
        grew = grew or added > 0
        if added >= LEAST_ROWS:
            value = nulls / added if measure == "null_fraction" else _mean(old, new)
            if value is not None:
                found.append((after, value))
    return found if grew else None


def _mean(old: Row, new: Row) -> float | None:
    """The mean of the values that came between two records; None if it cannot be told."""
    if any(row["mean"] is None or not _is_own(row) for row in (old, new)):
        return None
    were, are = (figures.not_nan(row) for row in (old, new))
    if were is None or are is None or are - were < LEAST_ROWS:
        return None
    mean = (are * new["mean"] - were * old["mean"]) / (are - were)
    return mean if math.isfinite(mean) else None


def _is_own(row: Row) -> bool:
    """True if the distribution of a record is of its own snapshot, and of all rows."""
    at = row.get("distribution_snapshot_id")
    return at in (None, row["snapshot_id"]) and row["completeness"] != "PARTIAL"
