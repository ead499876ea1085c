"""The computing engine without Spark: no Java, a session that starts late or not at all, and executors that share."""

import pickle
from concurrent.futures import Future

import pyarrow as pa
import pytest

from capture.compute import file_scan, local
from capture.compute.file_scan import Work
from capture.connectors.spi import ScanTask
from capture.engines.compute import choice
from capture.engines.compute.engine import ComputeEngine
from capture.spark import job
from capture.spark.session import NO_JAVA, Spark, SparkUnavailable
from capture.spi import Outcome
from tests.capture.engines.compute.lake import MemorySink, all_columns, column


def test_large_table_is_computed_in_process_without_java(table, monkeypatch):
    engine = ComputeEngine(inline_max_cells=10)

    def refuse():
        raise SparkUnavailable(NO_JAVA)

    monkeypatch.setattr(engine.spark, "ensure", refuse)
    sink = MemorySink()
    (result,) = engine.capture_batch([column(table, "id")], sink)
    assert (result.outcome, result.attributes["execution"]) == (Outcome.CAPTURED, "inline")
    assert "openjdk-17-jre-headless" in result.detail
    assert sink.columns()["id"]["ndv"] == 1500


def test_group_claimed_by_one_executor_is_not_computed_by_another(tmp_path):
    found = [(i, ScanTask("parquet", f"{i}.parquet", str(tmp_path / "none"), 1, 1, (), "")) for i in range(3)]
    groups = [pickle.dumps((found[:2], Work((1,)))), pickle.dumps((found[2:], Work((1,))))]
    claims = tmp_path / "claims"
    claims.mkdir()
    (claims / "0").touch()  # by another executor
    payload = pickle.dumps((groups, str(claims)))
    assert job.compute(payload).column("task").to_pylist() == [2]
    assert job.compute(payload).num_rows == 0
    assert job.compute(pickle.dumps((groups, None))).column("task").to_pylist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("master", "one_try"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2]", True),
        ("local[2,4]", False),
        ("local-cluster[2,1,1024]", False),
        ("spark://here:7077", False),
        ("sc://here", False),
    ],
)
def test_executors_claim_groups_only_where_tasks_are_never_retried(master, one_try):
    assert Spark(master).is_one_try is one_try


class Starting:
    """A session that has started, or failed to start, once the first file is computed in this process."""

    cores, is_one_try, master = 2, True, "local[2]"

    def __init__(self, error=None):
        self.error, self.is_warm, self.starts = error, False, Future()

    def start(self):
        return self.starts

    def run(self, compute, payloads, schema, poll):
        assert self.is_warm
        return pa.Table.from_batches([compute(payload) for payload in payloads], schema)


@pytest.mark.parametrize("error", [None, SparkUnavailable("no room")])
def test_kernels_compute_in_process_until_spark_has_started(table, lake, monkeypatch, error):
    for number in range(8):
        lake.add(f"c{number}.parquet", range(number, number + 50))
    spark, scanned = Starting(error), []

    def scan(number, task, work):
        scanned.append(number)
        if not spark.starts.done():
            spark.is_warm = error is None
            spark.starts.set_exception(error) if error else spark.starts.set_result(None)
        return file_scan.scan(number, task, work)

    monkeypatch.setattr(local, "scan", scan)
    monkeypatch.setattr(local, "CORES", 1)
    engine = ComputeEngine(spark=spark)
    monkeypatch.setattr(choice, "COLD_CELLS", 0)
    monkeypatch.setattr(choice, "LOCAL_CORES", 1)
    sink, whole = MemorySink(), MemorySink()
    results = engine.capture_batch(all_columns(table), sink)
    assert {result.outcome for result in results} == {Outcome.CAPTURED}
    who = {row["file_path"]: row["engine_id"] for row in sink.get("stats.file_columns")}
    if error:
        assert set(who.values()) == {"local"} and results[0].detail == "computed without Spark: no room"
    else:
        assert set(who.values()) == {"local", "spark"} and len(scanned) < len(who) == 10
        assert (results[0].engine_id, sink.columns()["id"]["engine_id"]) == ("spark", "spark")
    monkeypatch.undo()
    ComputeEngine(inline_max_cells=10**9).capture_batch(all_columns(table), whole)
    assert [line.replace("'spark'", "'local'") for line in sink.content()] == whole.content()
