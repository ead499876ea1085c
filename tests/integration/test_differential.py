"""Every way to capture a table, on random tables of every format, compared with brute force over the rows."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from capture.compute.readers import tasks
from capture.connectors import ConnectorConfig, open_connector
from capture.engines.compute.engine import ComputeEngine
from capture.engines.native.engine import NativeEngine
from capture.registry import Registry
from capture.spark.session import Spark
from capture.spec import Budget, Engine, Sampling
from capture.spi import CaptureRequest, Outcome, TableHandle
from store.model import sketches
from store.model.targets import Target
from tests.capture.engines.compute.lake import MemorySink
from tests.integration.random_lakes import FORMATS, Lake, int96
from tests.integration.random_tables import Truth, bound, leaves
from tests.kept_lakes import kept_lake
from tests.ledger.ledger import Page

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")

SEEDS = range(2)  # more of them: tests/benchmarks/bench_differential.py


class Sink(MemorySink):
    def put(self, flight, rows, *, extra=False, whole=False, checked=False):
        super().put(flight, rows, checked=checked)


def lake_of(format: str, seed: int) -> Lake:
    """A random lake, for tests that only read it."""
    return kept_lake(_builder(format, seed))


@cache
def _builder(format: str, seed: int) -> Callable[[Path], Lake]:
    def build(root: Path) -> Lake:
        root.mkdir()
        rng = random.Random(f"{format} {seed}")
        rows = 300 if seed % 4 else rng.choice((1, 2, 40))
        return FORMATS[format](rng, root, rows)

    return build


def targets(table: TableHandle) -> list[Target]:
    return [Target.column(i) for i, c in table.by_id.items() if c.is_leaf]


def capture(engine, table: TableHandle, requested: Iterable[Target], sink: Sink | None = None, **how):
    """Captures targets into a sink; returns the sink and the results."""
    sink = sink or Sink()
    results, _ = Registry([engine]).capture_batch(
        [CaptureRequest.of(table, target, **how) for target in requested], sink
    )
    return sink, results


def truths(lake: Lake, version: int, table: TableHandle) -> dict[int, Truth]:
    """True statistics of each leaf of a table, by column id."""
    rows = leaves(lake.versions[version])
    found = {}
    for column_id, column in table.by_id.items():
        if column.is_leaf:
            named = [path for path in rows if ".".join(path) == column.name]
            path = column.path or named[0]
            assert path in named and (column.path or len(named) == 1), column
            found[column_id] = Truth.of(rows[path], column.logical_type)
    return found


def check(
    sink: Sink,
    table: TableHandle,
    expected: dict[int, Truth],
    where: str,
    computed: bool,
    deletes: bool,
    page: Page | None = None,
) -> None:
    rows = [row for row in sink.get("stats.columns") if row["snapshot_id"] == table.snapshot_id]
    found = {row["column_id"]: row for row in rows}
    if computed:
        assert found.keys() == expected.keys(), f"{where}: {found.keys() ^ expected.keys()}"
    for column_id, row in found.items():
        if not table.by_id[column_id].is_leaf:  # metadata knows them of an empty table alone
            assert row["completeness"] != "COMPLETE" or {t.rows for t in expected.values()} == {0}, row
        elif row["completeness"] == "COMPLETE":
            told = f"{where}, {table.by_id[column_id].key}"
            expected[column_id].check(row, told, computed=computed, deletes=deletes, page=page)
        else:
            assert not computed, row


def check_files(sink: Sink, table: TableHandle, where: str, computed: bool, page: Page | None = None) -> None:
    """Checks records of columns in files, by which planners skip files, against the live rows of each file."""
    types = {i: column.logical_type for i, column in table.by_id.items()}
    planned = table.connector.plan_files(table.schema, table.name, table.snapshot_id, table.column_ids)
    found = {}
    for task in planned:
        for column, values in tasks.read(task, task.columns):
            found[task.file_path, column.column_id] = Truth.of(values, types[column.column_id])
    rows = [row for row in sink.get("stats.file_columns") if row["snapshot_id"] == table.snapshot_id]
    assert not computed or {(row["file_path"], row["column_id"]) for row in rows} == found.keys(), where
    for row in rows:
        if row["completeness"] == "COMPLETE":
            truth = found[row["file_path"], row["column_id"]]
            told = f"{where}, {row['file_path']}, {row['column_name']}"
            truth.check(row, told, computed=False, deletes=True, page=page)


def check_computed(format: str, seed: int, page: Page | None = None) -> None:
    """Captures each version in process: from all its files, and incrementally after the version before."""
    lake = lake_of(format, seed)
    incremental = Sink()
    for version, table in enumerate(lake.handles()):
        expected = truths(lake, version, table)
        where = f"{format} {seed}, version {version}"
        fresh, results = capture(ComputeEngine(inline_max_cells=10**12), table, targets(table))
        assert {(r.outcome, r.detail) for r in results} == {(Outcome.CAPTURED, "")}, where
        check(fresh, table, expected, where, computed=True, deletes=lake.counts_deleted, page=page)
        check_files(fresh, table, where, computed=True, page=page)
        capture(ComputeEngine(inline_max_cells=10**12), table, targets(table), incremental)
        told = f"{where}, incremental"
        check(incremental, table, expected, told, computed=True, deletes=lake.counts_deleted, page=page)
        table.connector.close()


def check_native(format: str, seed: int, page: Page | None = None) -> None:
    lake = lake_of(format, seed)
    for version, table in enumerate(lake.handles()):
        where = f"{format} {seed}, version {version}, native"
        sink, results = capture(NativeEngine(), table, [Target.table(), *targets(table)])
        assert results[0].outcome is Outcome.CAPTURED, (where, results[0])
        (row,) = sink.get("stats.tables")
        assert row["row_count"] in (None, len(lake.versions[version])), where
        if page:
            page.count("count", row["row_count"] is not None)
        expected = truths(lake, version, table)
        check(sink, table, expected, where, computed=False, deletes=lake.counts_deleted, page=page)
        check_files(sink, table, where, computed=False, page=page)
        table.connector.close()


def check_sampled(format: str, seed: int, method: Sampling) -> None:
    lake = lake_of(format, seed)
    table = lake.handles()[-1]
    expected = truths(lake, -1, table)
    sink, results = capture(ComputeEngine(), table, targets(table), sampling=method, budget=Budget(max_rows=40))
    assert {(r.outcome, r.detail) for r in results} == {(Outcome.CAPTURED, "")}
    for row in sink.get("stats.columns"):
        truth, where = expected[row["column_id"]], f"{format} {seed}, {method}: {row}"
        more = lake.counts_deleted or "deletes" in format  # no metadata has the number of rows equal to a deleted one
        assert row["row_count"] == truth.rows or (more and row["row_count"] > truth.rows), where
        bounds = {name: row[name] for name in ("min", "max", "min_is_exact", "max_is_exact", "logical_type")}
        whole = {"row_count": truth.rows, "null_count": truth.nulls, "nan_count": None, "ndv": None}
        truth.check(bounds | whole, where, computed=False)
        if row["ndv"] is not None and row["completeness"] == "PARTIAL":
            assert row["ndv_lower"] <= truth.distinct and row["ndv_lower"] <= row["ndv"] <= row["ndv_upper"], where
            assert not row["ndv_exact"], where
    partial = {row["completeness"] for row in sink.get("stats.columns")} == {"PARTIAL"}
    assert all(sketches.is_partial(row["params"]) == partial for row in sink.get("stats.sketches"))
    table.connector.close()


def check_partitioned(format: str, seed: int) -> None:
    """Checks the records of the files of one partition, and that the table gets none."""
    lake = lake_of(format, seed)
    table = lake.handles()[-1]
    rows = lake.versions[-1]
    if lake.key is None or not len(rows):
        return
    value = rows[lake.key][0].as_py()
    part = rows.filter(pc.equal(rows[lake.key], value))
    engine = ComputeEngine(inline_max_cells=10**12)
    sink, results = capture(engine, table, targets(table), partitions=(((lake.key, value),),))
    assert {r.outcome for r in results} == {Outcome.CAPTURED}
    assert sink.get("stats.columns") == []
    by_file_and_column = {(row["file_path"], row["column_id"]): row for row in sink.get("stats.file_columns")}
    paths = {path for path, _ in by_file_and_column}
    for column_id, truth in truths(replace(lake, versions=[part]), -1, table).items():
        files = [by_file_and_column[path, column_id] for path in paths]
        where = f"{format} {seed}, partition {value}: {files}"
        assert sum(row["row_count"] for row in files) == truth.rows, where
        assert sum(row["null_count"] for row in files) == truth.nulls, where
        filled = [row for row in files if row["row_count"] > row["null_count"] + (row["nan_count"] or 0)]
        lows = [bound(row["min"], truth.logical_type) for row in filled if row["min"] is not None]
        if lows and len(lows) == len(filled):  # not every bound is representable in the type
            assert min(lows) == min(truth.numbers) or not all(row["min_is_exact"] for row in filled), where
            assert min(lows) <= min(truth.numbers), where
    table.connector.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_computed_statistics_are_true(format, seed):
    check_computed(format, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_statistics_from_metadata_are_true(format, seed):
    check_native(format, seed)


def test_statistics_of_int96_are_true(monkeypatch):
    monkeypatch.setitem(FORMATS, "int96", int96)
    check_computed("int96", 0)
    check_native("int96", 0)


@pytest.mark.parametrize("method", [Sampling.RANDOM_ROW_GROUP, Sampling.METADATA_GUIDED])
@pytest.mark.parametrize("format", FORMATS)
def test_sampled_statistics_claim_nothing_false(format, method):
    check_sampled(format, 1, method)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("method", [Sampling.RANDOM_ROW_GROUP, Sampling.METADATA_GUIDED])
def test_samples_of_nulls_and_nans_are_accepted(tmp_path, method, seed):
    """Nulls, NaNs and values in three parts that rounding could make more than the rows; the sink validates."""
    rng = random.Random(seed)
    rows = pa.table({"x": pa.array(rng.choices([None, math.nan, 1.5], k=101), pa.float32())})
    pq.write_table(rows, tmp_path / "t.parquet", row_group_size=7)
    with contextlib.closing(open_connector(ConnectorConfig("c", "parquet", str(tmp_path), {}))) as connector:
        snapshot = connector.enumerate_snapshots("default", tmp_path.name).current_snapshot_id
        schema = connector.describe("default", tmp_path.name).schema
        table = TableHandle("c", "default", tmp_path.name, "id", snapshot, schema, {"x": 1}, connector)
        how = {"sampling": method, "budget": Budget(max_rows=30)}
        sink, results = capture(ComputeEngine(), table, [Target.column(1)], **how)
    assert [(r.outcome, r.detail) for r in results] == [(Outcome.CAPTURED, "")]
    (row,) = sink.get("stats.columns")
    assert row["row_count"] == 101 and row["null_count"] == rows["x"].null_count
    assert row["completeness"] == "PARTIAL" and row["nan_count"] > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_statistics_of_a_partition_are_true(format, seed):
    check_partitioned(format, seed)


@pytest.fixture(scope="module")
def spark_engine():
    engine = ComputeEngine(spark=Spark("local[2]"), engine=Engine.SPARK)
    yield engine
    engine.close()


@pytest.mark.spark
@pytest.mark.parametrize("format", FORMATS)
def test_spark_computes_the_same_true_statistics_as_in_process(spark_engine, format):
    lake = lake_of(format, 1)
    table = lake.handles()[-1]
    sink, results = capture(spark_engine, table, targets(table))
    assert {(r.outcome, r.detail, r.engine_id) for r in results} == {(Outcome.CAPTURED, "", "spark")}
    check(sink, table, truths(lake, -1, table), f"{format} on Spark", computed=True, deletes=lake.counts_deleted)
    here, _ = capture(ComputeEngine(engine=Engine.LOCAL), table, targets(table))
    assert sink.content() == [line.replace("'engine_id': 'local'", "'engine_id': 'spark'") for line in here.content()]
    table.connector.close()
