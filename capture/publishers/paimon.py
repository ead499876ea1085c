"""Home `paimon`: a statistics file with a sidecar of theta sketches, referenced by an ANALYZE snapshot.

The snapshot changes no rows: its base manifest list has all data files of the previous snapshot, and its delta is
empty. The snapshot file is created exclusively, so it never replaces another commit; files of a lost race are deleted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
import time
import uuid
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final

from capture.connectors.metadata.analyzed import count
from capture.connectors.paimon.library import open_table, quiet, snapshot_ids
from capture.connectors.storage.places import Place, open_place, unknown_snapshot
from capture.publishers.external_values import catalog_entries, java_double, paimon_bound
from capture.publishers.files import create_file, delete_file, read_object, replace_file, sweep, unique_name, write_file
from capture.publishers.spi import Draft, HomeStatistics, Labels, LostRace, Publisher
from store.model import sketches
from store.model.errors import UpstreamError

SKETCH_TYPE: Final = "paimon-ndv-theta-sketch-v1"
_ROWS_STAY: Final = ("ANALYZE", "COMPACT")  # kinds of commits that do not change rows
_FOOTER: Final = struct.Struct("<ii")  # length of the footer, magic
_MAGIC: Final = 0x53544331
_BATCH_COMMIT: Final = 2**63 - 1


class PaimonPublisher(Publisher):
    """A statistics file, referenced by a new snapshot."""

    home: ClassVar[str] = "paimon"
    formats: ClassVar[frozenset[str]] = frozenset({"paimon"})
    labels: ClassVar[Labels | None] = Labels(snapshot=True, sketch_snapshot=True)
    sketches: ClassVar[frozenset[str]] = frozenset({"NDV"})

    def prepare(self) -> Draft:
        with quiet():
            table = self._table()
            latest = table.snapshot_manager().get_latest_snapshot()
            document = None if latest is None else self._document(latest.statistics)
            is_older = self._is_older(table, latest, document)
            schema = table.schema_manager.get_schema(latest.schema_id)
            ids = {field.name: field.id for field in schema.fields}
            columns, left_out = self.storable(lambda column: "" if column.name in ids else "is not a top-level column")
            statistics = self.statistics
            content = {
                "snapshotId": statistics.snapshot_id,
                "schemaId": latest.schema_id,
                "mergedRecordCount": statistics.row_count,
                "mergedRecordSize": statistics.merged_size_bytes or statistics.total_size_bytes,
                "colStats": {
                    column.name: {"colId": ids[column.name]} | catalog_entries(column, paimon_bound)
                    for column in columns
                },
            }
            content = {name: value for name, value in content.items() if value is not None}
            thetas = [
                (ids[column.name], column.distribution_snapshot_id or statistics.snapshot_id, column.theta)
                for column in columns
                if column.theta is not None
            ]
            is_current = document is not None and _without_bytes(document) == (
                content,
                {(i, at) for i, at, _ in thetas},
            )
            location = f"{self._place.name}/statistics"
            return Draft(
                statistics.snapshot_id,
                location,
                {column.name: column.distinct for column in columns},
                left_out,
                (latest, content, thetas, is_older),
                is_current,
                made_snapshot_id=latest.id if is_current and not is_older else None,
            )

    def write(self, draft: Draft) -> int | None:
        latest, content, thetas, is_older = draft.content
        with quiet():
            table = self._table()
            self._sweep(table)
            made = self._analyze(table, latest, lambda written: self._write_statistics(content, thetas, written))
            return None if is_older else made

    def read(self) -> HomeStatistics | None:
        with quiet():
            latest = self._table().snapshot_manager().get_latest_snapshot()
            document = None if latest is None else self._document(latest.statistics)
        if document is None:
            return None
        columns = document.get("colStats") or {}
        return HomeStatistics(
            document.get("snapshotId"),
            f"{self._place.name}/statistics/{latest.statistics}",
            {name: column.get("distinctCount") for name, column in columns.items()},
        )

    def withdraw(self) -> bool:
        with quiet():
            table = self._table()
            latest = table.snapshot_manager().get_latest_snapshot()
            if latest is None or latest.statistics is None:
                return False
            self._analyze(table, latest, lambda _: None)
        return True

    def _analyze(self, table: Any, latest: Any, write: Callable[[list[Place]], str | None]) -> int:
        """Creates an ANALYZE snapshot and returns its id; after a failure none of its files remains.

        Args:
            write: Writes the statistics, adds the files to the list, and returns the name of the statistics file; None
                if there are none.
        """
        from pypaimon.manifest.manifest_list_manager import ManifestListManager

        manifests = ManifestListManager(table)
        written: list[Place] = []
        try:
            document = write(written)
            base, delta = (unique_name("manifest-list-") for _ in range(2))
            written += [self._place.below(f"manifest/{name}") for name in (base, delta)]
            new = dataclasses.replace(
                latest,
                id=latest.id + 1,
                uuid=str(uuid.uuid4()),
                base_manifest_list=base,
                delta_manifest_list=delta,
                base_manifest_list_size=manifests.write(base, manifests.read_all(latest)),
                delta_manifest_list_size=manifests.write(delta, []),
                delta_record_count=0,
                changelog_manifest_list=None,
                changelog_manifest_list_size=None,
                changelog_record_count=None,
                commit_kind="ANALYZE",
                commit_identifier=_BATCH_COMMIT,
                commit_user=str(uuid.uuid4()),
                time_millis=int(time.time() * 1000),
                statistics=document,
            )
            if not self._commit(table, latest, new):
                raise LostRace(f"paimon: snapshot {new.id} was created by another writer")
        except Exception as error:
            for place in written:
                delete_file(place)
            if isinstance(error, RuntimeError):  # raised by the library for any failure
                raise UpstreamError("paimon: the manifest list cannot be written") from None
            raise
        return int(new.id)

    def _is_older(self, table: Any, latest: Any, document: Mapping[str, Any] | None) -> bool:
        """True if the rows changed since the snapshot of the statistics, which may be published all the same.

        Raises:
            Conflict: They may not, or the table has younger statistics, or another schema.
        """
        statistics = self.statistics
        if latest is None:
            raise unknown_snapshot(statistics.namespace, statistics.name, statistics.snapshot_id)
        if latest.id < statistics.snapshot_id:
            raise self.moved_on(f"snapshot {latest.id}")
        manager = table.snapshot_manager()
        between = map(manager.get_snapshot_by_id, range(statistics.snapshot_id + 1, latest.id + 1))
        if all(snapshot is not None and snapshot.commit_kind in _ROWS_STAY for snapshot in between):
            return False
        then = manager.get_snapshot_by_id(statistics.snapshot_id)
        is_same_schema = then is not None and then.schema_id == latest.schema_id
        is_newest = (count((document or {}).get("snapshotId")) or 0) <= statistics.snapshot_id
        if not (self.may_be_older and is_same_schema and is_newest):
            raise self.moved_on(f"snapshot {latest.id}")
        return True

    def _write_statistics(
        self, content: Mapping[str, Any], thetas: list[tuple[int, int, bytes]], written: list[Place]
    ) -> str:
        """Writes the sidecar and the statistics file; returns the name of the latter."""
        document = dict(content)
        folder = self._place.below("statistics")
        if thetas:
            sidecar = unique_name("stat-sidecar-", "-0")
            data, blobs = _sidecar(sidecar, thetas)
            written.append(folder.below(sidecar))
            write_file(folder.below(sidecar), data)
            document["blobMetadata"] = blobs
        name = unique_name("stat-", "-0")
        written.append(folder.below(name))
        write_file(folder.below(name), json.dumps(document, ensure_ascii=False).encode())
        return name

    def _commit(self, table: Any, latest: Any, new: Any) -> bool:
        """Creates the snapshot; False if the id is taken."""
        if not self._place.is_local:
            with contextlib.closing(table.new_snapshot_commit()) as commit:
                return bool(commit.commit(latest.uuid, new, []))
        # The library checks and then renames, which may replace the snapshot of another process.
        from pypaimon.common.json_util import JSON

        folder = self._place.below("snapshot")
        if not create_file(folder.below(f"snapshot-{new.id}"), JSON.to_json(new, indent=2).encode()):
            return False
        replace_file(folder.below("LATEST"), str(new.id).encode())
        return True

    def _sweep(self, table: Any) -> None:
        """Deletes files of publications that were killed before they created their snapshot."""

        def referenced() -> set[str]:
            snapshots = [table.snapshot_manager().get_snapshot_by_id(i) for i in snapshot_ids(table)]
            names: set[str] = set()
            for snapshot in filter(None, snapshots):
                names |= {snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.statistics}
                document = self._document(snapshot.statistics) or {}
                names |= {blob.get("fileLocation") for blob in document.get("blobMetadata", [])}
            return names

        for folder in ("statistics", "manifest", "snapshot"):
            place = self._place.below(folder)
            self.removed_orphans += sweep(place, referenced)

    def _document(self, name: str | None) -> dict[str, Any] | None:
        return read_object(self._place.below(f"statistics/{name}")) if name else None

    @cached_property
    def _place(self) -> Place:
        return open_place(self.table_location, self.destination.config.options)

    def _table(self) -> Any:
        return open_table(self._place)


def _without_bytes(document: Mapping[str, Any]) -> tuple[dict[str, Any], set[tuple[int, int]]]:
    """The statistics in a document, and field and snapshot of each of its sketches."""
    blobs = document.get("blobMetadata") or ()
    fields = {(field_id, blob.get("snapshotId")) for blob in blobs for field_id in blob.get("fieldIds", ())}
    return {name: value for name, value in document.items() if name != "blobMetadata"}, fields


def _sidecar(name: str, thetas: list[tuple[int, int, bytes]]) -> tuple[bytes, list[dict[str, Any]]]:
    """Content of a sidecar (blobs, footer JSON, footer length, magic), and the metadata of its blobs."""
    body = bytearray()
    blobs = []
    for field_id, snapshot_id, data in thetas:
        blobs.append(
            {
                "type": SKETCH_TYPE,
                "fieldIds": [field_id],
                "snapshotId": snapshot_id,
                "sequenceNumber": snapshot_id,
                "properties": {"ndv": java_double(sketches.estimate(data).ndv)},
                "fileLocation": name,
                "offset": len(body),
                "length": len(data),
            }
        )
        body += data
    footer = json.dumps({"version": 1, "blobs": blobs}, separators=(",", ":")).encode()
    return bytes(body) + footer + _FOOTER.pack(len(footer), _MAGIC), blobs
