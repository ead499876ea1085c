"""The Lance connector: versions, fragments, and statistics from zone maps and Spark's ANALYZE."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import lance
import pyarrow.fs as pafs

from capture.connectors.lance import holds_table
from capture.connectors.lance.io_counts import count_reads
from capture.connectors.lance.snapshot_view import SnapshotView, to_schema
from capture.connectors.lance.statistics import dataset_uri
from capture.connectors.options import check_options, patient
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
from capture.connectors.storage.lake_directories import Lake, listing_digest
from capture.connectors.storage.places import Place, unknown_snapshot, unknown_table
from store.model.errors import NotFound, first_line
from store.model.format_facts import FormatFacts

SUFFIX = ".lance"
_FACTS: Final = FormatFacts(reads_by_id=False, merges_rows=False, analyzes_columns=True)
_MANIFEST: Final = re.compile(r"(\d+)\.manifest")


class LanceConnector(Connector):
    """Lance datasets. A snapshot is a version. Lance has no table ids and no stable column ids."""

    format: ClassVar[str] = "lance"

    def __init__(self, config: ConnectorConfig) -> None:
        check_options(self.format, config.options)
        self._lake = _Lake(self.format, config.uri, config.options, holds_table)

    def list_namespaces(self) -> list[str]:
        return self._lake.namespaces()

    def list_tables(self, namespace: str) -> list[str]:
        return sorted({name.removesuffix(SUFFIX) for name in self._lake.names(namespace)})

    def describe(self, namespace: str, name: str) -> TableDescriptor:
        with self._opened(namespace, name) as (dataset, place):
            properties = {n: v for n, v in dataset.config().items() if not n.startswith("lance.stats.")}
            return TableDescriptor(
                namespace,
                name,
                None,
                place.name,
                to_schema(dataset.schema),
                properties=properties,
                metadata_location=_manifests(place).get(dataset.version),
                facts=_FACTS,
            )

    def _snapshots(self, namespace: str, name: str, wanted: SnapshotSelection) -> SnapshotListing:
        with self._opened(namespace, name) as (dataset, place):
            versions = sorted(dataset.versions(), key=lambda version: version["version"])
            count_reads(dataset, lists=1)
            live = frozenset(int(version["version"]) for version in versions)
            new = [version for version in versions if int(version["version"]) in wanted]
            manifests = _manifests(place) if new else {}
            snapshots = tuple(_snapshot(dataset, version, live, manifests) for version in new)
            # a manifest has the time of its commit in microseconds
            identities = {int(version["version"]): version["timestamp"].isoformat() for version in versions}
            return SnapshotListing(snapshots, live, max(live, default=None), identities)

    def mark(self, namespace: str, name: str, before: str | None = None) -> str | None:
        find = self._place(namespace, name).stem if before is None else name
        return self._lake.mark(namespace, find, before, lambda place: listing_digest(place, "_versions"))

    def lake_mark(self, before: str | None = None) -> str | None:
        return self._lake.lake_mark(before)

    def capture_snapshot_target_stats(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> NativeStats:
        with self._opened(namespace, name, snapshot_id) as (dataset, place):
            view = SnapshotView(dataset, ids, column_names)
            return view.native_stats(lambda: self._lake.reading_table(namespace, name, place))

    def plan_files(
        self, namespace: str, name: str, snapshot_id: int, ids: ColumnIds, column_names: frozenset[str] | None = None
    ) -> Iterator[ScanTask]:
        with self._opened(namespace, name, snapshot_id) as (dataset, _):
            yield from SnapshotView(dataset, ids, column_names).tasks(self._lake.storage)

    def close(self) -> None: ...

    def _place(self, namespace: str, name: str) -> Place:
        for directory in (name, name + SUFFIX):  # without a walk of the lake, which may be large
            if (place := self._lake.directly(namespace, directory)) is not None:
                return place
        try:
            return self._lake.find(namespace, name)
        except NotFound:
            if name.endswith(SUFFIX):
                raise
        try:
            return self._lake.find(namespace, name + SUFFIX)
        except NotFound:
            raise unknown_table(namespace, name, self.list_tables(namespace)) from None

    @contextmanager
    def _opened(self, namespace: str, name: str, version: int | None = None) -> Iterator[tuple[Any, Place]]:
        place = self._place(namespace, name)
        storage = self._lake.storage if place.is_local else patient(self._lake.storage, self._lake.options)
        with self._lake.reading_table(namespace, name, place):
            dataset = lance.dataset(dataset_uri(place.name), storage_options=storage or None)
            if version is not None and version != dataset.version:
                try:
                    dataset = dataset.checkout_version(version)
                except (ValueError, OSError):
                    raise unknown_snapshot(namespace, name, version) from None
            count_reads(dataset, lists=1)
            try:
                yield dataset, place
            finally:
                count_reads(dataset)


class _Lake(Lake):
    def unreached(self, error: Exception) -> str | None:
        """Lance raises ValueError where a dataset that it opens cannot be reached."""
        return str(error) if isinstance(error, ValueError) and "LanceError(IO)" in str(error) else None

    def reason(self, error: BaseException, place: Place | None = None) -> str:
        """A message of Lance, without a path or a location in Lance's source."""
        text = super().reason(error, place)
        return f"{type(error).__name__}: {first_line(error, 60).split('/')[0].rstrip()}" if "/" in text else text


def _manifests(table: Place) -> dict[int, str]:
    """Version → address of its manifest. Its name is the version, in newer tables counted down from 2^64 - 1."""
    place = table.below("_versions")
    infos = place.file_system.get_file_info(pafs.FileSelector(place.path, allow_not_found=True))
    names = [match for info in infos if (match := _MANIFEST.fullmatch(info.base_name))]
    return {
        2**64 - 1 - int(match[1]) if len(match[1]) == 20 else int(match[1]): place.below(match[0]).name
        for match in names
    }


def _snapshot(dataset: Any, listed: Mapping[str, Any], live: frozenset[int], manifests: Mapping[int, str]) -> Snapshot:
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
        manifest_list=manifests.get(version),
        summary=json.dumps(listed["metadata"]) if listed.get("metadata") else None,
    )


def _operation(dataset: Any, version: int) -> str | None:
    """Operation of a version, such as `append`, `delete` or `create_index`; None if the transaction is missing."""
    try:
        name = type(dataset.read_transaction(version).operation).__name__
    except Exception:  # for a missing transaction file, of undocumented type
        return None
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
