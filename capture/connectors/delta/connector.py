"""Delta Lake, read with deltalake: versions, file statistics of the log, deletion vectors, column mapping."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from capture.connectors.delta.bounds import of_log, of_partition
from capture.connectors.delta.deletion_vectors import deleted_rows, identity
from capture.connectors.delta.large_log import LargeLog, Slice
from capture.connectors.delta.log import Commit, DeltaSchema, constraints, list_log, parse_schema, read_commits
from capture.connectors.delta.log_files import NotSliced
from capture.connectors.delta.table_version import (
    Version,
    file_rows,
    named_in_statistics,
    one_array,
    path_in_file,
    wanted_columns,
)
from capture.connectors.delta.unity import UnityCatalog
from capture.connectors.file_columns import ROWS_PER_TABLE, column_rows
from capture.connectors.footers.reader import Footer, batched, read_footers
from capture.connectors.secrets import PathRewrite, check_options, patient
from capture.connectors.spi import (
    FILE_COLUMN_SCHEMA,
    ColumnIds,
    ConnectorConfig,
    FilePart,
    NativeStats,
    ScanColumn,
    ScanTask,
    Snapshot,
    SnapshotLister,
    SnapshotListing,
    TableDescriptor,
    Wanted,
)
from capture.connectors.storage.immutable_cache import scope
from capture.connectors.storage.places import Folder, Lake, Place, Unreadable, open_place, plain_path, unknown_snapshot
from store.errors import StatflightError, UpstreamError
from store.logical_types import Kind, LogicalType, parse, to_arrow

MAX_FOOTERS: Final = 10_000  # read for row counts the log lacks; beyond, the count is unknown


class DeltaConnector(SnapshotLister):
    """Delta tables below a directory or object store prefix, or of a Unity Catalog (`uc://host/catalog`)."""

    format: ClassVar[str] = "delta"

    def __init__(self, config: ConnectorConfig):
        check_options(self.format, config.options)
        self._scope = scope(config)
        self._rewrite = PathRewrite.of(config.options)
        self._lake: Lake | UnityCatalog
        if isinstance(config.uri, str) and config.uri.lower().startswith("uc://"):
            self._lake = UnityCatalog(config.uri, config.options)
        else:
            self._lake = Lake(self.format, config.uri, config.options, self._holds_table)
        self._schemas: dict[tuple[str, bool], DeltaSchema] = {}

    def close(self) -> None:
        self._schemas.clear()

    # Names.

    @staticmethod
    def _holds_table(folder: Folder) -> bool:
        return "_delta_log" in folder.folders

    def list_namespaces(self) -> list[str]:
        return self._lake.namespaces()

    def list_tables(self, namespace: str) -> list[str]:
        return self._lake.names(namespace)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        place = self._lake.find(namespace, name)
        table = self._outline(place, namespace, name)
        with self._reading(place, namespace, name):
            metadata = table.metadata()
            schema = self._schema(table)
            configuration = {str(k): str(v) for k, v in (metadata.configuration or {}).items()}
        declared = self._lake.declared(namespace, name) if isinstance(self._lake, UnityCatalog) else ()
        return TableDescriptor(
            namespace,
            name,
            str(metadata.id),
            place.name,
            schema.schema,
            partition_keys=tuple(metadata.partition_columns or ()),
            properties=configuration,
            constraints=constraints(schema, configuration) + declared,
        )

    def _snapshots(self, namespace: str, name: str, wanted: Wanted) -> SnapshotListing:
        place = self._lake.find(namespace, name)
        with self._reading(place, namespace, name):
            log = list_log(place)
        live = log.live()
        if not live:
            raise Unreadable(f'table "{namespace}.{name}": its log holds no version that can be read')
        current = live[-1]
        snapshots = []
        schemas = self._schemas_of(place, namespace, name, [version for version in live if version in wanted])
        for version, commit, schema in schemas:
            written = log.commits.get(version) or log.checkpoints.get(version)
            parent = version - 1 if version - 1 in log.commits or version - 1 in log.checkpoints else None
            snapshots.append(
                Snapshot(
                    version,
                    version,
                    schema.schema,
                    parent if parent in live else None,
                    None,
                    commit.committed_at or written,
                    commit.operation,
                )
            )
        return SnapshotListing(tuple(snapshots), frozenset(live), current)

    def _schemas_of(
        self, place: Place, namespace: str, name: str, versions: list[int]
    ) -> Iterator[tuple[int, Commit, DeltaSchema]]:
        """Each version with its commit and schema; a table is loaded only where no commit tells its schema."""
        last: tuple[int, DeltaSchema] | None = None
        for version, commit in read_commits(place, versions):
            with self._reading(place, namespace, name):
                if commit.metadata is not None:
                    schema = self._parsed(commit.metadata.get("schemaString"), commit.metadata.get("configuration"))
                elif last is not None and last[0] == version - 1:
                    schema = last[1]
                else:
                    schema = self._schema(self._outline(place, namespace, name, version))
            last = version, schema
            yield version, commit, schema

    # Statistics.

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        place = self._lake.find(namespace, name)
        with self._reading(place, namespace, name, snapshot_id):
            large = self._large(place, namespace, name, snapshot_id)
            if large is not None:
                with suppress(NotSliced):
                    return self._sliced_stats(large, place, namespace, name, ids, column_names)
        version = self._version(place, namespace, name, snapshot_id)
        files = file_rows(version)
        return NativeStats(
            row_count=_total(files["row_count"]),
            data_file_count=len(files),
            total_size_bytes=_total(files["size_bytes"]),
            files=files,
            file_columns=lambda: self._file_columns(version, ids, column_names),
            row_deletes=bool(version.deleted),
        )

    def _sliced_stats(
        self, large: LargeLog, place: Place, namespace: str, name: str, ids: ColumnIds,
        column_names: frozenset[str] | None,
    ) -> NativeStats:  # fmt: skip
        """Of a log that is read in slices: each is a part."""
        parts, deletes = [], False
        shape = repr((self._scope, place.name, sorted(ids.items())))
        for piece, version in self._pieces(large, place, namespace, name):
            deletes = deletes or piece.vectors.null_count < len(piece.vectors)

            def file_columns(piece: Slice = piece, version: Version = version) -> Iterator[pa.Table]:
                with self._reading(place, namespace, name):
                    told = replace(version, actions=piece.statistics())
                yield from self._file_columns(told, ids, column_names)

            key = hashlib.sha256(f"{shape}\0{piece.key}".encode("utf-8", "surrogatepass")).hexdigest()
            parts.append(FilePart(key, file_rows(version), file_columns, _marks(piece)))
        if not parts:
            raise NotSliced("no file is live")
        files = pa.concat_tables([part.files for part in parts])
        return NativeStats(
            row_count=_total(files["row_count"]),
            data_file_count=len(files),
            total_size_bytes=_total(files["size_bytes"]),
            files=files,
            file_columns=lambda: (rows for part in parts for rows in part.file_columns()),
            row_deletes=deletes,
            parts=parts if column_names is None else (),
        )

    def _pieces(self, large: LargeLog, place: Place, namespace: str, name: str) -> Iterator[tuple[Slice, Version]]:
        """The slices of a log, and each as a version that has no statistics yet."""
        outline = large.outline()
        schema, storage = self._schema(outline), self._lake.storage_of(place)
        partitions = tuple(outline.metadata().partition_columns or ())
        unknown = 0
        for piece in large.slices():
            paths = self._paths(place, one_array(piece.files["path"]))
            told = one_array(piece.files["num_records"])
            unknown += told.null_count
            rows = self._live_rows(place, piece, told, namespace, name) if unknown <= MAX_FOOTERS else told
            yield piece, Version(outline, schema, storage, partitions, piece.files, paths, rows, vectors=piece.vectors)

    def _live_rows(self, place: Place, piece: Slice, told: pa.Array, namespace: str, name: str) -> pa.Array:
        """Live rows of each file of a slice."""
        if told.null_count:
            told = self._count_rows(place, piece.files["path"], told.to_pylist(), namespace, name)
        if piece.vectors.null_count == len(piece.vectors):
            return told
        lost = pc.fill_null(pc.struct_field(piece.vectors, ["cardinality"]), 0)
        return pc.max_element_wise(pc.subtract(told, lost), 0, skip_nulls=False)

    def _file_columns(
        self, version: Version, ids: ColumnIds, column_names: frozenset[str] | None
    ) -> Iterator[pa.Table]:
        has_deletes, files = version.has_deletes, len(version)
        wanted = wanted_columns(version.schema, column_names)
        if not files or not wanted:
            yield FILE_COLUMN_SCHEMA.empty_table()
            return
        step = min(files, ROWS_PER_TABLE)
        for start in range(0, files, step):

            def cut(values: pa.Array | None, start: int = start) -> pa.Array | None:
                return None if values is None else values.slice(start, step)

            paths, rows, lost = cut(version.paths), cut(version.rows), cut(has_deletes)
            # few columns of many files, not the other way round: it is the calls that cost
            for some in batched(wanted, max(1, ROWS_PER_TABLE // step)):
                tables = []
                for known in some:
                    if known.logical[0] in version.partitions:
                        values = cut(version.partition(known))
                        facts = of_partition(values, rows) if values is not None else {}
                    else:
                        facts = of_log(
                            parse(known.column.logical_type),
                            cut(version.statistic("null_count", known.physical)),
                            cut(version.statistic("min", known.physical)),
                            cut(version.statistic("max", known.physical)),
                            rows,
                            cut(version.column("num_records")),
                            lost,
                            was_float="float" in known.widened_from,
                        )
                    tables.append(column_rows(paths, known.column, ids, rows, **facts))
                yield pa.concat_tables(tables)

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        place = self._lake.find(namespace, name)
        with self._reading(place, namespace, name, snapshot_id):
            large = self._large(place, namespace, name, snapshot_id)
            pieces = None
            if large is not None:
                with suppress(NotSliced):
                    pieces = list(self._pieces(large, place, namespace, name))
        if pieces is None:
            whole = self._version(place, namespace, name, snapshot_id)
            yield from self._tasks(whole, place, namespace, name, ids, column_names)
        else:
            for piece, version in pieces:
                with self._reading(place, namespace, name, snapshot_id):
                    told = replace(version, actions=piece.statistics())
                yield from self._tasks(told, place, namespace, name, ids, column_names)

    def _tasks(
        self, version: Version, table: Place, namespace: str, name: str, ids: ColumnIds,
        column_names: frozenset[str] | None,
    ) -> Iterator[ScanTask]:  # fmt: skip
        wanted = [
            known
            for known in wanted_columns(version.schema, column_names)
            if known.column.name in ids and parse(known.column.logical_type).kind is not Kind.INTERVAL
        ]
        constants = {
            known.column.name: _constants(version.partition(known), parse(known.column.logical_type), len(version))
            for known in wanted
            if known.logical[0] in version.partitions
        }
        held = [known for known in wanted if known.column.name not in constants]
        widths = repr([(ids[known.column.name], known.width_bytes) for known in wanted if known.widened_from])
        told = named_in_statistics(version, held)
        columns_of = ("path", "size_bytes", "modification_time")
        logged, sizes, times = (version.actions[column].to_pylist() for column in columns_of)
        paths, rows = version.paths.to_pylist(), version.rows.to_pylist()
        vectors = [None] * len(version) if version.vectors is None else version.vectors.to_pylist()
        for group in batched(range(len(version)), 256):
            unsure = [i for i in group if not told[i]]
            places = [self._file(table, logged[i]) for i in unsure]
            footers = dict(zip(unsure, self._footers(places, namespace, name), strict=True))
            for i in group:
                columns = []
                for known in wanted:
                    column = known.column
                    path: str | None = None
                    constant = constants[column.name].slice(i, 1) if column.name in constants else None
                    if constant is None:
                        path = path_in_file(known, footers.get(i))
                        constant = pa.nulls(1, to_arrow(parse(column.logical_type))) if path is None else None
                    columns.append(
                        ScanColumn(
                            ids[column.name], column.name, column.logical_type, path, constant, known.width_bytes
                        )
                    )
                gone = version.deleted.get(i)
                if (vector := vectors[i]) is not None:
                    with self._reading(table, namespace, name):
                        gone = deleted_rows(vector, table, lambda there: self._file(table, there))
                mark = hashlib.sha256(f"{paths[i]}\0{sizes[i]}\0{times[i]}\0".encode("utf-8", "surrogatepass"))
                if gone is not None:
                    mark.update(gone.to_numpy().tobytes())
                if widths != "[]":  # what was computed before the change of type is not of this width
                    mark.update(widths.encode())
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

    # Reading.

    def _open(self, place: Place, namespace: str, name: str, version: int | None = None) -> DeltaTable:
        with self._reading(place, namespace, name, version):
            storage = self._lake.storage_of(place)
            if not place.is_local:
                storage = patient(storage, self._lake.options)
            return DeltaTable(place.name, version=version, storage_options=storage or None)

    def _outline(self, place: Place, namespace: str, name: str, version: int | None = None) -> DeltaTable:
        """A table for its metadata, schema and protocol: without its files where there are very many."""
        with self._reading(place, namespace, name, version):
            live = list_log(place).live() if version is None else [version]
            with suppress(NotSliced):
                if live and (large := LargeLog.of(place, live[-1], self._scope)) is not None:
                    return large.outline()
        return self._open(place, namespace, name, version)

    @contextmanager
    def _reading(self, place: Place, namespace: str, name: str, version: int | None = None) -> Iterator[None]:
        """Turns what deltalake raises into ours, with the table's name and the reason in one line."""
        try:
            yield
        except StatflightError:
            raise
        except TableNotFoundError as trouble:
            if version is not None:
                raise unknown_snapshot(namespace, name, version) from None
            raise Unreadable(self._message(trouble, place, namespace, name)) from None
        except DeltaError as trouble:
            message = self._message(trouble, place, namespace, name)
            if version is not None and "Invalid table version" in message:
                raise unknown_snapshot(namespace, name, version) from None
            remote = not place.is_local and any(
                word in str(trouble) for word in ("Generic ", "ObjectStore", "object store")
            )
            raise (UpstreamError if remote else Unreadable)(message) from None
        except (OSError, pa.ArrowException) as trouble:
            local = place.is_local or not isinstance(trouble, OSError)
            message = self._message(trouble, place, namespace, name)
            raise (Unreadable if local else UpstreamError)(message) from None
        except (ValueError, TypeError, KeyError, IndexError) as trouble:
            raise Unreadable(self._message(trouble, place, namespace, name)) from None
        except BaseException as trouble:
            # A panic of deltalake's Rust derives from BaseException.
            if type(trouble).__name__ != "PanicException":
                raise
            raise Unreadable(self._message(trouble, place, namespace, name)) from None

    def _message(self, trouble: BaseException, place: Place, namespace: str, name: str) -> str:
        return f'table "{namespace}.{name}" cannot be read: {self._lake.reason(trouble, place)}'

    def _schema(self, table: DeltaTable) -> DeltaSchema:
        return self._parsed(table.schema().to_json(), table.metadata().configuration)

    def _parsed(self, text: Any, configuration: Any) -> DeltaSchema:
        if not isinstance(text, str):
            raise ValueError("its metadata has no schema")
        settings = configuration if isinstance(configuration, Mapping) else {}
        mapped = settings.get("delta.columnMapping.mode", "none") in ("name", "id")
        key = (text, mapped)
        if key not in self._schemas:
            self._schemas[key] = parse_schema(text, mapped)
        return self._schemas[key]

    def _large(self, place: Place, namespace: str, name: str, snapshot_id: int) -> LargeLog | None:
        """The log of a version, None where deltalake can well take it whole."""
        if snapshot_id not in set(list_log(place).live()):
            raise unknown_snapshot(namespace, name, snapshot_id)
        try:
            return LargeLog.of(place, snapshot_id, self._scope)
        except NotSliced:
            return None

    def _version(self, place: Place, namespace: str, name: str, snapshot_id: int) -> Version:
        """A version as deltalake has it, whole."""
        table = self._open(place, namespace, name, snapshot_id)
        with self._reading(place, namespace, name, snapshot_id):
            actions = pa.table(table.get_add_actions(flatten=False))
            if actions.num_columns and actions.column(0).num_chunks != 1:
                actions = actions.combine_chunks()
            logged = one_array(actions["path"])
            told = one_array(actions["num_records"]) if "num_records" in actions.column_names else None
            version = Version(
                table,
                self._schema(table),
                self._lake.storage_of(place),
                tuple(table.metadata().partition_columns or ()),
                actions,
                self._paths(place, logged),
                pa.nulls(len(actions), pa.int64()) if told is None else told,
            )
            self._read_deletes(version, place)
        rows = version.rows
        if rows.null_count and rows.null_count <= MAX_FOOTERS:
            rows = self._count_rows(place, logged, rows.to_pylist(), namespace, name)
        if version.deleted:
            counts = rows.to_pylist()
            for i, gone in version.deleted.items():
                if (count := counts[i]) is not None:
                    counts[i] = max(0, count - len(gone))
            rows = pa.array(counts, pa.int64())
        return replace(version, rows=rows)

    def _paths(self, table: Place, logged: pa.Array) -> pa.Array:
        """Paths of data files as others know them, from what the log has."""
        if not pc.any(pc.match_substring_regex(logged, "[%:]|^/")).as_py():  # nothing to decode, all within the table
            return pc.binary_join_element_wise(f"{table.name.rstrip('/')}/", logged, "")
        return pa.array([self._file(table, path).name for path in logged.to_pylist()], pa.string())

    def _file(self, table: Place, path: str) -> Place:
        """The place of a data file: the log has it percent-encoded, relative to the table or as a full URI."""
        path = plain_path(path)
        if path.startswith("/") or "://" in path:
            path = self._rewrite(path)
            return (
                Place(table.file_system, path, path)
                if path.startswith("/")
                else open_place(path, self._lake.storage_of(table))
            )
        return table.below(path)

    def _read_deletes(self, version: Version, place: Place) -> None:
        features = version.table.protocol().reader_features or []
        if "deletionVectors" not in features or not len(version):
            return
        numbers = {_real(path): i for i, path in enumerate(version.paths.to_pylist())}
        for batch in version.table.deletion_vectors():
            batch = pa.record_batch(batch)
            for path, keep in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                number = numbers.get(_real(self._file(place, path).name))
                if number is None:
                    raise ValueError("a deletion vector belongs to no live file")
                kept = keep.values.to_numpy(zero_copy_only=False).astype(bool)
                # A vector may be shorter than the file: what it does not reach is live.
                gone = pa.array(np.flatnonzero(~kept), pa.int64())
                if len(gone):
                    version.deleted[number] = gone

    def _count_rows(
        self, table: Place, logged: pa.Array, counts: list[int | None], namespace: str, name: str
    ) -> pa.Array:
        """Rows of each file: what the log says, or the footer where it does not."""
        missing = [i for i, count in enumerate(counts) if count is None]
        places = [self._file(table, logged[i].as_py()) for i in missing]
        for i, footer in zip(missing, self._footers(places, namespace, name), strict=True):
            counts[i] = footer.row_count
        return pa.array(counts, pa.int64())

    def _footers(self, places: list[Place], namespace: str, name: str) -> Iterator[Footer]:
        try:
            yield from read_footers(places)
        except UpstreamError as trouble:
            message = f'table "{namespace}.{name}": {trouble.message}'
            raise type(trouble)(message, hint=trouble.hint, params=trouble.params) from None


def _real(path: str) -> str:
    """A local path without symbolic links: deltalake names deletion vectors' files by it, whatever the table's uri."""
    return os.path.realpath(path) if path.startswith("/") else path


def _marks(piece: Slice) -> pa.Array:
    """What changes with the content of each file of a slice."""
    times = one_array(piece.files["modification_time"]).cast(pa.string())
    if piece.vectors.null_count == len(piece.vectors):
        return times
    vectors = pa.array([identity(vector) for vector in piece.vectors.to_pylist()], pa.string())
    return pc.binary_join_element_wise(times, vectors, " ")


def _total(counts: pa.ChunkedArray) -> int | None:
    """The sum, None where one is not known."""
    return None if counts.null_count else pc.sum(counts).as_py() or 0


def _constants(values: pa.Array | None, kind: LogicalType, files: int) -> pa.Array:
    return pa.nulls(files, to_arrow(kind)) if values is None else values.cast(to_arrow(kind))
