"""Estimates of what a condition leaves: processor time warm, after a commit, and what the cache of facts buys.

In one process, without Flight. One table has 1,000 files of three columns that were read, so that each file has a
sketch of each column; or thousands of small tables with several snapshots are asked in an order in which few are
popular. The cache as it is and one of no size are asked in turn, for the same answers.
`python -m pytest tests/benchmarks/bench_estimate.py -m benchmark -s`
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flight_server.core.app import App
from flight_server.faces.local.tables import LocalTables
from flight_server.planning.estimates import Estimator
from flight_server.planning.plan_request import condition_of
from store.duckdb.lru import LruCache
from store.history import validation
from store.model.schemas import FLIGHTS
from store.stats_store import Put, PutMode
from tests.flight_server.serving import app_in

pytestmark = pytest.mark.benchmark

FILES, ROWS = 1_000, 500
COLUMNS = ["a", "b", "c"]
TIMES = 10  # less processor time than without the cache
MOST = 5.0  # milliseconds of the processor, warm, in the quickest of the rounds
ROUNDS = 15
CONDITIONS = (
    None,
    "a = 5005",
    "a < 50000",
    "a < 250000 AND b > 10",
    "a < 125000 OR a >= 375000",
    "a BETWEEN 100000 AND 400000 AND c IS NOT NULL",
)

TABLES, SNAPSHOTS, SMALL_FILES = 1_000, 3, 4
ASKED = 600


def milliseconds(call: Callable[[], Any]) -> float:
    """Processor time of a call."""
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1000


def with_files(directory: Path) -> None:
    rng = np.random.default_rng(1)
    directory.mkdir(parents=True)
    for at in range(FILES):
        a = np.arange(at * ROWS, (at + 1) * ROWS)
        c = pa.array(rng.integers(0, 50_000, ROWS), mask=rng.random(ROWS) < 0.1)
        pq.write_table(pa.table({"a": a, "b": rng.integers(0, 200, ROWS), "c": c}), directory / f"{at:05}.parquet")


def test_an_estimate_takes_five_milliseconds(tmp_path: Path) -> None:
    with_files(tmp_path / "lake" / "t")
    tables = LocalTables(None, lambda _: None)
    name = tables.add(str(tmp_path / "lake" / "t"))
    app = tables.app
    table, estimator = app.catalog.get(name), app.parts["planning"].estimator
    without = Estimator(app.parts["planning"].planner)
    without._facts = LruCache(0)
    print(f"\n{FILES:,} files, {len(COLUMNS)} columns; processor time, median of {ROUNDS}")
    print(f"{'condition':<48}{'files':>7}{'first':>10}{'warm':>10}{'no cache':>10}")
    least, slowest = float("inf"), 0.0
    for where in CONDITIONS:
        node = condition_of(where)

        def ask(of: Estimator, node: Any = node) -> Any:
            return of.estimate(table, node, COLUMNS, "current").body

        estimator._facts.clear()
        first, found = milliseconds(lambda: ask(estimator)), ask(estimator)
        assert ask(without) == found
        rounds = [(milliseconds(lambda: ask(estimator)), milliseconds(lambda: ask(without))) for _ in range(ROUNDS)]
        warm, cold = (statistics.median(each) for each in zip(*rounds, strict=True))
        least, slowest = min(least, cold / warm), max(slowest, min(each for each, _ in rounds))
        print(f"{where or 'none':<48}{found['files']:>7}{first:>7.1f} ms{warm:>7.1f} ms{cold:>7.1f} ms")
    tables.close()
    assert least >= TIMES and slowest <= MOST


def put(app: App, flight: str, columns: dict[str, Any]) -> None:
    given = pa.table(columns).cast(pa.schema([FLIGHTS[flight].schema.field(name) for name in columns]))
    app.store.put([Put(flight, validation.prepare(FLIGHTS[flight], given), PutMode.UPSERT)])


def small_tables(app: App) -> None:
    """Tables of a few files, each with three snapshots, the files of which have bounds."""
    for first in range(0, TABLES, 500):
        for snapshot in range(1, SNAPSHOTS + 1):
            places = [(table, at) for table in range(first, first + 500) for at in range(SMALL_FILES * snapshot)]
            common = {
                "table_catalog": pa.repeat("lake", len(places)),
                "table_schema": pa.repeat("s", len(places)),
                "table_name": [f"t{table:05}" for table, _ in places],
                "snapshot_id": pa.repeat(snapshot, len(places)),
                "completeness": pa.repeat("COMPLETE", len(places)),
                "file_path": [f"t{table}/{at}.parquet" for table, at in places],
                "row_count": pa.repeat(100, len(places)),
            }
            content = {"file_content": pa.repeat("DATA", len(places)), "size_bytes": pa.repeat(1000, len(places))}
            put(app, "stats.files", common | content)
            for number, column in enumerate(COLUMNS, 1):
                of_column = {
                    "column_id": pa.repeat(number, len(places)),
                    "column_name": pa.repeat(column, len(places)),
                    "logical_type": pa.repeat("INT", len(places)),
                    "null_count": pa.repeat(0, len(places)),
                    "min": [str(100 * at) for _, at in places],
                    "max": [str(100 * at + 99) for _, at in places],
                }
                put(app, "stats.file_columns", common | of_column)


def test_cache_over_thousands_of_tables_and_their_snapshots(tmp_path: Path) -> None:
    with app_in(tmp_path) as app:
        small_tables(app)
        planner = app.parts["planning"].planner
        sides = {"cache": Estimator(planner), "no cache": Estimator(planner)}
        sides["no cache"]._facts = LruCache(0)
        rng = np.random.default_rng(3)
        popular = np.minimum(rng.zipf(1.2, ASKED) - 1, TABLES - 1)
        node = condition_of("a < 250")
        took = dict.fromkeys(sides, 0.0)
        for number, snapshot in zip(popular.tolist(), rng.integers(1, SNAPSHOTS + 1, ASKED).tolist(), strict=True):
            table = app.catalog.get(f"lake.s.t{number:05}")
            for side, estimator in sides.items():
                took[side] += milliseconds(lambda: estimator.estimate(table, node, COLUMNS, snapshot))  # noqa: B023
        print(f"\n{TABLES:,} tables, {SNAPSHOTS} snapshots each, {ASKED:,} estimates, few tables popular")
        for side, total in took.items():
            print(f"  {side:<10}{total / ASKED:>8.2f} ms of the processor each")
        ratio = took["no cache"] / took["cache"]
        print(f"  the cache buys {ratio:.2f} x")
        assert ratio >= 1.1
