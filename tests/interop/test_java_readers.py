"""Published statistics, read by the Java libraries of the table formats."""

from __future__ import annotations

from typing import Any

import pytest

from capture.engines.native.engine import NativeEngine
from capture.publishers.publishing import publish
from capture.store_sink import LocalStore
from tests.capture.publishers import test_iceberg, test_paimon
from tests.interop.java import jars, jvm

pytestmark = pytest.mark.interop

ICEBERG = ("org.apache.iceberg:iceberg-core:1.10.0", "org.apache.datasketches:datasketches-java:6.2.0")
PAIMON = ("org.apache.paimon:paimon-bundle:1.4.2",)


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory):
    with jvm(jars(tmp_path_factory.mktemp("iceberg"), ICEBERG)) as found:
        yield found.org.apache


@pytest.fixture(scope="module")
def paimon(tmp_path_factory):
    with jvm(jars(tmp_path_factory.mktemp("paimon"), PAIMON)) as found:
        yield found


def test_java_iceberg_reads_the_published_puffin_file(iceberg, tmp_path):
    table = test_iceberg.TestContract().build(tmp_path)
    publication = publish(table.publisher())
    newest = max((table.path / "metadata").glob("*.metadata.json"))
    local = iceberg.iceberg.Files.localInput
    metadata = iceberg.iceberg.TableMetadataParser.read(local(str(newest)))
    (statistics,) = metadata.statisticsFiles()
    assert statistics.snapshotId() == metadata.currentSnapshot().snapshotId() == publication.snapshot_id
    source = local(str(statistics.path()).removeprefix("file://"))
    reader = iceberg.iceberg.puffin.Puffin.read(source).withFileSize(statistics.fileSizeInBytes()).build()
    blobs = list(reader.fileMetadata().blobs())
    names = {column.column_id: column.name for column in table.statistics().columns}
    distinct = {names[blob.inputFields()[0]]: int(blob.properties()["ndv"]) for blob in blobs}
    assert distinct == {column.name: column.distinct for column in table.statistics().columns}
    assert {blob.type() for blob in blobs} == {"apache-datasketches-theta-v1"}
    read, count = reader.readAll(reader.fileMetadata().blobs()).iterator(), 0
    while read.hasNext():
        assert read.next().second().remaining() > 8
        count += 1
    assert count == len(blobs)
    reader.close()


def test_java_paimon_reads_the_published_statistics(paimon, tmp_path):
    table = test_paimon.TestContract().build(tmp_path)
    publication = publish(table.publisher())
    statistics = _paimon_table(paimon, str(table.path)).statistics().get()
    assert (statistics.snapshotId(), statistics.mergedRecordCount().getAsLong()) == (publication.snapshot_id, 150)
    columns: Any = statistics.colStats()
    for column in table.statistics().columns:
        read = columns[column.name]
        assert (read.distinctCount().getAsLong(), read.nullCount().getAsLong()) == (column.distinct, column.null_count)


def test_statistics_written_by_java_paimon_are_captured(paimon, tmp_path):
    table = test_paimon.TestContract().build(tmp_path)
    stats = paimon.org.apache.paimon.stats
    columns = paimon.java.util.HashMap()
    long = paimon.java.lang.Long.valueOf
    columns.put("id", stats.ColStats.newColStats(0, long(77), None, None, long(0), long(8), long(8)))
    builder = paimon.org.apache.paimon.table.sink.BatchWriteBuilderImpl(_paimon_table(paimon, str(table.path)))
    commit = builder.newCommit()
    commit.updateStatistics(stats.Statistics(1, 0, long(150), long(4000), columns))
    commit.close()
    with LocalStore(tmp_path / "s.duckdb", [NativeEngine()]) as store:
        connector = table.connector
        store.capture(connector, "c", table.namespace, table.name)
        rows = store.catalog.get(f"c.{table.namespace}.{table.name}")
        found = store.read("stats.columns", rows.full_name).to_pylist()
        connector.close()
    by_column = {row["column_name"]: (row["ndv"], row["producer"]) for row in found}
    assert by_column["id"] == (77.0, "UPSTREAM_METADATA_DERIVED")


def _paimon_table(java: Any, path: str) -> Any:
    """The table of a directory, without a catalog."""
    paimon = java.org.apache.paimon
    return paimon.table.FileStoreTableFactory.create(paimon.fs.local.LocalFileIO.create(), paimon.fs.Path(path))
