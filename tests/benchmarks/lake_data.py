"""Large tables of little data: logs, manifests and footers of files that are never read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ("long", "double", "string", "date", "timestamp")


def delta_log(folder: Path, files: int, columns: int) -> Path:
    """A Delta table whose checkpoint adds `files` files, with statistics of every column."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    fields = [
        {"name": f"c{i}", "type": KINDS[i % len(KINDS)], "nullable": True, "metadata": {}} for i in range(columns)
    ]
    metadata = {
        "id": "bench",
        "name": None,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {"delta.dataSkippingNumIndexedCols": str(columns)},
        "createdTime": 0,
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    texts = pa.map_(pa.string(), pa.string())
    add = pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", texts),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
            ("stats", pa.string()),
        ]
    )
    meta = pa.struct(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("description", pa.string()),
            ("format", pa.struct([("provider", pa.string()), ("options", texts)])),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", texts),
            ("createdTime", pa.int64()),
        ]
    )
    schema = pa.schema(
        [("protocol", pa.struct([(name, pa.int32()) for name in protocol])), ("metaData", meta), ("add", add)]
    )
    counts = json.dumps({f"c{i}": 0 for i in range(columns)})
    with pq.ParquetWriter(log / f"{1:020}.checkpoint.parquet", schema, compression="zstd") as writer:
        checkpointed = metadata | {
            "format": {"provider": "parquet", "options": []},
            "configuration": list(metadata["configuration"].items()),
        }
        writer.write_table(pa.Table.from_pylist([{"protocol": protocol}, {"metaData": checkpointed}], schema))
        for start in range(0, files, 5000):
            rows = []
            for i in range(start, min(start + 5000, files)):
                low = json.dumps({f"c{c}": _bound(c, i) for c in range(columns)})
                high = json.dumps({f"c{c}": _bound(c, i + 1) for c in range(columns)})
                stats = f'{{"numRecords": 1000, "minValues": {low}, "maxValues": {high}, "nullCount": {counts}}}'
                add_one = {"path": f"part-{i:08}.parquet", "partitionValues": [], "size": 10_000 + i}
                add_one |= {"modificationTime": 1_700_000_000_000, "dataChange": False, "stats": stats}
                rows.append({"add": add_one})
            writer.write_table(pa.Table.from_pylist(rows, schema))
    (log / "_last_checkpoint").write_text(json.dumps({"version": 1, "size": files + 2}))
    return folder


def _bound(column: int, i: int):
    match KINDS[column % len(KINDS)]:
        case "long":
            return i * 1000 + column
        case "double":
            return i + 0.25
        case "string":
            return f"value-{i:09}"
        case "date":
            return f"20{10 + i % 15:02}-0{1 + i % 9}-1{column % 9}"
        case _:
            return f"20{10 + i % 15:02}-0{1 + i % 9}-11T00:00:0{column % 9}.123Z"


def footers(folder: Path, files: int, columns: int = 20) -> Path:
    """A directory of Parquet files, the same rows under other names."""
    folder.mkdir(parents=True)
    table = pa.table(
        {f"c{i}": pa.array(range(200), pa.int64()) if i % 2 else [f"v{n}" for n in range(200)] for i in range(columns)}
    )
    first = folder / "part-00000.parquet"
    pq.write_table(table, first, row_group_size=100)
    content = first.read_bytes()
    for i in range(1, files):
        (folder / f"part-{i:05}.parquet").write_bytes(content)
    return folder


def iceberg_manifests(folder: Path, files: int, columns: int = 20, per_manifest: int = 5000) -> tuple[str, str]:
    """Creates a table whose data files are in its manifests only; returns the uri and warehouse of its SQL catalog."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    folder.mkdir(parents=True)
    uri = f"sqlite:///{folder}/catalog.db"
    catalog = SqlCatalog("c", uri=uri, warehouse=f"file://{folder}/wh")
    catalog.create_namespace("db")
    types = [LongType() if i % 2 else StringType() for i in range(columns)]
    table = catalog.create_table("db.t", Schema(*(NestedField(i, f"c{i}", t) for i, t in enumerate(types, 1))))
    for start in range(0, files, per_manifest):
        append_files(table, start, min(start + per_manifest, files))
    return uri, f"file://{folder}/wh"


def append_files(table, start: int, stop: int) -> None:
    """Commits files that exist in the commit's manifest only."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record
    from pyiceberg.types import LongType

    types = {field.field_id: field.field_type for field in table.schema().fields}
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for n in range(start, stop):
            low = {i: to_bytes(t, n * 10 if isinstance(t, LongType) else f"v{n:08}") for i, t in types.items()}
            append.append_data_file(
                DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=f"{table.location()}/data/part-{n:08}.parquet",
                    file_format=FileFormat.PARQUET,
                    partition=Record(),
                    record_count=1000,
                    file_size_in_bytes=10_000,
                    column_sizes=dict.fromkeys(low, 1000),
                    value_counts=dict.fromkeys(low, 1000),
                    null_value_counts=dict.fromkeys(low, 0),
                    nan_value_counts={},
                    lower_bounds=low,
                    upper_bounds=low,
                    key_metadata=None,
                    split_offsets=[4],
                    equality_ids=None,
                    sort_order_id=None,
                    spec_id=0,
                )
            )
