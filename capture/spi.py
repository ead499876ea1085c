"""The words of capture: request, result, outcome, capabilities, engine, sink.

Batch contract of an engine: as many results as requests, in their order; it never raises; one item's failure never
stops another; UNCAPTURABLE only for a capability mismatch, which sends the item to the next candidate. CAPTURED, QUEUED
and DEGRADED are final.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from capture.connectors.spi import Column, Connector, Schema
from capture.spec import PARTITIONED, Budget, CaptureSpec, Partition, Sampling
from store.schemas import KINDS
from store.targets import Target, TargetKind

__all__ = [
    "PARTITIONED", "Budget", "Capabilities", "CaptureEngine", "CaptureRequest", "CaptureResult", "CaptureSpec",
    "Decision", "Listing", "Mode", "Outcome", "Partition", "Sampling", "Sink", "TableHandle", "elapsed_ms",
]  # fmt: skip


class Outcome(StrEnum):
    """The end of one request of a capture, or that it waits."""

    CAPTURED = "CAPTURED"
    UNCAPTURABLE = "UNCAPTURABLE"
    DEGRADED = "DEGRADED"
    QUEUED = "QUEUED"


class Mode(StrEnum):
    """SYNC answers with the outcome, ASYNC with the id of a job."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"


@dataclass(frozen=True)  # no slots: lookups are cached
class TableHandle:
    """A table at one snapshot, as an engine needs it: its name, its ids, its schema there and the lake it is in."""

    catalog: str
    schema: str
    name: str
    table_id: str
    snapshot_id: int
    columns: Schema
    column_ids: Mapping[str, int]
    connector: Connector = field(repr=False, compare=False, hash=False)

    @property
    def key(self) -> dict[str, Any]:
        """The key columns of every row about this table at this snapshot."""
        return {
            "table_catalog": self.catalog,
            "table_schema": self.schema,
            "table_name": self.name,
            "table_id": self.table_id,
            "snapshot_id": self.snapshot_id,
        }

    @cached_property
    def by_id(self) -> Mapping[int, Column]:
        """The columns of this snapshot by column id."""
        columns = ((column.id_in(self.column_ids), column) for column in self.columns.columns)
        return {column_id: column for column_id, column in columns if column_id is not None}

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Column id → dotted name, of the columns of this snapshot."""
        return {column_id: column.name for column_id, column in self.by_id.items()}

    def selected(self, selectors: Sequence[str]) -> frozenset[str]:
        """Keys of the leaves that selectors pick.

        Args:
            selectors: `#<column_id>`, a dotted name, or either of a struct for the leaves in it. One that no column of
                this snapshot fits picks nothing.

        Returns:
            Keys of `Column`, of leaves only.
        """
        by_id, keys = self.by_id, set()
        for selector in map(str.strip, selectors):
            column = by_id.get(int(selector[1:])) if selector[:1] == "#" and selector[1:].isdecimal() else None
            name = selector if column is None else column.key
            for leaf in self.columns.columns:
                own = leaf.key if column is not None else leaf.name
                if leaf.is_leaf and name and (own == name or own.startswith(f"{name}.")):
                    keys.add(leaf.key)
        return frozenset(keys)


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A spec for one table at one snapshot, as an engine receives it."""

    table: TableHandle
    spec: CaptureSpec
    mode: Mode = Mode.SYNC
    correlation_id: str = ""

    @classmethod
    def of(
        cls, table: TableHandle, target: Target, *, mode: Mode = Mode.SYNC, correlation_id: str = "", **spec: Any
    ) -> CaptureRequest:
        """A request for one target.

        Args:
            table: The table at its snapshot.
            target: What to capture of it.
            mode: SYNC where somebody waits.
            correlation_id: Of the call that asked for it.
            spec: Other fields of `CaptureSpec`, such as `kinds`.
        """
        return cls(table, CaptureSpec(target, **spec), mode, correlation_id)

    @property
    def target(self) -> Target:
        """The table, column, file, expression or group of columns."""
        return self.spec.target

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of statistics asked for; any where empty."""
        return self.spec.kinds

    @property
    def column_selectors(self) -> tuple[str, ...]:
        """Columns by name; all where empty."""
        return self.spec.column_selectors

    @property
    def sampling(self) -> Sampling:
        """Method of the sample; NONE reads everything."""
        return self.spec.sampling

    @property
    def budget(self) -> Budget | None:
        """Limits of a sample, if any."""
        return self.spec.budget

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The only partitions whose files are captured; all where empty."""
        return self.spec.partitions


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """The outcome of one request; its record went to the sink.

    Of the attributes these are known to others: `retryable` (False: another try will not help); of what was CAPTURED
    `files_failed`, the files that are missing in it and are tried again; and `files_read`, `rows_read`, `bytes_read`,
    what this capture read itself for the target.
    """

    outcome: Outcome
    engine_id: str = ""
    detail: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    target: Target | None = None
    table: TableHandle | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of an engine. Empty `connectors` = all; a target's empty set of kinds = all kinds."""

    target_kinds: Mapping[TargetKind, frozenset[str]]
    connectors: frozenset[str] = frozenset()
    modes: frozenset[Mode] = frozenset(Mode)
    sampling: frozenset[Sampling] = frozenset({Sampling.NONE})
    partitions: bool = False  # whether it captures the files of some partitions alone
    budgets: bool = False  # whether its samples keep to a budget

    def mismatch(self, request: CaptureRequest) -> str:
        """Compares a request with what the engine can do.

        Returns:
            The first reason why it does not fit; an empty string where it fits.
        """
        if request.target.kind not in self.target_kinds:
            return f"target {request.target.kind} unsupported"
        if self.connectors and request.table.connector.format not in self.connectors:
            return f"format {request.table.connector.format} unsupported"
        kinds = self.target_kinds[request.target.kind] or frozenset(KINDS)
        if missing := request.kinds - kinds:
            return f"kinds {', '.join(sorted(missing))} unsupported"
        if request.mode not in self.modes:
            return f"mode {request.mode} unsupported"
        if request.sampling not in self.sampling:
            return f"sampling {request.sampling} unsupported"
        if request.budget and not self.budgets:
            return "budget of a sample unsupported"
        if request.partitions and not (self.partitions and request.target.kind in PARTITIONED):
            return f"partitions unsupported for target {request.target.kind}"
        return ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a snapshot as a capture tells them; `mark` names all that it says of them.

    With a base: those of snapshot `base_snapshot_id`, put under `base_mark`, but for the paths in `removed`.
    """

    mark: str
    base_snapshot_id: int | None = None
    base_mark: str = ""
    removed: tuple[str, ...] = ()


class Sink(Protocol):
    """Destination of captured rows: a draft generation that is published as a whole, or a store."""

    def put(self, flight: str, rows: pa.Table, *, extra: bool = False, whole: bool = False) -> None:
        """Adds rows of a `stats.*` flight.

        Args:
            flight: Name of the flight.
            rows: Of the schema of the flight, about the captured table.
            extra: Rows nobody asked for: they never replace a record that is there.
            whole: Rows are all there are of the flight at their snapshot: records of other targets go.

        Raises:
            Cancelled: The job was cancelled.
            InvalidArgument: A row is not valid, where that is found out at once.
        """

    def list_files(self, table: TableHandle, listing: Listing) -> bool:
        """Announces how the files of a snapshot are going to be put: all of them, or the changes from a base.

        Args:
            table: The table at the snapshot.
            listing: Its mark, and the base if only changes are put.

        Returns:
            False when the base is not there: all rows of `stats.files` and `stats.file_columns` must be put.
        """

    def stored(self, flight: str, table: TableHandle, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows stored of the table, whichever snapshot they were captured at.

        Args:
            flight: Name of a `stats.*` flight.
            table: The table.
            columns: Names of columns to read; all of them by default.

        Returns:
            At most one row of each target, the newest; none where nothing is stored.
        """

    def progress(self, share: float, message: str = "") -> None:
        """Reports the share of the capture that is done.

        Args:
            share: 0 to 1.
            message: What is being done, for people.

        Raises:
            Cancelled: The job was cancelled.
        """


class CaptureEngine(Protocol):
    """Computes or reads statistics of requests.

    Attributes:
        id: `engine_id` of what it captures.
        priority: Of the engines that take a request, the lowest comes first.
        capabilities: What `supports` decides by.
    """

    id: str
    priority: int
    capabilities: Capabilities

    def supports(self, request: CaptureRequest) -> str:
        """Decides whether the engine takes a request.

        Returns:
            The first reason why it cannot; an empty string where it can.
        """

    def capture_batch(self, requests: Sequence[CaptureRequest], sink: Sink) -> list[CaptureResult]:
        """Captures requests about one table.

        Args:
            requests: All of them supported.
            sink: Takes the rows, and is asked whether to go on.

        Returns:
            One result per request, in their order.
        """


@dataclass(frozen=True, slots=True)
class Decision:
    """One row of `sys.capture_decisions`."""

    request: CaptureRequest
    outcome: str
    engine_id: str
    detail: str
    elapsed_ms: float


def elapsed_ms(since: float) -> float:
    """Milliseconds since a `time.perf_counter()` reading."""
    return (time.perf_counter() - since) * 1000
