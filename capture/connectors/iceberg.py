"""The Iceberg connector: metadata, manifests and delete files of tables in a directory or a catalog, without a JVM."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from capture.connectors.iceberg_catalogs import LoadedTable, open_tables, upstream
from capture.connectors.iceberg_deletes import DeleteIndex, EqualityCounter, open_parquet
from capture.connectors.iceberg_manifests import Entry, Metrics, cut_length, decode_all, decoder, entries, manifests
from capture.connectors.iceberg_schema import (
    FileLayout,
    Leaf,
    constant,
    constraints,
    identity_values,
    leaf_of,
    leaves,
    partition_json,
    partition_keys,
    to_schema,
    typed_array,
)
from capture.connectors.layout import Unreadable, unknown_snapshot
from capture.connectors.rows import column_rows
from capture.connectors.spi import (
    FILE_SCHEMA,
    Column,
    ColumnIds,
    ConnectorConfig,
    EqualityDelete,
    NativeStats,
    ScanColumn,
    ScanTask,
    Schema,
    Snapshot,
    SnapshotListing,
    TableDescriptor,
)
from capture.publish import puffin
from store.schemas import THETA

BATCH_ROWS = 60_000
"""About how many rows a table of `file_columns()` has."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class IcebergConnector:
    """See `spi.Connector`. A namespace is a schema; in directories it is `default` or the dotted directories above."""

    format: ClassVar[str] = "iceberg"

    def __init__(self, config: ConnectorConfig) -> None:
        self._config = config
        self._tables = open_tables(config)

    def list_namespaces(self) -> list[str]:
        with upstream(f'catalog "{self._config.catalog}"', self._config.options):
            return self._tables.namespaces()

    def list_tables(self, namespace: str) -> list[str]:
        with upstream(f'schema "{namespace}"', self._config.options):
            return self._tables.names(namespace)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        with self.reading(namespace, name):
            table = self.load(namespace, name)
            metadata, schema = table.metadata, table.metadata.schema()
            return TableDescriptor(
                namespace,
                name,
                str(metadata.table_uuid),
                table.io.resolve(metadata.location),
                to_schema(schema),
                partition_keys(metadata.spec(), schema),
                dict(metadata.properties),
                constraints(schema, name),
            )

    def enumerate_snapshots(
        self,
        namespace: str,
        name: str,
        *,
        full_rescan: bool = False,
        known_snapshot_ids: frozenset[int] = frozenset(),
        target_snapshot_ids: frozenset[int] | None = None,
    ) -> SnapshotListing:
        with self.reading(namespace, name):
            metadata = self.load(namespace, name).metadata
            schemas: dict[int | None, Schema] = {}
            found, ordinal = [], 0
            for held in sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0):
                # A clock may step back, history does not.
                ordinal = max(held.timestamp_ms * 1000, ordinal + 1)
                asked = target_snapshot_ids is None or held.snapshot_id in target_snapshot_ids
                if not asked or (held.snapshot_id in known_snapshot_ids and not full_rescan):
                    continue
                if held.schema_id not in schemas:
                    schemas[held.schema_id] = to_schema(_schema_of(metadata, held))
                found.append(_snapshot(held, ordinal, schemas[held.schema_id]))
            live = frozenset(held.snapshot_id for held in metadata.snapshots)
            return SnapshotListing(tuple(found), live, metadata.current_snapshot_id)

    def capture_snapshot_target_stats(
        self,
        namespace: str,
        name: str,
        snapshot_id: int,
        ids: ColumnIds,  # noqa: ARG002  the format's own field ids are the column ids
        column_names: frozenset[str] | None = None,
    ) -> NativeStats:
        with self.reading(namespace, name):
            return _View(self.load(namespace, name), snapshot_id, column_names).native_stats(
                lambda: self.reading(namespace, name)
            )

    def plan_files(
        self,
        namespace: str,
        name: str,
        snapshot_id: int,
        ids: ColumnIds,  # noqa: ARG002  as above
        column_names: frozenset[str] | None = None,
    ) -> Iterator[ScanTask]:
        with self.reading(namespace, name):
            yield from _View(self.load(namespace, name), snapshot_id, column_names).tasks()

    def load(self, namespace: str, name: str) -> LoadedTable:
        """The table as pyiceberg sees it, for publishing."""
        return self._tables.load(namespace, name)

    def close(self) -> None:
        self._tables.close()

    def reading(self, namespace: str, name: str) -> AbstractContextManager[None]:
        """Turns trouble within into errors that name the table."""
        return upstream(f'table "{namespace}.{name}"', self._config.options)


def _snapshot(held: IcebergSnapshot, ordinal: int, schema: Schema) -> Snapshot:
    return Snapshot(
        held.snapshot_id,
        ordinal,
        schema,
        held.parent_snapshot_id,
        held.sequence_number,
        _EPOCH + timedelta(milliseconds=held.timestamp_ms),
        held.summary.operation.value if held.summary else None,
    )


def _schema_of(metadata: TableMetadata, snapshot: IcebergSnapshot) -> IcebergSchema:
    """The schema at a snapshot; the current one where it names none, as in v1 tables."""
    found = None if snapshot.schema_id is None else metadata.schema_by_id(snapshot.schema_id)
    return found or metadata.schema()


def _plainly(
    leaf: Leaf, cut: int, batch: Sequence[Entry], held: Sequence[Metrics], paths: pa.Array, live: list[int]
) -> pa.Table | None:
    """A column's rows at no loop, where every file has its metrics and no file lost a row; else None."""
    field_id = leaf.field_id
    nulls = [metrics.nulls.get(field_id) for metrics in held]
    if None in nulls or 0 in live or any(entry.rows != rows for entry, rows in zip(batch, live, strict=True)):
        return None
    lower = decode_all([metrics.lower.get(field_id) for metrics in held], leaf, cut)
    upper = decode_all([metrics.upper.get(field_id) for metrics in held], leaf, cut)
    if lower is None or upper is None:
        return None
    return column_rows(
        paths,
        Column(leaf.name, leaf.logical.text),
        {leaf.name: field_id},
        pa.array(live, pa.int64()),
        null_count=pa.array(nulls, pa.int64()),
        nan_count=pa.array([metrics.nans.get(field_id) for metrics in held], pa.int64()),
        lower=lower[0],
        upper=upper[0],
        lower_exact=lower[1],
        upper_exact=upper[1],
    )


class _View:
    """One snapshot of one table, read for statistics or for scan tasks."""

    def __init__(self, table: LoadedTable, snapshot_id: int, column_names: frozenset[str] | None):
        self._io, self._metadata = table.io, table.metadata
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise unknown_snapshot(table.namespace, table.name, snapshot_id)
        self._snapshot = snapshot
        self._schema = _schema_of(table.metadata, snapshot)
        self._leaves = leaves(self._schema, column_names)
        self._specs = table.metadata.specs()
        self._manifests = manifests(self._io, snapshot)
        self._deletes = list(entries(self._io, self._manifests, ManifestContent.DELETES))
        self._index = DeleteIndex(self._io, table.metadata, self._deletes)
        self._counter = EqualityCounter(self._io, self._index, self._key)
        self._layouts: dict[bytes, FileLayout] = {}

    def _key(self, field_id: int) -> Leaf:
        leaf = leaf_of(self._metadata, self._schema, field_id)
        if leaf is None:
            raise Unreadable(f"an equality delete names field {field_id}, which no schema of the table has")
        return leaf

    def _data(self) -> Iterator[Entry]:
        return entries(self._io, self._manifests, ManifestContent.DATA)

    # Statistics.

    def native_stats(self, reading: Callable[[], Any]) -> NativeStats:
        rows, files, size = 0, 0, 0
        live_rows: dict[str, int] = {}
        listed = _Files(self._specs, self._schema)
        for entry in self._data():
            live = self._live_rows(entry)
            if live != entry.rows:
                live_rows[entry.location] = live
            rows, files, size = rows + live, files + 1, size + entry.size
            listed.add(entry, live)
        for entry in self._deletes:
            listed.add(entry, entry.rows)

        def file_columns() -> Iterator[pa.Table]:
            with reading():
                yield from self._file_columns(live_rows)

        return NativeStats(
            rows, files, size, listed.table(), file_columns, row_deletes=bool(live_rows), sketches=self._sketches()
        )

    def _live_rows(self, entry: Entry) -> int:
        gone = self._index.deleted_rows(entry)
        taken = 0 if gone is None else len(gone)
        if self._index.equality(entry):
            layout = self._layout(entry)
            taken += self._counter.count(entry, lambda keys: self._scan_columns(entry, layout, keys), gone)
        return entry.rows - taken

    def _file_columns(self, live_rows: dict[str, int]) -> Iterator[pa.Table]:
        if not self._leaves:
            return
        size = max(1, BATCH_ROWS // len(self._leaves))
        batch: list[Entry] = []
        for entry in self._data():
            batch.append(entry)
            if len(batch) == size:
                yield self._columns_of(batch, live_rows)
                batch = []
        if batch:
            yield self._columns_of(batch, live_rows)

    def _columns_of(self, batch: Sequence[Entry], live_rows: dict[str, int]) -> pa.Table:
        paths = pa.array([entry.location for entry in batch], pa.string())
        live = [live_rows.get(entry.location, entry.rows) for entry in batch]
        held = [Metrics.of(entry) for entry in batch]
        return pa.concat_tables([self._column(leaf, batch, held, paths, live) for leaf in self._leaves])

    def _column(
        self, leaf: Leaf, batch: Sequence[Entry], held: Sequence[Metrics], paths: pa.Array, live: list[int]
    ) -> pa.Table:
        """One column in each file of a batch."""
        cut = cut_length(self._metadata.properties, leaf.name)
        if (found := _plainly(leaf, cut, batch, held, paths, live)) is not None:
            return found
        low_of, high_of = decoder(leaf, cut, upper=False), decoder(leaf, cut, upper=True)
        told: list[tuple[int | None, int | None, Any, Any, bool, bool]] = []
        field_id = leaf.field_id
        for entry, metrics, rows in zip(batch, held, live, strict=True):
            nulls, nans = metrics.nulls.get(field_id), metrics.nans.get(field_id)
            low, low_exact = low_of(metrics.lower.get(field_id))
            high, high_exact = high_of(metrics.upper.get(field_id))
            if not metrics.know(field_id) and (only := self._only_value(leaf, entry)) is not None:
                low = high = only[0]
                nulls, low_exact, high_exact = entry.rows if low is None else 0, True, True
            if rows != entry.rows:
                one_value = low is not None and low == high and nulls == 0
                low_exact, high_exact = low_exact and one_value, high_exact and one_value
                nulls, nans = _after_deletes(nulls, entry.rows, rows), _after_deletes(nans, entry.rows, rows)
            if not rows:
                low = high = None
            told.append((nulls, nans, low, high, low_exact, high_exact))
        all_nulls, all_nans, lows, highs, low_flags, high_flags = (list(side) for side in zip(*told, strict=True))
        orderable = leaf.logical.orderable
        return column_rows(
            paths,
            Column(leaf.name, leaf.logical.text),
            {leaf.name: leaf.field_id},
            pa.array(live, pa.int64()),
            null_count=pa.array(all_nulls, pa.int64()),
            nan_count=pa.array(all_nans, pa.int64()),
            lower=typed_array(lows, leaf.logical) if orderable else None,
            upper=typed_array(highs, leaf.logical) if orderable else None,
            lower_exact=pa.array(low_flags, pa.bool_()),
            upper_exact=pa.array(high_flags, pa.bool_()),
        )

    def _only_value(self, leaf: Leaf, entry: Entry) -> tuple[Any] | None:
        """The one value of a column in a file that cannot hold the column, None where it may; without metrics."""
        identity = identity_values(self._specs[entry.spec_id], entry.partition)
        if leaf.field_id in identity:
            return (identity[leaf.field_id],)
        if leaf.parents or not entry.known_ids or leaf.field_id in entry.known_ids:
            return None
        return (leaf.initial_default,)

    def _sketches(self) -> list[tuple[int, str, str, bytes, dict[str, Any]]]:
        """Theta sketches that a Puffin file of this snapshot holds, of one column each."""
        found: list[tuple[int, str, str, bytes, dict[str, Any]]] = []
        known = {leaf.field_id for leaf in self._leaves}
        for statistics in self._metadata.statistics:
            if statistics.snapshot_id != self._snapshot.snapshot_id:
                continue
            if not any(blob.type == THETA and blob.fields[0] in known for blob in statistics.blob_metadata):
                continue
            blobs = puffin.read_if_any(self._io, statistics.statistics_path)
            found += [
                (blob.fields[0], "NDV", THETA, blob.data, dict(blob.properties))
                for blob in blobs
                # A blob may have been computed for an older snapshot and carried over.
                if blob.type == THETA and blob.snapshot_id == self._snapshot.snapshot_id
                if len(blob.fields) == 1 and blob.fields[0] in known
            ]
        return found

    # Scan tasks.

    def tasks(self) -> Iterator[ScanTask]:
        for entry in self._data():
            layout = self._layout(entry)
            gone = self._index.deleted_rows(entry)
            equality = sorted(self._index.equality(entry), key=lambda delete: delete.location)
            yield ScanTask(
                "parquet",
                entry.location,
                entry.location,
                entry.rows - (0 if gone is None else len(gone)),
                entry.size,
                self._scan_columns(entry, layout, self._leaves),
                _fingerprint(entry, gone, equality),
                self._io.storage(entry.location),
                gone,
                tuple(self._equality_delete(entry, layout, delete) for delete in equality),
            )

    def _equality_delete(self, entry: Entry, layout: FileLayout, delete: Entry) -> EqualityDelete:
        keys = [self._key(field_id) for field_id in delete.file.equality_ids or ()]
        paths = self._index.layout(delete).paths
        if missing := [key.name for key in keys if key.field_id not in paths]:
            raise Unreadable(f"an equality delete file lacks its key column {missing[0]}")
        columns = self._scan_columns(entry, layout, keys)
        return EqualityDelete(
            delete.location, tuple((c, paths[k.field_id]) for c, k in zip(columns, keys, strict=True))
        )

    def _layout(self, entry: Entry) -> FileLayout:
        with open_parquet(self._io, entry) as held:
            schema = held.schema_arrow
        name = hashlib.sha256(schema.remove_metadata().serialize()).digest()
        if name not in self._layouts:
            if len(self._layouts) >= 64:
                self._layouts.clear()
            self._layouts[name] = FileLayout.of(schema, self._metadata)
        return self._layouts[name]

    def _scan_columns(self, entry: Entry, layout: FileLayout, wanted: Sequence[Leaf]) -> tuple[ScanColumn, ...]:
        """Where each column comes from: the file, its partition, the default, else it is null."""
        identity = identity_values(self._specs[entry.spec_id], entry.partition)
        columns = []
        for leaf in wanted:
            path = layout.paths.get(leaf.field_id)
            value = None
            if path is None:
                present = any(parent in layout.paths for parent in leaf.parents)
                # A default of a leaf is not the value where the struct itself is null, so it is not used there.
                default = None if present or leaf.parents else leaf.initial_default
                value = constant(identity.get(leaf.field_id, default), leaf.logical)
            columns.append(ScanColumn(leaf.field_id, leaf.name, leaf.logical.text, path, value))
        return tuple(columns)


class _Files:
    """Collects `NativeStats.files`."""

    def __init__(self, specs: dict[int, Any], schema: IcebergSchema):
        self._specs, self._schema = specs, schema
        self._rows: dict[str, list[Any]] = {name: [] for name in FILE_SCHEMA.names}
        self._partitions: dict[tuple[int, tuple[Any, ...]], str | None] = {}

    def add(self, entry: Entry, rows: int) -> None:
        if entry.scope not in self._partitions:
            self._partitions[entry.scope] = partition_json(self._specs[entry.spec_id], self._schema, entry.partition)
        row = (entry.location, entry.format, entry.content, rows, entry.size, self._partitions[entry.scope],
               entry.spec_id, entry.sequence)  # fmt: skip
        for column, value in zip(self._rows.values(), row, strict=True):
            column.append(value)

    def table(self) -> pa.Table:
        return pa.table(self._rows, schema=FILE_SCHEMA)


def _after_deletes(count: int | None, rows: int, live: int) -> int | None:
    """What a count over all rows of a file says of the live ones: none stays none, and all stays all."""
    if count is None:
        return None
    if not live or not count:
        return 0
    return live if count == rows else None


def _fingerprint(entry: Entry, gone: pa.Array | None, equality: Sequence[Entry]) -> str:
    digest = hashlib.sha256(f"{entry.location}\0{entry.size}\0{entry.rows}\0".encode())
    if gone is not None:
        digest.update(gone.to_numpy().tobytes())
    for delete in equality:
        digest.update(f"\0{delete.location}\0{delete.size}".encode())
    return digest.hexdigest()
