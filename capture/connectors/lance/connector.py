"""The Lance connector: versions, fragments, and the statistics of zone maps and of Spark's ANALYZE in the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

import lance
import pyarrow as pa

from capture.connectors.lance.statistics import Fragment, analyzed_columns, analyzed_version, zone_map_rows
from capture.connectors.options import check_options, patient
from capture.connectors.spi import (
    FILE_SCHEMA,
    Column,
    ColumnIds,
    ConnectorConfig,
    EarlierColumns,
    NativeStats,
    ScanColumn,
    ScanTask,
    Schema,
    Snapshot,
    SnapshotLister,
    SnapshotListing,
    SnapshotSelection,
    TableDescriptor,
    delete_file,
)
from capture.connectors.storage.lake_directories import Lake
from capture.connectors.storage.places import Place, Unreadable, first_line, unknown_snapshot, unknown_table
from store.errors import NotFound, StatflightError
from store.logical_types import from_arrow

SUFFIX = ".lance"


class LanceConnector(SnapshotLister):
    """See `spi.Connector`. A snapshot is a version; Lance has neither a table identity nor ids that columns keep."""

    format: ClassVar[str] = "lance"

    def __init__(self, config: ConnectorConfig) -> None:
        check_options(self.format, config.options)
        self._config = config
        self._lake = Lake(self.format, config.uri, config.options, lambda folder: "_versions" in folder.folders)

    def list_namespaces(self) -> list[str]:
        return self._lake.namespaces()

    def list_tables(self, namespace: str) -> list[str]:
        return sorted({name.removesuffix(SUFFIX) for name in self._lake.names(namespace)})

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        with self._reading(namespace, name):
            dataset = self._open(namespace, name)
            properties = {n: v for n, v in dataset.config().items() if not n.startswith("lance.stats.")}
            return TableDescriptor(
                namespace, name, None, str(dataset.uri), to_schema(dataset.schema), properties=properties
            )

    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing:
        with self._reading(namespace, name):
            dataset = self._open(namespace, name)
            versions = sorted(dataset.versions(), key=lambda version: version["version"])
            live = frozenset(int(version["version"]) for version in versions)
            snapshots = tuple(
                self._snapshot(dataset, version, live) for version in versions if int(version["version"]) in wanted
            )
            return SnapshotListing(snapshots, live, max(live, default=None))

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        with self._reading(namespace, name):
            dataset = self._open(namespace, name, snapshot_id)
            schema = to_schema(dataset.schema)
            leaves = schema.leaves(column_names)
            fragments = [_Fragment(dataset, fragment) for fragment in dataset.get_fragments()]
            rows = int(dataset.count_rows())
            files = pa.Table.from_pylist([row for f in fragments for row in f.rows()], FILE_SCHEMA)
            deletes = any(f.deleted for f in fragments)
            analyzed = _analyzed(dataset, leaves, ids)
            return NativeStats(
                rows,
                files.num_rows,
                sum(files["size_bytes"].to_pylist()),
                files,
                self._zone_maps(dataset, fragments, leaves, ids, lambda: self._reading(namespace, name)),
                analyzed.columns if analyzed and analyzed.snapshot_id == snapshot_id else None,
                row_deletes=deletes,
                earlier=[analyzed] if analyzed and analyzed.snapshot_id < snapshot_id else (),
            )

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        with self._reading(namespace, name):
            dataset = self._open(namespace, name, snapshot_id)
            columns = tuple(
                ScanColumn(column_id, column.name, column.logical_type, column.key)
                for column in to_schema(dataset.schema).leaves(column_names)
                if (column_id := column.id_in(ids)) is not None
            )
            for lance_fragment in dataset.get_fragments():
                fragment = _Fragment(dataset, lance_fragment)
                yield ScanTask(
                    "lance",
                    fragment.paths[0],
                    str(dataset.uri),
                    fragment.live,
                    sum(fragment.sizes),
                    columns,
                    fragment.fingerprint,
                    self._lake.storage,
                    arguments={"version": snapshot_id, "fragment_id": fragment.id},
                )

    def close(self) -> None: ...

    def _place(self, namespace: str, name: str) -> Place:
        try:
            return self._lake.find(namespace, name)
        except NotFound:
            if name.endswith(SUFFIX):
                raise
        try:
            return self._lake.find(namespace, name + SUFFIX)
        except NotFound:
            raise unknown_table(namespace, name, self.list_tables(namespace)) from None

    def _open(self, namespace: str, name: str, version: int | None = None) -> Any:
        place = self._place(namespace, name)
        storage = self._lake.storage if place.is_local else patient(self._lake.storage, self._lake.options)
        dataset = lance.dataset(place.name, storage_options=storage or None)
        if version is None or version == dataset.version:
            return dataset
        try:
            return dataset.checkout_version(version)
        except (ValueError, OSError):
            raise unknown_snapshot(namespace, name, version) from None

    def _snapshot(self, dataset: Any, listed: Mapping[str, Any], live: frozenset[int]) -> Snapshot:
        version = int(listed["version"])
        at: datetime = listed["timestamp"]
        schema = (dataset if version == dataset.version else dataset.checkout_version(version)).schema
        return Snapshot(
            version,
            version,
            to_schema(schema),
            version - 1 if version - 1 in live else None,
            committed_at=at.astimezone(UTC),
            operation=_operation(dataset, version),
        )

    @staticmethod
    def _zone_maps(
        dataset: Any, fragments: list[_Fragment], leaves: list[Column], ids: ColumnIds, reading: Callable[[], Any]
    ) -> Callable[[], Iterator[pa.Table]]:
        by_id = {f.id: Fragment(f.paths[0], f.live, f.deleted) for f in fragments}

        def file_columns() -> Iterator[pa.Table]:
            with reading():
                yield from zone_map_rows(dataset, by_id, leaves, ids)

        return file_columns

    def _reading(self, namespace: str, name: str) -> AbstractContextManager[None]:
        return self._translated(f'table "{namespace}.{name}"')

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        try:
            yield
        except StatflightError:
            raise
        except Exception as error:  # Lance raises ValueError, OSError and its own panics
            reason = self._lake.reason(error)
            if "/" in reason:  # names a file or a line of its own source
                reason = type(error).__name__ + f": {first_line(error, 60).split('/')[0].rstrip()}"
            raise Unreadable(f"{what} cannot be read ({reason})") from error


class _Fragment:
    """A fragment: its files by absolute name, its live rows, and a fingerprint of both."""

    def __init__(self, dataset: Any, fragment: Any):
        self.id = int(fragment.fragment_id)
        self.live = int(fragment.count_rows())
        self.deleted = int(fragment.num_deletions)
        files = fragment.data_files()
        home = str(dataset.uri).rstrip("/")
        bases = {base.id: base.path.rstrip("/") for base in _bases(dataset)}
        self.paths = [f"{bases.get(getattr(f, 'base_id', None), home)}/data/{f.path}" for f in files]
        self.sizes = [int(f.file_size_bytes or 0) for f in files]
        deletion = fragment.deletion_file()
        self.delete_files = [delete_file(f"{home}/{deletion}")] if deletion else []
        parts = [str(deletion or ""), str(self.live)]
        parts += [f"{path}\0{f.fields}" for path, f in zip(self.paths, files, strict=True)]
        self.fingerprint = hashlib.sha256("\0\0".join(parts).encode()).hexdigest()

    def rows(self) -> Iterator[dict[str, Any]]:
        for path, size in zip(self.paths, self.sizes, strict=True):
            yield {
                "file_path": path,
                "file_format": "LANCE",
                "file_content": "DATA",
                "row_count": self.live,
                "size_bytes": size,
                "delete_files": self.delete_files,
            }


def _analyzed(dataset: Any, leaves: list[Column], ids: ColumnIds) -> EarlierColumns | None:
    """The statistics in a version's config, labelled by the version they were computed at: a config lives on."""
    config = dataset.config()
    version = analyzed_version(config)
    if version is None or version > dataset.version:
        return None
    try:
        at_version = dataset if version == dataset.version else dataset.checkout_version(version)
    except (ValueError, OSError):
        return None  # it was cleaned up
    columns = analyzed_columns(config, int(at_version.count_rows()), at_version.schema, leaves, ids)
    return columns and EarlierColumns(version, to_schema(at_version.schema).hash, columns)


def _bases(dataset: Any) -> list[Any]:
    """Other places that a shallow clone's files lie in."""
    return list(dataset.base_paths().values()) if hasattr(dataset, "base_paths") else []


def _operation(dataset: Any, version: int) -> str | None:
    """`append`, `delete`, `create_index` and so on; None where the transaction is gone."""
    try:
        name = type(dataset.read_transaction(version).operation).__name__
    except Exception:  # an old version without a transaction file raises what it likes
        return None
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def to_schema(schema: pa.Schema) -> Schema:
    """All columns of a Lance dataset in depth-first order, containers before their leaves."""
    return Schema(tuple(_walk(schema, (), False)))


def _walk(fields: Any, above: tuple[str, ...], nullable: bool) -> Iterator[Column]:
    for field in fields:
        path, optional = (*above, field.name), nullable or field.nullable
        kind = from_arrow(field.type)
        yield Column(".".join(path), kind.text if kind else "VARIANT", optional, path=path)
        if pa.types.is_struct(field.type):
            yield from _walk(field.type, path, optional)
