"""A Delta table at one version: native statistics and scan tasks."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from capture.connectors.delta.deletion_vectors import delete_files, deleted_rows, identity
from capture.connectors.delta.extended_statistics import extended_columns
from capture.connectors.delta.lake_table import LakeTable, Schemas
from capture.connectors.delta.large_log import LargeLog, LogSlice
from capture.connectors.delta.log import DeltaColumn, listing_digest, log_entries, log_files
from capture.connectors.delta.log_files import NotReplayable
from capture.connectors.delta.statistics import MAX_FOOTERS, ColumnStatistics
from capture.connectors.delta.table_version import (
    DELETES,
    TableVersion,
    containers,
    file_rows,
    has_statistics,
    one_array,
    path_in_file,
    wanted_columns,
)
from capture.connectors.file_columns import absent
from capture.connectors.footers.reader import batched
from capture.connectors.footers.statistics import FooterCache
from capture.connectors.spi import ColumnIds, FilePart, NativeStats, ScanColumn, ScanTask, container
from capture.connectors.storage.places import Unreadable, unknown_snapshot
from store.model.logical_types import LogicalType, parse, to_arrow
from store.model.names import column_key

_RECENT_SECONDS: Final = 10.0
_KEPT_FILES: Final = 10_000
_VECTORS: Final = "deletionVectors"  # table feature


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some live files: a slice of the log, or all files if deltalake replayed it.

    Attributes:
        version: The files; without statistics in a slice.
        with_statistics: Loads the files with statistics.
        part: The slice; None if deltalake replayed the log.
    """

    version: TableVersion
    with_statistics: Callable[[], TableVersion]
    part: LogSlice | None = None


class SnapshotView:
    """One version of a table.

    Args:
        table: The table.
        schemas: Cache of parsed schemas.
        scope: Prefix of cache keys, see `immutable_cache.scope`.
        snapshot_id: The version.
    """

    def __init__(self, table: LakeTable, schemas: Schemas, scope: str, snapshot_id: int):
        self._table, self._schemas, self._scope, self._version = table, schemas, scope, snapshot_id
        self._footers = FooterCache(scope)
        self._created = time.monotonic()
        self._kept: tuple[str, list[_Piece]] | None = None  # digest of the log's listing, pieces

    def is_recent_of(self, namespace: str, name: str, snapshot_id: int) -> bool:
        """True if the view is of this version and at most some seconds old, since credentials may be renewed.

        Args:
            namespace: Namespace of the table.
            name: Name of the table.
            snapshot_id: The version.
        """
        own = (self._table.namespace, self._table.name, self._version)
        return own == (namespace, name, snapshot_id) and time.monotonic() - self._created < _RECENT_SECONDS

    def statistics(self, ids: ColumnIds, column_names: frozenset[str] | None) -> NativeStats:
        """Native statistics, for columns with these names or keys (None: all)."""
        pieces = self._pieces()
        tables = [file_rows(piece.version) for piece in pieces]
        files = pa.concat_tables(tables)
        of_columns = ColumnStatistics(self._table, self._footers, ids, column_names)
        columns = [partial(of_columns.rows, piece.with_statistics) for piece in pieces]
        parts: list[FilePart] = []
        if column_names is None:
            table_key = repr((self._scope, self._table.place.name, sorted(ids.items())))
            for piece, rows, file_columns in zip(pieces, tables, columns, strict=True):
                if piece.part is not None:
                    key = hashlib.sha256(f"{table_key}\0{piece.part.key}".encode("utf-8", "surrogatepass")).hexdigest()
                    parts.append(FilePart(key, rows, file_columns, _marks(piece.part)))
        extended, remarks = self._extended_columns(pieces, ids, column_names, _total(files["row_count"]))
        return NativeStats(
            row_count=_total(files["row_count"]),
            data_file_count=len(files),
            total_size_bytes=_total(files["size_bytes"]),
            files=files,
            file_columns=lambda: (rows for of_piece in columns for rows in of_piece()),
            row_deletes=any(pc.any(piece.version.has_deletes).as_py() for piece in pieces),
            columns=extended,
            parts=parts,
            remarks=remarks,
        )

    def _extended_columns(
        self, pieces: list[_Piece], ids: ColumnIds, column_names: frozenset[str] | None, row_count: int | None
    ) -> tuple[pa.Table | None, list[str]]:
        """ndv from Trino's statistics file, and why it is refused; None if it cannot be read, since it is optional."""
        times = [pc.max(one_array(piece.version.actions["modification_time"])) for piece in pieces]
        milliseconds = [time.cast(pa.timestamp("ms", time.type.tz), safe=False).cast(pa.int64()).as_py()
                 if pa.types.is_timestamp(time.type) else time.as_py() for time in times]  # fmt: skip
        newest = max((time for time in milliseconds if time is not None), default=None)
        with suppress(OSError, pa.ArrowException):
            try:
                schema = pieces[0].version.schema
                found = extended_columns(self._table.place, self._version, newest, schema, ids, column_names, row_count)
                return found, []
            except ValueError as error:
                return None, [f"Trino's statistics are refused: {error}"]
        return None, []

    def tasks(self, ids: ColumnIds, column_names: frozenset[str] | None) -> Iterator[ScanTask]:
        """Yields one task per live file."""
        for piece in self._pieces():
            yield from self._tasks(piece.with_statistics(), ids, column_names)

    # Files.

    def _pieces(self) -> list[_Piece]:
        """The live files; in slices if the log is large or has deletion vectors or wide bounds."""
        with self._table.reading(self._version):
            entries = log_entries(self._table.place)
            listed = listing_digest(entries)
            if self._kept is not None and self._kept[0] == listed:
                return self._kept[1]
            if self._version not in log_files(entries).live():
                raise unknown_snapshot(self._table.namespace, self._table.name, self._version)
            log = None
            with suppress(NotReplayable):
                log = LargeLog.of(self._table.place, entries, self._version, self._scope)
            is_wide = log is None or (not log.is_large and log.has_wide_bounds)
        opened = None
        if log is None or not log.is_large:
            with suppress(Unreadable):  # perhaps because of actions that later commits replaced
                opened = self._table.open(self._version)
                if not is_wide and _VECTORS not in (opened.protocol().reader_features or ()):
                    log = None
        if log is not None:
            unreadable = (NotReplayable,) if opened is not None else (NotReplayable, Unreadable)
            with suppress(*unreadable), self._table.reading(self._version):
                if pieces := list(self._slices(log)):
                    return pieces
        whole = self._whole(opened or self._table.open(self._version), is_wide)
        pieces = [_Piece(whole, lambda: whole)]
        if len(whole) <= _KEPT_FILES:
            self._kept = listed, pieces
        return pieces

    def _slices(self, log: LargeLog) -> Iterator[_Piece]:
        outline = log.outline()
        schema, storage = self._schemas.of(outline), self._table.storage
        partitions = tuple(outline.metadata().partition_columns or ())
        unknown = 0
        for part in log.slices():
            paths = self._table.paths(one_array(part.files["path"]))
            counts = one_array(part.files["num_records"])
            self._refuse_negative(counts, part.files)
            unknown += counts.null_count
            rows = self._live_rows(part, counts) if unknown <= MAX_FOOTERS else counts
            deleted = delete_files(part.vectors, self._table.place, self._table.file)
            version = TableVersion(schema, storage, partitions, part.files, paths, rows, {}, part.vectors, deleted)

            def with_statistics(part: LogSlice = part, version: TableVersion = version) -> TableVersion:
                with self._table.reading(self._version):
                    return replace(version, actions=part.statistics())

            yield _Piece(version, with_statistics, part)

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
        if part.vectors.null_count == len(part.vectors):
            return counts
        deleted = pc.fill_null(pc.struct_field(part.vectors, ["cardinality"]), 0)
        return pc.max_element_wise(pc.subtract(counts, deleted), 0, skip_nulls=False)

    def _whole(self, table: DeltaTable, is_wide: bool) -> TableVersion:
        """All files, listed by deltalake; `is_wide`: it is unknown which of them have tight bounds."""
        has_vectors = _VECTORS in (table.protocol().reader_features or ())
        with self._table.reading(self._version):
            actions = pa.table(table.get_add_actions(flatten=False))
            if actions.num_columns and actions.column(0).num_chunks != 1:
                actions = actions.combine_chunks()
            logged = one_array(actions["path"])
            counts = one_array(actions["num_records"]) if "num_records" in actions.column_names else None
            if counts is not None:
                self._refuse_negative(counts, actions)
            version = TableVersion(
                self._schemas.of(table),
                self._table.storage,
                tuple(table.metadata().partition_columns or ()),
                actions,
                self._table.paths(logged),
                pa.nulls(len(actions), pa.int64()) if counts is None else counts,
                may_be_wide=is_wide or has_vectors,
            )
            if has_vectors and len(version):
                self._read_vectors(version, table)
        rows = version.rows
        if rows.null_count and rows.null_count <= MAX_FOOTERS:
            rows = self._count_rows(actions, rows.to_pylist())
        if version.deleted:
            counts = rows.to_pylist()
            for i, deleted in version.deleted.items():
                if (count := counts[i]) is not None:
                    counts[i] = max(0, count - len(deleted))
            rows = pa.array(counts, pa.int64())
        groups_of: list[list[Any] | None] = [None if i in version.deleted else [] for i in range(len(version))]
        return replace(version, rows=rows, delete_files=pa.array(groups_of, DELETES))

    def _read_vectors(self, version: TableVersion, table: DeltaTable) -> None:
        """Reads the rows deleted by deletion vectors with deltalake into `version.deleted`."""
        numbers = {_real_path(path): i for i, path in enumerate(version.paths.to_pylist())}
        for batch in table.deletion_vectors():
            batch = pa.record_batch(batch)
            for path, keep in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                number = numbers.get(_real_path(self._table.file(path).name))
                if number is None:
                    raise ValueError("a deletion vector belongs to no live file")
                kept = keep.values.to_numpy(zero_copy_only=False).astype(bool)
                # Rows beyond the end of a vector are live.
                deleted = pa.array(np.flatnonzero(~kept), pa.int64())
                if len(deleted):
                    version.deleted[number] = deleted

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
        widths = repr([(leaf.column.key, leaf.width_bytes) for leaf in leaves if leaf.widened_from])
        is_complete = has_statistics(version, scanned)
        columns_of = ("size_bytes", "modification_time")
        sizes, times = (version.actions[column].to_pylist() for column in columns_of)
        paths, rows = version.paths.to_pylist(), version.rows.to_pylist()
        vectors = [None] * len(version) if version.vectors is None else version.vectors.to_pylist()
        for group in batched(range(len(version)), 256):
            unsure = [i for i in group if not is_complete[i]]
            with self._table.reading_files():
                outlines = self._footers.outlines(self._table.listed(version.actions, unsure))
                footers = dict(zip(unsure, outlines, strict=True))
            for i in group:
                deleted = version.deleted.get(i)
                if vectors[i] is not None:
                    deleted = self._deleted(vectors[i])
                mark = hashlib.sha256(f"{paths[i]}\0{sizes[i]}\0{times[i]}\0".encode("utf-8", "surrogatepass"))
                if deleted is not None:
                    mark.update(deleted.to_numpy().tobytes())
                if widths != "[]":  # results from before a type change have another width
                    mark.update(widths.encode())
                columns = []
                for leaf in leaves:
                    constant = constants.get(leaf.column.key)
                    nowhere = constant is not None or leaf.is_void
                    path = None if nowhere else path_in_file(leaf, footers.get(i))
                    columns.append(_scan_column(leaf, ids, path, constant and constant.slice(i, 1)))
                columns += [
                    container(column_id, nested.column, column_key(nested.physical))
                    for nested in containers(version.schema, column_names)
                    if (column_id := nested.column.id_in(ids)) is not None
                ]
                yield ScanTask(
                    reader="parquet",
                    file_path=paths[i],
                    location=paths[i],
                    row_count=-1 if rows[i] is None else rows[i],
                    size_bytes=sizes[i],
                    columns=tuple(columns),
                    fingerprint=mark.hexdigest(),
                    storage=version.storage,
                    deleted_rows=deleted,
                )

    def _deleted(self, vector: Any) -> pa.Array:
        with self._table.reading():
            return deleted_rows(vector, self._table.place, self._table.file)


def _scan_column(leaf: DeltaColumn, ids: ColumnIds, path: str | None, constant: pa.Array | None) -> ScanColumn:
    """The source of a column's values: a path in the file, a partition value, or null if the file lacks it."""
    column = leaf.column
    if path is None and constant is None:
        constant = absent(column.logical_type)
    column_id = column.id_in(ids)
    assert column_id is not None
    return ScanColumn(column_id, column.name, column.logical_type, path, constant, leaf.width_bytes)


def _real_path(path: str) -> str:
    """A local path without symbolic links, by which deltalake identifies files with deletion vectors."""
    return os.path.realpath(path) if path.startswith("/") else path


def _marks(part: LogSlice) -> pa.Array:
    """One string per file of a slice that changes with the file's content."""
    times = one_array(part.files["modification_time"]).cast(pa.string())
    if part.vectors.null_count == len(part.vectors):
        return times
    vectors = pa.array([identity(vector) for vector in part.vectors.to_pylist()], pa.string())
    return pc.binary_join_element_wise(times, vectors, " ")


def _total(counts: pa.ChunkedArray) -> int | None:
    """The sum; None if a value is unknown."""
    return None if counts.null_count else pc.sum(counts).as_py() or 0


def _constants(values: pa.Array | None, kind: LogicalType, files: int) -> pa.Array:
    return pa.nulls(files, to_arrow(kind)) if values is None else values.cast(to_arrow(kind))
