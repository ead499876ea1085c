"""Iceberg tables of the tests in this directory, and reads of them through the connector."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from capture.compute.readers.tasks import read
from capture.connectors.iceberg.connector import IcebergConnector
from capture.connectors.spi import ConnectorConfig

ROWS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "score", DoubleType()),
    identifier_field_ids=[1],
)


def rows(start: int, stop: int) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("score", pa.float64())])
    ids = range(start, stop)
    return pa.table([list(ids), [None if i % 5 == 0 else f"n{i:03}" for i in ids], [i / 4 for i in ids]], schema)


def directory(path: Path | str, **options: str) -> IcebergConnector:
    return IcebergConnector(ConnectorConfig("lake", "iceberg", str(path), options))


def home(table) -> Path:
    return Path(table.metadata.location.removeprefix("file://"))


def lake(table) -> Path:
    """The directory of the table's catalog and warehouse."""
    return home(table).parents[2]


def current(connector, namespace="default", name="t") -> int:
    found = connector.enumerate_snapshots(namespace, name).current_snapshot_id
    assert found is not None
    return found


def stats(connector, snapshot=None, namespace="default", name="t", columns=None):
    snapshot = snapshot or current(connector, namespace, name)
    return connector.capture_snapshot_target_stats(namespace, name, snapshot, {}, columns)


def file_columns(native) -> dict[tuple[int, str], dict]:
    """Rows of `file_columns` by (position of the file, column)."""
    files = native.files["file_path"].to_pylist()
    rows = [row for table in native.file_columns() for row in table.to_pylist()]
    return {(files.index(row["file_path"]), row["column_name"]): row for row in rows}


def live(connector, snapshot=None, namespace="default", name="t") -> list[dict]:
    """The live rows, as an executor reads them."""
    found = []
    for task in connector.plan_files(namespace, name, snapshot or current(connector, namespace, name), {}):
        columns = {column.name: values.to_pylist() for column, values in read(task, task.columns)}
        found += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return found


NESTED = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StructType(NestedField(3, "x", LongType()))))


def with_foreign_statistics(document: dict) -> dict:
    blob = {"snapshot-id": 1, "sequence-number": 1, "fields": [1], "properties": {}}
    document["statistics"] = [
        {
            "snapshot-id": document["current-snapshot-id"],
            "statistics-path": "/gone.stats",
            "file-size-in-bytes": 9,
            "file-footer-size-in-bytes": 9,
            "blob-metadata": [
                blob | {"type": "presto-sum-data-size-bytes-v1"},
                blob | {"type": "apache-datasketches-theta-v1"},
            ],
        }
    ]
    return document


def sql(root: Path, **options: str) -> IcebergConnector:
    return IcebergConnector(ConnectorConfig("c", "iceberg", f"sqlite:///{root / 'catalog.db'}", options))
