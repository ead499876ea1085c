"""Figures that follow from the statistics of a record; a figure of an unknown statistic is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store.model.sketches import Estimate


def values(row: Mapping[str, Any]) -> int | None:
    """The number of rows that are not null."""
    rows, nulls = row.get("row_count"), row.get("null_count")
    return None if rows is None or nulls is None else rows - nulls


def most_values(row: Mapping[str, Any]) -> int | None:
    """The greatest number of rows that are not null: unknown nulls may be none."""
    rows = row.get("row_count")
    return None if rows is None else rows - (row.get("null_count") or 0)


def null_share(row: Mapping[str, Any]) -> float | None:
    """The share of nulls, from 0 to 1."""
    rows, count = row.get("row_count"), values(row)
    if rows is None or count is None:
        return None
    return (rows - count) / rows if rows else 0.0


def not_nan(row: Mapping[str, Any]) -> int | None:
    """The number of values that are not NaN; an unknown number of NaNs is taken for none."""
    count = values(row)
    return None if count is None else count - (row.get("nan_count") or 0)


def interval_of_ndv(row: Mapping[str, Any]) -> tuple[float, float] | None:
    """The 95 % interval of the distinct values of a row.

    Returns:
        None if the number is exact, if the interval is unknown, or if the distribution is of another snapshot than the
        counts beside it, about which its interval says nothing.
    """
    lower, upper = row["ndv_lower"], row["ndv_upper"]
    is_another = row.get("distribution_snapshot_id") not in (None, row.get("snapshot_id"))
    if row["ndv_exact"] or lower is None or upper is None or is_another:
        return None
    return lower, upper


def limits_of_ndv(row: Mapping[str, Any]) -> tuple[float, float]:
    """The least and the greatest number of distinct values that a row allows; infinite if it names no limit."""
    if row.get("ndv_exact"):
        return row["ndv"], row["ndv"]
    low, high, most = row.get("ndv_lower"), row.get("ndv_upper"), most_values(row)
    if high is None:
        high = float("inf") if most is None else most
    return 0.0 if low is None else low, high


def is_unique(row: Mapping[str, Any]) -> bool:
    """True if a row says for certain that its column has no null and no value twice, among two or more."""
    count = row["row_count"] or 0
    return bool(row["null_count"] == 0 and row["ndv_exact"] and row["ndv"] == count and count > 1)


def distinct(found: Estimate) -> dict[str, Any]:
    """The statistics of distinct values that a theta sketch tells."""
    return {"ndv": found.ndv, "ndv_exact": found.exact, "ndv_lower": found.lower, "ndv_upper": found.upper}
