"""The Iceberg connector: tables in a directory or a catalog, read from metadata, manifests and delete files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from capture.connectors.iceberg.catalogs import open_tables
from capture.connectors.iceberg.errors import upstream
from capture.connectors.iceberg.io import listed_manifests
from capture.connectors.iceberg.schema import bucket_specs, partition_keys, schema_of, to_schema
from capture.connectors.iceberg.snapshot_view import SnapshotView
from capture.connectors.iceberg.tables import LoadedTable
from capture.connectors.spi import (
    ColumnIds,
    Connector,
    ConnectorConfig,
    NativeStats,
    ScanTask,
    Schema,
    Snapshot,
    SnapshotListing,
    SnapshotSelection,
    TableDescriptor,
    declared,
)
from capture.connectors.storage.immutable_cache import scope
from capture.connectors.storage.lake_directories import Lake
from store.model.format_facts import FormatFacts

_FACTS = FormatFacts(merges_rows=False, plain_parquet=True, iceberg_metadata=True)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class IcebergConnector(Connector):
    """Iceberg tables. A directory lake has namespace `default`, or the dotted names of parent directories."""

    format: ClassVar[str] = "iceberg"
    states_files = True
    changes_schemas_alone = True

    def __init__(self, config: ConnectorConfig) -> None:
        self._config = config
        self._scope = scope(config)
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
            columns = to_schema(schema)
            key = [schema.find_column_name(i) or str(i) for i in schema.identifier_field_ids]
            return TableDescriptor(
                namespace,
                name,
                str(metadata.table_uuid),
                table.io.resolve(metadata.location),
                columns,
                partition_keys(metadata.spec(), schema),
                dict(metadata.properties) | bucket_specs(metadata),
                declared(name, columns, key),
                table.location,
                schema.model_dump_json(),
                facts=_FACTS,
            )

    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing:
        with self.reading(namespace, name):
            metadata = self.load(namespace, name).metadata
            schemas: dict[int, Schema] = {}
            snapshots, ordinal = [], 0
            for snapshot in sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0):
                # ordinals must increase even if the writers' clock went back
                ordinal = max(snapshot.timestamp_ms * 1000, ordinal + 1)
                if snapshot.snapshot_id not in wanted:
                    continue
                schema = schema_of(metadata, snapshot)
                if schema.schema_id not in schemas:
                    schemas[schema.schema_id] = to_schema(schema)
                snapshots.append(_snapshot(snapshot, ordinal, schemas[schema.schema_id]))
            live = frozenset(snapshot.snapshot_id for snapshot in metadata.snapshots)
            return SnapshotListing(tuple(snapshots), live, metadata.current_snapshot_id)

    def mark(self, namespace: str, name: str, before: str | None = None) -> str | None:
        with self.reading(namespace, name):
            return self._tables.mark(namespace, name, before)

    def lake_mark(self, before: str | None = None) -> str | None:
        return self._tables.lake_mark(before) if isinstance(self._tables, Lake) else None

    def capture_snapshot_target_stats(
        self,
        namespace: str,
        name: str,
        snapshot_id: int,
        ids: ColumnIds,  # noqa: ARG002  the format's own field ids are the column ids
        column_names: frozenset[str] | None = None,
    ) -> NativeStats:
        with self.reading(namespace, name):
            view = SnapshotView(self.load(namespace, name), snapshot_id, column_names, self._scope)
            return view.native_stats(lambda: self.reading(namespace, name))

    def plan_files(
        self,
        namespace: str,
        name: str,
        snapshot_id: int,
        ids: ColumnIds,  # noqa: ARG002  as above
        column_names: frozenset[str] | None = None,
    ) -> Iterator[ScanTask]:
        with self.reading(namespace, name):
            yield from SnapshotView(self.load(namespace, name), snapshot_id, column_names, self._scope).tasks()

    def metadata_document(self, namespace: str, name: str, location: str) -> dict[str, Any]:
        with self.reading(namespace, name):
            return self.load(namespace, name).io.read_document(location)

    def row_deletes(self, namespace: str, name: str, snapshot_id: int) -> dict[str, Any]:
        with self.reading(namespace, name):
            return SnapshotView(self.load(namespace, name), snapshot_id, frozenset(), self._scope).row_deletes()

    def load(self, namespace: str, name: str) -> LoadedTable:
        """The table as loaded by pyiceberg; also used for publishing."""
        return self._tables.load(namespace, name)

    def close(self) -> None:
        self._tables.close()

    def reading(self, namespace: str, name: str) -> AbstractContextManager[None]:
        """Translates errors within the block; messages have the table's name."""
        return upstream(f'table "{namespace}.{name}"', self._config.options)


def _snapshot(snapshot: IcebergSnapshot, ordinal: int, schema: Schema) -> Snapshot:
    return Snapshot(
        snapshot.snapshot_id,
        ordinal,
        schema,
        snapshot.parent_snapshot_id,
        snapshot.sequence_number,
        _EPOCH + timedelta(milliseconds=snapshot.timestamp_ms),
        snapshot.summary.operation.value if snapshot.summary else None,
        snapshot.manifest_list if listed_manifests(snapshot.manifest_list) is None else None,
        snapshot.summary.model_dump_json() if snapshot.summary else None,
    )
