"""The value of published statistics to Spark: plans, estimates and run times of TPC-H without and with them.

Eight Parquet tables in Spark's session catalog, cost-based optimizer and join reorder on, default settings otherwise.
Statistics are captured by a server and published by `--to spark`'s publisher, or computed by Spark's own ANALYZE.
q-error: the greater of estimated and true rows divided by the lesser; without statistics Spark estimates sizes only,
from which rows follow by the width it assumes.

All sides run in one session, and each runs each query once before times are measured. Then the distinct executed plans
of a query alternate; sides with the same plan share its times, as a difference between them would be noise.

`python -m pytest tests/benchmarks/bench_plans.py -m benchmark -s`; STATFLIGHT_BENCH_SCALE makes it smaller (default 1).
STATFLIGHT_BENCH_QUERIES=1,2,3 runs some of the queries; STATFLIGHT_BENCH_DIR keeps the measurements, and the next run
measures the rest.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.homes import HOMES
from capture.publishers.publishing import publish
from capture.publishers.spi import Destination
from capture.spark.plans import Operator, cost_based, plan_of, true_rows
from capture.spark.session import Spark
from flight_server.client.connection import Connection
from flight_server.publishing.work import stored_statistics
from tests.benchmarks.tpch_queries import QUERIES
from tests.flight_server.live_server import Client, LiveServer, serving

pytestmark = [pytest.mark.benchmark, pytest.mark.spark]

SCALE = os.environ.get("STATFLIGHT_BENCH_SCALE", "1")
RUNS = int(os.environ.get("STATFLIGHT_BENCH_RUNS", "4"))
CHOSEN = [int(number) for number in os.environ.get("STATFLIGHT_BENCH_QUERIES", "").split(",") if number]
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
SIDES = ("without", "published", "ANALYZE")
INLINE = {"STATFLIGHT_ENGINE": "local"}  # the worker starts no second JVM


@pytest.fixture(scope="module")
def spark():
    holder = Spark(
        "local[*]",
        settings={
            "spark.sql.cbo.enabled": "true",
            "spark.sql.cbo.planStats.enabled": "true",
            "spark.sql.cbo.joinReorder.enabled": "true",
            "spark.driver.memory": "4g",
        },
    )
    with holder.held() as session:
        yield session
    holder.stop()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    configured = os.environ.get("STATFLIGHT_BENCH_DIR")
    found = Path(configured) if configured else tmp_path_factory.mktemp("plans")
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture(scope="module")
def tpch(directory):
    return tpch_files(directory)


def tpch_files(directory: Path) -> Path:
    """The lake of the eight tables, written below a directory unless it is there."""
    lake = directory / "lake"
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
    for table in TABLES:  # reads each file once before times are measured
        session.sql(f"SELECT count(*) FROM {table}").collect()
    print(f"\nscale {SCALE}, eight tables")
    for histograms in (False, True):
        home = tmp_path / str(histograms)
        captured, published = capture_and_publish(spark, home, lake_of(tpch), TABLES, histograms=histograms)
        analyzed, ours = analyze(session, tpch, TABLES, histograms), captured + published
        print(
            f"{'with' if histograms else 'without'} histograms: capture {captured} + publish {published}; Spark's"
            f" ANALYZE {analyzed}: {analyzed.wall / ours.wall:.1f} times as long"
            f" (processors: {analyzed.cpu / ours.cpu:.1f})"
        )


def test_tpch(spark, directory, tpch):
    statistics_by_side = statistics_of_sides(spark, directory, tpch, TABLES, histograms=False)
    chosen = {number: QUERIES[number] for number in CHOSEN or QUERIES}
    report(f"TPC-H, scale {SCALE}", measure_all(spark(), TABLES, statistics_by_side, chosen, directory / "tpch.json"))


def test_tpch_with_skewed_keys(spark, directory, tpch):
    """TPC-H with few customers in most orders, and few parts and suppliers in most items; ANALYZE with histograms."""
    skewed, random = directory / "skewed", np.random.default_rng(3)
    for table in (name for name in TABLES if not (skewed / name).exists()):
        rows = pq.read_table(tpch / table)
        if table == "orders":
            rows = with_zipf_keys(rows, pq.read_table(tpch / "customer", columns=["c_custkey"]), random)
        elif table == "lineitem":
            keys = pq.read_table(tpch / "partsupp", columns=["ps_partkey", "ps_suppkey"])
            rows = with_zipf_keys(rows, keys, random)
        (skewed / table).mkdir(parents=True)
        pq.write_table(rows, skewed / table / "part.parquet")
    statistics_by_side = statistics_of_sides(spark, directory / "skewed home", skewed, TABLES, histograms=True)
    chosen = {number: QUERIES[number] for number in CHOSEN or QUERIES}
    measured = measure_all(spark(), TABLES, statistics_by_side, chosen, directory / "skewed.json")
    report(f"TPC-H with Zipf keys, scale {SCALE}", measured)


def with_zipf_keys(rows: pa.Table, keys: pa.Table, random: np.random.Generator) -> pa.Table:
    """Replaces the foreign keys of rows to the table of `keys` by Zipf-distributed ones."""
    drawn = keys.take(pa.array((random.zipf(1.3, len(rows)) - 1) % len(keys)))
    for name in keys.column_names:
        own = next(field for field in rows.schema if field.name.endswith(name.partition("_")[2]))
        rows = rows.set_column(rows.schema.get_field_index(own.name), own, drawn[name].cast(own.type))
    return rows


def test_filters_on_skewed_keys(spark, tmp_path):
    """Filters on Zipf keys themselves, which a join estimated from two histograms takes into account."""
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
    joined = "SELECT count(*) FROM fact JOIN dim ON k = id JOIN tag ON k = tag_id WHERE"
    queries = {
        1: f"{joined} k = 1",
        2: f"{joined} k > 50",
        3: f"{joined} k BETWEEN 2 AND 4 AND grp < 10",
        4: f"{joined} day < 30 AND label = 't7'",
        5: f"{joined} k < 3 AND v < 100",
    }
    statistics_by_side = statistics_of_sides(spark, tmp_path, lake, tables, histograms=True)
    report("Filters on Zipf keys", measure_all(spark(), tables, statistics_by_side, queries, tmp_path / "zipf.json"))


@dataclass(frozen=True)
class Seconds:
    """Time by the clock, and of the processors."""

    wall: float
    cpu: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall + other.wall, self.cpu + other.cpu)

    def __str__(self) -> str:
        return f"{self.wall:.1f} s (processors {self.cpu:.1f} s)"


@contextmanager
def timed(*pids: int) -> Iterator[Callable[[], Seconds]]:
    """Yields a function that measures the block so far: wall time, and processor time of some processes."""
    started, used = time.perf_counter(), sum(map(cpu_seconds, pids))
    yield lambda: Seconds(time.perf_counter() - started, sum(map(cpu_seconds, pids)) - used)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, user and system; it depends less on other load than run times do."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return sum(map(int, stat.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def jvm(session: Any) -> int:
    return int(session.sparkContext._gateway.proc.pid)


def register(session: Any, lake: Path, tables: Any) -> None:
    for table in tables:
        session.sql(f"DROP TABLE IF EXISTS {table}")
        session.sql(f"CREATE TABLE {table} USING parquet LOCATION '{lake / table}'")


def statistics_of_sides(spark: Any, tmp_path: Path, lake: Path, tables: Any, histograms: bool) -> dict[str, list[Any]]:
    """The catalog's statistics of each table, by side."""
    session = spark()
    catalog = session._jsparkSession.sessionState().catalog()
    parser = session._jsparkSession.sessionState().sqlParser()

    def current() -> list[Any]:
        return [catalog.getTableMetadata(parser.parseTableIdentifier(name)).stats() for name in tables]

    register(session, lake, tables)
    capture_and_publish(spark, tmp_path, lake_of(lake), tables)
    published = current()
    analyze(session, lake, tables, histograms)
    return dict(zip(SIDES, ([session._jvm.scala.Option.empty()] * len(published), published, current()), strict=True))


def lake_of(directory: Path, format: str = "parquet") -> ConnectorConfig:
    return ConnectorConfig("lake", format, str(directory))


def capture_and_publish(
    spark: Any,
    tmp_path: Path,
    lake: ConnectorConfig,
    tables: Any,
    home: str = "spark",
    histograms: bool = True,
    options: dict[str, str] | None = None,
) -> tuple[Seconds, Seconds]:
    """Times of the capture and of the publications of all tables. The options are those of the home."""
    publisher = HOMES.load(home)
    place = tmp_path / "home"
    place.mkdir(parents=True, exist_ok=True)
    with serving(place, "--workers", 1, env=INLINE) as server, server.connect() as client:
        captured = capture(server, client, lake, tables, histograms)
        connector, answers = open_connector(lake), Connection(server.uri, None)
        with timed(server.process.pid, os.getpid(), *([jvm(spark())] if spark else [])) as taken:
            for row in client.get({"table": "sys.tables"}).to_pylist():
                table = row["table_name"]
                name = {"catalog": "lake", "schema": "default", "name": table, "full_name": table}
                payload = {"table": name, "snapshot_id": row["snapshot_id"], "allow_inherited": False}
                stored = stored_statistics(answers, payload, publisher.sketches)
                publish(publisher(Destination(connector, lake, options or {}, spark), stored))
            published = taken()
        answers.close()
    return captured, published


def capture(server: LiveServer, client: Client, lake: ConnectorConfig, tables: Any, histograms: bool) -> Seconds:
    """The time to capture all columns of tables, as rows of the catalog `lake`."""
    kinds = {} if histograms else {"kinds": ["ROW_COUNT", "NULL_COUNT", "NDV", "MIN_MAX", "WIDTH"]}  # those of ANALYZE
    client.timeout = 3600.0
    client.act("register_connector", {"catalog": "lake", "format": lake.format, "uri": lake.uri, "replace": True})
    client.act("discover", {"catalog": "lake"})
    columns = client.get({"table": "information_schema.columns"}).to_pylist()
    targets = [(c["table_name"], {"kind": "COLUMN", "column_id": c["column_id"]}) for c in columns]
    requests = [{"table": f"lake.default.{table}", "target": target} | kinds for table, target in targets]
    requests += [{"table": f"lake.default.{table}", "target": {"kind": "TABLE"}} for table in tables]
    own = server.process.pid
    workers = map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split())
    with timed(own, *workers) as taken:
        assert {o["outcome"] for o in client.act("capture", {"requests": requests})} == {"CAPTURED"}
        return taken()


def analyze(session: Any, lake: Path, tables: Any, histograms: bool) -> Seconds:
    register(session, lake, tables)
    session.conf.set("spark.sql.statistics.histogram.enabled", str(histograms).lower())
    with timed(os.getpid(), jvm(session)) as taken:
        for table in tables:
            session.sql(f"ANALYZE TABLE {table} COMPUTE STATISTICS FOR ALL COLUMNS")
        return taken()


def measure_all(
    session: Any, tables: Any, statistics_by_side: dict[str, list[Any]], queries: dict[int, str], results: Path
) -> dict[int, dict[str, Any]]:
    """Measures each query with the statistics of each side.

    Returns:
        By query number and side the `plan`, the `seconds` and seconds of `cpu` of each run, and the q-errors of `joins`
        and of scans with `filters`; those of earlier runs included if the file of results exists.
    """
    catalog = session._jsparkSession.sessionState().catalog()
    parser = session._jsparkSession.sessionState().sqlParser()
    names = [parser.parseTableIdentifier(name) for name in tables]

    def switch(side: str) -> None:
        for name, stats in zip(names, statistics_by_side[side], strict=True):
            catalog.alterTableStats(name, stats)

    done = {int(number): runs for number, runs in json.loads(results.read_text()).items()} if results.exists() else {}
    with cost_based(session, True):
        for number, sql in queries.items():
            runs = done.setdefault(number, {side: {"seconds": [], "cpu": []} for side in SIDES})
            if len(runs[SIDES[0]]["cpu"]) < RUNS:
                for side in SIDES:
                    switch(side)
                    runs[side]["plan"] = run(session, sql)
        for _ in range(RUNS):
            for number, sql in queries.items():
                if len(done[number][SIDES[0]]["cpu"]) < RUNS:
                    run_times(session, sql, switch, done[number])
                    results.write_text(json.dumps(done))
        for number, sql in queries.items():
            if any("joins" not in done[number][side] for side in SIDES):
                q_errors(session, sql, switch, done[number])
                results.write_text(json.dumps(done))
    return dict(sorted(done.items()))


def run(session: Any, sql: str) -> str:
    """Runs a query; returns its executed plan without the parts that differ from run to run."""
    query = session.sql(sql)
    query.collect()
    text = str(query._jdf.queryExecution().executedPlan().toString())
    return re.sub(r"#\d+L?|plan_id=\d+|Statistics\([^)]*\)|\*\(\d+\)", "", text.partition("== Initial Plan ==")[0])


def run_times(session: Any, sql: str, switch: Callable[[str], None], runs: dict[str, Any]) -> None:
    """Adds the times of one run of each plan of a query, in alternating order."""
    plans: dict[str, list[str]] = {}
    for side in SIDES:
        plans.setdefault(runs[side]["plan"], []).append(side)
    for sides in list(plans.values())[:: -1 if len(runs[SIDES[0]]["cpu"]) % 2 else 1]:
        switch(sides[0])
        with timed(jvm(session)) as taken:
            session.sql(sql).collect()
            seconds = taken()
        for side in sides:
            runs[side]["seconds"].append(seconds.wall)
            runs[side]["cpu"].append(seconds.cpu)


def q_errors(session: Any, sql: str, switch: Callable[[str], None], runs: dict[str, Any]) -> None:
    """Adds the q-errors of `joins` and of scans with `filters` in a query's plan of each side."""
    counts: dict[str, int] = {}
    for side in SIDES:
        switch(side)
        plan = plan_of(session, sql, with_statistics=True)
        for kind, name in (("Filter", "filters"), ("Join", "joins")):
            runs[side][name] = [q_error(session, op, counts) for op in plan.operators if op.kind == kind]


def q_error(session: Any, operator: Operator, counts: dict[str, int]) -> float:
    key = str(operator.plan.canonicalized())
    if key not in counts:
        counts[key] = true_rows(session, operator)
    true, estimated = max(counts[key], 1), max(estimated_rows(operator.plan), 1)
    return max(true / estimated, estimated / true)


def estimated_rows(plan: Any) -> int:
    """Rows that Spark estimates for a plan, or as many as have the size that it estimates."""
    rows, size = plan.stats().rowCount(), plan.stats().sizeInBytes()
    return int(str(rows.get())) if rows.isDefined() else int(str(size)) // (8 + int(plan.schema().defaultSize()))


def report(title: str, found: dict[int, dict[str, Any]]) -> None:
    """Prints the table that PLANS.md has, and a summary."""
    print(
        f"\n{title}: processor time, the least of {RUNS} runs\n\n| query | without | published | ANALYZE | less by "
        "| plan | joins off by, without | published | ANALYZE |\n|" + "---|" * 9
    )
    best = {n: {s: {w: min(runs[s][w]) for w in ("cpu", "seconds")} for s in SIDES} for n, runs in found.items()}
    changed = {n for n, runs in found.items() if runs["without"]["plan"] != runs["published"]["plan"]}
    for number, runs in found.items():
        cells = [f"{best[number][side]['cpu']:.1f} s" for side in SIDES]
        cells.append(f"{best[number]['without']['cpu'] / best[number]['published']['cpu']:.2f} ×")
        cells.append("changed" if number in changed else "same")
        print(f"| {number} | {' | '.join(cells + [median_text(runs[side]['joins']) for side in SIDES])} |")
    others = [number for number, runs in found.items() if runs["published"]["plan"] != runs["ANALYZE"]["plan"]]
    print(f"queries that run by another plan after ANALYZE than after publishing: {others or 'none'}")
    for unit in ("cpu", "seconds"):
        gains = {n: sides["without"][unit] / sides["published"][unit] for n, sides in best.items()}
        of_changed = [gains[n] for n in changed] or [1.0]
        print(
            f"{unit}: {sum(sides['without'][unit] for sides in best.values()):.1f} without, "
            f"{sum(sides['published'][unit] for sides in best.values()):.1f} with; less by (geometric mean) "
            f"{statistics.geometric_mean(gains.values()):.2f}, of the {len(changed)} queries whose plan changed "
            f"{statistics.geometric_mean(of_changed):.2f}"
        )
    for kind in ("joins", "filters"):
        for side in SIDES:
            if errors := list(itertools.chain.from_iterable(runs[side][kind] for runs in found.values())):
                mean = statistics.geometric_mean(errors)
                print(f"q-error of {kind}, {side}: median {median_text(errors)}, geometric mean {mean:,.1f}")


def median_text(errors: list[float]) -> str:
    """The median; in powers of ten from a million on."""
    if not errors:
        return ""
    median = statistics.median(errors)
    return f"{median:,.1f}" if median < 1e6 else f"{median:.0e}"
