"""Publishing NDV sketches to Iceberg: a Puffin file that the table's metadata names for a snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from capture.connectors.iceberg.puffin import Blob, read_if_any, write
from capture.connectors.storage.places import unknown_snapshot
from store.errors import Conflict, InvalidArgument
from store.schemas import THETA


class Publisher(Protocol):
    """What publishing needs of the Iceberg connector."""

    def load(self, namespace: str, name: str) -> Any: ...

    def reading(self, namespace: str, name: str) -> AbstractContextManager[None]: ...


def publish(
    connector: Publisher,
    namespace: str,
    name: str,
    snapshot_id: int,
    sketches: Sequence[tuple[int, bytes, float]],
) -> dict[str, Any]:
    """Writes theta sketches as a Puffin file beside the table's metadata and registers it for the snapshot.

    Args:
        connector: An `IcebergConnector`.
        namespace: The table's schema.
        name: The table.
        snapshot_id: The snapshot the sketches were computed for.
        sketches: Per column its field id, the compact theta sketch and the number of distinct values.

    Returns:
        What was written: path, snapshot_id, size_bytes, columns.

    Raises:
        InvalidArgument: The table is kept by no catalog, so nothing can be committed to it, or no sketch is given.
        NotFound: The table or the snapshot is not there.
        Conflict: The commit would lose statistics of another writer.
    """
    with connector.reading(namespace, name):
        loaded = connector.load(namespace, name)
        if loaded.handle is None:
            raise InvalidArgument(
                f'publish to iceberg: table "{namespace}.{name}" is a directory without a catalog, so nothing can be '
                "committed to it; expected a table of a SQL, REST or Glue catalog"
            )
        if not sketches:
            raise InvalidArgument(f'publish to iceberg: no theta sketch of table "{namespace}.{name}" is stored')
        if lost := [] if loaded.server_commits else loaded.io.lost_on_commit(loaded.location):
            raise Conflict(
                f'publish to iceberg: the metadata of table "{namespace}.{name}" holds {", ".join(lost)}, which this '
                "commit would lose"
            )
        snapshot = loaded.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise unknown_snapshot(namespace, name, snapshot_id)
        sequence = snapshot.sequence_number or 0
        ours = [
            Blob(THETA, (column_id,), snapshot_id, sequence, data, {"ndv": str(round(ndv))})
            for column_id, data, ndv in sorted(sketches, key=lambda sketch: sketch[0])
        ]
        return _commit(loaded, snapshot_id, [*ours, *_kept(loaded, snapshot_id, {blob.fields for blob in ours})])


def _kept(loaded: Any, snapshot_id: int, replaced: set[tuple[int, ...]]) -> list[Blob]:
    """Blobs that a statistics file of the snapshot holds for other columns: a snapshot has but one such file."""
    return [
        blob
        for statistics in loaded.metadata.statistics
        if statistics.snapshot_id == snapshot_id
        for blob in read_if_any(loaded.io, statistics.statistics_path)
        if blob.type != THETA or blob.fields not in replaced
    ]


def _commit(loaded: Any, snapshot_id: int, blobs: Sequence[Blob]) -> dict[str, Any]:
    from pyiceberg.table.statistics import StatisticsFile

    content, footer_size = write(blobs)
    path = f"{loaded.metadata.location.rstrip('/')}/metadata/{snapshot_id}-{uuid.uuid4()}.stats"
    with loaded.io.new_output(path).create() as stream:
        stream.write(content)
    listed = [blob for blob in blobs if blob.type == THETA]
    statistics = StatisticsFile.model_validate({
        "snapshot-id": snapshot_id, "statistics-path": path, "file-size-in-bytes": len(content),
        "file-footer-size-in-bytes": footer_size,
        "blob-metadata": [
            {"type": THETA, "snapshot-id": blob.snapshot_id, "sequence-number": blob.sequence_number,
             "fields": list(blob.fields), "properties": dict(blob.properties)}
            for blob in listed
        ],
    })  # fmt: skip
    with loaded.handle.update_statistics() as update:
        update.set_statistics(statistics)
    columns = [column_id for blob in listed for column_id in blob.fields]
    return {"path": path, "snapshot_id": snapshot_id, "size_bytes": len(content), "columns": columns}
