"""Spark that does not start: the same kernels do the work here, and say so."""

from __future__ import annotations

import gc
import warnings

import pytest

from capture.engines.compute.engine import SparkEngine
from capture.spi import CaptureRequest, Outcome
from store.targets import Target
from tests.capture.engines.compute import test_engine
from tests.capture.engines.compute.test_engine import MemorySink, column

lake, table = test_engine.lake, test_engine.table  # fixtures


@pytest.fixture(autouse=True)
def collected():
    """pyspark leaves the pipe of a gateway that ended to the garbage collector."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


@pytest.fixture(params=["a Java that ends at once", "no shell"])
def broken(request, monkeypatch, tmp_path):
    """The reason that captures give for Spark not starting here."""
    if request.param == "no shell":  # which Spark's launcher is a script for
        (tmp_path / "bin").mkdir()
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        return "its launcher is a bash script, and bash must be on the PATH of the worker"
    java = tmp_path / "jre/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 3\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    return "does not run (exit status 3); point JAVA_HOME of the worker at a JRE 17"


def test_an_expression_says_why_it_cannot_be_had_and_is_not_tried_again(table, broken, tmp_path):
    target = Target.expression("spark", b"id + 1")
    (result,) = SparkEngine().capture_batch([CaptureRequest.of(table, target)], MemorySink())
    assert (result.outcome, result.attributes) == (Outcome.DEGRADED, {"retryable": False})
    assert broken in result.detail and str(tmp_path) not in result.detail


def test_a_spark_that_does_not_start_leaves_the_work_to_the_kernels(table, broken):
    engine, sink = SparkEngine(inline_max_cells=10), MemorySink()
    (result,) = engine.capture_batch([column(table, "id")], sink)
    assert (result.outcome, result.engine_id, result.attributes["execution"]) == (Outcome.CAPTURED, "local", "inline")
    assert result.detail.startswith("computed without Spark: Spark did not start on local[*]: ")
    assert (sink.columns()["id"]["ndv"], sink.columns()["id"]["engine_id"]) == (1500, "local")
