"""Interfaces of capture: request, result, outcome, capabilities, engine, sink.

Batch contract of an engine: it returns as many results as requests, in their order; it never raises; one item's failure
never stops another; UNCAPTURABLE is only for a capability mismatch and sends the item to the next candidate. CAPTURED,
QUEUED and DEGRADED are final.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import pyarrow as pa

from capture.connectors.spi import Column, Connector, NativeStats, ScanTask, Schema
from capture.spec import PARTITIONED, CaptureSpec, Sampling
from store.model.columns import KINDS
from store.model.errors import InvalidArgument, StatflightError, may_pass
from store.model.puts import Listing
from store.model.schemas import FLIGHTS
from store.model.targets import Target, TargetKind

if TYPE_CHECKING:  # it loads Parquet, which few captures write
    from store.duckdb.segment_files import Written

METADATA_PRIORITY: Final = 1000
"""Engines with this priority or a greater one read metadata only."""

_BEFORE_DATA: Final = 99  # rank of these for requests that name their kinds; engines that read data have 100

_KEPT_VALUES: Final = 20_000  # files × columns


def rank(priority: int, kinds: Collection[str]) -> int:
    """Rank of an engine for a request it supports; the lowest is tried first.

    An engine that reads metadata only answers named kinds before the engines that read data. If all kinds are asked
    for it comes last, because it knows the least.

    Args:
        priority: The engine's priority.
        kinds: Kinds of the request; empty for all.
    """
    return min(priority, _BEFORE_DATA) if priority >= METADATA_PRIORITY and kinds else priority


class Outcome(StrEnum):
    """State of one request after an engine handled it."""

    CAPTURED = "CAPTURED"
    UNCAPTURABLE = "UNCAPTURABLE"
    DEGRADED = "DEGRADED"
    QUEUED = "QUEUED"


class Mode(StrEnum):
    """SYNC: the caller waits for the outcome. ASYNC: the caller gets a job id."""

    SYNC = "SYNC"
    ASYNC = "ASYNC"


class Described(NamedTuple):
    """A table as its rows name it: key columns, names by column id, and the hash of the schema."""

    key: Mapping[str, Any]
    names: Mapping[int, str]
    schema_hash: str


@dataclass(frozen=True)  # no slots: lookups are cached
class TableHandle:
    """A table at one snapshot: names, ids, the schema of that snapshot, and the lake's connector.

    `contradicted` are ids of columns whose data contradicted the table's metadata when it was last read, WHOLE_TABLE
    (`store.model.freshness`) among them if that was the number of rows.
    """

    catalog: str
    schema: str
    name: str
    table_id: str
    snapshot_id: int
    columns: Schema
    column_ids: Mapping[str, int]
    connector: Connector = field(repr=False, compare=False, hash=False)
    contradicted: frozenset[int] = frozenset()

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

    @property
    def described(self) -> Described:
        """The values by which rows name it."""
        return Described(self.key, self.names, self.columns.hash)

    @cached_property
    def by_id(self) -> Mapping[int, Column]:
        """The columns of this snapshot by column id."""
        columns = ((column.id_in(self.column_ids), column) for column in self.columns.columns)
        return {column_id: column for column_id, column in columns if column_id is not None}

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Column id → dotted name, for the columns of this snapshot."""
        return {column_id: column.name for column_id, column in self.by_id.items()}

    def native_stats(self, columns: frozenset[str] | None) -> NativeStats:
        """The statistics in the metadata; `columns` as in `Connector.capture_snapshot_target_stats`. Those of few files
        are kept, because an engine that scans data asks for them too."""
        if columns is not None and all(each.is_among(columns) for each in self.columns.columns if each.is_leaf):
            columns = None
        native = self._native.get(columns)
        if native is None:
            native = self.connector.capture_snapshot_target_stats(
                self.schema, self.name, self.snapshot_id, self.column_ids, columns
            )
            if native.files.num_rows * len(self.columns.columns) <= _KEPT_VALUES:
                native = self._native[columns] = native.kept()
        return native

    @cached_property
    def _native(self) -> dict[frozenset[str] | None, NativeStats]:
        return {}

    def scan_tasks(self, columns: Iterable[str]) -> list[ScanTask]:
        """The tasks of a scan of some columns, by name, in the order of their files' paths."""
        names = frozenset(columns)
        tasks = self.connector.plan_files(self.schema, self.name, self.snapshot_id, self.column_ids, names)
        return sorted(tasks, key=lambda task: task.file_path)

    def selected(self, selectors: Sequence[str]) -> frozenset[str]:
        """`Column.key` of each leaf column that the selectors match.

        Args:
            selectors: Each `#<column_id>` or a dotted name; a struct selects its leaves. A selector without a match
                is ignored.
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
    """A capture spec bound to a table at one snapshot; the input of an engine."""

    table: TableHandle
    spec: CaptureSpec
    mode: Mode = Mode.SYNC
    correlation_id: str = ""

    @classmethod
    def of(
        cls, table: TableHandle, target: Target, *, mode: Mode = Mode.SYNC, correlation_id: str = "", **spec: Any
    ) -> CaptureRequest:
        """A request for one target; `spec` has other fields of `CaptureSpec`, such as `kinds`."""
        return cls(table, CaptureSpec(target, **spec), mode, correlation_id)

    @property
    def target(self) -> Target:
        """The table, column, file, expression or group of columns."""
        return self.spec.target


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """The outcome of one request; its record went to the sink.

    `attributes` may hold anything. Read by other components: `retryable` (False: trying again will not help);
    `files_failed` of a CAPTURED target, the number of files missing in its record, which are tried again;
    `files_gone`, how many of those do not exist; `files_read`, `rows_read` and `bytes_read`, the amount this capture
    itself read for the target. `reason` says with figures why the work was done as it was; it is part of the decision,
    not of the outcome.
    """

    outcome: Outcome
    engine_id: str = ""
    detail: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    target: Target | None = None
    table: TableHandle | None = None
    reason: str = ""

    @classmethod
    def failed(cls, engine_id: str, error: Exception) -> CaptureResult:
        """The result of a request whose capture raised an error."""
        detail = str(error) if isinstance(error, StatflightError) else f"capture failed: {type(error).__name__}"
        return cls(Outcome.DEGRADED, engine_id, detail, {"retryable": may_pass(error)})


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of an engine. Empty `connectors`: all formats; an empty set of kinds for a target: all kinds."""

    target_kinds: Mapping[TargetKind, frozenset[str]]
    connectors: frozenset[str] = frozenset()
    modes: frozenset[Mode] = frozenset(Mode)
    sampling: frozenset[Sampling] = frozenset({Sampling.NONE})
    partitions: bool = False  # can capture only the files of given partitions
    budgets: bool = False  # samples respect a budget

    def mismatch(self, request: CaptureRequest) -> str:
        """The first reason why a request is not within the capabilities; an empty string if there is none."""
        return self.mismatch_of(request.spec, request.table.connector.format, request.mode)

    def mismatch_of(self, spec: CaptureSpec, format: str, mode: Mode) -> str:
        """`mismatch` of a capture of a table of this format."""
        kind = spec.target.kind
        if kind not in self.target_kinds:
            return f"target {kind} unsupported"
        if self.connectors and format not in self.connectors:
            return f"format {format} unsupported"
        if missing := spec.kinds - (self.target_kinds[kind] or frozenset(KINDS)):
            return f"kinds {', '.join(sorted(missing))} unsupported"
        if mode not in self.modes:
            return f"mode {mode} unsupported"
        if spec.sampling not in self.sampling:
            return f"sampling {spec.sampling} unsupported"
        if spec.budget and not self.budgets:
            return "budget of a sample unsupported"
        if spec.partitions and not (self.partitions and kind in PARTITIONED):
            return f"partitions unsupported for target {kind}"
        return ""


class SegmentPlace(NamedTuple):
    """The directory or bucket (a URL) of a server's segments, and the name by which the server's database owns it."""

    directory: str
    owner: str


@dataclass(frozen=True, slots=True)
class Writing:
    """How executors write the rows of the files that they read.

    Attributes:
        now: Time of all rows.
        types: Column id → logical type as text.
        kept: Which sketches of files are kept (`compute.file_sketches.Keeping`).
    """

    place: SegmentPlace
    table: Described
    mode: Mode
    now: datetime
    types: Mapping[int, str]
    kept: Any


class Sink(Protocol):
    """Destination of captured rows: a draft generation that is published as a whole, or a store."""

    def put(
        self, flight: str, rows: pa.Table, *, extra: bool = False, whole: bool = False, checked: bool = False
    ) -> None:
        """Adds rows of a `stats.*` flight.

        Args:
            rows: Rows in the flight's schema, about the captured table.
            extra: The rows were not requested; they never replace an existing record.
            whole: The rows are the complete flight at their snapshot; records of other targets are deleted.
            checked: The values were computed from data, and are valid and normal (store/SEMANTICS.md §2).

        Raises:
            Cancelled: The job was cancelled.
            InvalidArgument: A row is invalid, if the sink checks rows at once.
        """

    def list_files(self, table: TableHandle, listing: Listing) -> bool:
        """Announces the files of a snapshot before their rows are put: all of them, or only changes from a base.

        Args:
            listing: The listing; with a base if only changes will be put.

        Returns:
            False if the sink does not have the base; then all rows of `stats.files` and `stats.file_columns` must be
            put.
        """

    def stored(
        self,
        flight: str,
        table: TableHandle,
        columns: Sequence[str] | None = None,
        column_ids: Sequence[int] | None = None,
    ) -> pa.Table:
        """Stored rows of a `stats.*` flight of the table: the newest of each target from captures of snapshots with the
        same schema; if there are none, from those of all snapshots.

        Args:
            columns: The flight's columns to return; None for all.
            column_ids: Only rows about these columns of the table; None for all rows.
        """

    def requested(self, flight: str, table: TableHandle, columns: Sequence[str]) -> pa.Table:  # noqa: ARG002
        """Rows put so far without `extra`; extra rows of the same targets will not be stored.

        Returns:
            Rows of this snapshot; none if the sink does not keep them, as by default.
        """
        return FLIGHTS[flight].schema.empty_table().select(list(columns))

    def segment_place(
        self,
        table: TableHandle,  # noqa: ARG002
        column_ids: Sequence[int],  # noqa: ARG002
        file_paths: Sequence[str],  # noqa: ARG002
    ) -> SegmentPlace | None:
        """The place into which executors may write the rows of files and columns as segments, of which the sink then
        gets the names alone (`add_segment`). No rows of these files and columns are put beside them.

        Args:
            column_ids: The columns.
            file_paths: The files, each once.

        Returns:
            None if the rows are to be put, as by default.
        """
        return None

    def add_segment(self, flight: str, table: TableHandle, written: Written) -> None:
        """Adds a file of rows, requested and checked ones, that an executor has written into the place.

        Raises:
            Cancelled: The job was cancelled.
            InvalidArgument: The file is not whole, or the sink has no place for files.
        """
        raise InvalidArgument(f"{written.name}: rows of {flight} about {table.name} are put here, not written")

    def progress(self, share: float, message: str = "") -> None:
        """Reports progress: the completed share of the capture, 0 to 1, and its current step, for people.

        Raises:
            Cancelled: The job was cancelled.
        """


class CaptureEngine(Protocol):
    """Computes statistics or reads them from metadata.

    An engine whose records may have one of several ids has an attribute `by_engine_id` too: each id, and the
    capabilities under it.

    Attributes:
        id: `engine_id` of its records.
        priority: Rank among the engines that support a request; the lowest is tried first. From `METADATA_PRIORITY`
            on, see `rank`.
        capabilities: Supported targets, kinds and formats.
    """

    id: str
    priority: int
    capabilities: Capabilities

    def supports(self, request: CaptureRequest) -> str:
        """The first reason why the engine cannot handle a request, by default by its capabilities; empty if it can."""
        return self.capabilities.mismatch(request)

    def capture_batch(self, requests: Sequence[CaptureRequest], sink: Sink) -> list[CaptureResult]:
        """Captures requests about one table; one result per request, in order. The sink may cancel the capture."""


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
