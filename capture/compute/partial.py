"""Types of a scan: the selection of sketches, the frame of a column, and its partial statistics.

Fields of `Partial` that are named like a statistic of `store.model.statistics` are merged by its rule and stored under
its name; `OWN` declares the others, from which statistics are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

import pyarrow as pa

from store.model.logical_types import Kind, LogicalType
from store.model.statistics import BY_NAME, COUNTED, FLAGS, INT, SIDES, WIDTHS, Merge, StatisticGroup

_WIDTHS: Final = {
    Kind.BOOLEAN: 1,
    Kind.FLOAT: 4,
    Kind.DOUBLE: 8,
    Kind.DATE: 4,
    Kind.TIME: 8,
    Kind.TIMESTAMP: 8,
    Kind.TIMESTAMPTZ: 8,
}


def width(lt: LogicalType, stored_bytes: int) -> int:
    """Bytes per value in memory, as in Spark's default size of the type; of INT `stored_bytes`, those in the file."""
    if lt.kind is Kind.DECIMAL:
        digits = lt.precision or 0
        return 8 if digits <= 18 else 16 if digits <= 38 else 32
    return _WIDTHS.get(lt.kind, stored_bytes)


def fixed_width(lt: LogicalType) -> int | None:
    """Bytes per value of a type whose values all have the same width, whatever the file; None for other types."""
    return width(lt, 0) or None


@dataclass(frozen=True, slots=True)
class SketchSelection:
    """Optional, costlier sketches: KLL quantiles and most common values."""

    quantiles: bool = True
    frequent: bool = True


ALL: Final = SketchSelection()


@dataclass(frozen=True, slots=True)
class Frame:
    """Type and row counts of a column, known before its values are aggregated.

    Attributes:
        wanted: Optional sketches to compute.
        rows: Rows covered by the statistics.
        nulls: Null rows among them.
        times: Rows that each value stands for; included in `rows` and `nulls`.
    """

    lt: LogicalType
    wanted: SketchSelection
    rows: int
    nulls: int
    times: int = 1

    @property
    def count(self) -> int:
        """Rows that are not null."""
        return self.rows - self.nulls


@dataclass(frozen=True, slots=True)
class Partial:
    """Mergeable statistics of a column over some rows.

    Attributes:
        row_count: Rows, nulls included.
        null_count: Null rows.
        nan_count: NaN values; None for types without NaN.
        min: Least value that is not NaN, as canonical text; None if there is none or the type cannot represent it.
        max: Greatest value that is not NaN, as canonical text; None if there is none or the type cannot represent it.
        min_is_exact: False if `min` was rounded down to fit the type.
        max_is_exact: False if `max` was rounded up to fit the type.
        width_sum: Total bytes of the values.
        width_max: Bytes of the longest value; None without values.
        theta: Compact theta sketch of the values; None for types that are not hashed.
        kll: KLL sketch of the values as doubles (days, microseconds); None if not numeric or not requested.
        mcv: Frequent-items sketch of the canonical texts; None if not requested.
        mean: Mean of the values that are not NaN; None if there are none or the type is not a number.
        stddev: Sample standard deviation of these values; None for fewer than two.
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
    def values(self) -> int:
        """Rows that are not null."""
        return self.row_count - self.null_count

    @property
    def numbers(self) -> int:
        """Values that are not NaN."""
        return self.values - (self.nan_count or 0)

    @property
    def widths(self) -> dict[str, Any]:
        """The average and the greatest width, by statistic; None without values."""
        average = self.width_sum / self.values if self.values and self.width_max is not None else None
        return dict(zip(WIDTHS, (average, self.width_max), strict=True))

    @property
    def sides(self) -> dict[str, Any]:
        """The bounds and their exactness, by statistic; the exactness of no bound is None."""
        found: dict[str, Any] = {}
        for side, flag in zip(SIDES, FLAGS, strict=True):
            found[side] = getattr(self, side)
            found[flag] = None if found[side] is None else getattr(self, flag)
        return found

    @classmethod
    def of_record(cls, row: Mapping[str, Any], kll: bytes | None = None, mcv: bytes | None = None) -> Partial:
        """The partial that a stored record of a file's column is of, without the theta sketch.

        Unknown rows or nulls are none here, and a bound that is not said to be inexact is exact: the caller knows
        which of the record's statistics are known.
        """
        known: dict[str, Any] = {name: row[name] for name in _STORED}
        for name in _NEVER_UNKNOWN:
            known[name] = known[name] or 0
        for flag in FLAGS:
            known[flag] = row[flag] is not False
        average, widest = (row[name] for name in WIDTHS)
        values = known["row_count"] - known["null_count"]
        return cls(**known, width_sum=round((average or 0) * values), width_max=widest, kll=kll, mcv=mcv)


OWN: Final = {
    "width_sum": (INT, Merge.SUM),
    "width_max": (INT, Merge.WIDEST),
    "theta": (pa.binary(), Merge.SKETCH),
    "kll": (pa.binary(), Merge.SKETCH),
    "mcv": (pa.binary(), Merge.SKETCH),
}
"""Type and rule of the fields that are no statistics by themselves."""

_FIELDS: Final = tuple(field.name for field in fields(Partial))
_NEVER_UNKNOWN: Final = tuple(field.name for field in fields(Partial) if field.default is MISSING)
_RULES: Final = {name: OWN[name][1] if name in OWN else BY_NAME[name].merge for name in _FIELDS}
FIELD_TYPES: Final = {name: OWN[name][0] if name in OWN else BY_NAME[name].type for name in _FIELDS}
"""Field → Arrow type, in the order of the fields."""

AS_IS: Final = tuple(name for name in _FIELDS if name not in OWN and BY_NAME[name].group is StatisticGroup.DISTRIBUTION)
"""Statistics that a record has just as the partial has them, whatever part of the rows was read."""
_STORED: Final = (*COUNTED, *SIDES, *AS_IS)


def merged_by(rule: Merge) -> tuple[str, ...]:
    """The fields with a rule."""
    return tuple(name for name in _FIELDS if _RULES[name] is rule)
