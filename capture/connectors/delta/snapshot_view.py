"""A Delta table at one version: native statistics and scan tasks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capture.connectors.delta.deletion_vectors import deleted_rows, identity
from capture.connectors.delta.extended_statistics import FILE as EXTENDED_STATISTICS
from capture.connectors.delta.extended_statistics import extended_columns
from capture.connectors.delta.lake_table import LakeTable
from capture.connectors.delta.log import DeltaColumn, list_log
from capture.connectors.delta.log_files import one_array
from capture.connectors.delta.statistics import column_statistics
from capture.connectors.delta.table_log import LogSlice, TableLog
from capture.connectors.delta.table_version import (
    TableVersion,
    containers,
    file_rows,
    has_statistics,
    path_in_file,
    wanted_columns,
)
from capture.connectors.file_columns import absent
from capture.connectors.footers.statistics import MAX_FOOTERS, FooterCache
from capture.connectors.spi import ColumnIds, FilePart, NativeStats, ScanColumn, ScanTask, container
from capture.connectors.storage.places import Unreadable, batched, unknown_snapshot
from store.model.logical_types import LogicalType, parse, to_arrow
from store.model.names import column_key

_RECENT_SECONDS: Final = 10.0
_KEPT_FILES: Final = 10_000
_KEPT_VALUES: Final = 20_000  # files × columns


class SnapshotView:
    """One version of a table.

    Args:
        scope: Prefix of cache keys, see `immutable_cache.scope`.
    """

    def __init__(self, table: LakeTable, scope: str, snapshot_id: int):
        self._table, self._scope, self._version = table, scope, snapshot_id
        self._footers = FooterCache(scope)
        self._created = time.monotonic()
        self._kept: tuple[str, list[TableVersion]] | None = None  # digest of the log's listing, files in slices
        self._decoded: tuple[str, TableVersion] | None = None  # key of a small slice, its files with statistics

    def is_recent_of(self, namespace: str, name: str, snapshot_id: int) -> bool:
        """True if the view is of this version and at most some seconds old, since credentials may be renewed."""
        own = (self._table.namespace, self._table.name, self._version)
        return own == (namespace, name, snapshot_id) and time.monotonic() - self._created < _RECENT_SECONDS

    def statistics(self, ids: ColumnIds, column_names: frozenset[str] | None) -> NativeStats:
        """Native statistics, for columns with these names or keys (None: all)."""
        pieces = self._pieces()
        tables = [file_rows(piece, self._table) for piece in pieces]
        files = pa.concat_tables(tables)
        of_columns = partial(column_statistics, self._table, self._footers, ids, column_names)
        columns = [partial(of_columns, partial(self._with_statistics, piece)) for piece in pieces]
        parts: list[FilePart] = []
        if column_names is None:
            table_key = repr((self._scope, self._table.place.name, sorted(ids.items())))
            for piece, rows, file_columns in zip(pieces, tables, columns, strict=True):
                if len(piece):
                    key = hashlib.sha256(f"{table_key}\0{piece.part.key}".encode("utf-8", "surrogatepass")).hexdigest()
                    parts.append(FilePart(key, rows, file_columns, _marks(piece.part)))
        times = (pc.max(piece.actions["modification_time"]).as_py() for piece in pieces)
        newest = max((time for time in times if time is not None), default=None)
        schema, row_count = pieces[0].schema, _total(files["row_count"])
        extended, remarks = extended_columns(
            self._table.place, self._version, newest, schema, ids, column_names, row_count
        )
        return NativeStats(
            row_count=row_count,
            data_file_count=len(files),
            total_size_bytes=_total(files["size_bytes"]),
            files=files,
            file_columns=lambda: (rows for of_piece in columns for rows in of_piece()),
            row_deletes=any(pc.any(piece.has_deletes).as_py() for piece in pieces),
            columns=extended,
            parts=parts,
            remarks=remarks,
            sources=() if extended is None else (EXTENDED_STATISTICS,),
        )

    def tasks(self, ids: ColumnIds, column_names: frozenset[str] | None) -> Iterator[ScanTask]:
        """Yields one task per live file."""
        for piece in self._pieces():
            yield from self._tasks(self._with_statistics(piece), ids, column_names)

    def logged_files(self) -> pa.Table:
        """The live files as the log has them, see `LogSlice.files`."""
        return pa.concat_tables([piece.actions for piece in self._pieces()])

    # Files.

    def _pieces(self) -> list[TableVersion]:
        """The live files in slices, without statistics; at least one, which is empty if there are no files."""
        with self._table.reading():
            files = list_log(self._table.place)
            if self._kept is not None and self._kept[0] == files.digest:
                return self._kept[1]
            if self._version not in files.live():
                raise unknown_snapshot(self._table.namespace, self._table.name, self._version)
            log = TableLog.of(self._table, files, self._version, self._scope)
            pieces = list(self._slices(log))
        if sum(map(len, pieces)) <= _KEPT_FILES:
            self._kept = files.digest, pieces
        return pieces

    def _slices(self, log: TableLog) -> Iterator[TableVersion]:
        schema, partitions = log.outline.schema, log.outline.partitions
        unknown = 0
        for part in log.slices():
            paths = self._table.paths(one_array(part.files["path"]))
            counts = one_array(part.files["num_records"])
            self._refuse_negative(counts, part.files)
            unknown += counts.null_count
            rows = self._live_rows(part, counts) if unknown <= MAX_FOOTERS else counts
            yield TableVersion(schema, partitions, part, part.files, paths, rows)

    def _with_statistics(self, piece: TableVersion) -> TableVersion:
        """The files with their statistics, which are read anew each time unless they are few."""
        if self._decoded is None or self._decoded[0] != piece.part.key:
            with self._table.reading():
                decoded = piece.with_statistics()
            if len(piece) * len(piece.schema.columns) > _KEPT_VALUES:
                return decoded
            self._decoded = piece.part.key, decoded
        return self._decoded[1]

    def _refuse_negative(self, counts: pa.Array, files: pa.Table) -> None:
        """Raises Unreadable if the log has a negative row count."""
        least = pc.min(counts).as_py()
        if least is not None and least < 0:
            path = one_array(files["path"])[pc.index(counts, least).as_py()].as_py()
            raise Unreadable(
                f'table "{self._table.namespace}.{self._table.name}": the log has "numRecords": {least} for file'
                f' "{path}"; must be at least 0'
            )

    def _live_rows(self, part: LogSlice, counts: pa.Array) -> pa.Array:
        """Live rows of each file of a slice."""
        if counts.null_count:
            counts = self._count_rows(part.files, counts.to_pylist())
        vectors = part.vectors
        if vectors.null_count == len(vectors):
            return counts
        deleted = pc.fill_null(pc.struct_field(vectors, ["cardinality"]), 0)
        return pc.max_element_wise(pc.subtract(counts, deleted), 0, skip_nulls=False)

    def _count_rows(self, actions: pa.Table, counts: list[int | None]) -> pa.Array:
        """Row count of each file from the log, else from its footer."""
        missing = [i for i, count in enumerate(counts) if count is None]
        with self._table.reading_files():
            for i, footer in zip(missing, self._footers.outlines(self._table.listed(actions, missing)), strict=True):
                counts[i] = footer.row_count
        return pa.array(counts, pa.int64())

    # Tasks.

    def _tasks(self, version: TableVersion, ids: ColumnIds, column_names: frozenset[str] | None) -> Iterator[ScanTask]:
        leaves = [leaf for leaf in wanted_columns(version.schema, column_names) if leaf.column.id_in(ids) is not None]
        constants = {
            leaf.column.key: _constants(version.partition(leaf), parse(leaf.column.logical_type), len(version))
            for leaf in leaves
            if version.is_partition(leaf)
        }
        scanned = [leaf for leaf in leaves if leaf.column.key not in constants]
        widths = _widths(leaves)
        nested_columns = _containers(version, ids, column_names)
        is_complete = has_statistics(version, scanned)
        columns_of = ("size_bytes", "modification_time")
        sizes, times = (version.actions[column].to_pylist() for column in columns_of)
        paths, rows = version.paths.to_pylist(), version.rows.to_pylist()
        vectors = version.vectors.to_pylist()
        for group in batched(range(len(version)), 256):
            unsure = [i for i in group if not is_complete[i]]
            with self._table.reading_files():
                outlines = self._footers.outlines(self._table.listed(version.actions, unsure))
                footers = dict(zip(unsure, outlines, strict=True))
            for i in group:
                deleted = None
                if vectors[i] is not None:
                    with self._table.reading():
                        deleted = deleted_rows(vectors[i], self._table.place, self._table.file)
                mark = hashlib.sha256(f"{paths[i]}\0{sizes[i]}\0{times[i]}\0".encode("utf-8", "surrogatepass"))
                if deleted is not None:
                    mark.update(deleted.to_numpy().tobytes())
                if widths:
                    mark.update(widths.encode())
                columns = []
                for leaf in leaves:
                    constant = constants.get(leaf.column.key)
                    nowhere = constant is not None or leaf.is_void
                    path = None if nowhere else path_in_file(leaf, footers.get(i))
                    columns.append(_scan_column(leaf, ids, path, constant and constant.slice(i, 1)))
                yield ScanTask(
                    reader="parquet",
                    file_path=paths[i],
                    location=paths[i],
                    row_count=-1 if rows[i] is None else rows[i],
                    size_bytes=sizes[i],
                    columns=(*columns, *nested_columns),
                    fingerprint=mark.hexdigest(),
                    storage=self._table.storage,
                    deleted_rows=deleted,
                )


def _widths(leaves: Sequence[DeltaColumn]) -> str:
    """The widths of widened columns, a part of fingerprints: results from before a type change have another width;
    empty without such columns."""
    widths = [(leaf.column.key, leaf.width_bytes) for leaf in leaves if leaf.widened_from]
    return repr(widths) if widths else ""


def _containers(version: TableVersion, ids: ColumnIds, column_names: frozenset[str] | None) -> list[ScanColumn]:
    """The sources of the columns that contain others."""
    return [
        container(column_id, nested.column, column_key(nested.physical))
        for nested in containers(version.schema, column_names)
        if (column_id := nested.column.id_in(ids)) is not None
    ]


def _scan_column(leaf: DeltaColumn, ids: ColumnIds, path: str | None, constant: pa.Array | None) -> ScanColumn:
    """The source of a column's values: a path in the file, a partition value, or null if the file lacks it."""
    column = leaf.column
    if path is None and constant is None:
        constant = absent(column.logical_type)
    column_id = column.id_in(ids)
    assert column_id is not None
    return ScanColumn(column_id, column.name, column.logical_type, path, constant, leaf.width_bytes)


def _marks(part: LogSlice) -> pa.Array:
    """One string per file of a slice that changes with the file's content."""
    times = one_array(part.files["modification_time"]).cast(pa.string())
    vectors = part.vectors
    if vectors.null_count == len(vectors):
        return times
    names = pa.array([identity(vector) for vector in vectors.to_pylist()], pa.string())
    return pc.binary_join_element_wise(times, names, " ")


def _total(counts: pa.ChunkedArray) -> int | None:
    """The sum; None if a value is unknown."""
    return None if counts.null_count else pc.sum(counts).as_py() or 0


def _constants(values: pa.Array | None, kind: LogicalType, files: int) -> pa.Array:
    return pa.nulls(files, to_arrow(kind)) if values is None else values.cast(to_arrow(kind))
