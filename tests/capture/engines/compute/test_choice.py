"""Where a scan runs: the setting of the worker, that of a request, and what is said about it."""

from __future__ import annotations

import pytest

from capture.engines.compute.choice import choose
from capture.engines.compute.engine import ComputeEngine
from capture.spark.session import NO_JAVA, SparkMissing, SparkUnavailable
from capture.spec import Engine
from capture.spi import CaptureRequest, Outcome
from store.model.targets import Target
from tests.capture.engines.compute.lake import MemorySink, column


class Session:
    """A session of a cluster; `error` is raised when it is to start."""

    cores, master, is_one_try = 16, "spark://there:7077", False

    def __init__(self, is_warm=False, error=None):
        self.is_warm, self.error, self.starts = is_warm, error, 0

    def ensure(self):
        self.starts += 1
        if self.error:
            raise self.error


def chosen(engine=Engine.AUTO, rows=0, columns=10, spark=None, most=None):
    return choose(engine, f"engine {engine}", rows, columns, spark or Session(), most)


@pytest.mark.parametrize(
    ("rows", "is_warm", "on_spark", "overlapped"),
    [
        (10_000_000, True, False, False),
        (10_000_001, True, True, False),
        (100_000_000, False, False, False),
        (100_000_001, False, True, True),
    ],
)
def test_auto_compares_the_cells_with_a_threshold(rows, is_warm, on_spark, overlapped):
    choice = chosen(rows=rows, spark=Session(is_warm))
    assert (choice.on_spark, choice.overlapped) == (on_spark, overlapped)
    threshold = "100,000,000" if is_warm else "1,000,000,000"
    assert f"{rows:,} rows × 10 columns = {10 * rows:,} cells" in choice.reason and threshold in choice.reason


@pytest.mark.parametrize(("cores", "on_spark"), [(4, False), (8, True)])
def test_auto_says_that_few_cores_of_this_machine_are_no_faster(cores, on_spark):
    spark = Session(is_warm=True)
    spark.cores, spark.master, spark.is_one_try = cores, f"local[{cores}]", True
    choice = chosen(rows=10**9, spark=spark)
    assert choice.on_spark is on_spark and ("never" in choice.reason) is not on_spark


@pytest.mark.parametrize(("most", "on_spark"), [(10, False), (9, True)])
def test_auto_with_a_limit_of_cells(most, on_spark):
    choice = chosen(rows=1, most=most)
    assert choice.on_spark is on_spark and f"{most} cells (inline_max_cells)" in choice.reason


def test_auto_falls_back_and_says_so():
    choice = chosen(rows=1, most=0, spark=Session(error=SparkMissing(NO_JAVA)))
    assert not choice.on_spark and NO_JAVA in choice.note


def test_spark_computes_a_single_cell_if_asked_to():
    choice = chosen(Engine.SPARK, 1, 1, most=10**9)
    assert choice.on_spark and not choice.overlapped
    assert choice.reason == "engine spark: 1 rows × 1 columns = 1 cells, on 16 cores of spark://there:7077"


def test_spark_that_cannot_run_is_an_error():
    with pytest.raises(SparkMissing, match="engine spark cannot run: no Java"):
        chosen(Engine.SPARK, 1, 1, Session(error=SparkMissing(NO_JAVA)))


@pytest.mark.parametrize(("engine", "rows"), [(Engine.LOCAL, 10**12), (Engine.SPARK, 0)])
def test_spark_is_not_started_for_local_or_for_nothing(engine, rows):
    spark = Session()
    assert not chosen(engine, rows, spark=spark).on_spark and not spark.starts


def test_request_overrides_the_setting(table):
    engine = ComputeEngine(spark=Session(error=SparkUnavailable("no room")), engine=Engine.SPARK)
    here, forced = column(table, "id", engine=Engine.LOCAL), column(table, "word")
    results = engine.capture_batch([here, forced], MemorySink())
    assert [result.outcome for result in results] == [Outcome.CAPTURED, Outcome.DEGRADED]
    assert results[0].engine_id == "local" and results[0].reason.startswith(
        "engine local (requested): 1,500 rows × 1 columns = 1,500 cells, in this process on"
    )
    assert results[1].detail == "engine spark (the setting) cannot run: no room" and results[1].attributes["retryable"]


def test_expression_needs_spark(table):
    request = CaptureRequest.of(table, Target.expression("spark", b"id + 1"), engine=Engine.LOCAL)
    assert "only Spark computes expressions" in ComputeEngine().supports(request)
    assert ComputeEngine(engine=Engine.LOCAL).supports(CaptureRequest.of(table, request.target))
    assert not ComputeEngine().supports(CaptureRequest.of(table, request.target))


def test_reason_tells_what_was_known_already(table):
    engine, sink = ComputeEngine(), MemorySink()
    engine.capture_batch([column(table, "id")], sink)
    (again,) = engine.capture_batch([column(table, "id")], sink)
    assert again.reason.endswith("nothing to read; 2 of 2 files were known")
