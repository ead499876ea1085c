"""The native engine: statistics from the format's own footers, logs and manifests. Reads no data."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capture import partitions
from capture.compute.partial import fixed_width
from capture.connectors.spi import COUNTED, FilePart, NativeStats
from capture.engines.native import known_listings as listings
from capture.engines.native.known_listings import KnownListings, ListedPart, ListingDelta, RememberedListing
from capture.engines.rollup import Rollup, combined, is_complete, roll_up
from capture.flight_rows import flight_rows, with_constants
from capture.spec import has_no_values, lacking
from capture.spi import (
    METADATA_PRIORITY,
    Capabilities,
    CaptureEngine,
    CaptureRequest,
    CaptureResult,
    Mode,
    Outcome,
    Sink,
    TableHandle,
)
from store.model import logical_types
from store.model.columns import SCALAR
from store.model.freshness import CONTRADICTED, UNCONFIRMED, WHOLE_TABLE
from store.model.logical_types import FLOATING
from store.model.puts import Listing
from store.model.statistics import FLAGS, SIDES, WIDTHS
from store.model.targets import NO_COLUMN, Target, TargetKind

_MOST_DOUBTS: Final = 5  # that the detail of a decision has
_COLUMN_KINDS = frozenset({"ROW_COUNT", "NULL_COUNT", "NAN_COUNT", "MIN_MAX", "WIDTH"})

_OTHER_ROWS = "the number of rows contradicts the data"

log = logging.getLogger("statflight.worker")


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
                metadata_pass = _Pass.of(self.id, group, sink, self._listings)
                answers = metadata_pass.run_scoped() if group[0].spec.partitions else metadata_pass.run()
            except Exception as error:  # the contract: an engine never raises
                answers = [CaptureResult.failed(self.id, error)] * len(group)
            for at, answer in zip(members, answers, strict=True):
                results[at] = answer
        return results


@dataclass
class _Pass:
    """One pass over a table's metadata for all requests of one snapshot.

    Attributes:
        wanted: Names of the columns that are read; None for all.
        native: The metadata.
        now: When the pass began.
        delta: Changes since the stored listing; None: all files are put.
        counted: The rows that a scan of this capture has found.
        is_covered: All records of columns were put by other engines.
        doubts: Column id → reasons why the bounds of its record may be wrong.
        other_rows: The data has other rows than the metadata says.
    """

    engine_id: str
    requests: list[CaptureRequest]
    sink: Sink
    listings: KnownListings
    wanted: frozenset[str] | None
    native: NativeStats
    now: datetime
    delta: ListingDelta | None = None
    counted: int | None = None
    is_covered: bool = False
    doubts: dict[int, frozenset[str]] = field(default_factory=dict)
    other_rows: bool = field(init=False)

    def __post_init__(self) -> None:
        self.table: TableHandle = self.requests[0].table
        self.mode: Mode = self.requests[0].mode
        self.schema_hash = self.table.columns.hash
        self.columns = self.table.by_id
        self.whole = any(r.target.kind in (TargetKind.TABLE, TargetKind.FILE) for r in self.requests)
        self.other_rows = WHOLE_TABLE in self.table.contradicted

    @classmethod
    def of(cls, engine_id: str, requests: list[CaptureRequest], sink: Sink, listings: KnownListings) -> _Pass:
        """Reads the metadata that requests of one snapshot need."""
        now = datetime.now(UTC)
        wanted = _wanted(requests)
        return cls(engine_id, requests, sink, listings, wanted, _native_stats(requests[0].table, wanted), now)

    def _rows_in_doubt(self) -> tuple[bool, int | None]:
        """Whether the number of rows contradicts the data, by a scan of this capture or else by the newest record; and
        the number that the scan has found."""
        columns = ["row_count", "completeness", "confidence_level"]
        scanned = self.sink.requested("stats.columns", self.table, columns).to_pylist()
        whole = [row for row in scanned if row["completeness"] == "COMPLETE" and row["row_count"] is not None]
        if not whole or self.native.row_count is None:
            return self.other_rows, None
        counts = {row["row_count"] for row in whole}
        doubted = any(row["confidence_level"] == CONTRADICTED for row in whole) and counts != {self.native.row_count}
        return doubted, counts.pop() if len(counts) == 1 else None

    def run(self) -> list[CaptureResult]:
        self.other_rows, self.counted = self._rows_in_doubt()
        is_empty = self.native.data_file_count == self.native.row_count == 0
        self.is_covered = self._is_covered()
        rollups = self._file_columns()
        rollups = self._columns_without_files() if is_empty else rollups
        columns = self._columns(rollups)
        if self.whole:
            self._put_files()
            self._put_earlier()
        kept = self._kept()
        results = [self._with_remarks(self._answer(request, columns, kept)) for request in self.requests]
        results = [self._with_doubts(result, kept) for result in results]
        results = [replace(result, reason=self._reason) for result in results]
        self._put_columns(columns, self._captured_columns(results) - kept.keys())
        self._put_sketches(columns)
        return results

    def _captured_columns(self, results: Sequence[CaptureResult]) -> set[int | None]:
        """Ids of the columns that were requested themselves, and captured."""
        return {
            request.target.column_id
            for request, result in zip(self.requests, results, strict=True)
            if request.target.kind is TargetKind.COLUMN and result.outcome is Outcome.CAPTURED
        }

    def _put_columns(self, columns: Mapping[int, dict[str, Any]], captured: Set[int | None]) -> None:
        """Puts the records of captured columns, and for a whole table those of the others as extra ones."""
        replacing = captured | self._outdated() if self.whole else captured
        explicit = [row for i, row in columns.items() if i in replacing]
        extra = [row for i, row in columns.items() if i not in replacing] if self.whole else []
        for rows, is_extra in ((explicit, False), (extra, True)):
            if rows:
                self.sink.put("stats.columns", flight_rows("stats.columns", rows), extra=is_extra)

    def _is_covered(self) -> bool:
        """True if other engines put the requested records of every column, of the table and of each file, so that none
        of this engine's would be stored."""
        if self.wanted is not None or any(r.target.kind is not TargetKind.TABLE for r in self.requests):
            return False
        native = self.native
        if native.columns is not None or native.sketches:  # the source's own statistics
            return False
        leaves = {column_id for column_id, column in self.columns.items() if column.is_leaf}
        of_table = self.sink.requested("stats.columns", self.table, ["column_id"])
        if not leaves.issubset(of_table["column_id"].to_pylist()):
            return False
        paths = native.files.filter(pc.equal(native.files["file_content"], "DATA"))["file_path"].unique()
        of_files = self.sink.requested("stats.file_columns", self.table, ["file_path", "column_id"])
        if of_files.num_rows < len(paths) * len(leaves):
            return False
        put = set(zip(of_files["file_path"].to_pylist(), of_files["column_id"].to_pylist(), strict=True))
        return all((path, column_id) in put for path in paths.to_pylist() for column_id in leaves)

    def run_scoped(self) -> list[CaptureResult]:
        """Captures the files of some partitions. All files of the table are listed, as in any capture; the records of
        the table and its columns stay unchanged."""
        native = self.native
        paths = partitions.files_of(self.table, native, self.requests[0].spec.partitions)
        if self.whole:
            self._put_files()
        rollups: dict[int, Rollup] = {}
        for part in native.file_columns():
            rows = part.filter(pc.is_in(part["file_path"], paths))
            roll_up(rollups, rows, self.table)
            self._put_file_columns(rows)
        known = {i: rollup.scalars(len(paths), None, native.row_deletes) for i, rollup in rollups.items()}
        total = pc.sum(pc.equal(native.files["file_content"], "DATA")).as_py()
        detail, attributes = partitions.detail(len(paths), total), {"files": len(paths), "files_total": total}
        results = []
        for request in self.requests:
            failure = self._column_failure(request, known) if request.target.kind is TargetKind.COLUMN else None
            captured = replace(self._captured(request.target, detail), attributes=attributes)
            results.append(replace(failure or captured, reason=self._reason))
        return results

    def _answer(
        self, request: CaptureRequest, columns: Mapping[int, Any], kept: Mapping[int, Mapping[str, Any]]
    ) -> CaptureResult:
        target = request.target
        if target.kind is TargetKind.TABLE:
            return self._answer_table(target)
        if target.kind is TargetKind.FILE:
            known = pc.any(pc.equal(self.native.files["file_path"], target.file_path)).as_py()
            if not known:
                return self._degraded(target, f'snapshot {self.table.snapshot_id} has no file "{target.file_path}"')
            return self._captured(target)
        return self._column_failure(request, {**columns, **kept}) or self._captured(target)

    def _column_failure(self, request: CaptureRequest, known: Mapping[int, Mapping[str, Any]]) -> CaptureResult | None:
        """The result for a column that cannot be captured, else None; `known` has the records by column id."""
        target = request.target
        column_id = target.column_id or 0
        column = self.columns.get(column_id)
        if column is None:
            return self._degraded(target, f"snapshot {self.table.snapshot_id} has {NO_COLUMN} {target.column_id}")
        if not column.is_leaf:
            detail = f'the metadata does not have the nulls of "{column.name}", which is a container'
            return CaptureResult(Outcome.UNCAPTURABLE, self.engine_id, detail)
        if lacks := _lacking(known.get(column_id, {}), request.spec.kinds):
            detail = f'the metadata has no {", ".join(lacks)} of column "{column.name}"'
            return CaptureResult(Outcome.UNCAPTURABLE, self.engine_id, detail)
        if column_id in known:
            return None
        return self._degraded(target, f'the metadata has no statistics of column "{column.name}"')

    def _kept(self) -> dict[int, Mapping[str, Any]]:
        """Column id → stored record of this snapshot that this engine must not replace, because it has an ndv too, or
        because the data contradicts the metadata."""
        if not any(r.spec.kinds and r.target.kind is TargetKind.COLUMN for r in self.requests):
            return {}
        stored = self.sink.stored("stats.columns", self.table).to_pylist()
        return {
            row["column_id"]: row
            for row in stored
            if row["snapshot_id"] == self.table.snapshot_id
            and (row["ndv"] is not None or row["confidence_level"] == CONTRADICTED)
        }

    @property
    def _reason(self) -> str:
        count = self.native.data_file_count
        files = "an unknown number of" if count is None else f"{count:,}"
        sources = f" and {', '.join(self.native.sources)}" if self.native.sources else ""
        return f"from metadata of {files} files{sources}; no data read"

    def _answer_table(self, target: Target) -> CaptureResult:
        native, row_count = self.native, self.native.row_count
        complete = row_count is not None
        if self.other_rows and self.counted is None and self._has_counted():
            return self._captured(target, _OTHER_ROWS)
        row_count = self.counted if self.other_rows and self.counted is not None else row_count
        row = self._provenance(complete) | {
            "row_count": row_count,
            "data_file_count": native.data_file_count,
            "total_size_bytes": native.total_size_bytes,
            "merged_size_bytes": native.merged_size_bytes,
        }
        self.sink.put("stats.tables", flight_rows("stats.tables", [row]))
        if self.other_rows:
            return self._captured(target, _OTHER_ROWS)
        return self._captured(target, "" if complete else "the metadata does not have the number of live rows")

    def _has_counted(self) -> bool:
        """True if the store has the rows that a scan of this snapshot has found."""
        stored = self.sink.stored("stats.tables", self.table).to_pylist()
        return any(
            row["snapshot_id"] == self.table.snapshot_id and row["confidence_level"] == CONTRADICTED for row in stored
        )

    def _with_remarks(self, result: CaptureResult) -> CaptureResult:
        """The result, with the remarks appended to its detail if it is CAPTURED."""
        if result.outcome is not Outcome.CAPTURED:
            return result
        return replace(result, detail="; ".join(filter(None, (result.detail, *self.native.remarks))))

    def _with_doubts(self, result: CaptureResult, kept: Mapping[int, Mapping[str, Any]]) -> CaptureResult:
        """The result, with the reasons why its bounds may be wrong appended to its detail if it is CAPTURED."""
        if result.outcome is not Outcome.CAPTURED or not self.doubts or result.target is None:
            return result
        target = result.target
        stored = self.doubts.keys() - kept.keys()
        of_columns = stored & {target.column_id} if target.kind is TargetKind.COLUMN else stored
        reasons = sorted(frozenset[str]().union(*(self.doubts[column_id] for column_id in of_columns)))
        more = [f"and {len(reasons) - _MOST_DOUBTS} more"] if len(reasons) > _MOST_DOUBTS else []
        shown = [*reasons[:_MOST_DOUBTS], *more]
        return replace(result, detail="; ".join(filter(None, (result.detail, *shown))))

    def _captured(self, target: Target, detail: str = "") -> CaptureResult:
        return CaptureResult(Outcome.CAPTURED, self.engine_id, detail, target=target, table=self.table)

    def _degraded(self, target: Target, detail: str) -> CaptureResult:
        attributes = {"retryable": False}  # a snapshot's metadata does not change
        return CaptureResult(Outcome.DEGRADED, self.engine_id, detail, attributes, target, self.table)

    def _provenance(self, complete: bool, column_id: int | None = None) -> dict[str, Any]:
        doubted = self.other_rows or column_id in self.table.contradicted
        doubt = {"confidence_level": CONTRADICTED} if doubted else {}
        provenance = {
            "producer": self.native.producer,
            "completeness": "COMPLETE" if complete else "PARTIAL",
            "engine_id": self.engine_id,
            "capture_mode": str(self.mode),
            "files_scanned": self.native.data_file_count,
            "captured_at": self.now,
            "refreshed_at": self.now,
            "schema_hash": self.schema_hash,
        }
        return self.table.key | doubt | provenance

    def _put_files(self) -> None:
        provenance = self._provenance(True) | {"files_scanned": None}
        files, whole = self.native.files, True
        if self.delta is not None:
            files, whole = files.filter(pc.is_in(files["file_path"], self.delta.added)), False
        if whole or files.num_rows:
            self.sink.put("stats.files", with_constants(files, provenance, "stats.files"), whole=whole)

    def _put_file_columns(self, part: pa.Table) -> None:
        complete = pc.and_(pc.is_valid(part["null_count"]), pc.is_valid(part["row_count"]))
        part = part.append_column("completeness", pc.if_else(complete, "COMPLETE", "PARTIAL"))
        unknown, levels = pa.scalar(None, pa.float64()), None
        if part["doubt"].null_count < part.num_rows:
            levels = pc.if_else(pc.is_valid(part["doubt"]), UNCONFIRMED, unknown)
        if self.other_rows:
            levels = pa.repeat(pa.scalar(CONTRADICTED), part.num_rows)
        elif self.table.contradicted:
            of_columns = pa.array(sorted(self.table.contradicted), pa.int64())
            others = unknown if levels is None else levels
            levels = pc.if_else(pc.is_in(part["column_id"], of_columns), CONTRADICTED, others)
        if levels is not None:
            part = part.append_column("confidence_level", levels)
        provenance = self._provenance(True) | {"files_scanned": None}
        self.sink.put("stats.file_columns", with_constants(part, provenance, "stats.file_columns"), extra=True)

    def _file_columns(self) -> dict[int, Rollup]:
        """Puts the per-file statistics, if a table or file is captured; returns roll-ups by column id."""
        is_listed = self.native.parts or self.native.data_file_count == 0  # that there are none is a listing, too
        if self.whole and is_listed and self.wanted is None:  # a listing has all columns
            return self._parts()
        rollups: dict[int, Rollup] = {}
        for part in () if self.is_covered else self.native.file_columns():
            roll_up(rollups, part, self.table)
            if self.whole and part.num_rows:
                self._put_file_columns(part)
        return rollups

    def _columns_without_files(self) -> dict[int, Rollup]:
        """Roll-ups of the columns of a table without files: no rows, no nulls, no bounds."""
        wanted = {i: c for i, c in self.columns.items() if c.is_leaf}
        if self.wanted is not None:
            wanted = {i: c for i, c in wanted.items() if c.is_among(self.wanted)}
        return {
            i: Rollup(c.name, c.logical_type, nan_count=0 if c.logical_type in FLOATING else None)
            for i, c in wanted.items()
        }

    def _parts(self) -> dict[int, Rollup]:
        """As `_file_columns`, but puts only what changed since the newest listing, if the store still has that one."""
        native, table, last = self.native, self.table, self.listings.last(self.table)
        mark = listings.mark_of(table, native.parts)
        self.delta = self._listed_from(last, Listing(table.snapshot_id, mark))
        earlier = {} if last is None else last.parts
        listed_parts = {part.key: self._listed_part(part, earlier.get(part.key)) for part in native.parts}
        self.listings.remember(table, mark, listed_parts)
        return {} if self.is_covered else self._joined(listed_parts.values())

    def _listed_from(self, last: RememberedListing | None, listing: Listing) -> ListingDelta | None:
        """Starts a listing, from the last one if the store still has that; returns the changes since then, or None if
        all files are to be put."""
        delta = listings.delta(last, self.table, self.native.parts, self.native.files)
        if delta is not None and last is not None:
            removed = tuple(delta.removed.to_pylist())
            base = replace(listing, base_snapshot_id=last.snapshot_id, base_mark=last.mark, removed=removed)
            if self.sink.list_files(self.table, base):
                return delta
        self.sink.list_files(self.table, listing)
        return None

    def _listed_part(self, part: FilePart, earlier: ListedPart | None) -> ListedPart:
        """A part of the listing, whose rows are put unless they are known; `earlier` is the same part of the last."""
        known = earlier if earlier is not None and earlier.rollups is not None else None
        if self.is_covered:
            return known or ListedPart(part.files, part.marks, None)
        if known is not None and self.delta is not None:
            return known
        return self._put_part(part, known)

    def _joined(self, listed_parts: Collection[ListedPart]) -> dict[int, Rollup]:
        """Roll-ups of the columns over all parts, by column id."""
        parts_of: dict[int, list[Rollup]] = {}
        for listed in listed_parts:
            for column_id, rollup in (listed.rollups or {}).items():
                parts_of.setdefault(column_id, []).append(rollup)
        return {
            column_id: Rollup.of(self.columns[column_id].name, self.columns[column_id].logical_type, parts)
            for column_id, parts in parts_of.items()
        }

    def _put_part(self, part: FilePart, known: ListedPart | None) -> ListedPart:
        rollups: dict[int, Rollup] = {}
        for rows in part.file_columns():
            if known is None:
                roll_up(rollups, rows, self.table)
            if self.delta is not None:
                rows = rows.filter(pc.is_in(rows["file_path"], self.delta.added))
            if rows.num_rows:
                self._put_file_columns(rows)
        return known or ListedPart(part.files, part.marks, rollups)

    def _columns(self, rollups: Mapping[int, Rollup]) -> dict[int, dict[str, Any]]:
        """Column id → record: from the format's table-level statistics, completed by the roll-up of the files."""
        ids = self.table.column_ids
        widths = {r.target.column_id for r in self.requests if "WIDTH" in r.spec.kinds}
        records = self._containers()
        records |= {i: self._rolled_up(i, rollup, has_width=i in widths) for i, rollup in rollups.items()}
        of_source = self.native.columns.to_pylist() if self.native.columns is not None else []
        for row in of_source:
            column_id = row["column_id"] or ids.get(row["column_name"])
            if column_id:
                records[column_id] = self._completed(column_id, records.get(column_id, {}), row)
        return records

    def _rolled_up(self, column_id: int, rollup: Rollup, *, has_width: bool) -> dict[str, Any]:
        """The record of a column from its files; `has_width` if widths are requested."""
        native = self.native
        scalars = rollup.scalars(native.data_file_count, native.row_count, native.row_deletes)
        knows_nulls = scalars["null_count"] is not None
        complete = knows_nulls and rollup.complete(native.data_file_count)
        record = self._provenance(complete, column_id) | scalars | {"column_id": column_id}
        has_bounds = any(scalars[side] is not None for side in SIDES)
        if rollup.doubts and has_bounds:
            self.doubts[column_id] = rollup.doubts
            record |= dict.fromkeys(FLAGS)
            record.setdefault("confidence_level", UNCONFIRMED)
        size = fixed_width(logical_types.parse(rollup.logical_type)) if has_width else None
        if size is not None and knows_nulls and not has_no_values(scalars):
            record |= dict(zip(WIDTHS, (float(size), size), strict=True))
        return record

    def _completed(self, column_id: int, record: Mapping[str, Any], of_source: Mapping[str, Any]) -> dict[str, Any]:
        """The record of a column from the source's own statistics, completed by that from its files."""
        row = combined(record, of_source)
        provenance = self._provenance(is_complete(row), column_id)
        uses_files = any(of_source[side] is None for side in SIDES)  # their bounds, that is
        if column_id in self.doubts and uses_files:
            provenance.setdefault("confidence_level", UNCONFIRMED)
        else:
            self.doubts.pop(column_id, None)
            row.pop("confidence_level", None)
        return row | provenance | {"column_id": column_id}

    def _containers(self) -> dict[int, dict[str, Any]]:
        """Records of containers, for a capture of the whole table. Their nulls are unknown: metadata counts an empty
        list as a null one."""
        if self.wanted is not None or not self.whole:
            return {}
        rows = self.native.row_count
        nulls = 0 if rows == 0 else None
        return {
            i: self._provenance(nulls == 0)
            | dict.fromkeys(SCALAR)
            | {
                "column_id": i,
                "column_name": column.name,
                "logical_type": column.logical_type,
                "row_count": rows,
                "null_count": nulls,
            }
            for i, column in self.columns.items()
            if column.logical_type in COUNTED
        }

    def _outdated(self) -> set[int | None]:
        """Ids of columns whose stored record came from this engine at this snapshot, and that have new statistics now.

        A source may add statistics to a snapshot after it was captured. Records of other engines stay.
        """
        if self.native.columns is None:
            return set()
        names = ["column_id", "snapshot_id", "engine_id"]
        stored = self.sink.stored("stats.columns", self.table, names).to_pylist()
        here = {row["column_id"]: row["engine_id"] for row in stored if row["snapshot_id"] == self.table.snapshot_id}
        ids = self.table.column_ids
        kept = {row["column_id"] or ids.get(row["column_name"]) for row in self.native.columns.to_pylist()}
        return {column_id for column_id in kept if here.get(column_id) == self.engine_id}

    def _put_earlier(self) -> None:
        """Puts statistics that the source computed for earlier snapshots, as records of those snapshots."""
        for earlier in self.native.earlier:
            rows = []
            for kept in earlier.columns.to_pylist():
                row = combined({}, kept)
                rows.append(
                    self._provenance(is_complete(row))
                    | row
                    | {
                        "snapshot_id": earlier.snapshot_id,
                        "schema_hash": earlier.schema_hash,
                        "files_scanned": None,
                    }
                )
            if rows:
                self.sink.put("stats.columns", flight_rows("stats.columns", rows), extra=True)

    def _put_sketches(self, columns: Mapping[int, Any]) -> None:
        rows = [
            self.table.key
            | {
                "target_kind": "COLUMN",
                "storage_id": Target.column(column_id).storage_id,
                "column_id": column_id,
                "role": role,
                "sketch_type": type,
                "data": data,
                "params": json.dumps(dict(params)),
                "captured_at": self.now,
            }
            for column_id, role, type, data, params in self.native.sketches
            if column_id in columns
        ]
        if rows:
            self.sink.put("stats.sketches", flight_rows("stats.sketches", rows), extra=True)


def _wanted(requests: Sequence[CaptureRequest]) -> frozenset[str] | None:
    """Names of the columns to read: the requested ones, and the selected ones of a table or file; None for all."""
    table = requests[0].table
    requested = {r.target.column_id for r in requests if r.target.kind is TargetKind.COLUMN}
    names = frozenset(column.name for i, column in table.by_id.items() if i in requested and column.is_leaf)
    for request in requests:
        if request.target.kind is not TargetKind.COLUMN:
            if not request.spec.column_selectors:
                return None
            names |= table.selected(request.spec.column_selectors)
    return names


def _native_stats(table: TableHandle, wanted: frozenset[str] | None) -> NativeStats:
    """Reads the metadata of a table, and logs its remarks."""
    native = table.native_stats(wanted)
    for remark in native.remarks:
        log.warning("%s.%s.%s: %s", table.catalog, table.schema, table.name, remark)
    return native


def _lacking(record: Mapping[str, Any], kinds: frozenset[str]) -> list[str]:
    """The requested kinds that the metadata does not have; of bounds, both are needed."""
    lacks = lacking(record, kinds)
    bounds_known = all(record.get(side) is not None for side in SIDES) or has_no_values(record)
    if "MIN_MAX" in kinds and "MIN_MAX" not in lacks and not bounds_known:
        lacks.append("MIN_MAX")
    return lacks
