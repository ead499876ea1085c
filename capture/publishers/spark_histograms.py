"""Equi-height histograms as Spark's optimizer reads them, made of a column's quantiles."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import groupby, pairwise
from typing import Final

from capture.publishers.spi import ColumnStatistics
from store import sketches
from store.logical_types import Kind, parse

BINS: Final = 254  # Spark's own default, spark.sql.statistics.histogram.numBins
EVEN_WITHIN: Final = 0.05  # share of the range by which a quantile of evenly spread values may be off
FREQUENT_ABOVE: Final = 4.0  # times the rows of an average value
_EPOCH: Final = date(1970, 1, 1).toordinal()
_END: Final = -1


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of an equi-height histogram: bounds, and distinct values in it."""

    low: float
    high: float
    ndv: int


def serialized(histogram: Sequence[Bin], rows: int) -> bytes:
    """Bytes of a histogram as Spark's `HistogramSerializer` writes them, before it compresses them.

    Args:
        histogram: The bins, ascending.
        rows: Rows that are not null.
    """
    lows, highs, counts = ([getattr(item, name) for item in histogram] for name in ("low", "high", "ndv"))
    shape = f">di{len(histogram)}d{len(histogram)}d{len(histogram)}qi"
    return struct.pack(shape, rows / len(histogram), len(histogram), *lows, *highs, *counts, _END)


def bins(column: ColumnStatistics, discrete: bool) -> list[Bin]:
    """Equi-height bins from the column's quantiles; empty where none are known, or values are spread evenly.

    Of evenly spread values bounds and distinct count say as much, and a histogram does harm: Spark estimates a join of
    two columns that have histograms from these alone, without the filters that came before.
    They span just the column's bounds: Spark refuses to plan a query over a histogram that does not. Distinct values
    are spread over the bins by their widths; a bin of one value has one.

    Args:
        column: With a KLL sketch, bounds and a number of distinct values.
        discrete: Values are whole numbers or days.
    """
    low, high = (_number(bound, column.logical_type) for bound in (column.min, column.max))
    if column.quantiles is None or not column.distinct or low is None or high is None:
        return []
    count = min(BINS, max(column.row_count or 0, column.distinct))
    inner = sketches.quantiles(column.quantiles, [i / count for i in range(1, count)])
    if count > 1 and not inner:
        return []
    edges = [low, *(min(max(edge, low), high) for edge in inner), high]
    if not _is_skewed(edges, column.distinct):
        return []
    pairs = list(pairwise(edges))
    spread = max(column.distinct - sum(lower == upper for lower, upper in pairs), 0)
    histogram = []
    for lower, upper in pairs:
        ndv = 1 if lower == upper else max(round(spread * ((upper - lower) / (high - low))), 1)
        histogram.append(Bin(lower, upper, min(ndv, int(upper - lower) + 1) if discrete else ndv))
    return histogram


def _is_skewed(edges: Sequence[float], distinct: int) -> bool:
    """True if values are spread unevenly between the bounds, or a few of them are in most rows.

    Args:
        edges: Quantiles at even ranks, ascending, the bounds included.
        distinct: Number of distinct values.
    """
    low, high, count = edges[0], edges[-1], len(edges) - 1
    if low == high:
        return False
    off = max(abs((edge - low) / (high - low) - rank / count) for rank, edge in enumerate(edges))
    most = max(len(list(same)) - 1 for _, same in groupby(edges)) / count  # share of the most frequent value
    return off > EVEN_WITHIN + 1 / distinct or most > FREQUENT_ABOVE * max(1 / distinct, 1 / count)


def _number(bound: str | None, logical_type: str) -> float | None:
    """A bound as the double that Spark's histograms compare: days of a date, microseconds of an instant."""
    if bound is None:
        return None
    match parse(logical_type).kind:
        case Kind.INT | Kind.FLOAT | Kind.DOUBLE | Kind.DECIMAL:
            value = float(Decimal(bound)) if "n" not in bound.lower() else math.nan
            return value if math.isfinite(value) else None
        case Kind.DATE:
            return float(date.fromisoformat(bound).toordinal() - _EPOCH) if _is_plain_year(bound) else None
        case Kind.TIMESTAMPTZ:
            if not _is_plain_year(bound):
                return None
            since = datetime.fromisoformat(bound) - datetime(1970, 1, 1, tzinfo=UTC)
            return float(since // timedelta(microseconds=1))
    return None


def _is_plain_year(bound: str) -> bool:
    """True if Python's dates support the year."""
    return re.match(r"\d{4}-", bound) is not None and not bound.startswith("0000")
