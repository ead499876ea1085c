"""The Hudi connector: copy-on-write tables of a directory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Final

from capture.connectors.footers.statistics import FooterCache
from capture.connectors.hudi import holds_table
from capture.connectors.hudi.lake_table import Commit, LakeTable
from capture.connectors.hudi.snapshot_view import SnapshotView, schema_of_arrow, schema_of_footer
from capture.connectors.options import check_options, patient
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
)
from capture.connectors.storage.immutable_cache import scope
from capture.connectors.storage.lake_directories import Lake
from capture.connectors.storage.places import reading_files, unknown_snapshot
from store.model.format_facts import FormatFacts

_FACTS: Final = FormatFacts(reads_by_id=False, merges_rows=False, deletes_rows=False, plain_parquet=True)
_INSTANT: Final = re.compile(r"_(\d+)\.parquet$")  # the end of a file's name: the commit that wrote it
_UNREACHED: Final = re.compile(r"Storage error: (Generic \w+ error)\b")
_SHOWN: Final = re.compile(r"hoodie\.(table\.(version|type|recordkey\.fields|partition\.fields)|database\.name)")


class HudiConnector(Connector):
    """Copy-on-write tables of Hudi. A snapshot is a completed commit; its id is the commit's instant. Hudi has neither
    table ids nor column ids."""

    format: ClassVar[str] = "hudi"

    def __init__(self, config: ConnectorConfig) -> None:
        check_options(self.format, config.options)
        self._lake = _Lake(self.format, config.uri, config.options, holds_table)
        self._scope = scope(config)
        self._footers = FooterCache(self._scope)

    @property
    def tables_at_once(self) -> int:
        return self._lake.tables_at_once

    def list_namespaces(self) -> list[str]:
        return self._lake.namespaces()

    def list_tables(self, namespace: str) -> list[str]:
        return self._lake.names(namespace)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        with self._opened(namespace, name) as table:
            current = table.commits[-1] if table.commits else None
            return TableDescriptor(
                namespace,
                name,
                None,
                table.place.name,
                self._schema(namespace, name, table, current),
                partition_keys=table.partition_fields,
                properties={key: value for key, value in table.properties.items() if _SHOWN.fullmatch(key)},
                facts=_FACTS,
            )

    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing:
        with self._opened(namespace, name) as table:
            commits = table.commits
            live = [commit.snapshot_id for commit in commits]
            parents = dict(zip(live[1:], live, strict=False))
            snapshots = tuple(
                Snapshot(
                    commit.snapshot_id,
                    commit.snapshot_id,
                    self._schema(namespace, name, table, commit),
                    parents.get(commit.snapshot_id),
                    committed_at=_moment(commit),
                    operation=commit.action,
                )
                for commit in commits
                if commit.snapshot_id in wanted
            )
            return SnapshotListing(snapshots, frozenset(live), live[-1] if live else None)

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        return self._view(namespace, name, snapshot_id).native_stats(ids, column_names)

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        yield from self._view(namespace, name, snapshot_id).tasks(ids, column_names, self._lake.storage)

    def close(self) -> None: ...

    @contextmanager
    def _opened(self, namespace: str, name: str) -> Iterator[LakeTable]:
        """A table, for the length of a block, which translates errors of the library."""
        place = self._lake.find(namespace, name)
        storage = self._lake.storage if place.is_local else patient(self._lake.storage, self._lake.options)
        with self._lake.reading_table(namespace, name, place):
            yield LakeTable(namespace, name, place, storage)

    def _view(self, namespace: str, name: str, snapshot_id: int) -> SnapshotView:
        with self._opened(namespace, name) as table:
            commit = next((commit for commit in table.commits if commit.snapshot_id == snapshot_id), None)
            if commit is None:
                raise unknown_snapshot(namespace, name, snapshot_id)
            schema = self._schema(namespace, name, table, commit)
            reading = partial(reading_files, namespace, name)
            return SnapshotView(
                table.files(commit), schema, table.partition_fields, self._footers, self._scope, reading
            )

    def _schema(self, namespace: str, name: str, table: LakeTable, commit: Commit | None) -> Schema:
        """The schema of a snapshot, by its newest file; the current one of a table without files."""
        files = table.files(commit) if commit is not None else []
        if not files:
            return Schema(tuple(schema_of_arrow(table.arrow_schema())))
        newest = max(files, key=lambda file: (_written(file.place.stem), file.place.name))
        with reading_files(namespace, name):
            (footer,) = self._footers.outlines([newest])
        return schema_of_footer(footer)


class _Lake(Lake):
    def unreached(self, error: Exception) -> str | None:
        match = _UNREACHED.match(str(error))
        return None if match is None else match[1]


def _written(name: str) -> int:
    """The instant at which a file was written, by its name."""
    match = _INSTANT.search(name)
    return int(match[1]) if match else 0


def _moment(commit: Commit) -> datetime | None:
    return None if commit.milliseconds is None else datetime.fromtimestamp(commit.milliseconds / 1000, UTC)
