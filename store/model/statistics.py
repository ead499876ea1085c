"""The statistics of a record, each declared once.

A new statistic is a row of `STATISTICS`, its kernel (`capture/compute/partial.py` has its field, `kernels.py` computes
it), a line in SEMANTICS and PROTOCOL, and a test. The rest of the system loops over this table: columns of flights and
of the database, kinds of requests, limits of a put, merges, inheritance, differences, histories, rules, and what people
are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

import pyarrow as pa

from store.model.logical_types import FLOATING, MEASURED, Kind

TEXT, INT, FLOAT, BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()


class StatisticGroup(StrEnum):
    """Statistics that a record has, or inherits, together."""

    COUNTS = "counts"
    DISTRIBUTION = "distribution"
    TABLE = "table"  # of tables alone; never inherited


class Merge(Enum):
    """How the values of disjoint rows become that of all of them. Unknown in one part is unknown in the whole."""

    SUM = "sum"
    LEAST = "least"  # in the order of the logical type; with its exactness
    GREATEST = "greatest"  # likewise
    WIDEST = "widest"  # the greatest number
    SKETCH = "sketch"  # computed of the merged sketch
    MOMENTS = "moments"  # mean and deviation together, by the number of values


class Limit(Enum):
    """What a value of a put must be, whatever other columns say."""

    NONE = "none"
    COUNT = "at least 0"
    MEASURE = "a finite number of at least 0"
    NUMBER = "a number, or null where it is unknown"
    DEVIATION = "at least 0, or null where it is unknown"


@dataclass(frozen=True)
class Statistic:
    """A statistic of a column, expression or group of columns; in `StatisticGroup.TABLE`, of a table.

    Attributes:
        name: Column of the flights.
        type: Its Arrow type.
        group: What it is inherited with.
        kind: Kind of a capture request that asks for it.
        merge: How it is merged over disjoint rows.
        limit: What a put may say.
        at_most: Other statistics of the record that it does not exceed.
        of: The statistic that it qualifies: whose exactness, error bound or companion it is. A record that has the
            other answers the kind.
        types: Kinds of the logical types that have it; None for all.
        of_values: A column without values has none.
        per_value: At most one for each value that is not null; cut to that when an older one is inherited.
        since: Version of the contract that brought it, if later than the first: it stands at the end of its flights.
        unit: Unit of its values, for people; "" for a plain number.
        label: Its name for people.
        is_shown: Differences between snapshots and histories have it.
    """

    name: str
    type: pa.DataType
    group: StatisticGroup
    kind: str
    merge: Merge
    limit: Limit = Limit.NONE
    at_most: tuple[str, ...] = ()
    of: str = ""
    types: frozenset[Kind] | None = None
    of_values: bool = False
    per_value: bool = False
    since: str = ""
    unit: str = ""
    label: str = ""
    is_shown: bool = True

    @property
    def is_precision(self) -> bool:
        """True for what says how sure another statistic is: its exactness or the bounds of its error."""
        return bool(self.of) and (self.type == BOOL or self.per_value)

    @property
    def is_number(self) -> bool:
        """True for counts and measures; not for bounds, which are texts, and flags."""
        return self.type in (INT, FLOAT)


_COUNTS, _DISTRIBUTION, _TABLE = StatisticGroup.COUNTS, StatisticGroup.DISTRIBUTION, StatisticGroup.TABLE

STATISTICS: Final = (
    Statistic("row_count", INT, _COUNTS, "ROW_COUNT", Merge.SUM, Limit.COUNT, unit="rows", label="rows"),
    Statistic("null_count", INT, _COUNTS, "NULL_COUNT", Merge.SUM, Limit.COUNT, ("row_count",), label="nulls"),
    Statistic(
        "nan_count", INT, _COUNTS, "NAN_COUNT", Merge.SUM, Limit.COUNT, ("row_count",), types=FLOATING, label="NaNs"
    ),
    Statistic(
        "ndv",
        FLOAT,
        _DISTRIBUTION,
        "NDV",
        Merge.SKETCH,
        Limit.MEASURE,
        ("ndv_upper",),
        per_value=True,
        label="distinct",
    ),
    Statistic("ndv_exact", BOOL, _DISTRIBUTION, "NDV", Merge.SKETCH, of="ndv"),
    Statistic(
        "ndv_lower",
        FLOAT,
        _DISTRIBUTION,
        "NDV",
        Merge.SKETCH,
        Limit.MEASURE,
        ("ndv", "ndv_upper"),
        of="ndv",
        per_value=True,
    ),
    Statistic("ndv_upper", FLOAT, _DISTRIBUTION, "NDV", Merge.SKETCH, Limit.MEASURE, of="ndv", per_value=True),
    Statistic("min", TEXT, _COUNTS, "MIN_MAX", Merge.LEAST, of_values=True, label="min"),
    Statistic("max", TEXT, _COUNTS, "MIN_MAX", Merge.GREATEST, of_values=True, label="max"),
    Statistic("min_is_exact", BOOL, _COUNTS, "MIN_MAX", Merge.LEAST, of="min", of_values=True, is_shown=False),
    Statistic("max_is_exact", BOOL, _COUNTS, "MIN_MAX", Merge.GREATEST, of="max", of_values=True, is_shown=False),
    Statistic(
        "mean",
        FLOAT,
        _DISTRIBUTION,
        "MOMENTS",
        Merge.MOMENTS,
        Limit.NUMBER,
        types=MEASURED,
        of_values=True,
        since="1.1",
        label="mean",
    ),
    Statistic(
        "stddev",
        FLOAT,
        _DISTRIBUTION,
        "MOMENTS",
        Merge.MOMENTS,
        Limit.DEVIATION,
        of="mean",
        types=MEASURED,
        of_values=True,
        since="1.1",
        label="stddev",
    ),
    Statistic(
        "avg_width_bytes",
        FLOAT,
        _DISTRIBUTION,
        "WIDTH",
        Merge.SUM,
        Limit.MEASURE,
        ("max_width_bytes",),
        of_values=True,
        unit="bytes",
        label="avg bytes",
    ),
    Statistic(
        "max_width_bytes",
        INT,
        _DISTRIBUTION,
        "WIDTH",
        Merge.WIDEST,
        Limit.COUNT,
        of="avg_width_bytes",
        of_values=True,
        unit="bytes",
        is_shown=False,
    ),
    Statistic("data_file_count", INT, _TABLE, "FILE_COUNT", Merge.SUM, Limit.COUNT, unit="files", label="files"),
    Statistic("total_size_bytes", INT, _TABLE, "TOTAL_BYTES", Merge.SUM, Limit.COUNT, unit="bytes", label="size"),
    Statistic(
        "merged_size_bytes",
        INT,
        _TABLE,
        "TOTAL_BYTES",
        Merge.SUM,
        Limit.COUNT,
        of="total_size_bytes",
        unit="bytes",
        is_shown=False,
    ),
)
BY_NAME: Final = {statistic.name: statistic for statistic in STATISTICS}
SCALARS: Final = tuple(each for each in STATISTICS if each.group is not StatisticGroup.TABLE)
"""Statistics of columns, expressions and groups of columns."""

KINDS: Final = tuple(dict.fromkeys(each.kind for each in STATISTICS))
"""Kinds that records answer; those of sketches are not among them."""


def names(where: Callable[[Statistic], bool], among: Iterable[Statistic] = SCALARS) -> tuple[str, ...]:
    """Names of statistics that meet a condition, in the order of the table."""
    return tuple(each.name for each in among if where(each))


def of_kind(kind: str) -> tuple[str, ...]:
    """All statistics of a kind, of columns and tables."""
    return names(lambda each: each.kind == kind, STATISTICS)


def answering(kind: str) -> tuple[str, ...]:
    """The statistics of a kind of which one must be known for a record to answer it."""
    return names(lambda each: each.kind == kind and not each.of, STATISTICS)


COUNTED: Final = names(lambda each: each.merge is Merge.SUM and each.group is StatisticGroup.COUNTS)
"""Numbers of rows, nulls and NaNs."""

PARTS_OF_ROWS: Final = names(lambda each: each.name in COUNTED and bool(each.at_most))
"""Those of `COUNTED` that are at most the number of rows."""

PER_VALUE: Final = names(lambda each: each.per_value)
SIDES: Final = names(lambda each: each.merge in (Merge.LEAST, Merge.GREATEST) and not each.of)
"""The two bounds, the lower first; the exactness of each is `exactness(side)`."""

MOMENTS: Final = names(lambda each: each.merge is Merge.MOMENTS)
"""Mean and deviation."""

WIDTHS: Final = of_kind("WIDTH")
"""The average and the greatest width."""


_FLAGS: Final = {each.of: each.name for each in STATISTICS if each.type == BOOL}
FLAGS: Final = tuple(_FLAGS[side] for side in SIDES)
"""The exactness of each of `SIDES`."""


def exactness(name: str) -> str:
    """The flag that says whether a statistic is exact.

    Raises:
        KeyError: There is none.
    """
    return _FLAGS[name]
