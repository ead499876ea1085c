"""Spark that does not start: the same kernels do the work here, and say so."""

from __future__ import annotations

import gc
import warnings

import pytest

from capture.engines.compute.engine import SparkEngine
from capture.spi import Outcome
from tests.capture.engines.compute import test_engine
from tests.capture.engines.compute.test_engine import MemorySink, column

lake, table = test_engine.lake, test_engine.table  # fixtures


@pytest.fixture(autouse=True)
def collected():
    """pyspark leaves the pipe of a gateway that ended to the garbage collector."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


@pytest.mark.parametrize("broken", ["a Java that ends at once", "no shell"])
def test_a_spark_that_does_not_start_leaves_the_work_to_the_kernels(table, monkeypatch, tmp_path, broken):
    if broken == "no shell":  # which Spark's launcher is a script for
        (tmp_path / "bin").mkdir()
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    else:
        java = tmp_path / "jre/bin/java"
        java.parent.mkdir(parents=True)
        java.write_text("#!/bin/sh\nexit 3\n")
        java.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    engine, sink = SparkEngine(inline_max_cells=10), MemorySink()
    (result,) = engine.capture_batch([column(table, "id")], sink)
    assert (result.outcome, result.engine_id, result.attributes["execution"]) == (Outcome.CAPTURED, "local", "inline")
    assert result.detail.startswith("computed without Spark: Spark did not start on local[*]: ")
    assert (sink.columns()["id"]["ndv"], sink.columns()["id"]["engine_id"]) == (1500, "local")
