"""The value of published statistics to Spark: plans, estimates and run times of TPC-H without and with them.

Eight Parquet tables in Spark's session catalog, cost-based optimizer and join reorder on, default settings otherwise.
Statistics are captured by a server, published by `--to spark`'s publisher, and compared with Spark's own ANALYZE in
time. q-error: the greater of estimated and true rows divided by the lesser; without statistics Spark estimates sizes
only, from which rows follow by the width it gives them.

Both sides of a comparison run in one session that has been started and warmed up: neither counts the start of a JVM.

`python -m pytest tests/benchmarks/bench_plans.py -m benchmark -s`; STATFLIGHT_BENCH_SCALE makes it smaller (default 1).
STATFLIGHT_BENCH_QUERIES=1,2,3 runs some of the queries; with STATFLIGHT_BENCH_DIR what is measured is kept there, and
the next run measures the rest.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
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
from capture.spark.plans import Operator, cost_based, plan_of, true_rows
from capture.spark.session import Spark
from flight_server.worker.connection import Server
from flight_server.worker.publishing import stored_statistics
from tests.benchmarks.tpch_queries import QUERIES
from tests.flight_server.live_server import serving

pytestmark = [pytest.mark.benchmark, pytest.mark.spark]

SCALE = os.environ.get("STATFLIGHT_BENCH_SCALE", "1")
RUNS = int(os.environ.get("STATFLIGHT_BENCH_RUNS", "2"))
CHOSEN = [int(number) for number in os.environ.get("STATFLIGHT_BENCH_QUERIES", "").split(",") if number]
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
SIDES = ("without", "with")
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


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    kept = os.environ.get("STATFLIGHT_BENCH_DIR")
    found = Path(kept) if kept else tmp_path_factory.mktemp("plans")
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(scope="module")
def tpch(place):
    """The lake of the eight tables."""
    lake = place / "lake"
    for table in TABLES:
        if (lake / table).exists():
            continue
        generator = Path(sys.executable).with_name("tpchgen-cli")
        command = [generator, "parquet", "-s", SCALE, "--tables", table, "--parts", "2", "--output-dir", lake]
        subprocess.run(command, check=True, capture_output=True)
    return lake


def test_times_of_analyze(spark, tpch, tmp_path):
    """Capture and publish of the eight tables, and Spark's own ANALYZE of them, with histograms and without."""
    session = spark()
    register(session, tpch, TABLES)
    for table in TABLES:  # neither side pays for the first look at a file
        session.sql(f"SELECT count(*) FROM {table}").collect()
    captured, published = capture_and_publish(spark, tmp_path, tpch, TABLES)
    print(f"\nscale {SCALE}: capture {captured:.1f} s + publish {published:.2f} s of eight tables")
    for histograms in (False, True):
        analyzed = analyze(session, tpch, TABLES, histograms)
        print(f"Spark's ANALYZE {'with' if histograms else 'without'} histograms {analyzed:.1f} s: "
              f"{analyzed / (captured + published):.1f} times as long")  # fmt: skip


def test_tpch(spark, place, tpch):
    session = spark()
    register(session, tpch, TABLES)
    capture_and_publish(spark, place, tpch, TABLES)
    chosen = {number: QUERIES[number] for number in CHOSEN or QUERIES}
    report(f"TPC-H, scale {SCALE}", measure_all(session, TABLES, chosen, place / "tpch.json"))


def test_skewed_keys(spark, tmp_path):
    """Zipf keys: a few are in most of the rows, so that averages mislead and histograms tell."""
    lake, random, scale = tmp_path / "zipf", np.random.default_rng(7), float(SCALE)
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
    report("Zipf keys", measure_all(session, tables, queries, tmp_path / "zipf.json"))


def register(session: Any, lake: Path, tables: Any) -> None:
    for table in tables:
        session.sql(f"DROP TABLE IF EXISTS {table}")
        session.sql(f"CREATE TABLE {table} USING parquet LOCATION '{lake / table}'")


def capture_and_publish(spark: Any, tmp_path: Path, lake: Path, tables: Any) -> tuple[float, float]:
    """Seconds that the capture and the publications of all tables took."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    with serving(home, "--workers", 1, env=INLINE) as server, server.connect() as client:
        client.timeout = 3600.0
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(lake), "replace": True})
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


def analyze(session: Any, lake: Path, tables: Any, histograms: bool) -> float:
    register(session, lake, tables)
    session.conf.set("spark.sql.statistics.histogram.enabled", str(histograms).lower())
    begun = time.perf_counter()
    for table in tables:
        session.sql(f"ANALYZE TABLE {table} COMPUTE STATISTICS FOR ALL COLUMNS")
    return time.perf_counter() - begun


def measure_all(session: Any, tables: Any, queries: dict[int, str], kept: Path) -> dict[int, dict[str, Any]]:
    """Each query without and with the statistics, in turn: neither side gains by a JVM that has warmed up.

    Returns:
        By query number what `run_times` and `q_errors` tell, of earlier runs too when they were kept.
    """
    catalog = session._jsparkSession.sessionState().catalog()
    parser = session._jsparkSession.sessionState().sqlParser()
    names = [parser.parseTableIdentifier(name) for name in tables]
    held = [catalog.getTableMetadata(name).stats() for name in names]

    def switch(on: bool) -> None:
        for name, stats in zip(names, held, strict=True):
            catalog.alterTableStats(name, stats if on else session._jvm.scala.Option.empty())

    done = {int(number): told for number, told in json.loads(kept.read_text()).items()} if kept.exists() else {}
    with cost_based(session, True):
        for part, measure in (("cpu", run_times), ("joins", q_errors)):
            for number, sql in queries.items():
                told = done.setdefault(number, {side: {} for side in SIDES})
                if part not in told[SIDES[0]]:
                    measure(session, sql, switch, told)
                    print(number, told, flush=True)
                    kept.write_text(json.dumps(done))
    return dict(sorted(done.items()))


def run_times(session: Any, sql: str, switch: Callable[[bool], None], told: dict[str, Any]) -> None:
    """Tells the `seconds` of each run of a query and those of the JVM's `cpu`, of both sides in turn."""
    for on in (False, True):  # files are read, and each side's code is compiled
        switch(on)
        session.sql(sql).collect()
    for run in range(RUNS):  # in turn first, for a session still warms up
        for on, side in list(enumerate(SIDES))[:: -1 if run % 2 else 1]:
            switch(bool(on))
            begun, used = time.perf_counter(), cpu_seconds(session)
            session.sql(sql).collect()
            told[side].setdefault("seconds", []).append(time.perf_counter() - begun)
            told[side].setdefault("cpu", []).append(cpu_seconds(session) - used)


def cpu_seconds(session: Any) -> float:
    """Processor time of the JVM, user and system; unlike run times it does not tell of others on the machine."""
    stat = Path(f"/proc/{session.sparkContext._gateway.proc.pid}/stat").read_text()
    return sum(map(int, stat.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def q_errors(session: Any, sql: str, switch: Callable[[bool], None], told: dict[str, Any]) -> None:
    """Tells whether a query's plan `changed`, and of both sides the q-errors of `joins` and of scans with `filters`."""
    plans: list[str] = []
    counts: dict[str, int] = {}
    for on, side in enumerate(SIDES):
        switch(bool(on))
        plan = plan_of(session, sql, with_statistics=True)
        plans.append(plan.shape)
        for kind, name in (("Filter", "filters"), ("Join", "joins")):
            told[side][name] = [q_error(session, op, counts) for op in plan.operators if op.kind == kind]
    told["changed"] = plans[0] != plans[1]


def q_error(session: Any, operator: Operator, counts: dict[str, int]) -> float:
    key = str(operator.plan.canonicalized())
    if key not in counts:
        counts[key] = true_rows(session, operator)
    true, estimated = max(counts[key], 1), operator.rows
    if estimated is None:
        output = session._jvm.scala.jdk.javaapi.CollectionConverters.asJava(operator.plan.output())
        width = 8 + sum(attribute.dataType().defaultSize() for attribute in output)
        estimated = operator.size_bytes // width
    estimated = max(estimated, 1)
    return max(true / estimated, estimated / true)


def report(title: str, found: dict[int, dict[str, Any]]) -> None:
    """The table that goes into the README, as it is."""
    print(f"\n{title}\n\n| query | run time without | with | faster | CPU time without | with | faster | plan "
          "| q-error of joins without | with |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    speeds: dict[str, list[float]] = {"seconds": [], "cpu": []}
    for number, told in found.items():
        cells = []
        for what, faster in speeds.items():
            old, new = (min(told[side][what]) for side in SIDES)
            faster.append(old / new)
            cells += [f"{old:.1f} s", f"{new:.1f} s", f"{old / new:.2f} ×"]
        cells.append("changed" if told["changed"] else "same")
        print(f"| {number} | {' | '.join(cells + [shown(told[side]['joins']) for side in SIDES])} |")
    for what, faster in speeds.items():
        print(f"{what}: {statistics.geometric_mean(faster):.2f} × faster by geometric mean; "
              f"{sum(speed < 0.95 for speed in faster)} queries slower by more than a twentieth")  # fmt: skip
    for what in ("joins", "filters"):
        errors = [list(itertools.chain.from_iterable(told[side][what] for told in found.values())) for side in SIDES]
        if all(errors):
            means = [statistics.geometric_mean(side) for side in errors]
            print(f"q-error of {what}: median {shown(errors[0])} without, {shown(errors[1])} with; "
                  f"geometric mean {means[0]:,.1f} without, {means[1]:,.1f} with")  # fmt: skip


def shown(errors: list[float]) -> str:
    """The median, in powers of ten where it is beyond measure."""
    if not errors:
        return ""
    median = statistics.median(errors)
    return f"{median:,.1f}" if median < 1e6 else f"{median:.0e}"
