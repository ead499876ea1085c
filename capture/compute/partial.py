"""The words of a scan: what to compute, over what, and the partial statistics that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store.logical_types import Kind, LogicalType

_WIDTHS: Final = {
    Kind.BOOLEAN: 1, Kind.FLOAT: 4, Kind.DOUBLE: 8, Kind.DATE: 4, Kind.TIME: 8, Kind.TIMESTAMP: 8, Kind.TIMESTAMPTZ: 8,
}  # fmt: skip
FLOATING: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})
TEXTUAL: Final = frozenset({Kind.STRING, Kind.BINARY, Kind.UUID, Kind.JSON})
NUMERIC: Final = FLOATING | {Kind.INT, Kind.DECIMAL, Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}
MEASURED: Final = FLOATING | {Kind.INT, Kind.DECIMAL}
"""Kinds whose values have a mean."""
HASHED: Final = NUMERIC | TEXTUAL | {Kind.BOOLEAN}


def width(lt: LogicalType, stored_bytes: int) -> int:
    """Bytes of a number as engines keep it, which Spark calls its default size.

    An integer has the width of the column it is in: INT says nothing of it, and `stored_bytes` does.

    Args:
        lt: The column's logical type.
        stored_bytes: Bytes of a value in the file.

    Returns:
        Bytes of each value.
    """
    if lt.kind is Kind.DECIMAL:
        digits = lt.precision or 0
        return 8 if digits <= 18 else 16 if digits <= 38 else 32
    return _WIDTHS.get(lt.kind, stored_bytes)


@dataclass(frozen=True, slots=True)
class SketchSelection:
    """The costlier statistics to compute: KLL quantiles and most common values."""

    quantiles: bool = True
    frequent: bool = True


ALL: Final = SketchSelection()


@dataclass(frozen=True, slots=True)
class Frame:
    """Facts of a column that precede its values.

    Attributes:
        rows: Rows the statistics are of.
        nulls: Those of them without a value.
        times: How many rows each value at hand stands for; `rows` and `nulls` have it multiplied in.
    """

    lt: LogicalType
    wanted: SketchSelection
    rows: int
    nulls: int
    times: int = 1

    @property
    def count(self) -> int:
        """Rows with a value."""
        return self.rows - self.nulls


@dataclass(frozen=True, slots=True)
class Partial:
    """Statistics of a column over some rows, mergeable.

    Attributes:
        row_count: Rows, nulls included.
        null_count: Rows without a value.
        nan_count: NaNs among the values, None for types that have none.
        min: Canonical text of the least value that is not NaN, None where the type cannot hold it.
        max: Canonical text of the greatest value that is not NaN, None where the type cannot hold it.
        min_is_exact: False where `min` was rounded down to fit the type.
        max_is_exact: False where `max` was rounded up to fit the type.
        width_sum: Bytes of all values.
        width_max: Bytes of the longest value, None without values.
        theta: Compact theta sketch of the values, None where values of the type are not hashed.
        kll: KLL sketch of the values as doubles (days, microseconds), None where not numeric or not wanted.
        mcv: Frequent-items sketch of the values' canonical texts, None where not wanted.
        mean: Mean of the numbers that are not NaN, None where there are none or the type is not a number.
        stddev: Their sample standard deviation, None of fewer than two.
    """

    row_count: int
    null_count: int
    nan_count: int | None = None
    min: str | None = None
    max: str | None = None
    min_is_exact: bool = True
    max_is_exact: bool = True
    width_sum: int = 0
    width_max: int | None = None
    theta: bytes | None = None
    kll: bytes | None = None
    mcv: bytes | None = None
    mean: float | None = None
    stddev: float | None = None

    @property
    def numbers(self) -> int:
        """Values that are not NaN."""
        return self.row_count - self.null_count - (self.nan_count or 0)
