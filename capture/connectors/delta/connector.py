"""The Delta connector: versions, file statistics, deletion vectors and column mapping from the log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from capture.connectors.delta import holds_table
from capture.connectors.delta.lake_table import LakeTable, Outline
from capture.connectors.delta.log import (
    Commit,
    DeltaSchema,
    LogFiles,
    commit_file,
    constraints,
    list_log,
    parse_schema,
    read_bytes,
    read_commits,
)
from capture.connectors.delta.snapshot_view import SnapshotView
from capture.connectors.delta.table_log import TableLog
from capture.connectors.delta.unity import UnityCatalog
from capture.connectors.options import PathRewrite, check_options
from capture.connectors.spi import (
    ColumnIds,
    Connector,
    ConnectorConfig,
    NativeStats,
    ScanTask,
    Snapshot,
    SnapshotListing,
    SnapshotSelection,
    TableDescriptor,
)
from capture.connectors.storage.immutable_cache import FILES, scope
from capture.connectors.storage.lake_directories import Lake, Tables
from capture.connectors.storage.places import Place, Unreadable, unknown_snapshot
from store.model.format_facts import FormatFacts


class DeltaConnector(Connector):
    """Delta tables below a directory or object store prefix, or in a Unity Catalog (`uc://host/catalog`)."""

    format: ClassVar[str] = "delta"
    states_files = True

    def __init__(self, config: ConnectorConfig):
        check_options(self.format, config.options)
        self._scope = scope(config)
        self._rewrite = PathRewrite.of(config.options)
        self._lake: Tables
        if isinstance(config.uri, str) and config.uri.lower().startswith("uc://"):
            self._lake = UnityCatalog(config.uri, config.options)
        else:
            self._lake = Lake(self.format, config.uri, config.options, holds_table)
        self._last: SnapshotView | None = None  # a capture reads statistics and then plans files

    @property
    def tables_at_once(self) -> int:
        return self._lake.tables_at_once

    def close(self) -> None:
        self._last = None

    # Names.

    def list_namespaces(self) -> list[str]:
        return self._lake.namespaces()

    def list_tables(self, namespace: str) -> list[str]:
        return self._lake.names(namespace)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        table = self._table(namespace, name)
        outline = self._outline(table)
        declared = self._lake.declared(namespace, name) if isinstance(self._lake, UnityCatalog) else ()
        return TableDescriptor(
            namespace,
            name,
            outline.table_id,
            table.place.name,
            outline.schema.schema,
            partition_keys=outline.partitions,
            properties=outline.configuration,
            constraints=constraints(outline.schema, outline.configuration) + declared,
            metadata_location=outline.commit_file,
            format_schema=outline.schema.text,
            description=outline.description,
            facts=_facts(outline.configuration),
        )

    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing:
        table = self._table(namespace, name)
        with table.reading():
            log = list_log(table.place)
        live = log.live()
        if not live:
            raise Unreadable(f'table "{namespace}.{name}": its log has no readable version')
        current = live[-1]
        snapshots, unreadable = [], set()
        listed = [version for version in live if version in wanted]
        for version, commit, schema in self._schemas_of(table, listed, log.checkpoints):
            if isinstance(schema, Unreadable):
                if version == current:
                    raise schema
                unreadable.add(version)
                continue
            parent = version - 1 if version - 1 in log.commits or version - 1 in log.checkpoints else None
            snapshots.append(
                Snapshot(
                    version,
                    version,
                    schema.schema,
                    parent if parent in live else None,
                    None,
                    commit.committed_at or log.written_at(version),
                    commit.operation,
                    commit_file(table.place, version).name if version in log.commits else None,
                    None if commit.info is None else json.dumps(commit.info),
                )
            )
        identities = {version: _identity(table.place, version, log) for version in wanted.identified(live, current)}
        return SnapshotListing(tuple(snapshots), frozenset(live) - unreadable, current, identities)

    def _schemas_of(
        self, table: LakeTable, versions: list[int], checkpoints: Container[int]
    ) -> Iterator[tuple[int, Commit, DeltaSchema | Unreadable]]:
        """Yields each version with its commit and its schema, or the error of an unreadable one. The table is opened
        only if the commits do not have the schema. At a checkpoint the schema is read from it, since it may differ from
        that of earlier commits and readers use it."""
        last: tuple[int, DeltaSchema] | None = None
        for version, commit in read_commits(table.place, versions):
            try:
                with table.reading():
                    if commit.is_malformed:
                        raise ValueError(f"version {version} of its log is not JSON")
                    if commit.metadata is not None:
                        text, settings = commit.metadata.get("schemaString"), commit.metadata.get("configuration")
                        schema = parse_schema(text, settings)
                    elif last is not None and last[0] == version - 1 and version not in checkpoints:
                        schema = last[1]
                    else:
                        schema = self._outline(table, version).schema
            except Unreadable as error:
                yield version, commit, error
                continue
            last = version, schema
            yield version, commit, schema

    def mark(self, namespace: str, name: str, before: str | None = None) -> str | None:
        if not isinstance(self._lake, Lake):  # a catalog may have the name stand for another directory
            return None
        return self._lake.mark(namespace, name, before, lambda place: list_log(place).digest)

    def lake_mark(self, before: str | None = None) -> str | None:
        return self._lake.lake_mark(before) if isinstance(self._lake, Lake) else None

    # Statistics.

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        return self._view(namespace, name, snapshot_id).statistics(ids, column_names)

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        return self._view(namespace, name, snapshot_id).tasks(ids, column_names)

    def logged(self, namespace: str, name: str, snapshot_id: int) -> tuple[Outline, pa.Table]:
        """Metadata of a version, and its live files, see `SnapshotView.logged_files`."""
        outline = self._outline(self._table(namespace, name), snapshot_id)
        return outline, self._view(namespace, name, snapshot_id).logged_files()

    def _view(self, namespace: str, name: str, snapshot_id: int) -> SnapshotView:
        view = self._last
        if view is None or not view.is_recent_of(namespace, name, snapshot_id):
            view = SnapshotView(self._table(namespace, name), self._scope, snapshot_id)
            self._last = view
        return view

    def _table(self, namespace: str, name: str) -> LakeTable:
        return LakeTable(self._lake, self._rewrite, self._lake.find(namespace, name), namespace, name)

    def _outline(self, table: LakeTable, version: int | None = None) -> Outline:
        """Metadata and schema of a version or the newest, cached while the log has the same files."""
        with table.reading():
            files = list_log(table.place)
            key = ("delta outline", self._scope, table.place.path, version, files.digest)
            outline: Outline | None = FILES.get(key)
            if outline is None:
                live = files.live()
                if not live:
                    raise ValueError("its log has no readable version")
                at = live[-1] if version is None else version
                if at not in live:
                    raise unknown_snapshot(table.namespace, table.name, at)
                written = commit_file(table.place, at).name if at in files.commits else None
                log = TableLog.of(table, files, at, self._scope)
                outline = replace(log.outline, commit_file=written)
                FILES.put(key, outline, outline.size_bytes)
        return outline


def _facts(configuration: Mapping[str, str]) -> FormatFacts:
    return FormatFacts(
        reads_by_id=configuration.get("delta.columnMapping.mode", "none") != "none",
        merges_rows=False,
        plain_parquet=True,
        platform="delta-lake",
    )


def _identity(table: Place, version: int, log: LogFiles) -> str:
    """Digest of a version's commit, or the time of its checkpoint; a copy of the table has the same ones."""
    written = log.written_at(version)
    key = ("commit digest", table.name, version, written)
    if (digest := FILES.get(key)) is None:
        data = read_bytes(table, version)
        digest = str(written) if data is None else hashlib.sha256(data).hexdigest()
        FILES.put(key, digest, len(digest))
    return str(digest)
