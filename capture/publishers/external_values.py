"""Bounds and widths in the text forms that other engines' catalogs keep."""

from __future__ import annotations

import math
from datetime import date
from typing import Final

from capture.publishers.spi import ColumnStatistics
from store import bounds
from store.logical_types import Kind, parse

_EPOCH: Final = date(1970, 1, 1).toordinal()
_NUMBERS: Final = (Kind.BOOLEAN, Kind.INT, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL)
_WIDTHS: Final = {Kind.BOOLEAN: 1, Kind.INT: 8, Kind.FLOAT: 4, Kind.DOUBLE: 8, Kind.DATE: 4, Kind.TIME: 8,
                  Kind.TIMESTAMP: 8, Kind.TIMESTAMPTZ: 8, Kind.UUID: 16}  # fmt: skip


def spark_bound(text: str | None, logical_type: str) -> str | None:
    """A bound as Spark's `CatalogColumnStat` writes it.

    Args:
        text: Canonical form; None is unknown.
        logical_type: Of the column.

    Returns:
        None where it keeps none of that type. Timestamps without time zone have none: Spark refuses all statistics of a
        column that has such a bound.
    """
    kind = parse(logical_type).kind
    if text is None:
        return None
    if kind in _NUMBERS or kind is Kind.DATE:
        return text
    return _timestamp(text) if kind is Kind.TIMESTAMPTZ else None


def paimon_bound(text: str | None, logical_type: str) -> str | None:
    """A bound as Paimon's casts write it.

    Args:
        text: Canonical form; None is unknown.
        logical_type: Of the column.

    Returns:
        None for texts, of which its own ANALYZE keeps none either, and for instants, which it writes in a zone that
        nobody is told.
    """
    kind = parse(logical_type).kind
    if text is None:
        return None
    if kind in _NUMBERS:
        return text
    if kind is Kind.DATE:
        try:
            return str(date.fromisoformat(text).toordinal() - _EPOCH)
        except ValueError:  # a year that Python does not know
            return None
    return _timestamp(text) if kind is Kind.TIMESTAMP else None


def _timestamp(text: str) -> str:
    """`yyyy-MM-dd HH:mm:ss.SSSSSS`, in UTC where the type has a zone."""
    day, _, clock = text.removesuffix("Z").partition("T")
    hours, _, fraction = clock.partition(".")
    return f"{day} {hours}{':00' if hours.count(':') == 1 else ''}.{fraction[:6]:0<6}"


def java_double(value: float) -> str:
    """A double as Java's `Double.toString` prints it."""
    if value == 0:
        return "0.0"
    return bounds.encode(float(value), parse("DOUBLE"))


def average_width(column: ColumnStatistics) -> int | None:
    """Average width in whole bytes, rounded up: engines size rows by it. Of fixed-width types it is the width."""
    if column.avg_width_bytes is not None:
        return math.ceil(column.avg_width_bytes)
    return _WIDTHS.get(parse(column.logical_type).kind)


def greatest_width(column: ColumnStatistics) -> int | None:
    """Greatest width in bytes."""
    if column.max_width_bytes is not None:
        return column.max_width_bytes
    return _WIDTHS.get(parse(column.logical_type).kind)
