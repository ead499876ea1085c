"""Publishing to Iceberg: what is registered, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.types import LongType, NestedField

from capture.connectors.iceberg.connector import IcebergConnector
from capture.connectors.spi import ConnectorConfig
from capture.publishers import iceberg
from store.errors import InvalidArgument, NotFound


@pytest.fixture
def table(tmp_path):
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path / 'c.db'}", warehouse=f"file://{tmp_path / 'w'}")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", Schema(NestedField(1, "id", LongType()), NestedField(2, "n", LongType())))
    table.append(pa.table({"id": [1, 2], "n": [1, 1]}))
    yield table
    catalog.close()


@pytest.fixture
def connector(tmp_path, table):
    connector = IcebergConnector(ConnectorConfig("c", "iceberg", f"sqlite:///{tmp_path / 'c.db'}", {"name": "lake"}))
    yield connector
    connector.close()


def test_publish_registers_a_file_that_others_read(table, connector):
    snapshot = table.current_snapshot()
    told = iceberg.publish(connector, "db", "t", snapshot.snapshot_id, [(2, b"of n", 1.0), (1, b"of id", 2.0)])
    table.refresh()
    (statistics,) = table.metadata.statistics
    assert told == {
        "path": statistics.statistics_path, "snapshot_id": snapshot.snapshot_id, "columns": [1, 2],
        "size_bytes": statistics.file_size_in_bytes,
    }  # fmt: skip
    content = Path(told["path"].removeprefix("file://")).read_bytes()
    assert len(content) == statistics.file_size_in_bytes
    assert content[-statistics.file_footer_size_in_bytes :].startswith(b"PFA1{")
    assert {b.fields[0]: b.properties for b in statistics.blob_metadata} == {1: {"ndv": "2"}, 2: {"ndv": "1"}}
    assert {b.sequence_number for b in statistics.blob_metadata} == {snapshot.sequence_number}
    assert [PuffinFile(content).get_blob_payload(b) for b in PuffinFile(content).footer.blobs] == [b"of id", b"of n"]
    assert table.current_snapshot() == snapshot
    assert table.scan().to_arrow().num_rows == 2


def test_a_directory_takes_no_commit(table):
    home = table.metadata.location.removeprefix("file://")
    connector = IcebergConnector(ConnectorConfig("c", "iceberg", home))
    with pytest.raises(InvalidArgument, match=r"default\.t.*catalog"):
        iceberg.publish(connector, "default", "t", table.current_snapshot().snapshot_id, [(1, b"x", 1)])


def test_what_cannot_be_published(table, connector):
    with pytest.raises(NotFound, match="snapshot 5"):
        iceberg.publish(connector, "db", "t", 5, [(1, b"x", 1)])
    with pytest.raises(InvalidArgument, match="no theta sketch"):
        iceberg.publish(connector, "db", "t", table.current_snapshot().snapshot_id, [])
    with pytest.raises(NotFound, match=r"db\.u"):
        iceberg.publish(connector, "db", "u", 5, [(1, b"x", 1)])
    table.refresh()
    assert table.metadata.statistics == []
