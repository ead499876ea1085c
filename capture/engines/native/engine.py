"""The native engine: statistics from the format's own footers, logs and manifests. Reads no data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import pyarrow.compute as pc

from capture import partitions
from capture.engines.native.column_records import ColumnRecords
from capture.engines.native.file_rows import FileRows
from capture.engines.native.known_listings import KnownListings
from capture.engines.native.metadata import Metadata
from capture.engines.rollup import Rollup, roll_up
from capture.flight_rows import flight_rows
from capture.spec import has_no_values, lacking
from capture.spi import (
    METADATA_PRIORITY,
    Capabilities,
    CaptureEngine,
    CaptureRequest,
    CaptureResult,
    Outcome,
    Sink,
)
from store.model.freshness import CONTRADICTED
from store.model.statistics import SIDES
from store.model.targets import NO_COLUMN, Target, TargetKind

_MOST_DOUBTS: Final = 5  # that the detail of a decision has
_COLUMN_KINDS = frozenset({"ROW_COUNT", "NULL_COUNT", "NAN_COUNT", "MIN_MAX", "WIDTH"})

_OTHER_ROWS = "the number of rows contradicts the data"


class NativeEngine(CaptureEngine):
    """Captures TABLE, COLUMN and FILE targets from a connector's metadata.

    A request for a TABLE or FILE also stores the COLUMN and FILE records found in the same pass. A request for named
    kinds of a column is UNCAPTURABLE if the metadata does not have all of them, so that the data is read.
    """

    id = "native"
    priority = METADATA_PRIORITY
    capabilities = Capabilities(
        {
            TargetKind.TABLE: frozenset({"ROW_COUNT", "FILE_COUNT", "TOTAL_BYTES"}),
            TargetKind.COLUMN: _COLUMN_KINDS,
            TargetKind.FILE: frozenset({"ROW_COUNT", "TOTAL_BYTES", "NULL_COUNT", "NAN_COUNT", "MIN_MAX"}),
        },
        partitions=True,
    )

    def __init__(self) -> None:
        self._listings = KnownListings()

    def capture_batch(self, requests: Sequence[CaptureRequest], sink: Sink) -> list[CaptureResult]:
        """Captures requests from metadata, in one pass per table and snapshot."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for at, request in enumerate(requests):
            groups.setdefault((*request.table.key.values(), request.spec.partitions), []).append(at)
        results: list[CaptureResult] = [CaptureResult(Outcome.DEGRADED, self.id, "not tried")] * len(requests)
        for members in groups.values():
            group = [requests[at] for at in members]
            try:
                metadata_pass = _Pass(Metadata.read(self.id, group), group, sink)
                run = metadata_pass.run_scoped if group[0].spec.partitions else metadata_pass.run
                answers = run(self._listings)
            except Exception as error:  # the contract: an engine never raises
                answers = [CaptureResult.failed(self.id, error)] * len(group)
            for at, answer in zip(members, answers, strict=True):
                results[at] = answer
        return results


class _Pass:
    """One pass over a table's metadata for all requests of one snapshot."""

    def __init__(self, metadata: Metadata, requests: Sequence[CaptureRequest], sink: Sink):
        self._metadata, self._requests, self._sink = metadata, requests, sink
        self._native, self._table = metadata.native, metadata.table
        self._counted: int | None = None  # the rows that a scan of this capture has found

    def _rows_in_doubt(self) -> tuple[bool, int | None]:
        """Whether the number of rows contradicts the data, by a scan of this capture or else by the newest record; and
        the number that the scan has found."""
        columns = ["row_count", "completeness", "confidence_level"]
        scanned = self._sink.requested("stats.columns", self._table, columns).to_pylist()
        whole = [row for row in scanned if row["completeness"] == "COMPLETE" and row["row_count"] is not None]
        if not whole or self._native.row_count is None:
            return self._metadata.other_rows, None
        counts = {row["row_count"] for row in whole}
        doubted = any(row["confidence_level"] == CONTRADICTED for row in whole) and counts != {self._native.row_count}
        return doubted, counts.pop() if len(counts) == 1 else None

    def run(self, listings: KnownListings) -> list[CaptureResult]:
        """Captures the table, its files and columns."""
        other_rows, self._counted = self._rows_in_doubt()
        self._metadata = replace(self._metadata, other_rows=other_rows)
        files = FileRows(self._metadata, self._sink, listings, is_covered=self._is_covered())
        widths = {r.target.column_id for r in self._requests if "WIDTH" in r.spec.kinds}
        records = ColumnRecords(self._metadata, widths)
        rollups = files.rollups()
        is_empty = self._native.data_file_count == self._native.row_count == 0
        columns = records.of(records.without_files() if is_empty else rollups)
        if self._metadata.is_whole:
            files.put_files()
            for earlier in records.earlier():
                self._put("stats.columns", earlier, extra=True)
        kept = self._kept()
        doubts = {i: reasons for i, reasons in records.doubts.items() if i not in kept}
        known = {**columns, **kept}
        results = [self._answer(request, known) for request in self._requests]
        results = [self._with_details(result, doubts) for result in results]
        replacing = self._captured_columns(results) - kept.keys()
        if self._metadata.is_whole:
            replacing |= self._outdated(records.of_source())
        self._put_columns(columns, replacing)
        self._put("stats.sketches", records.sketches(columns), extra=True)
        return results

    def _put(self, flight: str, rows: Sequence[dict[str, Any]], *, extra: bool) -> None:
        if rows:
            self._sink.put(flight, flight_rows(flight, rows), extra=extra)

    def _captured_columns(self, results: Sequence[CaptureResult]) -> set[int | None]:
        """Ids of the columns that were requested themselves, and captured."""
        return {
            request.target.column_id
            for request, result in zip(self._requests, results, strict=True)
            if request.target.kind is TargetKind.COLUMN and result.outcome is Outcome.CAPTURED
        }

    def _put_columns(self, columns: Mapping[int, dict[str, Any]], replacing: Set[int | None]) -> None:
        """Puts the records of columns that replace stored ones, and for a whole table those of the others as extra."""
        self._put("stats.columns", [row for i, row in columns.items() if i in replacing], extra=False)
        if self._metadata.is_whole:
            self._put("stats.columns", [row for i, row in columns.items() if i not in replacing], extra=True)

    def _is_covered(self) -> bool:
        """True if other engines put the requested records of every column, of the table and of each file, so that none
        of this engine's would be stored."""
        if self._metadata.wanted is not None or any(r.target.kind is not TargetKind.TABLE for r in self._requests):
            return False
        native = self._native
        if native.columns is not None or native.sketches:  # the source's own statistics
            return False
        leaves = {column_id for column_id, column in self._table.by_id.items() if column.is_leaf}
        of_table = self._sink.requested("stats.columns", self._table, ["column_id"])
        if not leaves.issubset(of_table["column_id"].to_pylist()):
            return False
        paths = native.files.filter(pc.equal(native.files["file_content"], "DATA"))["file_path"].unique()
        of_files = self._sink.requested("stats.file_columns", self._table, ["file_path", "column_id"])
        if of_files.num_rows < len(paths) * len(leaves):
            return False
        put = set(zip(of_files["file_path"].to_pylist(), of_files["column_id"].to_pylist(), strict=True))
        return all((path, column_id) in put for path in paths.to_pylist() for column_id in leaves)

    def run_scoped(self, listings: KnownListings) -> list[CaptureResult]:
        """Captures the files of some partitions. All files of the table are listed, as in any capture; the records of
        the table and its columns stay unchanged."""
        native, files = self._native, FileRows(self._metadata, self._sink, listings)
        paths = partitions.files_of(self._table, native, self._requests[0].spec.partitions)
        if self._metadata.is_whole:
            files.put_files()
        rollups: dict[int, Rollup] = {}
        for part in native.file_columns():
            rows = part.filter(pc.is_in(part["file_path"], paths))
            roll_up(rollups, rows, self._table)
            files.put_columns(rows)
        known = {i: rollup.scalars(len(paths), None, native.row_deletes) for i, rollup in rollups.items()}
        total = pc.sum(pc.equal(native.files["file_content"], "DATA")).as_py()
        detail, attributes = partitions.detail(len(paths), total), {"files": len(paths), "files_total": total}
        results = []
        for request in self._requests:
            failure = self._column_failure(request, known) if request.target.kind is TargetKind.COLUMN else None
            captured = replace(self._captured(request.target, detail), attributes=attributes)
            results.append(replace(failure or captured, reason=self._reason))
        return results

    def _answer(self, request: CaptureRequest, known: Mapping[int, Mapping[str, Any]]) -> CaptureResult:
        """The result of a request; `known` has the records of columns, and those that stay, by column id."""
        target = request.target
        if target.kind is TargetKind.TABLE:
            return self._answer_table(target)
        if target.kind is TargetKind.FILE:
            known = pc.any(pc.equal(self._native.files["file_path"], target.file_path)).as_py()
            if not known:
                return self._degraded(target, f'snapshot {self._table.snapshot_id} has no file "{target.file_path}"')
            return self._captured(target)
        return self._column_failure(request, known) or self._captured(target)

    def _column_failure(self, request: CaptureRequest, known: Mapping[int, Mapping[str, Any]]) -> CaptureResult | None:
        """The result for a column that cannot be captured, else None; `known` has the records by column id."""
        target = request.target
        column_id = target.column_id or 0
        column = self._table.by_id.get(column_id)
        if column is None:
            return self._degraded(target, f"snapshot {self._table.snapshot_id} has {NO_COLUMN} {target.column_id}")
        if not column.is_leaf:
            detail = f'the metadata does not have the nulls of "{column.name}", which is a container'
            return CaptureResult(Outcome.UNCAPTURABLE, self._metadata.engine_id, detail)
        if lacks := _lacking(known.get(column_id, {}), request.spec.kinds):
            detail = f'the metadata has no {", ".join(lacks)} of column "{column.name}"'
            return CaptureResult(Outcome.UNCAPTURABLE, self._metadata.engine_id, detail)
        if column_id in known:
            return None
        return self._degraded(target, f'the metadata has no statistics of column "{column.name}"')

    def _kept(self) -> dict[int, Mapping[str, Any]]:
        """Column id → stored record of this snapshot that this engine must not replace, because it has an ndv too, or
        because the data contradicts the metadata."""
        if not any(r.spec.kinds and r.target.kind is TargetKind.COLUMN for r in self._requests):
            return {}
        stored = self._sink.stored("stats.columns", self._table).to_pylist()
        return {
            row["column_id"]: row
            for row in stored
            if row["snapshot_id"] == self._table.snapshot_id
            and (row["ndv"] is not None or row["confidence_level"] == CONTRADICTED)
        }

    @cached_property
    def _reason(self) -> str:
        count = self._native.data_file_count
        files = "an unknown number of" if count is None else f"{count:,}"
        sources = f" and {', '.join(self._native.sources)}" if self._native.sources else ""
        return f"from metadata of {files} files{sources}; no data read"

    def _answer_table(self, target: Target) -> CaptureResult:
        native, row_count = self._native, self._native.row_count
        complete = row_count is not None
        if self._metadata.other_rows and self._counted is None and self._has_counted():
            return self._captured(target, _OTHER_ROWS)
        row_count = self._counted if self._metadata.other_rows and self._counted is not None else row_count
        row = self._metadata.provenance(complete) | {
            "row_count": row_count,
            "data_file_count": native.data_file_count,
            "total_size_bytes": native.total_size_bytes,
            "merged_size_bytes": native.merged_size_bytes,
        }
        self._sink.put("stats.tables", flight_rows("stats.tables", [row]))
        if self._metadata.other_rows:
            return self._captured(target, _OTHER_ROWS)
        return self._captured(target, "" if complete else "the metadata does not have the number of live rows")

    def _has_counted(self) -> bool:
        """True if the store has the rows that a scan of this snapshot has found."""
        stored = self._sink.stored("stats.tables", self._table).to_pylist()
        return any(
            row["snapshot_id"] == self._table.snapshot_id and row["confidence_level"] == CONTRADICTED for row in stored
        )

    def _with_details(self, result: CaptureResult, doubts: Mapping[int, frozenset[str]]) -> CaptureResult:
        """The result with its reason; and if it is CAPTURED, with the source's remarks and why bounds may be wrong.

        Args:
            doubts: Column id → reasons why the bounds of its record may be wrong.
        """
        if result.outcome is not Outcome.CAPTURED:
            return replace(result, reason=self._reason)
        if result.target is not None and result.target.kind is TargetKind.COLUMN:
            reasons = doubts.get(result.target.column_id or 0, frozenset[str]())
        else:
            reasons = frozenset[str]().union(*doubts.values())
        detail = "; ".join(filter(None, (result.detail, *self._native.remarks, *_shown(reasons))))
        return replace(result, reason=self._reason, detail=detail)

    def _captured(self, target: Target, detail: str = "") -> CaptureResult:
        return CaptureResult(Outcome.CAPTURED, self._metadata.engine_id, detail, target=target, table=self._table)

    def _degraded(self, target: Target, detail: str) -> CaptureResult:
        attributes = {"retryable": False}  # a snapshot's metadata does not change
        return CaptureResult(Outcome.DEGRADED, self._metadata.engine_id, detail, attributes, target, self._table)

    def _outdated(self, of_source: Set[int | None]) -> set[int | None]:
        """Ids of columns whose stored record came from this engine at this snapshot, and that have new statistics now.

        A source may add statistics to a snapshot after it was captured. Records of other engines stay.

        Args:
            of_source: Ids of the columns of which the source has statistics of its own.
        """
        if not of_source:
            return set()
        names = ["column_id", "snapshot_id", "engine_id"]
        stored = self._sink.stored("stats.columns", self._table, names).to_pylist()
        here = {row["column_id"]: row["engine_id"] for row in stored if row["snapshot_id"] == self._table.snapshot_id}
        return {column_id for column_id in of_source if here.get(column_id) == self._metadata.engine_id}


def _shown(reasons: Collection[str]) -> list[str]:
    """The first reasons of many, and how many more there are."""
    more = [f"and {len(reasons) - _MOST_DOUBTS} more"] if len(reasons) > _MOST_DOUBTS else []
    return [*sorted(reasons)[:_MOST_DOUBTS], *more]


def _lacking(record: Mapping[str, Any], kinds: frozenset[str]) -> list[str]:
    """The requested kinds that the metadata does not have; of bounds, both are needed."""
    lacks = lacking(record, kinds)
    bounds_known = all(record.get(side) is not None for side in SIDES) or has_no_values(record)
    if "MIN_MAX" in kinds and "MIN_MAX" not in lacks and not bounds_known:
        lacks.append("MIN_MAX")
    return lacks
