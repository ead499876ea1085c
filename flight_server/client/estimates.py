"""`Estimate`: a statistic with its exactness, as faces with schemas of their own hand it out (ADBC, Arrow).

Imports nothing, because the client requires only pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

COLUMN_FIELDS: Final = (
    "logical_type",
    "null_count",
    "ndv",
    "ndv_exact",
    "min",
    "max",
    "min_is_exact",
    "max_is_exact",
    "avg_width_bytes",
    "max_width_bytes",
    "nan_count",
    "freshness",
    "completeness",
    "distribution_freshness",
)
"""Columns of `stats.columns` that `of_column` needs."""
TABLE_FIELDS: Final = ("row_count", "freshness", "completeness")
"""Columns of `stats.tables` that `of_table` needs."""

Row = Mapping[str, Any]


class Keys(NamedTuple):
    """The keys of a statistic in ADBC's GetStatistics and in Arrow's statistics schema."""

    adbc: int
    arrow: str


KEYS: Final = {
    "row_count": Keys(6, "row_count"),
    "null_count": Keys(5, "null_count"),
    "ndv": Keys(1, "distinct_count"),
    "max": Keys(3, "max_value"),
    "min": Keys(4, "min_value"),
    "avg_width_bytes": Keys(0, "average_byte_width"),
    "max_width_bytes": Keys(2, "max_byte_width"),
}


class Estimate(NamedTuple):
    """A known statistic.

    Attributes:
        value: A count as an integer, a mean or estimated count as a float; a bound as the integer or float of a numeric
            column, else as its canonical text.
        is_exact: False for an estimate, a truncated bound, and what an earlier snapshot or incomplete data gave.
    """

    value: int | float | str
    is_exact: bool


def of_table(row: Row) -> dict[str, Estimate]:
    """The statistics of a row of `stats.tables` by column; unknown ones are left out."""
    return {} if row["row_count"] is None else {"row_count": Estimate(row["row_count"], _is_sure(row))}


def of_column(row: Row) -> dict[str, Estimate]:
    """The statistics of a row of `stats.columns` by column; unknown ones are left out."""
    sure, found = _is_sure(row), dict[str, Estimate]()
    if row["null_count"] is not None:
        found["null_count"] = Estimate(row["null_count"], sure)
    width_is_sure = sure and row["distribution_freshness"] == "EXACT"
    for name, kind in (("avg_width_bytes", float), ("max_width_bytes", int)):
        if row[name] is not None:
            found[name] = Estimate(kind(row[name]), width_is_sure)
    # flags of their own, which do not count for rows of an earlier snapshot or incomplete ones
    may_be_exact = row["freshness"] in (None, "EXACT") and row["completeness"] in (None, "COMPLETE")
    if (ndv := row["ndv"]) is not None:
        is_count = float(ndv).is_integer() and ndv < 2**63  # more are no 64 bits, and no exact count
        exact = bool(row["ndv_exact"]) and is_count and may_be_exact
        found["ndv"] = Estimate(int(ndv) if exact else float(ndv), exact)
    nan_is_known = row["logical_type"] not in ("FLOAT", "DOUBLE") or row["nan_count"] is not None
    for name in ("min", "max"):
        if row[name] is not None:
            exact = bool(row[f"{name}_is_exact"]) and nan_is_known and may_be_exact
            found[name] = Estimate(_bound(row[name], row["logical_type"] or ""), exact)
    return found


def _is_sure(row: Row) -> bool:
    return bool(row["freshness"] == "EXACT" and row["completeness"] == "COMPLETE")


def _bound(text: str, logical_type: str) -> int | float | str:
    try:
        if logical_type.startswith("INT") and -(2**63) <= (number := int(text)) < 2**63:
            return number
        if logical_type.startswith(("FLOAT", "DOUBLE")):
            return float(text)
    except ValueError:
        pass
    return text
