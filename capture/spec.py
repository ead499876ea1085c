"""`CaptureSpec`: the content of a capture request, in one shape from the wire to the engine.

Its JSON form is part of the bodies of `capture` and `resolve`, of job rows, and of the jobs that workers lease. A new
field is added here, in `spec_body.py`, which reads it, and in the engines that use it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from store.model import logical_types, statistics
from store.model.logical_types import NUMERIC
from store.model.statistics import StatisticGroup
from store.model.targets import Target, TargetKind

PARTITIONED: Final = (TargetKind.TABLE, TargetKind.COLUMN)  # targets that can be limited to partitions

Partition = tuple[tuple[str, str | None], ...]
"""Pairs of partition field and value as text (None for null), sorted by field. See `capture.partitions`."""


class Sampling(StrEnum):
    """Sampling methods; NONE reads everything."""

    NONE = "NONE"
    RANDOM_ROW_GROUP = "RANDOM_ROW_GROUP"
    METADATA_GUIDED = "METADATA_GUIDED"


class Engine(StrEnum):
    """The place in which data is read; AUTO takes the one that is measured to finish sooner."""

    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


class FileSketches(StrEnum):
    """The setting `file_sketches`: what is kept of each file's columns for the next capture.

    AUTO: sketches in proportion to the data. FULL: whole sketches of files of any size. NONE: no sketches, so that each
    capture of a column reads all files.
    """

    AUTO = "auto"
    FULL = "full"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a sample; the first limit reached ends it. None: no limit.

    Attributes:
        max_rows: Rows in the row groups that are read.
        max_bytes: Bytes of the requested columns as stored in the files.
        max_seconds: Seconds since the start of the pass over the table.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None


@dataclass(frozen=True)
class CaptureSpec:
    """A capture of one table at one snapshot: targets, kinds and limits.

    Attributes:
        target: The table, a column, a file, an expression or a group of columns.
        kinds: Kinds of statistics from `store.model.columns.KINDS`; empty for all.
        column_selectors: Columns included in the capture of a table or file; empty for all.
        sampling: Sampling method; NONE reads everything.
        budget: Limits of a sample.
        partitions: Partitions whose files are captured; empty for all.
        latency_budget_ms: Time the caller waits at most; None for the default.
        engine: Where data is read; None for the setting of the worker.
    """

    target: Target
    kinds: frozenset[str] = frozenset()
    column_selectors: tuple[str, ...] = ()
    sampling: Sampling = Sampling.NONE
    budget: Budget | None = None
    partitions: tuple[Partition, ...] = ()
    latency_budget_ms: int | None = field(default=None, compare=False)  # specs of equal captures are equal
    engine: Engine | None = None

    @cached_property
    def json(self) -> Mapping[str, Any]:
        """JSON object that `spec_body.parse_spec` reads; without `partitions`, `budget` and `engine` when empty."""
        body: dict[str, Any] = {
            "target": self.target.to_json(),
            "kinds": sorted(self.kinds),
            "sampling": str(self.sampling),
            "column_selectors": sorted(self.column_selectors),
            "latency_budget_ms": self.latency_budget_ms,
        }
        if self.partitions:
            body["partitions"] = [dict(partition) for partition in self.partitions]
        if self.budget is not None:
            body["budget"] = {name: limit for name, limit in asdict(self.budget).items() if limit is not None}
        if self.engine is not None:
            body["engine"] = str(self.engine)
        return body


def value_text(value: Any) -> str | None:
    """A partition value as text; numbers and booleans as in JSON."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


# Kinds of statistics that a record holds.

_FIELDS_OF: Final = {kind: statistics.answering(kind) for kind in statistics.KINDS}
_OF_VALUES: Final = frozenset(each.kind for each in statistics.SCALARS if each.of_values)
_ZERO_WITHOUT: Final = {
    each.kind: each.types for each in statistics.SCALARS if each.types and each.group is StatisticGroup.COUNTS
}
"""Kinds that count what other types do not have: there are none."""
_IMPOSSIBLE_WITHOUT: Final = {"HISTOGRAM": NUMERIC} | {
    each.kind: each.types for each in statistics.SCALARS if each.types and each.group is not StatisticGroup.COUNTS
}
"""Kinds that other types do not have."""


def lacking(record: Mapping[str, Any], kinds: Collection[str]) -> list[str]:
    """The requested kinds that a record does not answer.

    Args:
        kinds: Kinds of statistics. HISTOGRAM and MCV are in sketches, so no record lacks them.

    Returns:
        The kinds, sorted. One of two bounds is enough; a type without NaN lacks no NAN_COUNT, a column without values
        no bounds, widths and moments.
    """
    known = set(kinds) - _FIELDS_OF.keys()
    known |= {kind for kind in kinds if any(record.get(name) is not None for name in _FIELDS_OF.get(kind, ()))}
    known |= {kind for kind, types in _ZERO_WITHOUT.items() if record.get("logical_type") not in types}
    if has_no_values(record):
        known |= _OF_VALUES
    return sorted(set(kinds) - known)


def has_no_values(record: Mapping[str, Any]) -> bool:
    """True if all rows of a column are known to be null or NaN, so that it has no bounds."""
    rows, nulls = record.get("row_count"), record.get("null_count")
    return rows is not None and nulls is not None and rows == nulls + (record.get("nan_count") or 0)


def impossible(logical_type: str | None, kinds: Collection[str]) -> str:
    """The reason why no record of a type (None: unknown) can hold the requested kinds; empty if one can."""
    if logical_type is None or not kinds:
        return ""
    kind = logical_types.parse(logical_type).kind
    names = " and no ".join(
        name for name, having in _IMPOSSIBLE_WITHOUT.items() if name in kinds and kind not in having
    )
    return f"a value of type {logical_type} has no {names}; ask without it" if names else ""
