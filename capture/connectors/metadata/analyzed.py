"""Statistics of a column that an engine's ANALYZE stored: names and forms as in Spark's `CatalogColumnStat`.

Lance has them as texts in a version's configuration, Paimon in a JSON file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from capture.connectors.spi import Column
from store.model import bounds
from store.model.logical_types import Kind, parse

COUNTS_OF_ENTRY: Final = ("distinctCount", "nullCount", "avgLen", "maxLen")


def analyzed_row(
    entry: Mapping[str, Any], column: Column, column_id: int, rows: int | None, *, in_utc: bool
) -> dict[str, Any]:
    """Converts an entry to a row of COLUMN_SCHEMA; what is malformed or impossible is unknown.

    Args:
        entry: `distinctCount`, `nullCount`, `avgLen`, `maxLen`, `min` and `max`, each optional.
        rows: Live rows of the analyzed snapshot.
        in_utc: Timestamps with time zone are written in UTC, not in an unrecorded zone.
    """
    distinct, nulls, width, widest = (count(entry.get(name)) for name in COUNTS_OF_ENTRY)
    low, high = (canonical(entry.get(side), column.logical_type, in_utc=in_utc) for side in ("min", "max"))
    if not bounds.is_range(low, high, parse(column.logical_type)):
        low = high = None
    return {
        "column_id": column_id,
        "column_name": column.name,
        "logical_type": column.logical_type,
        "row_count": rows,
        "null_count": nulls if nulls is not None and (rows is None or nulls <= rows) else None,
        "ndv": None if distinct is None else float(distinct),
        "ndv_exact": None if distinct is None else False,  # engines estimate with a sketch
        "min": low,
        "max": high,
        "min_is_exact": None if low is None else True,
        "max_is_exact": None if high is None else True,
        "avg_width_bytes": None if width is None else float(width),
        "max_width_bytes": widest,
    }


def canonical(text: Any, logical_type: str, *, in_utc: bool = False) -> str | None:
    """Converts a bound, in which dates may be epoch days and timestamps have a space, to canonical text.

    Timestamps with time zone are unknown (None) unless they are in UTC.
    """
    kind = parse(logical_type)
    if text is None or not kind.orderable or (kind.kind is Kind.TIMESTAMPTZ and not in_utc):
        return None
    if kind.kind is Kind.BINARY or str(text) == "NaN":
        return None  # binary has no common text form; if the bound is NaN, the greatest number is unknown
    try:
        return bounds.canonical(_written(text, kind.kind), kind)
    except ValueError:
        return None


def _written(value: Any, kind: Kind) -> str:
    """A bound as text, with truth values and instants as they are parsed."""
    if isinstance(value, bool):
        return str(value).lower()
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return str(value).strip().replace(" ", "T") + ("Z" if kind is Kind.TIMESTAMPTZ else "")
    return str(value)


def whole(value: Any) -> int | None:
    """An integer, possibly given as text; None if it is not one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else None


def count(value: Any) -> int | None:
    """An integer of at least 0, possibly given as text; None if it is not one."""
    number = whole(value)
    return number if number is not None and 0 <= number < 2**63 else None
