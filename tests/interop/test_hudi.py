"""A copy-on-write table that Hudi's writer for Spark changes in every way: each snapshot has the rows it should."""

from __future__ import annotations

import pytest

pytest.importorskip("hudi")

from capture.compute.file_scan import Work, scan
from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from store.model.errors import UpstreamError
from tests.interop.java import jars
from tests.interop.spark import pyspark, run

pytestmark = pytest.mark.interop

SPARK, BUNDLE = "3.5.6", "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.0.2"
ROWS = "SELECT id, IF(id % 3 = 0, NULL, concat('n', id)) name, id / 4 amount, IF(id < 30, 'eu', 'us') region FROM"
CREATE = (
    "CREATE TABLE {} (id BIGINT, name STRING, amount DOUBLE, region STRING) USING hudi"
    " TBLPROPERTIES (type='{}', primaryKey='id', hoodie.write.table.version='6') {} LOCATION '{}'"
)
CHANGES = {  # statement: rows then, those with a name, least and greatest id
    f"INSERT INTO t {ROWS} range(0, 50)": (50, 33, 0, 49),
    "UPDATE t SET name = 'changed' WHERE id = 7": (50, 33, 0, 49),
    "DELETE FROM t WHERE id BETWEEN 10 AND 19": (40, 26, 0, 49),
    "ALTER TABLE t ADD COLUMNS (more INT)": (40, 26, 0, 49),
    "INSERT INTO t (id, name, amount, more, region) VALUES (100, 'x', 1.5, 5, 'us')": (41, 27, 0, 100),
    "INSERT OVERWRITE t PARTITION (region = 'us') SELECT id, 'again', 0.5, 6 FROM range(200, 205)": (25, 18, 0, 204),
}


def test_snapshots_have_the_rows_that_spark_left(tmp_path):
    packages = pyspark(tmp_path / "packages", SPARK)
    bundle = next(jar for jar in jars(tmp_path / "jars", [BUNDLE]) if jar.name.startswith("hudi-spark3.5-bundle"))
    settings = {
        "spark.jars": str(bundle),
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    lake = tmp_path / "lake"
    statements = [
        "SET hoodie.write.table.version=6",
        CREATE.format("t", "cow", "PARTITIONED BY (region)", lake / "t"),
        *CHANGES,
        CREATE.format("m", "mor", "", lake / "m"),
        f"INSERT INTO m {ROWS} range(0, 5)",
    ]
    run(packages, settings, statements)
    check(str(lake))


def check(lake):
    connector = open_connector(ConnectorConfig("c", "hudi", lake))
    assert connector.list_tables("default") == ["m", "t"]
    with pytest.raises(UpstreamError, match="merge-on-read"):
        connector.describe("default", "m")
    described = connector.describe("default", "t")
    assert described.partition_keys == ("region",)
    assert [column.name for column in described.schema.columns] == ["id", "name", "amount", "more", "region"]
    ids = {column.key: number for number, column in enumerate(described.schema.columns, 1)}
    snapshots = connector.enumerate_snapshots("default", "t").snapshots
    assert [of_snapshot(connector, each.snapshot_id, ids) for each in snapshots] == list(CHANGES.values())


def of_snapshot(connector, snapshot_id, ids):
    """Rows, rows with a name, least and greatest id: by footers, which a scan of all files confirms."""
    native = connector.capture_snapshot_target_stats("default", "t", snapshot_id, ids)
    assert set(native.files["partition_data_json"].to_pylist()) == {'{"region": "eu"}', '{"region": "us"}'}
    columns = [row for table in native.file_columns() for row in table.to_pylist()]
    nulls = sum(row["null_count"] for row in columns if row["column_name"] == "name")
    partials = [
        answer.partial
        for task in connector.plan_files("default", "t", snapshot_id, ids, frozenset({"name"}))
        for answer in scan(0, task, Work((ids["name"],)))
    ]
    read = sum(each.row_count for each in partials), sum(each.null_count for each in partials)
    assert read == (native.row_count, nulls)
    of_id = [row for row in columns if row["column_name"] == "id"]
    low, high = min(int(row["min"]) for row in of_id), max(int(row["max"]) for row in of_id)
    return native.row_count, native.row_count - nulls, low, high
