"""Iceberg tables for tests: created in a SQL catalog, with row-level deletes that pyiceberg cannot write."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestListWriterV2,
    ManifestWriterV2,
    read_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from capture.publishers.iceberg import IcebergPublisher
from capture.publishers.publishing import publish
from capture.publishers.spi import ColumnStatistics, Destination, Publication, TableStatistics

POSITION_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": b"2147483545"}),
    ]
)


def make_catalog(root: Path) -> SqlCatalog:
    root.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("lake", uri=f"sqlite:///{root / 'catalog.db'}", warehouse=f"file://{root / 'warehouse'}")


def data_paths(table: Table) -> list[tuple[str, Record]]:
    """Path and partition of the live data files."""
    entries = [e for m in table.current_snapshot().manifests(table.io) for e in m.fetch_manifest_entry(table.io)]
    return [(entry.data_file.file_path, entry.data_file.partition) for entry in entries]


class _DeleteWriter(ManifestWriterV2):
    """Writes delete manifests, with the fields of v3."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def version(self) -> Any:
        return 3

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def new_writer(self) -> AvroOutputFile:
        return AvroOutputFile(
            output_file=self._output_file,
            file_schema=self._with_partition(3),
            record_schema=self._with_partition(3),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


def position_deletes(table: Table, rows: list[tuple[str, int]], partition: Record | None = None) -> DataFile:
    deleted = pa.table([[path for path, _ in rows], [position for _, position in rows]], schema=POSITION_SCHEMA)
    return _delete_file(table, deleted, DataFileContent.POSITION_DELETES, partition)


def equality_deletes(table: Table, keys: dict[str, list[Any]], partition: Record | None = None) -> DataFile:
    fields = [table.schema().find_field(name) for name in keys]
    arrow = table.schema().as_arrow()
    deleted = pa.table(
        list(keys.values()),
        pa.schema(
            [
                pa.field(f.name, arrow.field(f.name).type, True, {b"PARQUET:field_id": str(f.field_id).encode()})
                for f in fields
            ]
        ),
    )
    ids = [field.field_id for field in fields]
    return _delete_file(table, deleted, DataFileContent.EQUALITY_DELETES, partition, equality_ids=ids)


def deletion_vector(table: Table, path: str, rows: list[int], broken: bytes = b"") -> DataFile:
    """A Puffin file with one vector behind another blob, so that its offset matters."""
    (file,) = deletion_vectors(table, {path: rows}, broken)
    return file


def deletion_vectors(table: Table, rows: dict[str, list[int]], broken: bytes = b"") -> list[DataFile]:
    """A Puffin file with a vector for each data file, as Spark writes them."""
    content, places = b"PFA1something else", []
    for path, positions in rows.items():
        blob = broken or vector_blob(positions)
        places.append((path, len(positions), len(content), len(blob)))
        content += blob
    location = _new_path(table, "puffin")
    location.write_bytes(content + _puffin_footer(places))
    return [
        _described(
            location,
            FileFormat.PUFFIN,
            DataFileContent.POSITION_DELETES,
            count,
            None,
            referenced_data_file=path,
            content_offset=offset,
            content_size_in_bytes=size,
        )
        for path, count, offset, size in places
    ]


def _puffin_footer(places: list[tuple[str, int, int, int]]) -> bytes:
    """The footer of a Puffin file with vectors: path of the data file, deleted rows, offset and length of each."""
    blobs = [
        {
            "type": "deletion-vector-v1",
            "fields": [],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": offset,
            "length": length,
            "properties": {"referenced-data-file": path, "cardinality": str(count)},
        }
        for path, count, offset, length in places
    ]
    payload = json.dumps({"blobs": blobs}).encode()
    return b"PFA1" + payload + struct.pack("<i", len(payload)) + bytes(4) + b"PFA1"


def vector_blob(rows: list[int]) -> bytes:
    from pyroaring import BitMap64

    body = b"\xd1\xd3\x39\x64" + BitMap64(rows).serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def commit_deletes(table: Table, *files: DataFile, spec_id: int | None = None, format_version: int = 2) -> int:
    """Adds a snapshot with delete files, as a metadata file beside the others. Returns its id."""
    folder = Path(table.metadata.location.removeprefix("file://")) / "metadata"
    document = json.loads(latest(folder).read_text())
    current = next(s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"])
    snapshot_id, sequence = current["snapshot-id"] % 2**40 + 1, document["last-sequence-number"] + 1
    spec = table.spec() if spec_id is None else table.specs()[spec_id]
    output = table.io.new_output(str(folder / f"{uuid.uuid4()}-deletes.avro"))
    with _DeleteWriter(spec, table.schema(), output, snapshot_id, "null") as writer:
        for file in files:
            writer.add_entry(_entry(file, snapshot_id))
    deletes = writer.to_manifest_file()
    manifest_list = str(folder / f"snap-{snapshot_id}-{uuid.uuid4()}.avro")
    manifests = list(read_manifest_list(table.io.new_input(current["manifest-list"])))
    out = ManifestListWriterV2(
        table.io.new_output(manifest_list), snapshot_id, current["snapshot-id"], sequence, "null"
    )
    with out as listed:
        listed.add_manifests([*manifests, deletes])
    document["snapshots"].append(
        {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": current["snapshot-id"],
            "sequence-number": sequence,
            "timestamp-ms": current["timestamp-ms"] + 1,
            "manifest-list": manifest_list,
            "summary": {"operation": "delete"},
            "schema-id": current["schema-id"],
        }
    )
    document["snapshot-log"].append({"snapshot-id": snapshot_id, "timestamp-ms": current["timestamp-ms"] + 1})
    document |= {"current-snapshot-id": snapshot_id, "last-sequence-number": sequence, "format-version": format_version}
    document["refs"]["main"]["snapshot-id"] = snapshot_id
    if format_version == 3:
        document["next-row-id"] = 0
    write_metadata(folder, document)
    return int(snapshot_id)


def latest(folder: Path) -> Path:
    return max(
        folder.glob("*.metadata.json"), key=lambda file: int(file.name.lstrip("v").partition("-")[0].split(".")[0])
    )


def write_metadata(folder: Path, document: dict[str, Any]) -> None:
    number = int(latest(folder).name.lstrip("v").partition("-")[0].split(".")[0]) + 1
    (folder / f"{number:05}-{uuid.uuid4()}.metadata.json").write_text(json.dumps(document))


def _entry(file: DataFile, snapshot_id: int) -> ManifestEntry:
    return ManifestEntry.from_args(
        _table_format_version=3, status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file
    )


def _new_path(table: Table, suffix: str) -> Path:
    folder = Path(table.metadata.location.removeprefix("file://")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{uuid.uuid4()}.{suffix}"


def _delete_file(
    table: Table, deleted: pa.Table, content: DataFileContent, partition: Record | None, **more: Any
) -> DataFile:
    location = _new_path(table, "parquet")
    pq.write_table(deleted, location)
    return _described(location, FileFormat.PARQUET, content, deleted.num_rows, partition, **more)


def _described(
    location: Path, format: FileFormat, content: DataFileContent, rows: int, partition: Record | None, **more: Any
) -> DataFile:
    return DataFile.from_args(
        _table_format_version=3,
        content=content,
        file_path=str(location),
        file_format=format,
        partition=partition or Record(),
        record_count=rows,
        file_size_in_bytes=location.stat().st_size,
        **more,
    )


def simple_table(root: Path, schema: Schema, *parts: pa.Table, name: str = "db.t", **more: Any) -> Table:
    """A table of one append per part."""
    catalog = make_catalog(root)
    catalog.create_namespace_if_not_exists(name.partition(".")[0])
    table = catalog.create_table(name, schema, **more)
    for part in parts:
        table.append(part)
    catalog.close()
    return table


def publish_thetas(
    connector: Any, namespace: str, name: str, snapshot_id: int, sketches: Sequence[tuple[int, bytes, float]]
) -> Publication:
    """Publishes theta sketches (field id, bytes, distinct values) for a snapshot."""
    columns = tuple(ColumnStatistics(i, f"c{i}", "INT", ndv=float(ndv), theta=data) for i, data, ndv in sketches)
    statistics = TableStatistics(namespace, name, snapshot_id, columns)
    return publish(IcebergPublisher(Destination(connector, connector._config), statistics))
