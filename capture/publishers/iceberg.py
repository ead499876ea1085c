"""Puffin: Iceberg's file of statistics blobs. Written with theta sketches, and read back.

A file is `PFA1`, the blobs, then the footer: `PFA1`, a JSON payload, its length (int32, little endian), four bytes of
flags, `PFA1`. Only theta blobs are listed in the table's metadata: readers such as pyiceberg refuse a table that lists
any type they do not know.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from capture.connectors.storage.places import unknown_snapshot
from store.errors import Conflict, InvalidArgument
from store.schemas import THETA

MAGIC = b"PFA1"
_TAIL = struct.Struct("<i4s4s")  # payload length, flags, magic
_COMPRESSED_FOOTER = 1
MAX_FOOTER = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Blob:
    """One blob; `data` is uncompressed."""

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    data: bytes
    properties: Mapping[str, str] = field(default_factory=dict)


def write(blobs: Sequence[Blob]) -> tuple[bytes, int]:
    """The bytes of a Puffin file and the size of its footer."""
    body, described = bytearray(MAGIC), []
    for blob in blobs:
        described.append({
            "type": blob.type, "fields": list(blob.fields), "snapshot-id": blob.snapshot_id,
            "sequence-number": blob.sequence_number, "offset": len(body), "length": len(blob.data),
            "properties": dict(blob.properties),
        })  # fmt: skip
        body += blob.data
    payload = json.dumps({"blobs": described, "properties": {"created-by": "statflight"}}).encode()
    footer = MAGIC + payload + _TAIL.pack(len(payload), bytes(4), MAGIC)
    return bytes(body + footer), len(footer)


def read(stream: BinaryIO) -> list[Blob]:
    """The blobs of a Puffin file; none where its footer is compressed, which hardly anybody writes.

    Raises:
        ValueError: It is no Puffin file.
    """
    size = stream.seek(0, 2)
    if size is None:  # streams of Arrow tell, those of fsspec return
        size = stream.tell()
    if size < len(MAGIC) * 2 + _TAIL.size:
        raise ValueError("a Puffin file that is too short")
    stream.seek(size - _TAIL.size)
    length, flags, magic = _TAIL.unpack(stream.read(_TAIL.size))
    if magic != MAGIC or not 0 <= length <= min(size - _TAIL.size - 2 * len(MAGIC), MAX_FOOTER):
        raise ValueError("a Puffin file with a broken footer")
    if flags[0] & _COMPRESSED_FOOTER:
        return []
    stream.seek(size - _TAIL.size - length)
    return [_blob(stream, item) for item in json.loads(stream.read(length))["blobs"]]


def _blob(stream: BinaryIO, item: Mapping[str, Any]) -> Blob:
    stream.seek(item["offset"])
    data = stream.read(item["length"])
    if codec := item.get("compression-codec"):
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as plain:
            data = plain.read()
    return Blob(
        item["type"],
        tuple(item["fields"]),
        item["snapshot-id"],
        item["sequence-number"],
        bytes(data),
        item.get("properties") or {},
    )


def read_if_any(io: Any, path: str) -> list[Blob]:
    """The blobs of a statistics file; none where it is gone or damaged: statistics are a help, never a condition."""
    try:
        with io.new_input(path).open() as stream:
            return read(stream)
    except (OSError, ValueError, KeyError, pa.ArrowException):
        return []


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
