"""`spark.read.format("statflight")` against a running server: rows, pushed-down filters, and partitions."""

import math
import os
import pickle
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    Not,
    StringContains,
)
from pyspark.sql.types import StructType

import flight_server
from flight_server.spark_reader import StatflightDataSource, StatflightReader, _condition
from tests.flight_server.live_server import serving

pytestmark = pytest.mark.spark

TABLES, COLUMNS = 12, 30


def rows() -> pa.Table:
    records = [
        {"table_catalog": "lake", "table_schema": "s", "table_name": f"t{table}", "snapshot_id": snapshot,
         "column_id": column, "column_name": f"c{column}", "row_count": 1000 * table + column + 1, "ndv": column + 0.5,
         "min": None if column % 7 == 0 else str(column), "logical_type": "INT" if column % 7 else None}
        for table in range(TABLES) for snapshot in (1, 2) for column in range(1, COLUMNS + 1)
    ]  # fmt: skip
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
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.sql.python.filterPushdown.enabled", "true").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1").getOrCreate()
    )  # fmt: skip
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


def test_filters_apply_without_the_pushdown_setting(spark, uri):
    """Filter pushdown is off by default; Spark then applies the filters."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    try:
        frame = load(spark, uri, snapshot="current").where("table_name = 't3' AND column_id < 4")
        assert sorted(row.column_id for row in frame.collect()) == [1, 2, 3]
    finally:
        spark.conf.set(setting, "true")


def test_block_of_the_clients_page_runs(spark, tmp_path, monkeypatch):
    document = Path(flight_server.__file__).with_name("CLIENTS.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python spark\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
    orders = {"table_catalog": "lake", "table_schema": "sales", "table_name": "orders", "snapshot_id": 1}
    columns = [orders | {"column_id": i, "column_name": name, "ndv": ndv}
               for i, (name, ndv) in enumerate([("id", 1000.0), ("region", 3.0)], 1)]  # fmt: skip
    with serving(tmp_path) as server:
        with server.connect() as client:
            client.put("stats.columns", pa.Table.from_pylist(columns))
        monkeypatch.setenv("STATFLIGHT_SERVER", server.uri)
        exec(compile(block, "CLIENTS.md", "exec"), {"spark": spark, "os": os})


def test_pushed_down_filters_select_the_matching_rows(spark, uri):
    frame = load(spark, uri)
    chosen = frame.where("table_name = 't3' AND snapshot_id = 2 AND column_id IN (1, 2, 7) AND NOT row_count = 3002")
    assert sorted((row.column_id, row.min) for row in chosen.collect()) == [(2, "2"), (7, None)]
    plan = chosen._jdf.queryExecution().toString()
    assert "PythonScan" in plan or "statflight" in plan
    assert frame.where("min IS NULL AND ndv > 20.0 AND snapshot_id = 1").count() == 2 * TABLES
    assert frame.where("column_name LIKE 'c1%' AND table_name = 't0' AND snapshot_id = 1").count() == 11


@pytest.mark.parametrize(
    ("spark_filter", "condition"),
    [
        (EqualTo(("a",), "x"), {"column": "a", "op": "EQ", "values": ["x"]}),
        (In(("a",), (1, 2)), {"column": "a", "op": "IN", "values": [1, 2]}),
        (IsNull(("a",)), {"column": "a", "op": "IS_NULL"}),
        (Not(IsNotNull(("a",))), {"not": {"column": "a", "op": "IS_NOT_NULL"}}),
        (LessThan(("a",), 1.5), {"column": "a", "op": "LT", "values": [1.5]}),
        (GreaterThan(("a",), 1.5), None),
        (Not(LessThan(("a",), 1.5)), None),
        (EqualTo(("a",), math.nan), None),
        (EqualTo(("a",), None), None),
        (In(("a",), ()), None),
        (EqualTo(("a", "b"), 1), None),
        (StringContains(("a",), "x"), None),
        (EqualTo(("a",), b"x"), None),
    ],
)
def test_supported_filters_become_conditions_and_others_none(spark_filter, condition):
    assert _condition(spark_filter) == condition


def test_push_returns_the_filters_left_to_spark():
    reader = StatflightReader(None, {"table": "stats.columns"}, type("S", (), {"names": ["a"]}), None)
    rest = list(reader.push([EqualTo(("a",), 1), GreaterThan(("a",), 2.5)]))
    assert rest == [GreaterThan(("a",), 2.5)]
    assert reader._command["predicates"] == [{"column": "a", "op": "EQ", "values": [1]}]


def test_push_filters_works_without_looking_overridden():
    """Spark rejects readers that override it while pushdown is off, and calls it while pushdown is on."""
    reader = pickle.loads(pickle.dumps(StatflightReader(None, {"table": "stats.columns"}, StructType(), None)))
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    assert list(reader.pushFilters([EqualTo(("a",), 1)])) == []
    assert reader._command["predicates"] == [{"column": "a", "op": "EQ", "values": [1]}]


def test_error_names_a_missing_option():
    with pytest.raises(ValueError, match='"flight" is missing'):
        StatflightDataSource({"uri": "grpc://127.0.0.1:1"}).schema()
