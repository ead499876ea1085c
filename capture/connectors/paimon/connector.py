"""The Paimon connector: append and primary-key tables in a directory, a warehouse, a JDBC or a REST catalog.

The unit of work is the split. Each file of an append table is a split. Files of a primary-key bucket that must be
merged are one split, and their live rows are counted by merging, for which the library reads only the keys.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa
from pypaimon.common.json_util import JSON

from capture.connectors.footers.statistics import FooterCache
from capture.connectors.options import check_options
from capture.connectors.paimon.analyzed import analyzed_rows
from capture.connectors.paimon.catalogs import open_catalog
from capture.connectors.paimon.library import file_names, open_table, read_snapshots, snapshot_ids
from capture.connectors.paimon.schema import to_schema
from capture.connectors.paimon.snapshot_view import FoundStatistics, SnapshotView, fingerprint
from capture.connectors.paimon.statistics import ColumnStatistics
from capture.connectors.spi import (
    FILE_SCHEMA,
    Column,
    ColumnIds,
    Connector,
    ConnectorConfig,
    EarlierColumns,
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
from capture.connectors.storage.lake_directories import Lake, listing_digest
from capture.connectors.storage.places import Place, unknown_snapshot
from capture.connectors.storage.secrets import mask
from store.model.format_facts import FormatFacts

OWN_OPTIONS: Final = ("warehouse", "catalog-key")


class PaimonConnector(Connector):
    """Paimon tables. Paimon's field ids start at 0 and column ids at 1, so a column id is the field id plus one."""

    format: ClassVar[str] = "paimon"
    changes_schemas_alone = True

    def __init__(self, config: ConnectorConfig) -> None:
        check_options(self.format, config.options, OWN_OPTIONS)
        self._catalog = open_catalog(config.uri, config.options)
        self._scope = scope(config)

    def list_namespaces(self) -> list[str]:
        return self._catalog.namespaces()

    def list_tables(self, namespace: str) -> list[str]:
        return self._catalog.names(namespace)

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        with self._opened(namespace, name) as (table, place):
            table_schema = table.table_schema
            schema = to_schema(table_schema.fields)
            return TableDescriptor(
                namespace,
                name,
                place.table_id,
                place.name,
                schema,
                tuple(table_schema.partition_keys),
                mask({str(key): str(value) for key, value in table_schema.options.items()}),
                declared(name, schema, table_schema.primary_keys),
                _address(place, table, f"{table.schema_manager.schema_path}/schema-{table_schema.id}"),
                _schema_json(table_schema),
                table_schema.comment or None,
                facts=_facts(table_schema),
            )

    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing:
        with self._opened(namespace, name) as (table, place):
            tagged = _tagged(table)
            live = frozenset(snapshot_ids(table)) | tagged.keys()
            current = max(live, default=None)
            read = wanted.identified(live, current) | {snapshot_id for snapshot_id in live if snapshot_id in wanted}
            schemas: dict[int, Schema] = {}
            snapshots, identities = [], {}
            for snapshot_id, snapshot in sorted(read_snapshots(table.snapshot_manager(), sorted(read)).items()):
                snapshot = snapshot or (tagged[snapshot_id].snapshot if snapshot_id in tagged else None)
                if snapshot is None:  # expired meanwhile
                    live -= {snapshot_id}
                    continue
                identities[snapshot_id] = (
                    f"{snapshot.time_millis} {snapshot.commit_user} {snapshot.delta_manifest_list}"
                )
                if snapshot_id not in wanted:
                    continue
                schema_id = table.table_schema.id if snapshot_id == current else snapshot.schema_id
                if schema_id not in schemas:
                    schemas[schema_id] = to_schema(table.schema_manager.get_schema(schema_id).fields)
                files = _address(place, table, f"{table.table_path}/manifest/{snapshot.base_manifest_list}")
                snapshots.append(_snapshot(snapshot, schemas[schema_id], live, files))
            return SnapshotListing(tuple(snapshots), live, max(live, default=None), identities)

    def mark(self, namespace: str, name: str, before: str | None = None) -> str | None:
        if not isinstance(self._catalog, Lake):  # a catalog may have the name stand for another directory
            return None
        return self._catalog.mark(namespace, name, before, lambda place: listing_digest(place, "snapshot", "schema"))

    def lake_mark(self, before: str | None = None) -> str | None:
        return self._catalog.lake_mark(before) if isinstance(self._catalog, Lake) else None

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        with self._opened(namespace, name) as (table, place):
            view = self._view(table, place, namespace, name, snapshot_id)
            offer = view.analyzed()
            current = offer.analyzed if offer is not None and offer.snapshot is view.snapshot else None
            rows = view.live_rows(merge=False)
            if rows is None and current:
                rows = current.rows
            elif current and current.rows not in (None, rows):
                current = None  # contradicts the table, so nothing in it is reliable
            if rows is None:
                rows = view.live_rows(merge=True)
            schema = to_schema(view.table.fields)
            leaves = schema.leaves(column_names)
            files = pa.Table.from_pylist([f.row() for f in view.files], FILE_SCHEMA)

            def file_columns() -> Iterator[pa.Table]:
                with self._catalog.reading_table(namespace, name, place):
                    yield from ColumnStatistics(view, FooterCache(self._scope)).tables(leaves, ids)

            own = analyzed_rows(current, leaves, ids, rows) if current else None
            earlier = _earlier(offer, view, schema, leaves, ids)
            used = offer if own is not None or earlier else None
            return NativeStats(
                rows,
                files.num_rows,
                sum(files["size_bytes"].to_pylist()),
                files,
                file_columns,
                own,
                merged_size_bytes=current.size if current else view.merged_size(rows),
                row_deletes=any(f.live != f.meta.row_count for f in view.files),
                earlier=earlier,
                remarks=tuple(dict.fromkeys(view.remarks)),
                sources=() if used is None else (f"the statistics file of ANALYZE of snapshot {used.snapshot.id}",),
            )

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        with self._opened(namespace, name) as (table, place):
            view = self._view(table, place, namespace, name, snapshot_id)
            columns = to_schema(view.table.fields).sources(column_names, ids)
            reading = pickle.dumps(view.table)
            for unit in view.units:
                yield ScanTask(
                    "paimon",
                    unit[0].path,
                    place.name,
                    sum(f.meta.row_count if f.live is None else f.live for f in unit),
                    sum(f.meta.file_size for f in unit),
                    columns,
                    fingerprint(unit),
                    self._catalog.storage,
                    arguments={"table": reading, "split": pickle.dumps(unit[0].split)},
                )

    def close(self) -> None: ...

    @contextmanager
    def _opened(self, namespace: str, name: str) -> Iterator[tuple[Any, Place]]:
        place = self._catalog.find(namespace, name)
        with self._catalog.reading_table(namespace, name, place):
            yield open_table(place), place

    @staticmethod
    def _view(table: Any, place: Place, namespace: str, name: str, snapshot_id: int) -> SnapshotView:
        """The table at a snapshot, or at a tag that retains an expired snapshot."""
        manager = table.snapshot_manager()
        if (snapshot := manager.get_snapshot_by_id(snapshot_id)) is not None:
            latest = manager.get_latest_snapshot()
            # the current snapshot is read by the current schema, which may be newer than it
            copied = table.copy_without_time_travel if latest and latest.id == snapshot_id else table.copy
            return SnapshotView(copied({"scan.snapshot-id": str(snapshot_id)}), place, snapshot)
        if (tag := _tagged(table).get(snapshot_id)) is not None:
            return SnapshotView(table.copy({"scan.tag-name": tag.name}), place, tag.snapshot)
        raise unknown_snapshot(namespace, name, snapshot_id)


def _earlier(
    offer: FoundStatistics | None, view: SnapshotView, schema: Schema, leaves: Sequence[Column], ids: ColumnIds
) -> list[EarlierColumns]:
    """The statistics file as records of the analyzed snapshot, if that is an earlier one."""
    if offer is None or offer.snapshot is view.snapshot:
        return []
    columns = analyzed_rows(offer.analyzed, leaves, ids, offer.analyzed.rows)
    return [] if columns is None else [EarlierColumns(offer.snapshot.id, schema.hash, columns)]


class _Tag(NamedTuple):
    name: str
    snapshot: Any


def _tagged(table: Any) -> dict[int, _Tag]:
    """Snapshot id → tag; a tag retains the files of a snapshot after it expires."""
    manager = table.tag_manager()
    found = file_names(table, manager.tag_directory())  # without a tag `a/b`, which is in a directory, `tag-a`
    names = sorted(name.removeprefix("tag-") for name in found if name.startswith("tag-"))
    tags = (_Tag(name, snapshot) for name in names if (snapshot := manager.get(name)) is not None)
    return {int(tag.snapshot.id): tag for tag in tags}


def _address(place: Place, table: Any, file: str) -> str:
    """The address of a table's file, as users write the table's own."""
    return place.below(file.removeprefix(str(table.table_path)).lstrip("/")).name


def _facts(table_schema: Any) -> FormatFacts:
    """Rows are merged by the primary key, or in data evolution by row ids, as files may hold some columns only."""
    evolves = str(table_schema.options.get("data-evolution.enabled")).strip().lower() == "true"
    return FormatFacts(merges_rows=bool(table_schema.primary_keys) or evolves)


def _schema_json(table_schema: Any) -> str:
    """A schema as its file has it, but for the options, which are the table's properties and may have secrets."""
    content = json.loads(JSON.to_json(table_schema))
    return json.dumps({name: value for name, value in content.items() if name != "options"})


def _snapshot(snapshot: Any, schema: Schema, live: frozenset[int], manifest_list: str) -> Snapshot:
    return Snapshot(
        snapshot.id,
        snapshot.id,
        schema,
        snapshot.id - 1 if snapshot.id - 1 in live else None,
        committed_at=datetime.fromtimestamp(snapshot.time_millis / 1000, UTC),
        operation=str(snapshot.commit_kind).lower(),
        manifest_list=manifest_list,
        summary=json.dumps(json.loads(JSON.to_json(snapshot))),
    )
