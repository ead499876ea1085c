"""The value of published statistics to Spark: plans, estimates and run times of TPC-H without and with them.

Eight Parquet tables in Spark's session catalog, cost-based optimizer and join reorder on, default settings otherwise.
Statistics are captured by a server, published by `--to spark`'s publisher, and compared with Spark's own ANALYZE in
time. q-error: the greater of estimated and true rows divided by the lesser; without statistics Spark estimates sizes
only, from which rows follow by the width it gives them.

`python -m pytest tests/benchmarks/bench_plans.py -m benchmark -s`; STATFLIGHT_BENCH_SCALE makes it smaller (default 1).
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors.parquet.connector import ParquetConnector
from capture.connectors.spi import ConnectorConfig
from capture.publishers.publishing import publish
from capture.publishers.spark_catalog import SparkCatalogPublisher
from capture.publishers.spi import Destination
from capture.spark.plans import Operator, Plan, cost_based, plan_of, true_rows
from capture.spark.session import Spark
from flight_server.worker.connection import Server
from flight_server.worker.publishing import stored_statistics
from tests.benchmarks.tpch_queries import QUERIES
from tests.flight_server.live_server import serving

pytestmark = [pytest.mark.benchmark, pytest.mark.spark]

SCALE = os.environ.get("STATFLIGHT_BENCH_SCALE", "1")
RUNS = int(os.environ.get("STATFLIGHT_BENCH_RUNS", "3"))
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
INLINE = {"STATFLIGHT_INLINE_MAX_CELLS": str(2**40)}  # the worker starts no second JVM


@pytest.fixture(scope="module")
def spark():
    holder = Spark("local[*]", settings={
        "spark.sql.cbo.enabled": "true", "spark.sql.cbo.planStats.enabled": "true",
        "spark.sql.cbo.joinReorder.enabled": "true", "spark.driver.memory": "4g",
    })  # fmt: skip
    with holder.held() as session:
        yield session
    holder.stop()


def test_tpch(spark, tmp_path):
    lake = tmp_path / "lake"
    for table in TABLES:
        generator = Path(sys.executable).with_name("tpchgen-cli")
        command = [generator, "parquet", "-s", SCALE, "--tables", table, "--parts", "2", "--output-dir", lake]
        subprocess.run(command, check=True, capture_output=True)
    session = spark()
    register(session, lake, TABLES)
    captured, published = capture_and_publish(spark, tmp_path, lake, TABLES)
    report(f"TPC-H, scale {SCALE}", *measure_all(session, TABLES, QUERIES))
    analyzed = analyze(session, lake, TABLES)
    print(f"\ncapture {captured:.1f} s + publish {published:.1f} s of eight tables; Spark's ANALYZE {analyzed:.1f} s: "
          f"{analyzed / (captured + published):.1f} times as long")  # fmt: skip


def test_skewed_keys(spark, tmp_path):
    """Zipf keys: a few are in most of the rows, so that averages mislead and histograms tell."""
    lake, random, scale = tmp_path / "lake", np.random.default_rng(7), float(SCALE)
    rows = max(int(2_000_000 * scale), 20_000)
    keys = np.minimum(random.zipf(1.5, rows), 100_000)
    tables = {
        "fact": pa.table({"k": keys, "v": random.integers(0, 1000, rows), "day": random.integers(0, 3650, rows)}),
        "dim": pa.table({"id": np.arange(1, 100_001), "grp": np.arange(100_000) % 1000}),
        "tag": pa.table({"tag_id": np.arange(1, 100_001), "label": [f"t{i % 50}" for i in range(100_000)]}),
    }
    for name, table in tables.items():
        (lake / name).mkdir(parents=True)
        pq.write_table(table, lake / name / "part.parquet")
    session = spark()
    register(session, lake, tables)
    joined = "SELECT count(*) FROM fact JOIN dim ON k = id JOIN tag ON k = tag_id WHERE"
    queries = {
        1: f"{joined} k = 1", 2: f"{joined} k > 50", 3: f"{joined} k BETWEEN 2 AND 4 AND grp < 10",
        4: f"{joined} day < 30 AND label = 't7'", 5: f"{joined} k < 3 AND v < 100",
    }  # fmt: skip
    capture_and_publish(spark, tmp_path, lake, tables)
    report("Zipf keys", *measure_all(session, tables, queries))


def register(session: Any, lake: Path, tables: Any) -> None:
    for table in tables:
        session.sql(f"DROP TABLE IF EXISTS {table}")
        session.sql(f"CREATE TABLE {table} USING parquet LOCATION '{lake / table}'")


def capture_and_publish(spark: Any, tmp_path: Path, lake: Path, tables: Any) -> tuple[float, float]:
    """Seconds that the capture and the publications of all tables took."""
    home = tmp_path / "home"
    home.mkdir()
    with serving(home, "--workers", 1, env=INLINE) as server, server.connect() as client:
        client.timeout = 3600.0
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake)})
        client.act("discover", {"catalog": "lake"})
        columns = client.get({"table": "information_schema.columns"}).to_pylist()
        targets = [(c["table_name"], {"kind": "COLUMN", "column_id": c["column_id"]}) for c in columns]
        requests = [{"table": f"lake.default.{table}", "target": target} for table, target in targets]
        requests += [{"table": f"lake.default.{table}", "target": {"kind": "TABLE"}} for table in tables]
        begun = time.perf_counter()
        assert {o["outcome"] for o in client.act("capture", {"requests": requests})} == {"CAPTURED"}
        captured, begun = time.perf_counter() - begun, time.perf_counter()
        config = ConnectorConfig("lake", "parquet", str(lake))
        connector, answers = ParquetConnector(config), Server(server.uri, None)
        for row in client.get({"table": "sys.tables"}).to_pylist():
            name = {"catalog": "lake", "schema": "default", "name": row["table_name"], "full_name": row["table_name"]}
            asked = {"table": name, "snapshot_id": row["snapshot_id"], "allow_inherited": False}
            stored = stored_statistics(answers, asked, SparkCatalogPublisher.sketches)
            publish(SparkCatalogPublisher(Destination(connector, config, {}, spark), stored))
        answers.close()
        return captured, time.perf_counter() - begun


def analyze(session: Any, lake: Path, tables: Any) -> float:
    register(session, lake, tables)
    session.conf.set("spark.sql.statistics.histogram.enabled", "true")
    begun = time.perf_counter()
    for table in tables:
        session.sql(f"ANALYZE TABLE {table} COMPUTE STATISTICS FOR ALL COLUMNS")
    return time.perf_counter() - begun


class Measured:
    """One query: its plan, the best run time in seconds, the q-errors of scans with filters and of joins."""

    def __init__(self, plan: Plan, seconds: float, scans: list[float], joins: list[float]):
        self.plan, self.seconds, self.scans, self.joins = plan, seconds, scans, joins


def measure_all(session: Any, tables: Any, queries: dict[int, str]) -> tuple[dict[int, Measured], dict[int, Measured]]:
    """Each query without and with the statistics, in turn: neither side gains by a JVM that has warmed up."""
    catalog = session._jsparkSession.sessionState().catalog()
    parser = session._jsparkSession.sessionState().sqlParser()
    names = [parser.parseTableIdentifier(name) for name in tables]
    held = [catalog.getTableMetadata(name).stats() for name in names]

    def switch(on: bool) -> None:
        for name, stats in zip(names, held, strict=True):
            catalog.alterTableStats(name, stats if on else session._jvm.scala.Option.empty())

    before: dict[int, Measured] = {}
    after: dict[int, Measured] = {}
    with cost_based(session, True):
        for number, sql in queries.items():
            session.sql(sql).collect()  # files and classes are read once
            times: dict[bool, list[float]] = {False: [], True: []}
            for on in [False, True] * RUNS:
                switch(on)
                begun = time.perf_counter()
                session.sql(sql).collect()
                times[on].append(time.perf_counter() - begun)
            for on, found in ((False, before), (True, after)):
                switch(on)
                plan = plan_of(session, sql, with_statistics=True)
                scans, joins = ([q_error(session, op) for op in plan.operators if op.kind == kind]
                                for kind in ("Filter", "Join"))  # fmt: skip
                found[number] = Measured(plan, min(times[on]), scans, joins)
    return before, after


def q_error(session: Any, operator: Operator) -> float:
    true, estimated = max(true_rows(session, operator), 1), operator.rows
    if estimated is None:
        output = session._jvm.scala.jdk.javaapi.CollectionConverters.asJava(operator.plan.output())
        width = 8 + sum(attribute.dataType().defaultSize() for attribute in output)
        estimated = operator.size_bytes // width
    estimated = max(estimated, 1)
    return max(true / estimated, estimated / true)


def report(title: str, before: dict[int, Measured], after: dict[int, Measured]) -> None:
    """The table that goes into the README, as it is."""
    print(f"\n{title}\n\n| query | seconds without | with | faster | plan | q-error of joins without | with |")
    print("|---|---|---|---|---|---|---|")
    for number, old in before.items():
        new = after[number]
        changed = "changed" if old.plan.shape != new.plan.shape else "same"
        print(f"| {number} | {old.seconds:.2f} | {new.seconds:.2f} | {old.seconds / new.seconds:.2f} × | {changed} "
              f"| {shown(old.joins)} | {shown(new.joins)} |")  # fmt: skip
    speed = math.exp(statistics.fmean(math.log(before[n].seconds / after[n].seconds) for n in before))
    print(f"\ngeometric mean of run times: {speed:.2f} × faster")
    for what in ("joins", "scans"):
        old, new = (list(itertools.chain.from_iterable(getattr(m, what) for m in part.values()))
                    for part in (before, after))  # fmt: skip
        if old and new:
            print(f"median q-error of {what}: {shown(old)} without, {shown(new)} with")


def shown(errors: list[float]) -> str:
    """The median, in powers of ten where it is beyond measure."""
    if not errors:
        return ""
    median = statistics.median(errors)
    return f"{median:,.1f}" if median < 1e6 else f"{median:.0e}"
