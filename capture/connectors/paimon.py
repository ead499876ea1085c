"""The Paimon connector: append and primary-key tables of a directory, a warehouse or a JDBC catalog in SQLite.

The unit of work is the split. Files of an append table are splits of their own; where the files of a primary-key
bucket must be merged, rows are known only when they are, which the library's reader does from the keys alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa
from pypaimon.common.options import Options
from pypaimon.filesystem.pyarrow_file_io import PyArrowFileIO
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.schema.data_types import AtomicType, DataField, PyarrowFieldParser, RowType
from pypaimon.schema.schema_manager import SchemaManager
from pypaimon.table.file_store_table import FileStoreTable

from capture.connectors import paimon_statistics as statistics
from capture.connectors.credentials import check_options, mask, storage_options
from capture.connectors.layout import Place, Unreadable, plain_path, unknown_snapshot
from capture.connectors.paimon_catalogs import open_catalog
from capture.connectors.rows import ROWS_PER_TABLE, column_rows
from capture.connectors.spi import (
    FILE_SCHEMA,
    Column,
    ColumnIds,
    ConnectorConfig,
    Constraint,
    NativeStats,
    ScanColumn,
    ScanTask,
    Schema,
    Snapshot,
    SnapshotLister,
    SnapshotListing,
    TableDescriptor,
    Wanted,
)
from store.errors import StatflightError, UpstreamError
from store.logical_types import from_arrow

MERGE_BYTES: Final = 256 << 20
"""Files that together are no larger are merged to count a primary-key table's rows; of larger ones they stay unknown
until an engine scans."""

_OWN: Final = ("warehouse", "catalog-key")
_LOOK_BACK: Final = 64  # snapshots read at once on the way to one with statistics
# Commits that leave every row as it is.
_SAME_ROWS: Final = frozenset({"ANALYZE", "COMPACT"})
logging.getLogger("pypaimon").setLevel(logging.ERROR)


class PaimonConnector(SnapshotLister):
    """See `spi.Connector`. Paimon's field ids begin at 0, ours at 1: a column's id is its field id and one more."""

    format: ClassVar[str] = "paimon"

    def __init__(self, config: ConnectorConfig) -> None:
        check_options(self.format, config.options, _OWN)
        self._catalog = open_catalog(config.uri, config.options)
        self._storage = storage_options(config.options)

    def list_namespaces(self) -> list[str]:
        return self._catalog.namespaces()

    def list_tables(self, namespace: str) -> list[str]:
        return self._catalog.names(namespace)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        with self._opened(namespace, name) as (table, place):
            latest = table.snapshot_manager().get_latest_snapshot()
            held = table.table_schema if latest is None else table.schema_manager.get_schema(latest.schema_id)
            schema = to_schema(held.fields)
            return TableDescriptor(
                namespace,
                name,
                table.catalog_environment.uuid or None,
                place.name,
                schema,
                tuple(held.partition_keys),
                mask({str(key): str(value) for key, value in held.options.items()}),
                _constraints(name, held),
            )

    def _snapshots(self, namespace: str, name: str, wanted: Wanted) -> SnapshotListing:
        with self._opened(namespace, name) as (table, _):
            tagged = _tagged(table)
            live = frozenset(_snapshot_ids(table)) | tagged.keys()
            new = sorted(snapshot_id for snapshot_id in live if snapshot_id in wanted)
            schemas: dict[int, Schema] = {}
            found = []
            for snapshot_id, held in sorted(table.snapshot_manager().get_snapshots_batch(new).items()):
                held = held or (tagged[snapshot_id].snapshot if snapshot_id in tagged else None)
                if held is None:  # it expired just now
                    live -= {snapshot_id}
                    continue
                if held.schema_id not in schemas:
                    schemas[held.schema_id] = to_schema(table.schema_manager.get_schema(held.schema_id).fields)
                found.append(_snapshot(held, schemas[held.schema_id], live))
            return SnapshotListing(tuple(found), live, max(live, default=None))

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        with self._opened(namespace, name) as (table, place):
            version = self._version(table, place, namespace, name, snapshot_id)
            analyzed, current = version.analyzed()
            rows = version.known_rows()
            if rows is None and analyzed and current:
                rows = analyzed.rows
            elif analyzed and current and analyzed.rows not in (None, rows):
                analyzed = None  # it contradicts the table: what else it says is no better
            if rows is None:
                rows = version.merged_rows()
            schema = to_schema(version.table.fields)
            wanted = _wanted(schema, column_names)
            files = pa.Table.from_pylist([f.row() for f in version.files], FILE_SCHEMA)

            def file_columns() -> Iterator[pa.Table]:
                with self._translated(namespace, name, place):
                    yield from version.file_columns(wanted, ids)

            return NativeStats(
                rows,
                files.num_rows,
                sum(files["size_bytes"].to_pylist()),
                files,
                file_columns,
                statistics.analyzed_rows(analyzed, wanted, ids, rows, current=current) if analyzed else None,
                merged_size_bytes=analyzed.size if analyzed and current else None,
                row_deletes=any(f.live != f.meta.row_count for f in version.files),
            )

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        with self._opened(namespace, name) as (table, place):
            version = self._version(table, place, namespace, name, snapshot_id)
            columns = tuple(
                ScanColumn(ids[column.name], column.name, column.logical_type, column.name)
                for column in _wanted(to_schema(version.table.fields), column_names)
                if column.name in ids
            )
            reading = pickle.dumps(version.table)
            for unit in version.units:
                yield ScanTask(
                    "paimon",
                    unit[0].path,
                    place.name,
                    sum(f.meta.row_count if f.live is None else f.live for f in unit),
                    sum(f.meta.file_size for f in unit),
                    columns,
                    _fingerprint(unit),
                    self._storage,
                    arguments={"table": reading, "split": pickle.dumps(unit[0].split)},
                )

    def close(self) -> None: ...

    @contextmanager
    def _opened(self, namespace: str, name: str) -> Iterator[tuple[Any, Place]]:
        place = self._catalog.find(namespace, name)
        with self._translated(namespace, name, place):
            yield open_table(place), place

    @staticmethod
    def _version(table: Any, place: Place, namespace: str, name: str, snapshot_id: int) -> _Version:
        """The table at a snapshot, or at the tag that keeps a snapshot which has expired."""
        if (held := table.snapshot_manager().get_snapshot_by_id(snapshot_id)) is not None:
            return _Version(table.copy({"scan.snapshot-id": str(snapshot_id)}), place, held)
        if (tag := _tagged(table).get(snapshot_id)) is not None:
            return _Version(table.copy({"scan.tag-name": tag.name}), place, tag.snapshot)
        raise unknown_snapshot(namespace, name, snapshot_id)

    @contextmanager
    def _translated(self, namespace: str, name: str, place: Place) -> Iterator[None]:
        try:
            yield
        except StatflightError:
            raise
        except Exception as error:  # the library raises what it meets: of Avro, JSON, Arrow, and its own
            what = f'table "{namespace}.{name}" cannot be read ({self._reason(error, place)})'
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and not place.is_local:
                raise UpstreamError(what) from error
            raise Unreadable(what) from error

    def _reason(self, error: BaseException, place: Place) -> str:
        if isinstance(error, FileNotFoundError):
            lost = re.search(r"/([\w.=-]+)['\"\s]*(?:$|does not exist)", str(error.filename or error))
            return f"no such file: {lost[1]}" if lost else "no such file"
        return self._catalog.reason(error, place)


class _FileIO(PyArrowFileIO):
    """Names an object as our file system does; of Azure's containers the library knows nothing."""

    def to_filesystem_path(self, path: str) -> str:
        if self.filesystem.type_name != "abfs" or "://" not in path:
            return str(super().to_filesystem_path(path))
        host, _, rest = path.partition("://")[2].partition("/")
        return f"{host.partition('@')[0]}/{rest}"


def open_table(place: Place) -> Any:
    """The library's table on our file system, which has our time-outs and every option's spelling."""
    if place.is_local:
        return FileStoreTable.from_path(place.path)
    # Made for an S3 that is never asked: only then does it open nothing before ours takes its place.
    nowhere = {"fs.s3.endpoint": "localhost", "fs.s3.region": "none", "fs.s3.accessKeyId": "-"}
    file_io = _FileIO("s3://none/", Options(nowhere | {"fs.s3.accessKeySecret": "-"}))
    file_io.filesystem = place.file_system
    held = SchemaManager(file_io, place.name).latest()
    if held is None:
        raise Unreadable("there is no schema")
    from pypaimon.common.identifier import Identifier

    return FileStoreTable(file_io, Identifier("default", "table"), place.name, held)


@dataclass(frozen=True, slots=True)
class _File:
    """A data file that a scan of the snapshot reads; `live` is None where it is merged with others."""

    meta: Any
    path: str
    split: Any
    live: int | None
    partition: Mapping[str, Any]
    deletion: str

    def row(self) -> dict[str, Any]:
        told = {name: _partition_value(value) for name, value in self.partition.items()}
        return {
            "file_path": self.path,
            "file_format": self.path.rpartition(".")[2].upper(),
            "file_content": "DATA",
            "row_count": self.live,
            "size_bytes": self.meta.file_size,
            "partition_data_json": json.dumps(told, ensure_ascii=False) if told else None,
            "sequence_number": self.meta.max_sequence_number,
        }


class _Version:
    """A table that reads one snapshot."""

    def __init__(self, table: Any, place: Place, snapshot: Any):
        self.table = table
        self.place = place
        self.snapshot = snapshot

    @cached_property
    def units(self) -> list[list[_File]]:
        """Files that must be read together: one each, but for buckets that are merged."""
        found = []
        with quiet():
            splits = self.table.new_read_builder().new_scan().plan().splits()
        evolving = self.table.options.data_evolution_enabled()
        for split in splits:
            if not split.raw_convertible or evolving:
                whole = [self._file(split, meta, None) for meta in split.files]
                found.append(whole)
                continue
            for at, meta in enumerate(split.files):
                deletion = split.data_deletion_files[at] if split.data_deletion_files else None
                own = split.filter_file(lambda f, name=meta.file_name: f.file_name == name)
                found.append([self._file(own, meta, deletion, raw=True)])
        return found

    @cached_property
    def files(self) -> list[_File]:
        return [f for unit in self.units for f in unit]

    def _file(self, split: Any, meta: Any, deletion: Any, *, raw: bool = False) -> _File:
        live: int | None = None
        if raw and deletion is None:
            live = meta.row_count
        elif raw and deletion.cardinality is not None:
            live = meta.row_count - deletion.cardinality
        told = "" if deletion is None else f"{deletion.dv_index_path}\0{deletion.offset}\0{deletion.length}"
        path = plain_path(str(meta.external_path or meta.file_path))
        return _File(meta, path, split, live, split.partition.to_dict(), told)

    def known_rows(self) -> int | None:
        """Live rows as far as metadata tells; None when keys must be merged to know."""
        total = 0
        for unit in self.units:
            split = unit[0].split
            count = unit[0].live if len(unit) == 1 else None
            if count is None:
                count = split.merged_row_count()
            if count is None:
                return None
            total += count
        return total

    def merged_rows(self) -> int | None:
        """Live rows, the keys of buckets that must be merged read; None where that were too much."""
        units = [unit for unit in self.units if len(unit) > 1 or unit[0].live is None]
        pending = [unit for unit in units if unit[0].split.merged_row_count() is None]
        if sum(f.meta.file_size for unit in pending for f in unit) > MERGE_BYTES:
            return None
        total = sum(f.live or 0 for f in self.files)
        total += sum(unit[0].split.merged_row_count() or 0 for unit in units)
        keys = list(self.table.primary_keys) or [self.table.field_names[0]]
        with quiet():
            reader = self.table.new_read_builder().with_projection(keys).new_read()
            for unit in pending:
                total += sum(batch.num_rows for batch in reader.to_arrow_batch_reader([unit[0].split]))
        return total

    def analyzed(self) -> tuple[statistics.Analyzed | None, bool]:
        """The statistics this snapshot has or inherits, and whether they count its very rows."""
        same_rows = True  # nothing between there and here changed a row
        for held in self._back():
            if held.schema_id != self.snapshot.schema_id:
                break
            if held.statistics:
                found = self._read_analyzed(held.statistics)
                if found is None or found.schema_id not in (None, self.snapshot.schema_id):
                    return None, False
                return found, same_rows and self._counted(found, held)
            same_rows = same_rows and held.commit_kind in _SAME_ROWS
        return None, False

    def _counted(self, found: statistics.Analyzed, held: Any) -> bool:
        """Whether the snapshot that has the statistics has the rows that they were counted from."""
        if found.snapshot_id is None or found.snapshot_id > held.id:
            return False
        between = range(found.snapshot_id + 1, held.id + 1)
        if len(between) > _LOOK_BACK:
            return False
        later = self.table.snapshot_manager().get_snapshots_batch(list(between))
        return all(s is not None and s.commit_kind in _SAME_ROWS for s in later.values())

    def _back(self) -> Iterator[Any]:
        """This snapshot and those before it, newest first, down to the oldest that is left."""
        yield self.snapshot
        manager = self.table.snapshot_manager()
        older = sorted((i for i in _snapshot_ids(self.table) if i < self.snapshot.id), reverse=True)
        for start in range(0, len(older), _LOOK_BACK):
            held = manager.get_snapshots_batch(older[start : start + _LOOK_BACK])
            yield from (held[i] for i in sorted(held, reverse=True) if held[i] is not None)

    def _read_analyzed(self, name: str) -> statistics.Analyzed | None:
        """None where the file is gone or holds something else: statistics are an offer, never a reason to fail."""
        try:
            text = self.table.file_io.read_file_utf8(f"{self.table.table_path.rstrip('/')}/statistics/{name}")
            return statistics.parse_analyzed(text)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return None

    # Value statistics of files.

    def file_columns(self, wanted: Sequence[Column], ids: ColumnIds) -> Iterator[pa.Table]:
        if self.table.options.data_evolution_enabled() or not self.files:
            return  # a file holds some columns, and later ones replace what it holds
        stats = self._value_stats()
        fields = {f.name: f for f in self.table.fields}
        per_table = max(1, ROWS_PER_TABLE // max(len(wanted), 1))
        for start in range(0, len(self.files), per_table):
            files = self.files[start : start + per_table]
            tables = []
            for column in wanted:
                found = self._column(column, fields.get(column.name), files, stats, ids)
                if found is not None:
                    tables.append(found)
            if tables:
                yield pa.concat_tables(tables)

    def _value_stats(self) -> dict[str, Any]:
        """File name → value statistics, with the fields they are of."""
        with quiet():
            manifests = ManifestListManager(self.table).read_all(self.snapshot)
            entries = ManifestFileManager(self.table).read_entries_parallel(manifests, drop_stats=False, max_workers=2)
        return {entry.file.file_name: _FileStats(entry.file) for entry in entries}

    def _column(
        self, column: Column, field: Any, files: Sequence[_File], stats: Mapping[str, Any], ids: ColumnIds
    ) -> pa.Table | None:
        """Rows of one column, None where no file tells anything of it."""
        if field is None:
            return None  # a leaf of a struct: the format keeps nothing of it
        merged = [f.live is None for f in files]
        folded = field.name not in self.table.primary_keys and _folds(self.table.options.options.to_map())
        told = [
            _Told() if gone and folded else self._told(field, f, stats.get(f.meta.file_name))
            for f, gone in zip(files, merged, strict=True)
        ]
        if all(t.nulls is None and t.low is None and t.high is None for t in told):
            return None
        moved = [f.live != f.meta.row_count for f in files]
        cut = _beyond_micros(field)
        kept = [t.kept for t in told]
        whole = pa.array([not m for m in moved], pa.bool_())
        lower, upper = ([getattr(t, side) for t in told] for side in ("low", "high"))
        return column_rows(
            pa.array([f.path for f in files], pa.string()),
            column,
            ids,
            pa.array([f.live for f in files], pa.int64()),
            null_count=pa.array([_nulls(t.nulls, f) for t, f in zip(told, files, strict=True)], pa.int64()),
            lower=statistics.bound_array(lower, column.logical_type, upper=False, cut=cut),
            upper=statistics.bound_array(upper, column.logical_type, upper=True, cut=cut),
            lower_exact=pa.compute.and_(whole, statistics.exactness(lower, column.logical_type, kept, cut=cut)),
            upper_exact=pa.compute.and_(whole, statistics.exactness(upper, column.logical_type, kept, cut=cut)),
        )

    def _told(self, field: Any, file: _File, stats: Any) -> _Told:
        if field.name in file.partition:
            value = file.partition[field.name]
            return _Told(0 if value is not None else file.meta.row_count, value, value)
        if stats is None:
            return _Told()
        names = {f.id: f for f in self._fields_of(file.meta.schema_id)}
        if field.id not in names:
            return _Told(file.meta.row_count)  # added after the file was written
        was = names[field.id]
        nulls, low, high = stats.of(field.id)
        if not _reads_as(was.type, field.type):
            return _Told(nulls)
        return _Told(nulls, low, high, statistics.kept_characters(self._options_of(file.meta.schema_id), was.name))

    def _fields_of(self, schema_id: int) -> list[Any]:
        held: list[Any] = self._schema(schema_id).fields
        return held

    def _options_of(self, schema_id: int) -> Mapping[str, str]:
        held: Mapping[str, str] = self._schema(schema_id).options
        return held

    def _schema(self, schema_id: int) -> Any:
        if schema_id not in self._schemas:
            self._schemas[schema_id] = self.table.schema_manager.get_schema(schema_id)
        return self._schemas[schema_id]

    @cached_property
    def _schemas(self) -> dict[int, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class _Told:
    """What a file's metadata tells of one column; `kept` is how many characters of a text it keeps."""

    nulls: int | None = None
    low: Any = None
    high: Any = None
    kept: int | None = None


class _FileStats:
    """The value statistics of one file, decoded as asked for."""

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


@contextmanager
def quiet() -> Iterator[None]:
    """The library uses what newer pyarrow and polars warn about; nobody here can mend that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _decoded(row: Any, at: int) -> Any:
    try:
        return row.get_field(at)
    except (ValueError, TypeError, IndexError, OverflowError, ArithmeticError):  # of a type it cannot read, or cut off
        return None


def _nulls(count: int | None, file: _File) -> int | None:
    """Of all rows of the file; where some are gone only none is still none, and all are all."""
    if count is None or file.live == file.meta.row_count or count == 0:
        return count
    return file.live if count == file.meta.row_count else None


def _folds(options: Mapping[str, str]) -> bool:
    """Whether merging makes values that are in no file."""
    return str(options.get("merge-engine", "")).lower() == "aggregation" or any(
        key.endswith("aggregate-function") for key in options
    )


def _beyond_micros(field: Any) -> bool:
    """Whether values have digits that the library drops."""
    precision = re.match(r"TIMESTAMP(?:_LTZ)?\((\d+)\)", str(getattr(field.type, "type", "")).upper())
    return precision is not None and int(precision[1]) > 6


def _reads_as(was: Any, now: Any) -> bool:
    """Whether bounds of a type an older file has are bounds of the type the column has now."""
    if not isinstance(was, AtomicType) or not isinstance(now, AtomicType):
        return False
    before, after = was.type.upper(), now.type.upper()
    if before == after:
        return True
    if before.startswith(("CHAR", "VARCHAR")) and after == "STRING":
        return True
    widths = ("TINYINT", "SMALLINT", "INT", "BIGINT")
    if before in widths and after in widths:
        return widths.index(before) < widths.index(after)
    return (before, after) == ("FLOAT", "DOUBLE")


def _partition_value(value: Any) -> Any:
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _fingerprint(unit: Sequence[_File]) -> str:
    told = sorted(f"{f.path}\0{f.meta.file_size}\0{f.meta.level}\0{f.deletion}" for f in unit)
    return hashlib.sha256("\0\0".join(told).encode()).hexdigest()


def _snapshot_ids(table: Any) -> list[int]:
    manager = table.snapshot_manager()
    if not table.file_io.exists(manager.snapshot_dir):
        return []
    names = (str(held.path).rpartition("/")[2] for held in table.file_io.list_status(manager.snapshot_dir) or ())
    return [int(found[1]) for name in names if (found := re.fullmatch(r"snapshot-(\d{1,18})", name))]


class _Tag(NamedTuple):
    name: str
    snapshot: Any


def _tagged(table: Any) -> dict[int, _Tag]:
    """Snapshots that have a tag, by their id: a tag keeps its snapshot's files when it expires."""
    manager = table.tag_manager()
    if not table.file_io.exists(manager.tag_directory()):
        return {}
    names = sorted(str(name) for name in manager.list_tags())
    tags = (_Tag(name, held) for name in names if (held := manager.get(name)) is not None)
    return {int(tag.snapshot.id): tag for tag in tags}


def _snapshot(held: Any, schema: Schema, live: frozenset[int]) -> Snapshot:
    return Snapshot(
        held.id,
        held.id,
        schema,
        held.id - 1 if held.id - 1 in live else None,
        committed_at=datetime.fromtimestamp(held.time_millis / 1000, UTC),
        operation=str(held.commit_kind).lower(),
    )


def to_schema(fields: Sequence[DataField]) -> Schema:
    return Schema(tuple(_walk(fields, "", False)))


def _walk(fields: Sequence[DataField], prefix: str, optional: bool) -> Iterator[Column]:
    for item in fields:
        nullable = optional or item.type.nullable
        yield Column(f"{prefix}{item.name}", _logical_type(item.type), nullable, item.id + 1)
        if isinstance(item.type, RowType):
            yield from _walk(item.type.fields, f"{prefix}{item.name}.", nullable)


def _logical_type(held: Any) -> str:
    if isinstance(held, AtomicType) and held.type.upper() == "VARIANT":
        return "VARIANT"  # which the library calls a struct of bytes
    try:
        kind = from_arrow(PyarrowFieldParser.from_paimon_type(held))
    except (ValueError, TypeError, NotImplementedError):
        kind = None
    return kind.text if kind else "VARIANT"


def _constraints(table: str, held: Any) -> tuple[Constraint, ...]:
    found = [
        Constraint("CHECK", f"{table}_{f.name}_not_null", (f.name,), f"{f.name} IS NOT NULL")
        for f in held.fields
        if not f.type.nullable
    ]
    if held.primary_keys:
        found.insert(0, Constraint("PRIMARY KEY", f"{table}_pkey", tuple(held.primary_keys)))
    return tuple(found)


def _wanted(schema: Schema, names: frozenset[str] | None) -> list[Column]:
    return [c for c in schema.columns if c.is_leaf and (names is None or c.name in names)]
