"""`spark.read.format("statflight")` against a running server: rows, filters, conditions, and partitions."""

import os
import re
import sys
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import flight_server
from flight_server.client.spark_reader import StatflightDataSource
from flight_server.faces.local.tables import LocalTables
from flight_server.faces.present import reader_code
from tests.flight_server.live_server import serving

pytestmark = pytest.mark.spark

TABLES, COLUMNS = 12, 30


def rows() -> pa.Table:
    records = [
        {
            "table_catalog": "lake",
            "table_schema": "s",
            "table_name": f"t{table}",
            "snapshot_id": snapshot,
            "column_id": column,
            "column_name": f"c{column}",
            "row_count": 1000 * table + column + 1,
            "ndv": column + 0.5,
            "min": None if column % 7 == 0 else str(column),
            "logical_type": "INT" if column % 7 else None,
        }
        for table in range(TABLES)
        for snapshot in (1, 2)
        for column in range(1, COLUMNS + 1)
    ]
    return pa.Table.from_pylist(records)


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("spark-reader")) as server:
        with server.connect() as client:
            client.put("stats.columns", rows())
        yield server.uri


@pytest.fixture(scope="module")
def spark():
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.dataSource.register(StatflightDataSource)
    yield session
    session.stop()


def load(spark, uri, **options):
    reader = spark.read.format("statflight").option("uri", uri).option("flight", "stats.columns")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_partitions_together_have_every_row_once(spark, uri):
    frame = load(spark, uri, partitions=4)
    assert frame.rdd.getNumPartitions() == 4
    found = frame.select("table_name", "snapshot_id", "column_id", "row_count", "freshness").collect()
    assert len(found) == len(set(found)) == TABLES * 2 * COLUMNS
    assert frame.schema["snapshot_id"].dataType.typeName() == "long"
    assert {row.freshness for row in found} == {"EXACT", "STALE"}


def test_options_select_columns_and_snapshot(spark, uri):
    frame = load(spark, uri, columns="column_name, ndv", snapshot="current")
    assert frame.columns == ["column_name", "ndv"]
    assert frame.count() == TABLES * COLUMNS


def test_pasted_code_finds_the_rows_that_a_scan_kept(spark, tmp_path):
    rows = pa.table({"id": range(30), "day": [date(2024, 1, 1 + at % 3) for at in range(30)], "b c": ["it's"] * 30})
    write_deltalake(tmp_path / "t", rows, partition_by=["day"])
    where = "day = '2024-01-02' AND id > 20 AND \"b c\" = 'it''s'"
    tables = LocalTables(None, lambda _: None)
    try:
        scan = tables.client.scan(tables.add(str(tmp_path / "t")), where=where)
        text = reader_code.code(scan, reader_code.Reader.SPARK, reader_code.Wanted(where, ["id", "b c", "day"]))
    finally:
        tables.close()
    scope = {"spark": spark}
    exec(text, scope)
    assert scan.summary["files"]["kept"] == 1
    found = sorted(row.asDict()["id"] for row in scope["rows"].collect())
    assert found == [id for id in range(21, 30) if id % 3 == 1]
    assert scope["rows"].columns == ["id", "b c", "day"]


def test_block_of_the_clients_page_runs(spark, tmp_path, monkeypatch):
    document = Path(flight_server.__file__).with_name("CLIENTS.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python spark\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
    orders = {"table_catalog": "lake", "table_schema": "sales", "table_name": "orders", "snapshot_id": 1}
    columns = [
        orders | {"column_id": i, "column_name": name, "ndv": ndv}
        for i, (name, ndv) in enumerate([("id", 1000.0), ("region", 3.0)], 1)
    ]
    with serving(tmp_path) as server:
        with server.connect() as client:
            client.put("stats.columns", pa.Table.from_pylist(columns))
        monkeypatch.setenv("STATFLIGHT_SERVER", server.uri)
        exec(compile(block, "CLIENTS.md", "exec"), {"spark": spark, "os": os})


def test_each_query_of_a_loaded_frame_has_its_own_filters(spark, uri):
    """Filter pushdown is on: Spark 4.3 keeps one reader, with the filters that it took last, for all of them."""
    frame = load(spark, uri, columns="table_name, column_id", snapshot="current")
    third, fourth = (
        frame.where(f"column_id = {column}").withColumnRenamed("column_id", f"id{column}") for column in (3, 4)
    )
    assert third.count() == TABLES
    assert frame.count() == TABLES * COLUMNS
    assert third.join(fourth, "table_name").where("id3 = 3 AND id4 = 4").count() == TABLES


def test_server_applies_the_condition_of_the_load(spark, uri):
    condition = "table_name = 't3' AND snapshot_id = 2 AND column_id IN (1, 2, 7) AND row_count <> 3002"
    chosen = load(spark, uri, where=condition)
    assert sorted((row.column_id, row.min) for row in chosen.collect()) == [(2, "2"), (7, None)]
    for wrong, message in (("rows > 3", "UNKNOWN_COLUMN"), ("lower(min) = 'a'", "INVALID_ARGUMENT")):
        with pytest.raises(Exception, match=message):
            load(spark, uri, where=wrong)


def test_error_names_a_missing_option():
    with pytest.raises(ValueError, match='"flight" is missing'):
        StatflightDataSource({"uri": "grpc://127.0.0.1:1"}).schema()


def test_address_is_that_of_the_variable_where_no_option_names_one(monkeypatch, uri):
    monkeypatch.setenv("STATFLIGHT_SERVER", uri)
    assert "row_count" in StatflightDataSource({"flight": "stats.columns"}).schema().names
    monkeypatch.delenv("STATFLIGHT_SERVER")
    with pytest.raises(ValueError, match=r'"uri" is missing.*STATFLIGHT_SERVER'):
        StatflightDataSource({"flight": "stats.columns"}).schema()
