"""Home `iceberg`: theta sketches in a Puffin file that the table's metadata references for a snapshot.

A snapshot has one statistics file, so blobs of other writers and of unpublished columns are copied to the new file.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from capture.connectors.iceberg.puffin import Blob, read_if_any, write
from capture.connectors.iceberg.tables import LoadedTable
from capture.connectors.storage.places import Place, open_place, unknown_snapshot
from capture.publishers.files import MARK, sweep, unique_name
from capture.publishers.iceberg_commits import Statistics, UnknownState, commit_statistics
from capture.publishers.spi import Draft, HomeStatistics, Labels, Publisher
from store.model.columns import THETA
from store.model.errors import Conflict, StatflightError

_ONE_FILE = (".metadata.json", ".metadata.json.gz")


class IcebergPublisher(Publisher):
    """Theta sketches in a Puffin file, registered in the table's metadata."""

    home: ClassVar[str] = "iceberg"
    formats: ClassVar[frozenset[str]] = frozenset({"iceberg"})
    labels: ClassVar[Labels | None] = Labels(snapshot=True, sketch_snapshot=True)
    sketches: ClassVar[frozenset[str]] = frozenset({"NDV"})

    def prepare(self) -> Draft:
        statistics = self.statistics
        with self._reading():
            loaded = self._load()
            snapshot = loaded.metadata.snapshot_by_id(statistics.snapshot_id)
            if snapshot is None:
                raise unknown_snapshot(statistics.namespace, statistics.name, statistics.snapshot_id)
            left_out, distinct, ours = dict(statistics.left_out), {}, []
            for column in sorted(statistics.columns, key=lambda column: column.column_id):
                if column.theta is None or column.distinct is None:
                    left_out[column.name] = "no NDV sketch is stored"
                    continue
                origin = snapshot
                if column.distribution_snapshot_id is not None:
                    origin = loaded.metadata.snapshot_by_id(column.distribution_snapshot_id)
                if origin is None:
                    left_out[column.name] = f"snapshot {column.distribution_snapshot_id} of its NDV sketch has expired"
                    continue
                distinct[column.name] = column.distinct
                ours.append(
                    Blob(
                        THETA,
                        (column.column_id,),
                        origin.snapshot_id,
                        origin.sequence_number or 0,
                        column.theta,
                        {"ndv": str(column.distinct)},
                    )
                )
            entry = self._entry_of(loaded)
            stored = [] if entry is None else read_if_any(loaded.io, entry.statistics_path)
            replaced = {blob.fields for blob in ours}
            blobs = [*ours, *(blob for blob in stored if blob.type != THETA or blob.fields not in replaced)]
            listed = self._listed_blobs(loaded)
            known = {(blob.type, blob.fields) for blob in blobs}
            if unreadable := sorted({type for type, fields in listed if (type, fields) not in known}):
                raise Conflict(
                    f'iceberg: statistics of type {", ".join(unreadable)} of table "{loaded}" cannot be read, so this '
                    "publication would lose them",
                )
            location = f"{loaded.metadata.location.rstrip('/')}/metadata"
            return Draft(
                statistics.snapshot_id,
                location,
                distinct,
                left_out,
                (loaded, blobs, {THETA, *(type for type, _ in listed)}),
                is_current=bool(ours) and stored == blobs,
            )

    def write(self, draft: Draft) -> int | None:
        loaded, blobs, types = draft.content
        with self._reading():
            self._sweep(loaded)
            content, footer_size = write(blobs)
            path = f"{draft.location}/{unique_name(f'{draft.snapshot_id}-', '.stats')}"
            with loaded.io.new_output(path).create() as stream:
                stream.write(content)
            entry = _entry(
                draft.snapshot_id, path, len(content), footer_size, [blob for blob in blobs if blob.type in types]
            )
            try:
                commit_statistics(loaded, draft.snapshot_id, entry, self._folder)
            except UnknownState:
                if self._is_referenced(path):
                    return None
                raise
            except Exception:
                with contextlib.suppress(Exception):
                    loaded.io.delete(path)
                raise
        return None

    def read(self) -> HomeStatistics | None:
        with self._reading():
            loaded = self._load()
            entry = self._entry_of(loaded)
            if entry is None:
                return None
            names = {column.column_id: column.name for column in self.statistics.columns}
            distinct = {}
            for blob in entry.blob_metadata:
                field_id = blob.fields[0]
                name = names.get(field_id) or loaded.metadata.schema().find_column_name(field_id) or f"#{field_id}"
                ndv = (blob.properties or {}).get("ndv")
                distinct[name] = None if ndv is None else round(float(ndv))
            return HomeStatistics(self.statistics.snapshot_id, entry.statistics_path, distinct)

    def withdraw(self) -> bool:
        with self._reading():
            loaded = self._load()
            entry = self._entry_of(loaded)
            if entry is None or MARK not in entry.statistics_path.rpartition("/")[2]:
                return False
            commit_statistics(loaded, self.statistics.snapshot_id, None, self._folder)
        return True

    def _entry_of(self, loaded: LoadedTable) -> Any:
        statistics = loaded.metadata.statistics
        return next((entry for entry in statistics if entry.snapshot_id == self.statistics.snapshot_id), None)

    def _listed_blobs(self, loaded: LoadedTable) -> set[tuple[str, tuple[int, ...]]]:
        """Type and fields of the blobs that the metadata lists for the snapshot; with a REST catalog, only those in
        pyiceberg's model."""
        if loaded.server_commits:
            own = self._entry_of(loaded)
            return set() if own is None else {(blob.type, tuple(blob.fields)) for blob in own.blob_metadata}
        entries = loaded.io.read_document(loaded.location).get("statistics") or ()
        return {
            (str(blob["type"]), tuple(blob["fields"]))
            for entry in entries
            if entry.get("snapshot-id") == self.statistics.snapshot_id
            for blob in entry.get("blob-metadata") or ()
        }

    def _is_referenced(self, path: str) -> bool:
        """True if the table's metadata references the statistics file; False if the catalog does not answer."""
        try:
            return any(entry.statistics_path == path for entry in self._load().metadata.statistics)
        except StatflightError:
            return False

    def _sweep(self, loaded: LoadedTable) -> None:
        """Deletes our statistics files that are no longer referenced."""

        def referenced() -> set[str]:
            return {entry.statistics_path.rpartition("/")[2] for entry in loaded.metadata.statistics}

        with contextlib.suppress(StatflightError, OSError, pa.ArrowException, ValueError):
            options = {**self.destination.config.options, **loaded.io.properties}
            folder = open_place(f"{loaded.io.resolve(loaded.metadata.location).rstrip('/')}/metadata", options)
            self.removed_orphans += sweep(folder, referenced)

    @cached_property
    def _folder(self) -> Place | None:
        """Directory of the table's metadata file; None if the connector was opened with a single metadata file."""
        config = self.destination.config
        if config.uri.endswith(_ONE_FILE):
            return None
        location = self._load().location.rpartition("/")[0]
        return open_place(location, config.options)

    def _load(self) -> LoadedTable:
        connector: Any = self.destination.connector
        loaded: LoadedTable = connector.load(self.statistics.namespace, self.statistics.name)
        return loaded

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        connector: Any = self.destination.connector
        return _passing_denied(connector.reading(self.statistics.namespace, self.statistics.name))


@contextlib.contextmanager
def _passing_denied(translated: contextlib.AbstractContextManager[None]) -> Any:
    """Passes a PermissionError unchanged, which the connector would report as an unreadable table."""
    error: PermissionError | None = None
    with translated:
        try:
            yield
        except PermissionError as denied:
            error = denied
    if error is not None:
        raise error


def _entry(snapshot_id: int, path: str, size: int, footer_size: int, listed: list[Blob]) -> Statistics:
    return {
        "snapshot-id": snapshot_id,
        "statistics-path": path,
        "file-size-in-bytes": size,
        "file-footer-size-in-bytes": footer_size,
        "blob-metadata": [
            {
                "type": blob.type,
                "snapshot-id": blob.snapshot_id,
                "sequence-number": blob.sequence_number,
                "fields": list(blob.fields),
                "properties": dict(blob.properties),
            }
            for blob in listed
        ],
    }
