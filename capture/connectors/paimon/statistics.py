"""Per-file column statistics of a Paimon snapshot, from manifests, else from Parquet footers.

Manifests have value statistics only if enabled (`metadata.stats-mode`), and never for leaves of structs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.schema.data_types import RowType

from capture.connectors.file_columns import ROWS_PER_TABLE, column_rows, live_counts
from capture.connectors.footers.statistics import (
    FooterCache,
    ListedFile,
    Statistics,
    completed,
    footer_facts,
    of_live_rows,
)
from capture.connectors.paimon.library import quiet
from capture.connectors.paimon.schema import beyond_micros, reads_as
from capture.connectors.paimon.snapshot_view import File, SnapshotView
from capture.connectors.spi import Column, ColumnIds
from store.model.logical_types import FLOATING, Kind, parse, to_arrow
from store.model.names import column_key

Fields = tuple[Any, ...]
"""The Paimon fields of a column, from the top-level field down to the leaf."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Manifest statistics of one column in a file; `kept`: length at which bounds are truncated."""

    nulls: int | None = None
    low: Any = None
    high: Any = None
    kept: int | None = None

    def __bool__(self) -> bool:
        return not (self.nulls is None and self.low is None and self.high is None)


class _InFile(NamedTuple):
    """A column in a file: the key of its path, and whether its bounds are valid for the current type."""

    key: str
    reads: bool


class ColumnStatistics:
    """Per-file statistics of columns of one snapshot."""

    def __init__(self, view: SnapshotView, footers: FooterCache):
        self._view, self._table, self._footers = view, view.table, footers

    def tables(self, leaves: Sequence[Column], ids: ColumnIds) -> Iterator[pa.Table]:
        """Yields tables of FILE_COLUMN_SCHEMA; without rows for columns that have no statistics in a file."""
        files = self._view.files
        if self._table.options.data_evolution_enabled() or not files:
            return  # with data evolution, later files replace columns of earlier ones
        of_columns = [(column, fields) for column in leaves if (fields := self._fields.get(column.key))]
        step = max(1, ROWS_PER_TABLE // max(len(leaves), 1))
        for start in range(0, len(files), step):
            if tables := list(self._rows(files[start : start + step], of_columns, ids)):
                yield pa.concat_tables(tables).combine_chunks()

    def _rows(
        self, files: Sequence[File], of_columns: Sequence[tuple[Column, Fields]], ids: ColumnIds
    ) -> Iterator[pa.Table]:
        known = [[self._known(fields, file) for file in files] for _, fields in of_columns]
        home = self._view.place.name.rstrip("/") + "/"
        is_near = [file.path.endswith(".parquet") and file.path.startswith(home) for file in files]
        lacking = [
            [not k and near and self._is_kept(fields, f) for k, near, f in zip(of_column, is_near, files, strict=True)]
            for of_column, (_, fields) in zip(known, of_columns, strict=True)
        ]
        in_any = [any(of_file) for of_file in zip(*lacking, strict=True)]
        below = self._view.place.below
        footers = self._footers.of_lacking(
            in_any, lambda at: [ListedFile(below(files[i].path[len(home) :]), files[i].meta.file_size) for i in at]
        ) or [None] * len(files)
        paths, rows = pa.array([f.path for f in files], pa.string()), _rows_of(files)
        for of_column, lacks, (column, fields) in zip(known, lacking, of_columns, strict=True):
            read = [lack and footer is not None for lack, footer in zip(lacks, footers, strict=True)]
            facts = _manifest_facts(column, fields, of_column, rows)
            if any(read):
                facts = completed(facts, self._footer_facts(column, fields, files, footers, rows), pa.array(read))
            has_any = [bool(k) or r for k, r in zip(of_column, read, strict=True)]
            if any(has_any):
                yield column_rows(paths, [column], ids, rows.live, **facts).filter(pa.array(has_any))

    # Manifests.

    @cached_property
    def _in_manifests(self) -> dict[str, _FileStats]:
        """File name → value statistics."""
        with quiet():
            manifests = ManifestListManager(self._table).read_all(self._view.snapshot)
            entries = ManifestFileManager(self._table).read_entries_parallel(manifests, drop_stats=False, max_workers=2)
        return {entry.file.file_name: _FileStats(entry.file) for entry in entries}

    def _is_kept(self, fields: Fields, file: File) -> bool:
        """True if the file's values are values of the table; an aggregating merge may produce others."""
        return file.live is not None or fields[0].name in self._table.primary_keys or not self._folds

    @cached_property
    def _folds(self) -> bool:
        options = self._table.options.options.to_map()
        return str(options.get("merge-engine", "")).lower() == "aggregation" or any(
            key.endswith("aggregate-function") for key in options
        )

    def _known(self, fields: Fields, file: File) -> _Known:
        field = fields[0]
        if not self._is_kept(fields, file):
            return _Known()
        if field.name in file.partition:
            value = file.partition[field.name]
            return _Known(0 if value is not None else file.meta.row_count, value, value)
        was = self._by_id(file.meta.schema_id).get(field.id)
        if was is None:
            return _Known(file.meta.row_count)  # added after the file was written
        stats = self._in_manifests.get(file.meta.file_name)
        if stats is None or len(fields) > 1:
            return _Known()
        nulls, low, high = stats.of(field.id)
        if not reads_as(was.type, field.type):
            return _Known(nulls)
        return _Known(nulls, low, high, kept_characters(self._schema(file.meta.schema_id).options, was.name))

    # Footers.

    def _footer_facts(
        self, column: Column, fields: Fields, files: Sequence[File], footers: Sequence[Statistics], rows: _Rows
    ) -> dict[str, Any]:
        places = [self._place_in(file.meta.schema_id, fields) for file in files]
        used = [
            None if footer is None or (place is not None and place.key not in footer[0].positions) else footer
            for place, footer in zip(places, footers, strict=True)
        ]
        keys = iter([None if p is None else p.key for p, footer in zip(places, used, strict=True) if footer])
        facts = footer_facts(used, [lambda footer: footer.positions.get(next(keys) or "")], parse(column.logical_type))
        reads = pa.array([place is None or place.reads for place in places], pa.bool_())
        for side in ("lower", "upper"):
            if facts[side] is not None:
                facts[side] = pc.if_else(reads, facts[side], pa.scalar(None, facts[side].type))
        return of_live_rows(facts, *rows)

    def _place_in(self, schema_id: int, fields: Fields) -> _InFile | None:
        """The column in files with a schema; None if they lack it."""
        names: list[str] = []
        type: Any = None
        inside = self._by_id(schema_id)
        for field in fields:
            was = inside.get(field.id)
            if was is None:
                return None
            names.append(was.name)
            type = was.type
            inside = {f.id: f for f in type.fields} if isinstance(type, RowType) else {}
        return _InFile(column_key(names), reads_as(type, fields[-1].type))

    # Schemas.

    @cached_property
    def _fields(self) -> dict[str, Fields]:
        """Column key → fields."""
        return dict(_leaves(self._table.fields, ()))

    @cached_property
    def _schema(self) -> Any:
        return lru_cache(maxsize=None)(self._table.schema_manager.get_schema)

    @cached_property
    def _by_id(self) -> Callable[[int], Mapping[int, Any]]:
        """The top-level fields of a schema, by their ids."""
        return lru_cache(maxsize=None)(lambda schema_id: {f.id: f for f in self._schema(schema_id).fields})


def _leaves(fields: Sequence[Any], above: Fields) -> Iterator[tuple[str, Fields]]:
    for field in fields:
        path = (*above, field)
        yield column_key([f.name for f in path]), path
        if isinstance(field.type, RowType):
            yield from _leaves(field.type.fields, path)


class _FileStats:
    """The value statistics of one file, decoded on demand."""

    def __init__(self, meta: Any):
        self._stats = meta.value_stats
        self._at = {f.id: i for i, f in enumerate(self._stats.min_values.fields)}

    def of(self, field_id: int) -> tuple[int | None, Any, Any]:
        at = self._at.get(field_id)
        if at is None:
            return None, None, None
        counts = self._stats.null_counts
        nulls = counts[at] if counts is not None and at < len(counts) else None
        return nulls, _decoded(self._stats.min_values, at), _decoded(self._stats.max_values, at)


def _decoded(row: Any, at: int) -> Any:
    try:
        return row.get_field(at)
    except (ValueError, TypeError, IndexError, OverflowError, ArithmeticError):  # unsupported type, or truncated
        return None


def _manifest_facts(column: Column, fields: Fields, known: Sequence[_Known], rows: _Rows) -> dict[str, Any]:
    """Facts for `column_rows` about a column, from manifests."""
    facts: dict[str, Any] = {"null_count": live_counts(pa.array([k.nulls for k in known], pa.int64()), *rows)}
    cut, kept = beyond_micros(fields[-1]), [k.kept for k in known]
    for side, values in (("lower", [k.low for k in known]), ("upper", [k.high for k in known])):
        facts[side] = bound_array(values, column.logical_type, upper=side == "upper", cut=cut)
        facts[f"{side}_exact"] = pc.and_(rows.whole, exactness(values, column.logical_type, kept, cut=cut))
    return facts


class _Rows(NamedTuple):
    """Live rows of files, rows including deleted ones, and whether all are live."""

    live: pa.Array
    records: pa.Array
    whole: pa.Array


def _rows_of(files: Sequence[File]) -> _Rows:
    live, records = (pa.array(c, pa.int64()) for c in zip(*((f.live, f.meta.row_count) for f in files), strict=True))
    return _Rows(live, records, pc.fill_null(pc.equal(live, records), False))


# Bounds.

TRUNCATED_AT: Final = 16  # default length of truncated bounds, in characters

_TEXTS: Final = frozenset({Kind.STRING, Kind.BINARY})


def kept_characters(options: Mapping[str, str], name: str) -> int | None:
    """Length in characters at which the writer truncates bounds of a column; None if it does not."""
    mode = str(options.get(f"fields.{name}.stats-mode", options.get("metadata.stats-mode", ""))).strip().lower()
    if mode == "full":
        return None
    cut = re.fullmatch(r"truncate\((\d+)\)", mode)
    return int(cut[1]) if cut else TRUNCATED_AT


def bound_array(values: Sequence[Any], logical_type: str, *, upper: bool, cut: bool) -> pa.Array | None:
    """Converts bounds decoded by the library to a typed array; NaN becomes null. None if the type has no order. Upper
    bounds that were `cut`, to microseconds, are moved up."""
    kind = parse(logical_type)
    if not kind.orderable or kind.kind is Kind.UUID:
        return None
    if kind.kind in FLOATING:
        values = [None if v is None or math.isnan(v) else v for v in values]
    try:
        array = pa.array(values, to_arrow(kind))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return pc.add(array.cast(pa.int64()), 1).cast(array.type) if cut and upper else array


def exactness(values: Sequence[Any], logical_type: str, kept: Sequence[int | None], *, cut: bool) -> pa.Array:
    """Mask of exact bounds; a string as long as the truncation limit may have been truncated."""
    if cut:
        return pa.array([False] * len(values), pa.bool_())
    if parse(logical_type).kind not in _TEXTS:
        return pa.array([True] * len(values), pa.bool_())
    return pa.array(
        [limit is None or v is None or len(v) < limit for v, limit in zip(values, kept, strict=True)], pa.bool_()
    )
