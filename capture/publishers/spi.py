"""The interface of a publisher: one home of statistics, and how they are written there.

A publisher lives for one table and one call. `prepare` checks that the numbers still hold for the table and builds
everything that can be built without writing; `write` puts it in place in one step; `verify` reads it back. `publish`
in `capture.publishers.publishing` runs the three, and runs them again with fresh state when another writer came first.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, ClassVar

from capture.connectors.spi import Connector, ConnectorConfig
from store.errors import Conflict, InvalidArgument, UpstreamError

_SKETCHES = ("theta", "quantiles")


class LostRace(UpstreamError):
    """Another writer changed the home between `prepare` and `write`; another try starts from fresh state."""

    code = "LOST_RACE"


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of one column; None is unknown. Bounds are canonical text (see `store.bounds`).

    Attributes:
        theta: Compact theta sketch of the values.
        quantiles: KLL sketch of the values.
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

    @property
    def distinct(self) -> int | None:
        """Number of distinct values, as a count that rows without nulls can hold."""
        if self.ndv is None:
            return None
        count = max(round(self.ndv), 0)
        if self.row_count is not None:
            count = min(count, self.row_count - (self.null_count or 0))
        return count


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Statistics of a table at one snapshot, as they are published: complete, unsampled, of that snapshot.

    Attributes:
        left_out: Column → reason, for columns that have statistics which may not be published.
    """

    namespace: str
    name: str
    snapshot_id: int
    columns: tuple[ColumnStatistics, ...]
    row_count: int | None = None
    total_size_bytes: int | None = None
    merged_size_bytes: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """Namespace and name, dotted."""
        return f"{self.namespace}.{self.name}"

    def to_json(self) -> dict[str, Any]:
        """The form that travels from the server to a worker; sketches as base64."""
        body = asdict(self)
        for column in body["columns"]:
            for name in _SKETCHES:
                if column[name] is not None:
                    column[name] = base64.b64encode(column[name]).decode()
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TableStatistics:
        """The statistics that `to_json` gave; keys of columns that are not known here are passed over."""
        known = {item.name for item in fields(ColumnStatistics)}
        columns = []
        for column in body["columns"]:
            values = {name: value for name, value in column.items() if name in known}
            values |= {name: base64.b64decode(values[name]) for name in _SKETCHES if values.get(name) is not None}
            columns.append(ColumnStatistics(**values))
        return cls(**{**body, "columns": tuple(columns)})


@dataclass(frozen=True, slots=True)
class Destination:
    """The table a publisher writes to, and what it needs to get there.

    Attributes:
        connector: The opened connector of the table's lake.
        config: How that lake is reached; its options hold resolved secrets.
        options: Options of this publication, by the home's own names.
        spark: Gives the worker's Spark session; raises where there is none.
    """

    connector: Connector
    config: ConnectorConfig
    options: Mapping[str, str] = field(default_factory=dict)
    spark: Callable[[], Any] | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Statistics that a home holds now.

    Attributes:
        snapshot_id: Snapshot they are for; None where the home does not say.
        distinct: Column → number of distinct values, None where the home keeps none that can be read.
        row_count: Rows that the home says the table had then.
        total_size_bytes: Bytes of the files that it had then.
        analyzed_at: Column → when its statistics were written, of the homes that say.
    """

    snapshot_id: int | None
    location: str
    distinct: Mapping[str, int | None]
    row_count: int | None = None
    total_size_bytes: int | None = None
    analyzed_at: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything that a write is going to put in place.

    Attributes:
        distinct: Column → number of distinct values, for the columns that are published.
        left_out: Column → why the home cannot hold it, or why it may not be published.
        content: What `write` needs, of the publisher's own kind.
        is_held: The home holds exactly this already: there is nothing to write.
        made_snapshot_id: Snapshot by which the home came to hold it, where it made one.
    """

    snapshot_id: int
    location: str
    distinct: Mapping[str, int | None]
    left_out: Mapping[str, str] = field(default_factory=dict)
    content: Any = field(default=None, repr=False)
    is_held: bool = False
    detail: str = ""
    made_snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """Outcome of a publication.

    Attributes:
        made_snapshot_id: Snapshot of the table that the publication itself made, None where it made none.
        state: CURRENT, or DRY_RUN when nothing was written.
    """

    snapshot_id: int
    to: str
    state: str
    location: str
    columns: tuple[str, ...]
    detail: str = ""
    made_snapshot_id: int | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form that travels from a worker to the server."""
        return asdict(self) | {"columns": list(self.columns)}


class Publisher(ABC):
    """One home of statistics. Registered by its `home` in the entry points of `statflight.publishers`.

    Attributes:
        home: Its name, as callers say it.
        formats: Table formats that it takes; empty for all.
        sketches: Sketch roles that it needs of each column, of NDV and QUANTILES.
        options: Names of the options it takes.
    """

    home: ClassVar[str]
    formats: ClassVar[frozenset[str]] = frozenset()
    sketches: ClassVar[frozenset[str]] = frozenset()
    options: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, destination: Destination, statistics: TableStatistics) -> None:
        self.destination, self.statistics = destination, statistics
        self.remarks: list[str] = []  # that a write adds to the publication's detail
        if unknown := sorted(destination.options.keys() - self.options):
            known = ", ".join(sorted(self.options)) or "none"
            raise InvalidArgument(
                f"options.{unknown[0]}: is not an option of {self.home}; expected {known}",
                params={"field": f"options.{unknown[0]}"},
            )

    @abstractmethod
    def prepare(self) -> Draft:
        """Checks the precondition and builds what is to be written; writes nothing.

        Raises:
            Conflict: The table moved on: the statistics are of another snapshot's rows.
            InvalidArgument: The home cannot hold this table.
            NotFound: The table or the snapshot does not exist.
        """

    @abstractmethod
    def write(self, draft: Draft) -> int | None:
        """Puts a draft in place in one step.

        Returns:
            The id of the snapshot that this made, None where it made none.

        Raises:
            LostRace: Another writer came first; nothing of the draft is left behind.
            UpstreamError: The home cannot be written; nothing of the draft is left behind.
        """

    @abstractmethod
    def read(self) -> Held | None:
        """Statistics that the home holds now; None when it holds none."""

    def held_of_all(self) -> Sequence[Held]:
        """Statistics that the home holds now, whoever wrote them: of each engine its own.

        Raises:
            NotFound: The home has no such table.
            UpstreamError: The home cannot be read.
        """
        held = self.read()
        return [] if held is None else [held]

    @abstractmethod
    def withdraw(self) -> bool:
        """Removes the statistics of this project from the home; whether there were any."""

    def verify(self, draft: Draft) -> str:
        """Reads back what was written.

        Returns:
            Where it lies.

        Raises:
            LostRace: Another writer has replaced it, or moved the table on, meanwhile.
        """
        held = self.read()
        if held is None or held.snapshot_id not in (None, draft.snapshot_id):
            raise LostRace(f"{self.home}: other statistics were written at the same time")
        for column, distinct in draft.distinct.items():
            if column not in held.distinct or held.distinct[column] not in (None, distinct):
                raise LostRace(f'{self.home}: the statistics of column "{column}" read back differ from those written')
        return held.location

    def newest_snapshot(self) -> int | None:
        """The table's current snapshot, as its lake has it now."""
        of = self.statistics
        listing = self.destination.connector.enumerate_snapshots(
            of.namespace, of.name, target_snapshot_ids=frozenset({of.snapshot_id})
        )
        return listing.current_snapshot_id

    def stale_since(self) -> int | None:
        """The snapshot that the home's statistics were for, when the table has moved on from it; None when current."""
        held = self.read()
        if held is None:
            return None
        try:
            self.prepare()
        except Conflict:
            return held.snapshot_id if held.snapshot_id is not None else self.statistics.snapshot_id
        return None


def moved_on(statistics: TableStatistics, newest: object) -> Conflict:
    """The refusal of statistics that are not of the rows a table has now.

    Args:
        statistics: Of an earlier snapshot.
        newest: What the table is at, in words.
    """
    return Conflict(
        f'table "{statistics.full_name}" moved on: the statistics are of snapshot {statistics.snapshot_id}, the table '
        f"is at {newest}",
        code="STALE", hint="capture it again, then publish", params={"snapshot": statistics.snapshot_id},
    )  # fmt: skip
