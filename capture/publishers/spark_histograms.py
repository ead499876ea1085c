"""Equi-height histograms for Spark's optimizer, built from a column's quantiles."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from capture.publishers.external_values import number
from capture.publishers.spi import ColumnStatistics
from store.model import sketches

BINS: Final = 254  # default of spark.sql.statistics.histogram.numBins
EVEN_WITHIN: Final = 0.05  # deviation of quantiles, as a share of the range, up to which values are evenly spread
FREQUENT_ABOVE: Final = 4.0  # multiple of the average rows per value above which a value is frequent
_END: Final = -1


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of an equi-height histogram: bounds and number of distinct values."""

    low: float
    high: float
    ndv: int


def serialized(histogram: Sequence[Bin], rows: int) -> bytes:
    """Encodes ascending bins of non-null rows like Spark's `HistogramSerializer`, before compression."""
    lows, highs, counts = ([getattr(item, name) for item in histogram] for name in ("low", "high", "ndv"))
    shape = f">di{len(histogram)}d{len(histogram)}d{len(histogram)}qi"
    return struct.pack(shape, rows / len(histogram), len(histogram), *lows, *highs, *counts, _END)


def bins(column: ColumnStatistics, discrete: bool) -> list[Bin]:
    """Builds equi-height bins; empty if quantiles are unknown or values are spread evenly.

    For evenly spread values, bounds and ndv are as informative, and a histogram does harm: Spark estimates a join of
    two columns with histograms from the histograms only and ignores preceding filters. The bins span exactly the
    column's bounds, or Spark cannot plan queries. ndv is distributed over the bins in proportion to their widths; a bin
    with a single value has ndv 1.

    Args:
        column: Column with a KLL sketch, bounds and ndv.
        discrete: Whether values are integers or days.
    """
    low, high = (
        float(math.nan if (n := number(bound, column.logical_type)) is None else n)
        for bound in (column.min, column.max)
    )
    if column.quantiles is None or not column.distinct or not math.isfinite(low) or not math.isfinite(high):
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
    """True if values are spread unevenly, or one is frequent, by quantiles at equidistant ranks with the bounds."""
    low, high, count = edges[0], edges[-1], len(edges) - 1
    if low == high:
        return False
    off = max(abs((edge - low) / (high - low) - rank / count) for rank, edge in enumerate(edges))
    most = max(len(list(same)) - 1 for _, same in groupby(edges)) / count  # share of the most frequent value
    return off > EVEN_WITHIN + 1 / distinct or most > FREQUENT_ABOVE * max(1 / distinct, 1 / count)
