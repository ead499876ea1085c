"""The `spark` publisher with a real session: in memory, and in a Hive metastore in Derby that outlives the server."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.engines.native.engine import NativeEngine
from capture.homes import with_catalogs
from capture.publishers.publishing import publish
from capture.publishers.spark_histograms import Bin, serialized
from capture.publishers.spi import ColumnStatistics
from capture.spark.session import Spark
from capture.spark.session_catalog import SessionCatalog
from capture.store_sink import LocalStore
from store.model import sketches
from store.model.errors import InvalidArgument, NotFound, UpstreamError
from tests.capture.publishers import parquet_tables
from tests.capture.publishers.contract import PublisherContract, Table, rows
from tests.flight_server.live_server import serving

pytestmark = pytest.mark.spark
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def spark():
    holder = Spark("local[2]", settings={"spark.sql.cbo.enabled": "true", "spark.sql.cbo.planStats.enabled": "true"})
    with holder.held() as session:
        yield session
    holder.stop()


def registered_table(spark, root: Path, table: pa.Table) -> Table:
    """A Parquet table, registered under a name of its own."""
    name = f"t{next(NUMBERS)}"
    path = root / name
    path.mkdir()
    pq.write_table(table, path / "part-0.parquet")
    spark().sql(f"CREATE TABLE {name} USING parquet LOCATION '{path}'")
    return Table("spark", ConnectorConfig("c", "parquet", str(root)), "default", name, path, table, spark=spark)


class TestContract(PublisherContract):
    @pytest.fixture
    def table(self, tmp_path: Path, spark) -> Table:
        return registered_table(spark, tmp_path, rows(0, 150))

    def build(self, root: Path) -> Table:
        raise AssertionError("the fixture builds it")

    append = staticmethod(parquet_tables.append)

    def count(self, table: Table) -> int:
        session = table.spark()
        session.catalog.refreshTable(table.name)
        return session.table(table.name).count()


def estimate(spark, query: str) -> str:
    return spark().sql(query)._jdf.queryExecution().optimizedPlan().stats().simpleString()


def with_histograms(table: Table):
    """The table's statistics with quantiles of its integer columns."""
    statistics = table.statistics()
    columns = [
        dataclasses.replace(c, quantiles=sketches.kll(np.sort(table.rows[c.name].to_numpy()).astype(np.float64)))
        if c.logical_type == "INT"
        else c
        for c in statistics.columns
    ]
    return dataclasses.replace(statistics, columns=tuple(columns))


def test_spark_estimates_rows_with_published_statistics(spark, tmp_path):
    skewed = pa.table({"id": pa.array(range(1000), pa.int64()), "k": [5 if i % 100 else i for i in range(1000)]})
    table = registered_table(spark, tmp_path, skewed)
    before = estimate(spark, f"SELECT * FROM {table.name} WHERE k < 6")
    publish(table.publisher(with_histograms(table)))
    assert "rowCount" not in before
    after = estimate(spark, f"SELECT * FROM {table.name} WHERE k < 6")
    assert 900 <= int(re.search(r"rowCount=(\d+)", after)[1]) < 1000  # 991 rows
    assert "rowCount=1.00E+3" in estimate(spark, f"SELECT * FROM {table.name}")
    assert "rowCount=11" in estimate(spark, f"SELECT k, count(*) FROM {table.name} GROUP BY k")
    described = {r[0]: r[1] for r in spark().sql(f"DESCRIBE EXTENDED {table.name} k").collect()}
    assert (described["min"], described["max"], described["distinct_count"]) == ("0", "900", "11")
    assert "num_of_bins: 254" in described["histogram"]


def test_serialized_histogram_equals_that_of_spark(spark):
    found = [Bin(1.0, 2.5, 3), Bin(2.5, 2.5, 1), Bin(2.5, 1e300, 2**40)]
    logical = spark()._jvm.org.apache.spark.sql.catalyst.plans.logical
    array = spark().sparkContext._gateway.new_array(logical.HistogramBin, len(found))
    for at, item in enumerate(found):
        array[at] = logical.HistogramBin(item.low, item.high, item.ndv)
    expected = logical.HistogramSerializer.serialize(logical.Histogram(50.0, array))
    assert SessionCatalog.of(spark()).histogram(serialized(found, 150)) == expected


def test_column_names_with_special_characters_are_published(spark, tmp_path):
    """All statistics of a table are sent as one text."""
    names = ["a b", "c=d", "e:f", "#g", "!h", "i\\j", "k'l", "ü", "m.n", "o.version"]
    table = registered_table(spark, tmp_path, pa.table({name: pa.array([1, 2, 3], pa.int64()) for name in names}))
    assert set(publish(table.publisher()).columns) == set(names)


def test_table_without_a_schema_in_the_catalog_is_published(spark, tmp_path):
    """Delta keeps the schema in its log only."""
    table = registered_table(spark, tmp_path, rows(0, 150))
    external = spark()._jsparkSession.sharedState().externalCatalog().unwrapped()
    external.alterTableSchema("default", table.name, spark()._jvm.org.apache.spark.sql.types.StructType())
    assert publish(table.publisher()).columns == ("id", "label")
    assert "rowCount=14" in estimate(spark, f"SELECT * FROM {table.name} WHERE label = 'l1'")


def test_queries_on_every_published_type_can_be_planned(spark, tmp_path):
    """Malformed bounds or bins would fail every query on the table."""
    path = tmp_path / "types"
    spark().sql(
        "SELECT id, cast(id % 100 AS tinyint) tiny, cast(id AS float) f, cast(id AS double) / 7 d,"
        " cast(id AS decimal(12, 2)) money, cast(id AS decimal(38, 10)) wide, id % 2 = 0 flag,"
        " date_add(DATE'1969-12-01', cast(id AS int)) day, timestamp_micros(id * 1000003) at,"
        " to_timestamp_ntz(concat('2026-01-01 00:00:', cast(10 + id % 50 AS string))) local,"
        " concat('x', id) text, cast(concat('b', id) AS binary) raw, array(id) list FROM range(500)"
    ).coalesce(1).write.parquet(str(path))
    spark().sql(f"CREATE TABLE types USING parquet LOCATION '{path}'")
    table = Table(
        "spark",
        ConnectorConfig("c", "parquet", str(tmp_path)),
        "default",
        "types",
        path,
        pq.read_table(path),
        spark=spark,
    )
    columns = tuple(
        ColumnStatistics(
            n,
            name,
            type,
            500,
            0,
            ndv=100.0,
            min=low,
            max=high,
            avg_width_bytes=4.0,
            max_width_bytes=9,
            quantiles=sketches.kll(np.linspace(0, 400, 500)),
        )
        for n, (name, type, low, high) in enumerate(
            [
                ("id", "INT", "0", "499"),
                ("tiny", "INT", "0", "99"),
                ("f", "FLOAT", "0", "499.0"),
                ("d", "DOUBLE", "0", "71.28571428571429"),
                ("money", "DECIMAL(12,2)", "0", "499"),
                ("wide", "DECIMAL(38,10)", "0", "499"),
                ("flag", "BOOLEAN", "false", "true"),
                ("day", "DATE", "1969-12-01", "1971-04-13"),
                ("at", "TIMESTAMPTZ", "1970-01-01T00:00:00Z", "1970-01-01T00:08:19.001497Z"),
                ("local", "TIMESTAMP", "2026-01-01T00:00:10", "2026-01-01T00:00:59"),
                ("text", "STRING", "x0", "x99"),
                ("raw", "BINARY", "YjA=", "Yjk5"),
                ("list", "ARRAY", None, None),
                ("gone", "INT", "1", "2"),
            ],
            1,
        )
    )
    result = publish(table.publisher(table.statistics(columns=columns)))
    assert set(result.left_out) == {"list", "gone", "local"}
    for condition in (
        "id < 10",
        "tiny = 3",
        "f > 1",
        "d < 2.5",
        "money = 3.00",
        "wide < 5",
        "flag",
        "day < DATE'1970-06-01'",
        "at > TIMESTAMP'1970-01-01 00:01:00'",
        "text = 'x1'",
        "local > TIMESTAMP_NTZ'2026-01-01 00:00:30'",
    ):
        query = f"SELECT a.id FROM types a JOIN types b ON a.id = b.id AND a.day = b.day WHERE a.{condition}"
        query = query.replace("a.flag", "a.flag = true")
        assert "rowCount" in estimate(spark, query), condition


def test_queries_on_infinite_numbers_can_be_planned(spark, tmp_path):
    """Between two infinities Spark computes NaN, and failed every query with a condition on the column."""
    ends = pa.array([-math.inf, 1.0, 2.0, math.inf])
    table = registered_table(spark, tmp_path, pa.table({"d": ends, "f": ends.cast(pa.float32())}))
    columns = tuple(
        ColumnStatistics(n, name, type, 4, 0, 0, ndv=4.0, min="-Infinity", max="Infinity")
        for n, (name, type) in enumerate((("d", "DOUBLE"), ("f", "FLOAT")), 1)
    )
    assert publish(table.publisher(table.statistics(columns=columns))).columns == ("d", "f")
    for name in ("d", "f"):
        assert "rowCount=4" in estimate(spark, f"SELECT * FROM {table.name} WHERE {name} > 0"), name
        assert "rowCount=1" in estimate(spark, f"SELECT * FROM {table.name} WHERE {name} = 2"), name


def test_joins_by_a_column_without_bounds_are_not_estimated_as_empty(spark, tmp_path):
    """Such as one of dates after the year 9999: Spark takes it for a column of nulls."""
    table = registered_table(spark, tmp_path, pa.table({"id": pa.array(range(4), pa.int64()), "label": list("abcd")}))
    columns = (ColumnStatistics(1, "id", "INT", 4, 0, ndv=4.0), ColumnStatistics(2, "label", "STRING", 4, 0, ndv=4.0))
    assert publish(table.publisher(table.statistics(columns=columns))).columns == ("id", "label")
    for name in ("id", "label"):
        plan = estimate(spark, f"SELECT a.id FROM {table.name} a JOIN {table.name} b ON a.{name} = b.{name}")
        assert not plan.endswith("rowCount=0"), name


def test_bounds_that_spark_cannot_read_are_refused(spark, tmp_path):
    """With the optimizer of this session off too: another session's would fail every query on the table."""
    table = registered_table(spark, tmp_path, pa.table({"tiny": pa.array([1, 2], pa.int8())}))
    outside = ColumnStatistics(
        1, "tiny", "INT", 2, 0, ndv=2.0, min="1", max="300", min_is_exact=True, max_is_exact=True
    )
    spark().conf.set("spark.sql.cbo.planStats.enabled", "false")
    try:
        with pytest.raises(UpstreamError, match="300"):
            publish(table.publisher(table.statistics(columns=(outside,))))
    finally:
        spark().conf.set("spark.sql.cbo.planStats.enabled", "true")
    assert table.publisher().read() is None


def test_delta_table_is_published_by_its_name_in_the_catalog(spark, tmp_path):
    write_deltalake(tmp_path / "events", rows(0, 150))
    pq_path = registered_table(spark, tmp_path, rows(0, 150))
    config = ConnectorConfig("c", "delta", str(tmp_path / "events"))
    table = Table("spark", config, "default", "events", tmp_path / "events", rows(0, 150), spark=spark)
    with pytest.raises(NotFound, match=r"not registered in Spark.*location"):
        publish(table.publisher())
    named = dataclasses.replace(table, options={"table": f"default.{pq_path.name}"})
    assert publish(named.publisher()).location == f"spark_catalog.default.{pq_path.name}"
    with pytest.raises(NotFound, match=r"nowhere\.t"):
        publish(dataclasses.replace(table, options={"table": "nowhere.t"}).publisher())


def test_table_of_unknown_size_is_refused(spark, tmp_path):
    """Spark would broadcast a table of 0 bytes, or of those that it had before, however large it is."""
    table = registered_table(spark, tmp_path, rows(0, 150))
    with pytest.raises(InvalidArgument, match=r"size of .* is not known") as refused:
        publish(table.publisher(table.statistics(total_size_bytes=None)))
    assert refused.value.code == "NOT_PUBLISHABLE" and table.publisher().read() is None


def test_dry_run_reports_a_table_above_the_broadcast_threshold(spark, tmp_path):
    table = registered_table(spark, tmp_path, rows(0, 150))
    spark().conf.set("spark.sql.autoBroadcastJoinThreshold", "5000")
    try:
        assert "above the broadcast threshold of 5000" in publish(table.publisher(), dry_run=True).detail
    finally:
        spark().conf.unset("spark.sql.autoBroadcastJoinThreshold")


def test_publish_without_a_usable_session_is_rejected(tmp_path):
    (tmp_path / "t").mkdir()
    pq.write_table(rows(0, 10), tmp_path / "t/part.parquet")
    config = ConnectorConfig("c", "parquet", str(tmp_path))
    table = Table("spark", config, "default", "t", tmp_path / "t", rows(0, 10))
    with pytest.raises(InvalidArgument, match="no Spark session"):
        publish(table.publisher())
    connect = dataclasses.replace(table, spark=lambda: object())
    with pytest.raises(InvalidArgument, match="Spark Connect"):
        publish(connect.publisher())


_HIVE = """
import json, sys
from capture.spark.session import Spark
settings, *statements = json.loads(sys.argv[1]), *sys.argv[2:]
holder = Spark("local[1]", settings=settings)
with holder.held() as session:
    answers = [session().sql(statement).collect() for statement in statements]
    print(json.dumps([[list(row) for row in rows] for rows in answers], default=str))
holder.stop()
"""


def hive(settings: dict[str, str], *statements: str) -> list[list[list[str]]]:
    """The rows of each statement, all run by one new session."""
    done = subprocess.run(
        [sys.executable, "-c", _HIVE, json.dumps(settings), *statements],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_hive_metastore_keeps_statistics_for_other_sessions(tmp_path):
    """A server whose TOML names the metastore reads what another session has analyzed, and publishes what a new session
    reads later."""
    lake = tmp_path / "lake/events"
    lake.mkdir(parents=True)
    skewed = pa.array([5] * 140 + list(range(10)), pa.int64())
    pq.write_table(rows(0, 150).append_column("k", skewed), lake / "part.parquet")
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.cbo.enabled": "true",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true",
    }
    hive(
        settings,
        f"CREATE TABLE events USING parquet LOCATION '{lake}'",
        "ANALYZE TABLE events COMPUTE STATISTICS FOR COLUMNS label",
    )
    toml = tmp_path / "statflight.toml"
    toml.write_text("[spark]\n" + "".join(f'"{name}" = "{value}"\n' for name, value in settings.items()))
    with serving(tmp_path, "--workers", 1, "--config", toml) as server, server.connect() as client:
        client.timeout = 300.0
        lake = {"format": "parquet", "uri": str(tmp_path / "lake")}
        client.act("register_connector", lake | {"catalog": "analyzed", "options": {"statistics_from": "spark"}})
        client.act("discover", {"catalog": "analyzed"})
        (answer,) = client.act("capture", {"requests": [{"table": "analyzed.default.events", "kinds": ["ROW_COUNT"]}]})
        assert (answer["outcome"], answer["detail"]) == ("CAPTURED", "")
        found = client.get({"table": "stats.columns"}).to_pylist()
        assert {row["producer"] for row in found} == {"UPSTREAM_METADATA_DERIVED"}
        assert {row["column_name"]: row["ndv"] for row in found} == {
            "id": None,
            "k": None,
            "label": pytest.approx(9, abs=1),
        }

        client.act("register_connector", lake | {"catalog": "lake"})
        client.act("discover", {"catalog": "lake"})
        targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": i} for i in (1, 2, 3))]
        requests = [{"table": "lake.default.events", "target": target} for target in targets]
        assert {o["outcome"] for o in client.act("capture", {"requests": requests})} == {"CAPTURED"}
        (answer,) = client.act("publish", {"table": "lake.default.events", "to": "spark"})
        assert (answer["columns"], answer["location"]) == (["id", "label", "k"], "spark_catalog.default.events")
    of_id, of_k, (plan,) = hive(
        settings,
        "DESCRIBE EXTENDED events id",
        "DESCRIBE EXTENDED events k",
        "EXPLAIN COST SELECT * FROM events WHERE id < 15",
    )
    facts = dict(row[:2] for row in of_id)
    assert (facts["distinct_count"], facts["min"], facts["max"]) == ("150", "0", "149")
    assert "num_of_bins" in dict(row[:2] for row in of_k)["histogram"]
    assert "rowCount=16" in plan[0] or "rowCount=15" in plan[0]


def captured(spark, table: Table, database: Path) -> tuple[dict[str, float | None], str]:
    """The ndv of each column of a metadata capture that also reads Spark's catalog, and its detail."""
    config = dataclasses.replace(table.config, options={"statistics_from": "spark"})
    connector = with_catalogs(open_connector(config), config, spark)
    with LocalStore(database, [NativeEngine()]) as store:
        detail = store.capture(connector, "c", "default", table.name)[0].detail
        found = store.read("stats.columns", f"c.default.{table.name}").to_pylist()
    return {row["column_name"]: row["ndv"] for row in found}, detail


def test_statistics_of_analyze_table_are_read_from_the_catalog(spark, tmp_path):
    table = registered_table(spark, tmp_path, rows(0, 150))
    assert "it has none" in captured(spark, table, tmp_path / "1.duckdb")[1]
    spark().sql(f"ANALYZE TABLE {table.name} COMPUTE STATISTICS FOR ALL COLUMNS")
    ndv, detail = captured(spark, table, tmp_path / "2.duckdb")
    assert ndv["id"] == pytest.approx(150, rel=0.05) and ndv["label"] and detail == ""
    parquet_tables.append(table, rows(150, 160))
    ndv, detail = captured(spark, table, tmp_path / "3.duckdb")
    assert ndv == {"id": None, "label": None} and "was analysed at 150 rows, the table has 160" in detail


def test_explain_shows_estimates_before_and_after_and_true_counts(tmp_path):
    lake = tmp_path / "lake"
    ids = range(5000)
    for name, content in {
        "fact": pa.table({"k": pa.array([i % 100 for i in ids], pa.int64()), "z": [i * i for i in ids]}),
        "dim": pa.table({"id": pa.array(range(100), pa.int64()), "label": [f"l{i % 4}" for i in range(100)]}),
    }.items():
        (lake / name).mkdir(parents=True)
        pq.write_table(content, lake / name / "part.parquet")
    with serving(tmp_path, "--workers", 1) as server, server.connect() as client:
        client.timeout = 300.0
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake)})
        client.act("discover", {"catalog": "lake"})
        targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": i} for i in (1, 2))]
        requests = [{"table": f"lake.default.{name}", "target": t} for name in ("fact", "dim") for t in targets]
        assert {o["outcome"] for o in client.act("capture", {"requests": requests})} == {"CAPTURED"}
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "flight_server.cli",
                "explain",
                "--spark",
                "local[1]",
                "--run",
                "--server",
                server.uri,
                "SELECT * FROM fact JOIN dim ON k = id WHERE label = 'l1' AND z < 250000",
            ],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
        )
    assert done.returncode == 0, done.stderr
    without, _, after = done.stdout.partition("with published statistics")
    assert "?" in without and "Scan fact" in without
    assert re.search(r"5,000 +\S+ \S+ +5,000 +1× .*Scan fact", after), done.stdout
    assert "spark_catalog.default.fact.z: used, with histogram" in after
    assert "spark_catalog.default.dim.label: used, without histogram" in after
    assert "registered for this session alone" in after and "spark.sql.cbo.enabled is false" in after
