"""Converts partial statistics to rows of `stats.columns`, `stats.file_columns`, `stats.column_groups` and sketches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from capture.compute import fold
from capture.compute.file_scan import Answer
from capture.compute.file_sketches import cut_k
from capture.compute.partial import AS_IS, Partial
from capture.connectors.spi import NativeStats
from capture.flight_rows import flight_rows
from capture.spi import Described, Mode
from store.model import figures, sketches, statistics
from store.model.columns import COMPUTED
from store.model.freshness import CONTRADICTED
from store.model.logical_types import Kind, LogicalType
from store.model.targets import Target

SAMPLE_CONFIDENCE: Final = 0.95
_BOUNDS: Final = statistics.of_kind("MIN_MAX")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The data a statistic covers, including files whose stored results were reused.

    Attributes:
        rows_total: Live rows of the table; more than the partial's row count if sampled or a file failed.
        size_bytes: Bytes of the column in these files.
        row_groups: Number of sampled row groups; 0 without sampling.
        failed: Number of files in which the column could not be read.
        known: Scalars of the whole column from metadata, used for bounds and counts if coverage is incomplete.
        contradicted: Whether the metadata contradicts the data.
    """

    rows_total: int
    files: int
    size_bytes: int
    row_groups: int = 0
    failed: int = 0
    known: Mapping[str, Any] = field(default_factory=dict)
    contradicted: bool = False

    @property
    def confidence_level(self) -> float | None:
        """Confidence in the statistic; None if it is not in doubt."""
        if self.contradicted:
            return CONTRADICTED
        return SAMPLE_CONFIDENCE if self.row_groups else None

    @property
    def complete(self) -> bool:
        """True if all live rows were read."""
        return not self.row_groups and not self.failed


class Rows:
    """Collects rows of one table at one snapshot, captured in one mode; `tables` returns them."""

    def __init__(self, table: Described, engine_id: str, mode: Mode, now: datetime | None = None):
        self._table, self.engine_id, self.mode, self.now = table, engine_id, mode, now or datetime.now(UTC)
        self._rows: dict[str, list[dict[str, Any]]] = {}

    @property
    def pending(self) -> int:
        """Number of rows collected since the last call of `tables`."""
        return sum(map(len, self._rows.values()))

    def file_column(
        self,
        path: str,
        fingerprint: str,
        lt: LogicalType,
        answer: Answer,
        kept: Partial | None,
        *,
        contradicted: bool = False,
    ) -> None:
        """Adds a column of one file, with its sketches.

        Args:
            path: The file's path.
            fingerprint: That of its scan task.
            answer: Result of a scan of all live rows.
            kept: The same with the sketches to keep; None for none.
            contradicted: Whether the metadata says something else of the file.
        """
        part, column_id = answer.partial, answer.column_id
        assert part is not None
        assert column_id is not None
        place = {"file_path": path, "column_id": column_id, "column_name": self._table.names[column_id]}
        covers = Coverage(part.row_count, 1, answer.size_bytes, contradicted=contradicted)
        self._add("stats.file_columns", place | {"engine_id": answer.engine_id}, part, lt, covers)
        if kept is not None:
            about = {"target_kind": "FILE", "storage_id": Target.file(path).storage_id}
            self._sketches(about | {"file_path": path, "column_id": column_id}, kept, lt, {"fingerprint": fingerprint})

    def withdraw(self, column_id: int, lt: LogicalType, file_path: str | None = None) -> None:
        """Adds a record that replaces what the metadata says of a column by nothing, because some of the data
        contradicts it and the rest was not read.

        Args:
            file_path: Path of the file; None for the column of the table.
        """
        place: dict[str, Any] = {"column_id": column_id, "column_name": self._table.names[column_id]}
        if file_path is not None:
            place["file_path"] = file_path
        flight = "stats.columns" if file_path is None else "stats.file_columns"
        row = {"completeness": "PARTIAL", "confidence_level": CONTRADICTED, "logical_type": lt.text}
        self._rows.setdefault(flight, []).append(self._recorded() | row | place)

    def table_of(self, native: NativeStats, row_count: int | None, *, contradicted: bool) -> None:
        """Adds the record of the table, whose rows a scan has counted.

        Args:
            native: What the metadata says of the table.
            row_count: Live rows; None if not all of them were read.
            contradicted: The metadata says that there are others.
        """
        row = {
            "row_count": row_count,
            "data_file_count": native.data_file_count,
            "total_size_bytes": native.total_size_bytes,
            "merged_size_bytes": native.merged_size_bytes,
            "completeness": "PARTIAL" if row_count is None else "COMPLETE",
            "confidence_level": CONTRADICTED if contradicted else None,
        }
        self._rows.setdefault("stats.tables", []).append(self._recorded() | row)

    def stored(self, rows: pa.Table) -> pa.Table:
        """Copies stored rows of unchanged files to this snapshot, with the key, time and names of this capture."""
        constants = {**self._table.key, "schema_hash": self._table.schema_hash, "capture_mode": str(self.mode)}
        constants |= {"captured_at": self.now, "refreshed_at": self.now}
        rows = rows.select([name for name in rows.column_names if name not in COMPUTED])
        for at, wanted in enumerate(rows.schema):
            if wanted.name in constants:
                rows = rows.set_column(at, wanted, pa.repeat(pa.scalar(constants[wanted.name], wanted.type), len(rows)))
            elif wanted.name == "column_name":
                ids = rows["column_id"].combine_chunks().dictionary_encode()
                names = pa.array([self._table.names[i] for i in ids.dictionary.to_pylist()], wanted.type)
                rows = rows.set_column(at, wanted, names.take(ids.indices))
        return rows

    def column(self, column_id: int, lt: LogicalType, part: Partial, covers: Coverage, files: str = "") -> None:
        """Adds a column of the table, with its sketches; `files` is `fold.listing` of all its files, else empty."""
        place = {"column_id": column_id, "column_name": self._table.names[column_id]}
        self._add("stats.columns", place, part, lt, covers)
        about = {"target_kind": "COLUMN", "storage_id": Target.column(column_id).storage_id, "column_id": column_id}
        parameters: dict[str, Any] = _sampled(part, covers) or ({"files": files} if files else {})
        self._sketches(about, part, lt, parameters)

    def group(
        self, column_ids: tuple[int, ...], part: Partial, covers: Coverage, dependencies: Sequence[Mapping[str, Any]]
    ) -> None:
        """Adds a group of columns: row count, all-null rows, and distinct tuples (null counts as a value in a tuple).

        Args:
            dependencies: Output of `functional_dependencies.degrees`, stored with the sketch.
        """
        target = Target.column_group(column_ids)
        names = [self._table.names[i] for i in target.column_ids]
        place = {"column_ids": list(target.column_ids), "column_names": names}
        lt = LogicalType(Kind.STRUCT)
        self._add("stats.column_groups", place, part, lt, covers)
        about = {"target_kind": "COLUMN_GROUP", "storage_id": target.storage_id}
        parameters = _sampled(part, covers) | ({"dependencies": dependencies} if dependencies else {})
        self._sketches(about, part, lt, parameters)

    def expression(self, target: Target, lt: LogicalType, part: Partial, covers: Coverage) -> None:
        """Adds an expression, with its sketches."""
        assert target.engine_expression_key is not None
        place = {
            "engine_kind": target.engine_kind,
            "engine_expression_key": target.engine_expression_key,
            "engine_version": target.engine_version,
            "display_name": target.engine_expression_key.decode(errors="replace"),
        }
        self._add("stats.expressions", place, part, lt, covers)
        about = {"target_kind": "EXPRESSION", "storage_id": target.storage_id}
        self._sketches(about, part, lt, _sampled(part, covers))

    def tables(self) -> dict[str, pa.Table]:
        """Returns and clears the collected rows, by flight, in the flight's schema without derived columns."""
        by_flight = {flight: flight_rows(flight, rows, self._table.key) for flight, rows in self._rows.items() if rows}
        self._rows = {}
        return by_flight

    def _add(self, flight: str, place: dict[str, Any], part: Partial, lt: LogicalType, covers: Coverage) -> None:
        recorded = self._recorded() | {
            "completeness": "COMPLETE" if covers.complete else "PARTIAL",
            "confidence_level": covers.confidence_level,
            "rows_scanned": part.row_count,
            "files_scanned": covers.files,
            "row_groups_sampled": covers.row_groups,
            "bytes_scanned": covers.size_bytes,
        }
        self._rows.setdefault(flight, []).append(recorded | scalars(part, lt, covers) | place)

    def _recorded(self) -> dict[str, Any]:
        return {
            "producer": "ENGINE_COMPUTED",
            "engine_id": self.engine_id,
            "capture_mode": str(self.mode),
            "captured_at": self.now,
            "refreshed_at": self.now,
            "schema_hash": self._table.schema_hash,
        }

    def _sketches(self, about: dict[str, Any], part: Partial, lt: LogicalType, more: Mapping[str, Any]) -> None:
        rows = self._rows.setdefault("stats.sketches", [])
        for role, kind, name in fold.SKETCHES:
            if (data := getattr(part, name)) is not None:
                precision: dict[str, Any] = {}
                if about["target_kind"] == "FILE" and (k := cut_k(role, data)) is not None:
                    precision = {"k": k} | ({"rank_error": 2 / k} if role == "QUANTILES" else {})
                role = "TUPLE_NDV" if about["target_kind"] == "COLUMN_GROUP" else role
                parameters = fold.params(role, lt, **more, **precision)
                sketch = {"role": role, "sketch_type": kind, "data": data, "params": parameters}
                rows.append(about | sketch | {"captured_at": self.now})


def scalars(part: Partial, lt: LogicalType, covers: Coverage) -> dict[str, Any]:
    """The scalar columns of a record of the rows read, by name; unknown values are None or absent.

    If some rows were not read, counts are scaled to all rows, as is the ndv of a sample, and bounds come from metadata
    only, because those rows may lie outside.
    """
    row: dict[str, Any] = {
        "logical_type": lt.text,
        **_counts(part, covers),
        **part.widths,
        **{name: getattr(part, name) for name in AS_IS},
    }
    if covers.complete:
        row |= part.sides
    else:
        row |= {name: covers.known[name] for name in _BOUNDS if covers.known.get(name) is not None}
    nulls = int(lt.kind is Kind.STRUCT and part.null_count > 0)
    return row | _ndv(part, covers, row["row_count"] - row["null_count"], nulls)


def _counts(part: Partial, covers: Coverage) -> dict[str, int | None]:
    """Numbers of rows, nulls and NaNs, which never add up to more than the rows.

    Those of a part are scaled one after the other, each to the rows that are left, and leave room for what was read.
    """
    if covers.complete:
        return {name: getattr(part, name) for name in statistics.COUNTED}
    rows = covers.rows_total

    def scaled(name: str, seen: int, of: int, total: int) -> int:
        known = covers.known.get(name)
        estimate = round(seen * total / of) if known is None and of else known or 0
        return int(min(max(estimate, seen), total - (of - seen)))

    nulls = scaled("null_count", part.null_count, part.row_count, rows)
    nans = None if part.nan_count is None else scaled("nan_count", part.nan_count, part.values, rows - nulls)
    return dict(zip(statistics.COUNTED, (rows, nulls, nans), strict=True))


def _ndv(part: Partial, covers: Coverage, most: int, nulls: int) -> dict[str, Any]:
    """ndv, its limits and exactness, limited to the number of non-null rows.

    Args:
        part: Statistics with the theta sketch.
        most: Non-null rows.
        nulls: 1 if the sketch contains the all-null tuple of a group, which is not counted; else 0.
    """
    if part.theta is None:
        return {}
    *estimates, exact = sketches.estimate(part.theta)
    ndv, lower, upper = (max(estimate - nulls, 0.0) for estimate in estimates)
    if not covers.complete:
        unseen = max(covers.rows_total - part.row_count, 0)
        exact, upper = False, upper + unseen  # each unread row may have a new value
        if covers.row_groups:
            ndv = _scaled(ndv, part.values, most)
    upper = min(upper, most)
    return figures.distinct(sketches.Estimate(min(ndv, upper), min(lower, upper), upper, exact))


def _scaled(seen: float, rows_seen: int, rows: int) -> float:
    """Estimates the ndv of all rows from `seen`, the ndv of a sample.

    Assumes that all values are equally common and solves seen = n · (1 - (1 - 1/n) ** rows_seen) for n by bisection.
    The result is at least `seen` and at most `rows`.
    """
    low, high = max(seen, 1.0), float(rows)
    if seen < 2 or low >= high:
        return seen
    for _ in range(60):
        middle = (low + high) / 2
        if -middle * math.expm1(rows_seen * math.log1p(-1 / middle)) < seen:
            low = middle
        else:
            high = middle
    return high


def _sampled(part: Partial, covers: Coverage) -> dict[str, Any]:
    """Parameters that mark a sketch as not covering all rows; unions and publishers reject it."""
    if covers.complete:
        return {}
    return {"completeness": "PARTIAL", "rows": covers.rows_total, "rows_seen": part.row_count}
