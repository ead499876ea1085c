"""Statistics of a column in the forms of other engines' catalogs: entries, bounds and widths."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from capture.publishers.spi import ColumnStatistics
from store.model import bounds
from store.model.logical_types import Kind, parse

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_FINITE: Final = ("Infinity", "-Infinity", "NaN")
_NUMBERS: Final = (Kind.BOOLEAN, Kind.INT, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL)
_WIDTHS: Final = {
    Kind.BOOLEAN: 1,
    Kind.INT: 8,
    Kind.FLOAT: 4,
    Kind.DOUBLE: 8,
    Kind.DATE: 4,
    Kind.TIME: 8,
    Kind.TIMESTAMP: 8,
    Kind.TIMESTAMPTZ: 8,
    Kind.UUID: 16,
}


def catalog_entries(column: ColumnStatistics, bound: Callable[[str | None, str], str | None]) -> dict[str, object]:
    """The known statistics of a column under the names that Spark's `CatalogColumnStat` and Paimon have for them.

    Without bounds that are not finite: Spark plans no query with a condition on a column between two infinities.
    """
    _, widest = column.widths
    low, high = (None if side in _NOT_FINITE else bound(side, column.logical_type) for side in column.sides)
    entries = {
        "distinctCount": column.distinct,
        "min": low,
        "max": high,
        "nullCount": column.null_count,
        "avgLen": average_width(column),
        "maxLen": _WIDTHS.get(parse(column.logical_type).kind) if widest is None else widest,
    }
    return {name: value for name, value in entries.items() if value is not None}


def spark_bound(text: str | None, logical_type: str) -> str | None:
    """Converts a canonical bound to the form of Spark's `CatalogColumnStat`; None if Spark has no bounds for the type,
    and for timestamps without time zone: Spark rejects all statistics of a column with such a bound."""
    kind = parse(logical_type).kind
    if text is None:
        return None
    if kind in _NUMBERS or kind is Kind.DATE:
        return text
    return _timestamp(text) if kind is Kind.TIMESTAMPTZ else None


def paimon_bound(text: str | None, logical_type: str) -> str | None:
    """Converts a canonical bound to the form of Paimon's casts; None for strings, which Paimon's ANALYZE does not store
    either, and for timestamps with time zone, which it writes in an unrecorded zone."""
    kind = parse(logical_type).kind
    if text is None:
        return None
    if kind in _NUMBERS:
        return text
    if kind is Kind.DATE:
        return None if (days := number(text, logical_type)) is None else str(days)
    return _timestamp(text) if kind is Kind.TIMESTAMP else None


def number(text: str | None, logical_type: str) -> Any:
    """Converts a canonical bound to a number: int, float or Decimal, days of a DATE, microseconds of a TIMESTAMPTZ
    since 1970; None for other types, NaN, infinities, and years outside Python's range."""
    if text is None:
        return None
    try:
        match parse(logical_type).kind:
            case Kind.INT:
                return int(text)
            case Kind.FLOAT | Kind.DOUBLE:
                value = float(text.replace("Infinity", "inf"))
                return value if math.isfinite(value) else None
            case Kind.DECIMAL:
                return Decimal(text)
            case Kind.DATE:
                return (date.fromisoformat(text) - _EPOCH.date()).days
            case Kind.TIMESTAMPTZ:
                return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
    except ValueError:  # a year outside Python's range
        pass
    return None


def _timestamp(text: str) -> str:
    """`yyyy-MM-dd HH:mm:ss.SSSSSS`, in UTC if the type has a zone."""
    day, _, clock = text.removesuffix("Z").partition("T")
    hours, _, fraction = clock.partition(".")
    return f"{day} {hours}{':00' if hours.count(':') == 1 else ''}.{fraction[:6]:0<6}"


def java_double(value: float) -> str:
    """A double as Java's `Double.toString` prints it."""
    return "0.0" if value == 0 else bounds.java_double(value)


def average_width(column: ColumnStatistics) -> int | None:
    """Average width in bytes, rounded up, since engines estimate row sizes with it; None if unknown."""
    average, _ = column.widths
    if average is not None:
        return math.ceil(average)
    return _WIDTHS.get(parse(column.logical_type).kind)
