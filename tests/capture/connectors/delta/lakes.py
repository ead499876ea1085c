"""Delta tables of other writers, and a connector to read them with."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from capture.connectors import open_connector
from capture.connectors.delta.connector import DeltaConnector
from capture.connectors.spi import Connector, ConnectorConfig

LAKES = Path(__file__).resolve().parents[5] / "shared/lakes/delta"
needs_lakes = pytest.mark.skipif(not LAKES.exists(), reason="the shared lakes are elsewhere")


def connector(uri, **options) -> DeltaConnector:
    found = open_connector(ConnectorConfig("c", "delta", str(uri), options))
    assert isinstance(found, DeltaConnector)
    return found


def ids_of(found: Connector, name: str) -> dict[str, int]:
    columns = found.describe("default", name).schema.columns
    return {column.name: column.field_id or i for i, column in enumerate(columns, 1)}


def captured(found: Connector, name: str, version: int | None = None):
    """Native statistics, and the rows of the files by column."""
    if version is None:
        version = found.enumerate_snapshots("default", name).current_snapshot_id
    stats = found.capture_snapshot_target_stats("default", name, version, ids_of(found, name))
    rows: dict[str, list[dict]] = {}
    for table in stats.file_columns():
        for row in table.to_pylist():
            rows.setdefault(row["column_name"], []).append(row)
    return stats, rows


def scanned(found: Connector, name: str, version: int) -> dict[str, list]:
    """Live values of each column, read as by an executor."""
    values: dict[str, list] = {}
    for task in found.plan_files("default", name, version, ids_of(found, name)):
        file = pq.ParquetFile(task.location)
        gone = set(task.deleted_rows.to_pylist()) if task.deleted_rows is not None else set()
        live = [i for i in range(file.metadata.num_rows) if i not in gone]
        assert len(live) == task.row_count
        for column in task.columns:
            if column.path is None:
                found_values = column.constant.to_pylist() * len(live)
            else:
                stored = file.read([column.path]).to_pylist()
                found_values = []
                for i in live:
                    value = stored[i]
                    for part in column.path.split("."):
                        value = None if value is None else value[part]
                    found_values.append(value)
            values.setdefault(column.name, []).extend(found_values)
    return values
