"""A Delta table at one version: its statistics from the log, and the tasks that read its files."""

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
from capture.connectors.delta.log_files import NotSliced
from capture.connectors.delta.statistics import MAX_FOOTERS, ColumnStatistics
from capture.connectors.delta.table_version import (
    DELETES,
    TableVersion,
    file_rows,
    named_in_statistics,
    one_array,
    path_in_file,
    wanted_columns,
)
from capture.connectors.file_columns import absent
from capture.connectors.footers.reader import batched
from capture.connectors.footers.statistics import FooterCache
from capture.connectors.spi import ColumnIds, FilePart, NativeStats, ScanColumn, ScanTask
from capture.connectors.storage.places import Unreadable, unknown_snapshot
from store.logical_types import LogicalType, parse, to_arrow

_RECENT_SECONDS: Final = 10.0
_KEPT_FILES: Final = 10_000
_VECTORS: Final = "deletionVectors"  # the table feature


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some live files: a slice of the log, or all that deltalake knows.

    Attributes:
        version: The files, of a slice without statistics.
        with_statistics: Gives the same with statistics.
        part: The slice, None where deltalake replayed the log.
    """

    version: TableVersion
    with_statistics: Callable[[], TableVersion]
    part: LogSlice | None = None


class SnapshotView:
    """One version of a table.

    Args:
        table: The table.
        schemas: The schemas parsed so far.
        scope: What separates one connector's cached reads from another's.
        snapshot_id: The version.
    """

    def __init__(self, table: LakeTable, schemas: Schemas, scope: str, snapshot_id: int):
        self._table, self._schemas, self._scope, self._version = table, schemas, scope, snapshot_id
        self._footers = FooterCache(scope)
        self._made = time.monotonic()
        self._kept: tuple[str, list[_Piece]] | None = None  # with the digest of the log's listing

    def is_recent_of(self, namespace: str, name: str, snapshot_id: int) -> bool:
        """True if the view is of this version, and a moment old.

        Args:
            namespace: Of the table.
            name: The table.
            snapshot_id: The version.

        Returns:
            False also where credentials may have been renewed since.
        """
        of = (self._table.namespace, self._table.name, self._version)
        return of == (namespace, name, snapshot_id) and time.monotonic() - self._made < _RECENT_SECONDS

    def statistics(self, ids: ColumnIds, column_names: frozenset[str] | None) -> NativeStats:
        """Statistics of the files and of some of their columns (None: all)."""
        pieces = self._pieces()
        tables = [file_rows(piece.version) for piece in pieces]
        files = pa.concat_tables(tables)
        of_columns = ColumnStatistics(self._table, self._footers, ids, column_names)
        columns = [partial(of_columns.rows, piece.with_statistics) for piece in pieces]
        parts: list[FilePart] = []
        if column_names is None:
            shape = repr((self._scope, self._table.place.name, sorted(ids.items())))
            for piece, rows, file_columns in zip(pieces, tables, columns, strict=True):
                if piece.part is not None:
                    key = hashlib.sha256(f"{shape}\0{piece.part.key}".encode("utf-8", "surrogatepass")).hexdigest()
                    parts.append(FilePart(key, rows, file_columns, _marks(piece.part)))
        return NativeStats(
            row_count=_total(files["row_count"]),
            data_file_count=len(files),
            total_size_bytes=_total(files["size_bytes"]),
            files=files,
            file_columns=lambda: (rows for of_piece in columns for rows in of_piece()),
            row_deletes=any(pc.any(piece.version.has_deletes).as_py() for piece in pieces),
            columns=self._extended_columns(pieces, ids, column_names, _total(files["row_count"])),
            parts=parts,
        )

    def _extended_columns(
        self, pieces: list[_Piece], ids: ColumnIds, column_names: frozenset[str] | None, row_count: int | None
    ) -> pa.Table | None:
        """Statistics that Trino keeps of this version; none where its file cannot be read: they are a help only."""
        times = [pc.max(one_array(piece.version.actions["modification_time"])) for piece in pieces]
        milliseconds = [time.cast(pa.timestamp("ms", time.type.tz), safe=False).cast(pa.int64()).as_py()
                 if pa.types.is_timestamp(time.type) else time.as_py() for time in times]  # fmt: skip
        newest = max((time for time in milliseconds if time is not None), default=None)
        with suppress(OSError, pa.ArrowException):
            return extended_columns(
                self._table.place, self._version, newest, pieces[0].version.schema, ids, column_names, row_count
            )
        return None

    def tasks(self, ids: ColumnIds, column_names: frozenset[str] | None) -> Iterator[ScanTask]:
        """One task per live file."""
        for piece in self._pieces():
            yield from self._tasks(piece.with_statistics(), ids, column_names)

    # Files.

    def _pieces(self) -> list[_Piece]:
        """The live files, in slices where the log is large, or has deletion vectors or wide bounds."""
        with self._table.reading(self._version):
            entries = log_entries(self._table.place)
            listed = listing_digest(entries)
            if self._kept is not None and self._kept[0] == listed:
                return self._kept[1]
            if self._version not in log_files(entries).live():
                raise unknown_snapshot(self._table.namespace, self._table.name, self._version)
            log = None
            with suppress(NotSliced):
                log = LargeLog.of(self._table.place, entries, self._version, self._scope)
            is_wide = log is None or (not log.is_large and log.speaks_of_wide_bounds)
        opened = None
        if log is None or not log.is_large:
            with suppress(Unreadable):  # what deltalake refuses, later commits may have replaced
                opened = self._table.open(self._version)
                if not is_wide and _VECTORS not in (opened.protocol().reader_features or ()):
                    log = None
        if log is not None:
            unreadable = (NotSliced,) if opened is not None else (NotSliced, Unreadable)
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
            gone = delete_files(part.vectors, self._table.place, self._table.file)
            version = TableVersion(schema, storage, partitions, part.files, paths, rows, {}, part.vectors, gone)

            def with_statistics(part: LogSlice = part, version: TableVersion = version) -> TableVersion:
                with self._table.reading(self._version):
                    return replace(version, actions=part.statistics())

            yield _Piece(version, with_statistics, part)

    def _refuse_negative(self, counts: pa.Array, files: pa.Table) -> None:
        """Raises Unreadable where the log counts less than no rows in a file."""
        least = pc.min(counts).as_py()
        if least is not None and least < 0:
            path = one_array(files["path"])[pc.index(counts, least).as_py()].as_py()
            raise Unreadable(
                f'table "{self._table.namespace}.{self._table.name}": the log says "numRecords": {least} of the file'
                f' "{path}"; must be at least 0'
            )

    def _live_rows(self, part: LogSlice, counts: pa.Array) -> pa.Array:
        """Live rows of each file of a slice."""
        if counts.null_count:
            counts = self._count_rows(part.files, counts.to_pylist())
        if part.vectors.null_count == len(part.vectors):
            return counts
        lost = pc.fill_null(pc.struct_field(part.vectors, ["cardinality"]), 0)
        return pc.max_element_wise(pc.subtract(counts, lost), 0, skip_nulls=False)

    def _whole(self, table: DeltaTable, is_wide: bool) -> TableVersion:
        """All files as deltalake has them; `is_wide`: nobody knows which of them have tight bounds."""
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
            for i, gone in version.deleted.items():
                if (count := counts[i]) is not None:
                    counts[i] = max(0, count - len(gone))
            rows = pa.array(counts, pa.int64())
        groups_of: list[list[Any] | None] = [None if i in version.deleted else [] for i in range(len(version))]
        return replace(version, rows=rows, delete_files=pa.array(groups_of, DELETES))

    def _read_vectors(self, version: TableVersion, table: DeltaTable) -> None:
        """Puts the rows that deletion vectors take away into `version.deleted`, as deltalake reads them."""
        numbers = {_real(path): i for i, path in enumerate(version.paths.to_pylist())}
        for batch in table.deletion_vectors():
            batch = pa.record_batch(batch)
            for path, keep in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                number = numbers.get(_real(self._table.file(path).name))
                if number is None:
                    raise ValueError("a deletion vector belongs to no live file")
                kept = keep.values.to_numpy(zero_copy_only=False).astype(bool)
                # A vector may be shorter than the file: what it does not reach is live.
                gone = pa.array(np.flatnonzero(~kept), pa.int64())
                if len(gone):
                    version.deleted[number] = gone

    def _count_rows(self, actions: pa.Table, counts: list[int | None]) -> pa.Array:
        """Rows of each file: what the log says, or the footer where it does not."""
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
        is_named = named_in_statistics(version, scanned)
        columns_of = ("size_bytes", "modification_time")
        sizes, times = (version.actions[column].to_pylist() for column in columns_of)
        paths, rows = version.paths.to_pylist(), version.rows.to_pylist()
        vectors = [None] * len(version) if version.vectors is None else version.vectors.to_pylist()
        for group in batched(range(len(version)), 256):
            unsure = [i for i in group if not is_named[i]]
            with self._table.reading_files():
                outlines = self._footers.outlines(self._table.listed(version.actions, unsure))
                footers = dict(zip(unsure, outlines, strict=True))
            for i in group:
                gone = version.deleted.get(i)
                if vectors[i] is not None:
                    gone = self._deleted(vectors[i])
                mark = hashlib.sha256(f"{paths[i]}\0{sizes[i]}\0{times[i]}\0".encode("utf-8", "surrogatepass"))
                if gone is not None:
                    mark.update(gone.to_numpy().tobytes())
                if widths != "[]":  # what was computed before the change of type is not of this width
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
                    columns=tuple(columns),
                    fingerprint=mark.hexdigest(),
                    storage=version.storage,
                    deleted_rows=gone,
                )

    def _deleted(self, vector: Any) -> pa.Array:
        with self._table.reading():
            return deleted_rows(vector, self._table.place, self._table.file)


def _scan_column(leaf: DeltaColumn, ids: ColumnIds, path: str | None, constant: pa.Array | None) -> ScanColumn:
    """The source of a column's values: a path in the file, the partition, or nulls where the file lacks the column."""
    column = leaf.column
    if path is None and constant is None:
        constant = absent(column.logical_type)
    column_id = column.id_in(ids)
    assert column_id is not None
    return ScanColumn(column_id, column.name, column.logical_type, path, constant, leaf.width_bytes)


def _real(path: str) -> str:
    """A local path without symbolic links: deltalake names deletion vectors' files by it, whatever the table's uri."""
    return os.path.realpath(path) if path.startswith("/") else path


def _marks(part: LogSlice) -> pa.Array:
    """A text for each file of a slice that changes with its content."""
    times = one_array(part.files["modification_time"]).cast(pa.string())
    if part.vectors.null_count == len(part.vectors):
        return times
    vectors = pa.array([identity(vector) for vector in part.vectors.to_pylist()], pa.string())
    return pc.binary_join_element_wise(times, vectors, " ")


def _total(counts: pa.ChunkedArray) -> int | None:
    """The sum, None where one is not known."""
    return None if counts.null_count else pc.sum(counts).as_py() or 0


def _constants(values: pa.Array | None, kind: LogicalType, files: int) -> pa.Array:
    return pa.nulls(files, to_arrow(kind)) if values is None else values.cast(to_arrow(kind))
