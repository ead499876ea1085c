"""The interface of a publisher, which writes statistics to one home.

A publisher serves one table and one call. `prepare` checks that the statistics still apply to the table and builds the
draft without writing; `write` puts it in place atomically; `verify` reads it back. `publish` in
`capture.publishers.publishing` runs the three, and runs them again with fresh state after a lost race.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, Final

import pyarrow as pa

from capture.connectors.spi import Connector, ConnectorConfig
from store.model.columns import COUNTS, DISTRIBUTION
from store.model.errors import Conflict, InvalidArgument, UpstreamError
from store.model.freshness import EXACT, INHERITED, NAN_TYPES, PRUNING
from store.model.statistics import SIDES, WIDTHS, exactness

CURRENT: Final = "CURRENT"  # state of a publication
DRY_RUN: Final = "DRY_RUN"


class LostRace(UpstreamError):
    """Another writer changed the home between `prepare` and `write`; retrying starts from fresh state."""

    code = "LOST_RACE"


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of one column; None means unknown. Bounds are canonical text (see `store.model.bounds`).

    Attributes:
        theta: Compact theta sketch of the values.
        quantiles: KLL sketch of the values.
        snapshot_id: Snapshot of the counts and bounds, if another than that of the table's statistics.
        freshness: Their freshness at the snapshot of the table's statistics.
        usable_for: PRUNING if counts and bounds hold for every row of that snapshot.
        distribution_snapshot_id: Snapshot of ndv, widths and sketches, likewise.
    """

    column_id: int
    name: str
    logical_type: str
    row_count: int | None = None
    null_count: int | None = None
    nan_count: int | None = None
    ndv: float | None = None
    min: str | None = None
    max: str | None = None
    min_is_exact: bool | None = None
    max_is_exact: bool | None = None
    avg_width_bytes: float | None = None
    max_width_bytes: int | None = None
    theta: bytes | None = field(default=None, repr=False)
    quantiles: bytes | None = field(default=None, repr=False)
    snapshot_id: int | None = None
    freshness: str = EXACT
    usable_for: str = PRUNING
    distribution_snapshot_id: int | None = None
    distribution_freshness: str = EXACT

    @property
    def distinct(self) -> int | None:
        """ndv as an integer, limited to the non-null rows; None if unknown."""
        if self.ndv is None:
            return None
        count = max(round(self.ndv), 0)
        if self.row_count is not None:
            count = min(count, self.row_count - (self.null_count or 0))
        return count

    @property
    def sides(self) -> tuple[str | None, str | None]:
        """The lower and the upper bound."""
        return self.min, self.max

    @property
    def widths(self) -> tuple[float | None, int | None]:
        """The average and the greatest width in bytes."""
        return self.avg_width_bytes, self.max_width_bytes

    @property
    def is_counted(self) -> bool:
        """True if counts and bounds hold for every row of the snapshot of the table's statistics. The bounds of a
        floating point column do without its NaNs."""
        is_open = self.nan_count is None and self.logical_type in NAN_TYPES
        return self.freshness == EXACT and (self.usable_for == PRUNING or is_open)

    @property
    def is_known(self) -> bool:
        """True if there is any count, bound or distribution."""
        told = (*COUNTS, *DISTRIBUTION, "theta", "quantiles")
        return any(getattr(self, name, None) is not None for name in told)

    def has_inexact(self, side: str) -> bool:
        """True for a known bound, one of `SIDES`, that is not known to be a value of the column."""
        return getattr(self, side) is not None and not getattr(self, exactness(side))


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Statistics of a table at one snapshot: complete and not sampled.

    Attributes:
        left_out: Column → reason, for columns whose statistics may not be published.
        allow_inherited: Statistics inherited from an earlier snapshot may be published.
        remarks: What the home cannot say and is therefore left out, for the publication's detail.
        files, file_columns: Rows of `stats.files`, and those of `stats.file_columns` by which files may be skipped; for
            publishers with `takes_files`.
    """

    namespace: str
    name: str
    snapshot_id: int
    columns: tuple[ColumnStatistics, ...]
    row_count: int | None = None
    total_size_bytes: int | None = None
    merged_size_bytes: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    allow_inherited: bool = False
    remarks: tuple[str, ...] = ()
    files: pa.Table | None = field(default=None, repr=False)
    file_columns: pa.Table | None = field(default=None, repr=False)

    @property
    def full_name(self) -> str:
        """Namespace and name, dotted."""
        return f"{self.namespace}.{self.name}"


def may_publish(freshness: str, allow_inherited: bool) -> bool:
    """True for statistics of the published snapshot, and for inherited ones if these are allowed."""
    return freshness == EXACT or (freshness == INHERITED and allow_inherited)


_DOUBTED: Final = "counts and bounds from metadata that is not trusted"
_WIDTHS: Final = (*WIDTHS, "quantiles")


@dataclass(frozen=True, slots=True)
class Labels:
    """What a home can say of its statistics. Readers take what is not said for granted: that a bound is a value of the
    column, and that everything is of the table's current rows.

    Attributes:
        snapshot: The snapshot of all counts, bounds and distributions.
        sketch_snapshot: The snapshot of each column's sketch, and so of its number of distinct values.
        inexact: Bounds enclose the values, and need not be values.
    """

    snapshot: bool = False
    sketch_snapshot: bool = False
    inexact: bool = False

    def sayable(self, column: ColumnStatistics) -> tuple[ColumnStatistics, list[str]]:
        """Leaves out what would become surer in the home; returns the rest, and what was left out, in words."""
        unknown: dict[str, Any] = {}
        lost = []
        if not column.is_counted:
            unknown |= dict.fromkeys(COUNTS)
            lost.append(f"counts and bounds that are {column.freshness}" if column.freshness != EXACT else _DOUBTED)
        elif not self.inexact and (sides := [s for s in SIDES if column.has_inexact(s)]):
            unknown |= dict.fromkeys(sides)
            lost.append("inexact bounds")
        if column.distribution_freshness != EXACT:
            is_tagged = self.sketch_snapshot and column.theta is not None
            unknown |= dict.fromkeys(_WIDTHS if is_tagged else (*_WIDTHS, "ndv", "theta"))
            if not is_tagged:
                lost.append(f"distinct values of snapshot {column.distribution_snapshot_id}")
        return replace(column, **unknown) if unknown else column, lost


def _nothing_left(statistics: TableStatistics, column: str, reason: str) -> InvalidArgument:
    """The error for statistics of which no column may be published."""
    hint = "capture all statistics at the current snapshot, without sampling"
    if INHERITED in reason and not statistics.allow_inherited:
        hint += ", or publish with allow_inherited"
    return InvalidArgument(
        f'no statistics of "{statistics.full_name}" at snapshot {statistics.snapshot_id} may be published: column '
        f'"{column}" {reason}',
        code="NOT_PUBLISHABLE",
        hint=hint,
    )


def publishable(
    statistics: TableStatistics, labels: Labels | None = None, *, with_distribution: bool = True
) -> TableStatistics:
    """Leaves out the columns whose statistics are too old to be published, and statistics that would say more in the
    home than they do here.

    Args:
        labels: What the home can say of its statistics; None if its publisher judges the labels of each itself.
        with_distribution: Whether the home takes distinct values, widths or sketches.

    Raises:
        InvalidArgument: No column remains.
    """
    kept, left_out = [], dict(statistics.left_out)
    lost: dict[str, list[str]] = {}  # what was left out → columns
    for column in statistics.columns:
        if reason := _too_old(column, statistics.allow_inherited, with_distribution):
            left_out[column.name] = reason
            continue
        said, parts = (column, []) if labels is None else labels.sayable(column)
        if parts and not said.is_known:
            left_out[column.name] = f"has {' and '.join(parts)}, which the home cannot say"
            continue
        kept.append(said)
        for part in parts:
            lost.setdefault(part, []).append(column.name)
    if left_out and not kept:
        raise _nothing_left(statistics, *next(iter(left_out.items())))
    remarks = (*statistics.remarks, *(f"without {part}: {', '.join(names)}" for part, names in lost.items()))
    return replace(statistics, columns=tuple(kept), left_out=left_out, remarks=remarks)


def _too_old(column: ColumnStatistics, allow_inherited: bool, with_distribution: bool) -> str:
    """The reason why a column's statistics may not be published at all; empty if they may."""
    parts = [("is", column.freshness, column.snapshot_id)]
    if with_distribution:
        distribution = (column.distribution_freshness, column.distribution_snapshot_id)
        parts.append(("has a distribution that is", *distribution))
    for verb, freshness, snapshot_id in parts:
        if not may_publish(freshness, allow_inherited):
            return f"{verb} {freshness}: of snapshot {snapshot_id}"
    return ""


@dataclass(frozen=True, slots=True)
class Destination:
    """The table a publisher writes to, with connector and options.

    Attributes:
        connector: The opened connector of the table's lake.
        config: Address and options of that lake, with resolved secrets.
        options: Options of this publication.
        spark: Returns the worker's Spark session; raises if there is none.
    """

    connector: Connector
    config: ConnectorConfig
    options: Mapping[str, str] = field(default_factory=dict)
    spark: Callable[[], Any] | None = None


@dataclass(frozen=True, slots=True)
class HomeStatistics:
    """Statistics that are in a home.

    Attributes:
        snapshot_id: Snapshot of the statistics; None if the home does not record it.
        location: File or catalog entry that contains them.
        distinct: Column → number of distinct values; None if the home has no readable number.
        row_count: Row count of the table, recorded with the statistics.
        total_size_bytes: Bytes of the table's files, recorded with the statistics.
        analyzed_at: Column → time its statistics were written, if the home records it.
    """

    snapshot_id: int | None
    location: str
    distinct: Mapping[str, int | None]
    row_count: int | None = None
    total_size_bytes: int | None = None
    analyzed_at: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draft:
    """Prepared content of a write.

    Attributes:
        distinct: Column → number of distinct values, for the published columns.
        left_out: Column → reason why it is not published.
        content: Data for `write`, in a form private to the publisher.
        is_current: Whether the home already contains exactly this, so that nothing has to be written.
        detail: Remark for the publication.
        made_snapshot_id: Snapshot created by the publication that is current, if any.
    """

    snapshot_id: int
    location: str
    distinct: Mapping[str, int | None]
    left_out: Mapping[str, str] = field(default_factory=dict)
    content: Any = field(default=None, repr=False)
    is_current: bool = False
    detail: str = ""
    made_snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """Outcome of a publication.

    Attributes:
        to: Name of the home.
        state: CURRENT, STALE for statistics of an earlier snapshot than the one asked for, or DRY_RUN if nothing was
            written.
        made_snapshot_id: Snapshot that the publication created in the table; None if it created none.
        left_out: Column → reason why it was not published.
        removed_orphans: Names of removed files that killed writers had left.
    """

    snapshot_id: int
    to: str
    state: str
    location: str
    columns: tuple[str, ...]
    detail: str = ""
    made_snapshot_id: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    removed_orphans: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON form, sent from a worker to the server."""
        return asdict(self) | {"columns": list(self.columns), "removed_orphans": list(self.removed_orphans)}


class Publisher(ABC):
    """Base class of publishers, registered by `home` in the entry points of group `statflight.publishers`.

    Attributes:
        formats: Supported table formats; empty for all.
        sketches: Required sketch roles of each column: NDV, QUANTILES.
        options: Names of supported options.
        labels: What the home can say of its statistics; others are left out. None if the publisher judges the labels
            of each itself.
        reads_data: Distinct values and widths are computed from the table's data, not taken from the statistics.
        takes_files: The statistics of each file are required too.
    """

    home: ClassVar[str]
    formats: ClassVar[frozenset[str]] = frozenset()
    sketches: ClassVar[frozenset[str]] = frozenset()
    options: ClassVar[frozenset[str]] = frozenset()
    labels: ClassVar[Labels | None] = Labels()
    reads_data: ClassVar[bool] = False
    takes_files: ClassVar[bool] = False

    def __init__(self, destination: Destination, statistics: TableStatistics) -> None:
        self.destination = destination
        self.statistics = publishable(statistics, self.labels, with_distribution=not self.reads_data)
        self.remarks = list(self.statistics.remarks)  # added to the publication's detail
        self.removed_orphans: list[str] = []  # names of files
        if inherited := self._inherited():
            self.remarks.append(f"inherited: {inherited}")
        if unknown := sorted(destination.options.keys() - self.options):
            known = ", ".join(sorted(self.options)) or "none"
            raise InvalidArgument(
                f"options.{unknown[0]}: is not an option of {self.home}; expected {known}",
                params={"field": f"options.{unknown[0]}"},
            )

    def _inherited(self) -> str:
        """The columns with inherited statistics, by snapshot; empty if there are none."""
        by_snapshot: dict[int | None, list[str]] = {}
        for column in self.statistics.columns:
            if column.freshness != EXACT:
                by_snapshot.setdefault(column.snapshot_id, []).append(column.name)
            elif column.distribution_freshness != EXACT and not self.reads_data:
                by_snapshot.setdefault(column.distribution_snapshot_id, []).append(column.name)
        return "; ".join(f"{', '.join(names)} of snapshot {number}" for number, names in by_snapshot.items())

    @abstractmethod
    def prepare(self) -> Draft:
        """Checks the preconditions and builds the draft; writes nothing.

        Raises:
            Conflict: The table has a newer snapshot with other rows.
            InvalidArgument: The home cannot store this table.
            NotFound: The table or the snapshot does not exist.
        """

    @abstractmethod
    def write(self, draft: Draft) -> int | None:
        """Puts a draft in place atomically; returns the id of the snapshot that this created, or None.

        Raises:
            LostRace: Another writer came first; nothing of the draft remains.
            UpstreamError: The home cannot be written; nothing of the draft remains.
        """

    @abstractmethod
    def read(self) -> HomeStatistics | None:
        """Reads the statistics in the home that `write` would replace; None if there are none."""

    def read_all(self) -> Sequence[HomeStatistics]:
        """Reads all statistics in the home, one item for each engine that wrote some.

        Raises:
            NotFound: The table does not exist in the home.
            UpstreamError: The home cannot be read.
        """
        stored = self.read()
        return [] if stored is None else [stored]

    @abstractmethod
    def withdraw(self) -> bool:
        """Removes the statistics of this project from the home; returns whether there were any."""

    def verify(self, draft: Draft) -> str:
        """Reads the written statistics, compares them with the draft, and returns their location.

        Raises:
            LostRace: Another writer replaced them, or changed the table, meanwhile.
        """
        stored = self.read()
        if stored is None or stored.snapshot_id not in (None, draft.snapshot_id):
            raise LostRace(f"{self.home}: other statistics were written at the same time")
        for column, distinct in draft.distinct.items():
            if column not in stored.distinct or stored.distinct[column] not in (None, distinct):
                raise LostRace(f'{self.home}: the statistics of column "{column}" read back differ from those written')
        return stored.location

    @cached_property
    def table_location(self) -> str:
        """Location of the table."""
        return self.destination.connector.describe(self.statistics.namespace, self.statistics.name).location

    def storable(self, reason: Callable[[ColumnStatistics], str]) -> tuple[list[ColumnStatistics], dict[str, str]]:
        """The columns that the home takes, and column → what `reason` says for the others."""
        reasons = {column.name: reason(column) for column in self.statistics.columns}
        columns = [column for column in self.statistics.columns if not reasons[column.name]]
        return columns, dict(self.statistics.left_out) | {name: why for name, why in reasons.items() if why}

    def current_snapshot_id(self) -> int | None:
        """Id of the table's current snapshot."""
        statistics = self.statistics
        return self.destination.connector.enumerate_snapshots(
            statistics.namespace, statistics.name, target_snapshot_ids=frozenset()
        ).current_snapshot_id

    @property
    def may_be_older(self) -> bool:
        """True if the statistics may be published although the table has other rows by now: with the leave to publish
        inherited ones, in a home that names the snapshot that they are of."""
        return self.statistics.allow_inherited and self.labels is not None and self.labels.snapshot

    def check_current(self) -> None:
        """Refuses statistics of another snapshot than the table's current one.

        Raises:
            Conflict: The table moved on.
        """
        current = self.current_snapshot_id()
        if current != self.statistics.snapshot_id:
            raise self.moved_on(f"snapshot {current}")

    def moved_on(self, newest: str) -> Conflict:
        """The error for statistics of rows that the table no longer has; `newest` is its current snapshot, in words."""
        statistics = self.statistics
        return Conflict(
            f'table "{statistics.full_name}" moved on: the statistics are of snapshot {statistics.snapshot_id}, the '
            f"table is at {newest}",
            code="STALE",
            hint="capture it again, then publish",
            params={"snapshot": statistics.snapshot_id},
        )
