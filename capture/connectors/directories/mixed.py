"""A directory of tables of several formats: each table is read by the connector of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from capture.connectors.directories.found import Found, only_table, tables_at
from capture.connectors.options import check_options
from capture.connectors.spi import (
    ColumnIds,
    Connector,
    ConnectorConfig,
    NativeStats,
    ScanTask,
    SnapshotListing,
    SnapshotSelection,
    TableDescriptor,
)
from capture.connectors.storage.lake_directories import DEFAULT_SCHEMA
from capture.connectors.storage.places import open_place, unknown_table


class _Part(NamedTuple):
    """A table with its connector, in which it has another namespace and name."""

    connector: Connector
    namespace: str
    name: str


class MixedConnector(Connector):
    """The tables below a directory, whatever their formats; the schema of a table is the dotted path of the directories
    around it, or `default`."""

    format: ClassVar[str] = "mixed"
    changes_schemas_alone = True  # some of the formats do

    def __init__(self, config: ConnectorConfig) -> None:
        check_options(self.format, config.options)
        self._config = config
        self._root = open_place(config.uri, config.options).name.rstrip("/")
        self._found: dict[tuple[str, str], Found] | None = None
        self._parts: dict[str, _Part] = {}

    def list_namespaces(self) -> list[str]:
        self._found = self._look()
        return sorted({namespace for namespace, _ in self._found})

    def list_tables(self, namespace: str) -> list[str]:
        found = self._look() if self._found is None else self._found
        return sorted(name for of, name in found if of == namespace)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        part = self._part(namespace, name)
        described = part.connector.describe(part.namespace, part.name)
        return replace(described, namespace=namespace, name=name)

    def format_of(self, namespace: str, name: str) -> str:
        return self._part(namespace, name).connector.format

    def mark(self, namespace: str, name: str, before: str | None = None) -> str | None:
        part = self._part(namespace, name)
        return part.connector.mark(part.namespace, part.name, before)

    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing:
        part = self._part(namespace, name)
        return part.connector.enumerate_snapshots(
            part.namespace,
            part.name,
            full_rescan=wanted.full_rescan,
            known_snapshot_ids=wanted.known_snapshot_ids,
            target_snapshot_ids=wanted.target_snapshot_ids,
        )

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        part = self._part(namespace, name)
        return part.connector.capture_snapshot_target_stats(part.namespace, part.name, snapshot_id, ids, column_names)

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        part = self._part(namespace, name)
        return part.connector.plan_files(part.namespace, part.name, snapshot_id, ids, column_names)

    def metadata_document(self, namespace: str, name: str, location: str) -> dict[str, Any]:
        part = self._part(namespace, name)
        return part.connector.metadata_document(part.namespace, part.name, location)

    def row_deletes(self, namespace: str, name: str, snapshot_id: int) -> dict[str, Any]:
        part = self._part(namespace, name)
        return part.connector.row_deletes(part.namespace, part.name, snapshot_id)

    def close(self) -> None:
        for part in self._parts.values():
            part.connector.close()
        self._parts.clear()

    def _look(self) -> dict[tuple[str, str], Found]:
        """Namespace and name of each table, as they are there now."""
        tables: dict[tuple[str, str], Found] = {}
        for found in tables_at(self._config.uri, self._config.options):
            around = found.uri[len(self._root) :].strip("/").split("/")[:-1]
            tables.setdefault((".".join(around) or DEFAULT_SCHEMA, found.table), found)
        return tables

    def _part(self, namespace: str, name: str) -> _Part:
        if self._found is None or (namespace, name) not in self._found:
            self._found = self._look()
        if (found := self._found.get((namespace, name))) is None:
            raise unknown_table(namespace, name, self.list_tables(namespace))
        if found.uri not in self._parts:
            from capture.connectors import open_connector

            options = self._config.options
            connector = open_connector(ConnectorConfig(self._config.catalog, found.format, found.uri, options))
            self._parts[found.uri] = _Part(connector, *only_table(connector))
        return self._parts[found.uri]
