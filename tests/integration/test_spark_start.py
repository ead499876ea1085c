"""Spark that does not start: the kernels compute in process, and results have the reason."""

from __future__ import annotations

import gc
import time
import warnings

import pytest

from capture.engines.compute.engine import ComputeEngine
from capture.spark.session import Spark
from capture.spi import CaptureRequest, Outcome
from store.model.targets import Target
from tests.capture.engines.compute import conftest
from tests.capture.engines.compute.lake import MemorySink, column

lake, table = conftest.lake, conftest.table  # fixtures


@pytest.fixture(autouse=True)
def collect_gateways():
    """Collects the pipes of ended gateways, which pyspark leaves to the garbage collector."""
    yield
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()


@pytest.fixture(params=["a Java that ends at once", "no shell"])
def failure(request, monkeypatch, tmp_path):
    """Keeps Spark from starting; returns the reason that results must have."""
    if request.param == "no shell":  # Spark's launcher is a shell script
        (tmp_path / "bin").mkdir()
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        return "its launcher is a bash script, and bash must be on the PATH of the worker"
    java = tmp_path / "jre/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 3\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    return "does not run (exit status 3); point JAVA_HOME of the worker at a JRE 17"


def test_expression_capture_fails_with_the_reason_and_is_not_retryable(table, failure, tmp_path):
    target = Target.expression("spark", b"id + 1")
    (result,) = ComputeEngine().capture_batch([CaptureRequest.of(table, target)], MemorySink())
    assert (result.outcome, result.attributes) == (Outcome.DEGRADED, {"retryable": False})
    assert failure in result.detail and str(tmp_path) not in result.detail


def test_column_capture_falls_back_to_the_kernels_in_process(table, failure):
    engine, sink = ComputeEngine(inline_max_cells=10), MemorySink()
    (result,) = engine.capture_batch([column(table, "id")], sink)
    assert (result.outcome, result.engine_id, result.attributes["execution"]) == (Outcome.CAPTURED, "local", "inline")
    assert result.detail.startswith("computed without Spark: Spark did not start on local[*]: ")
    assert (sink.columns()["id"]["ndv"], sink.columns()["id"]["engine_id"]) == (1500, "local")


@pytest.mark.parametrize("master", ["spark://127.0.0.1:1", "sc://127.0.0.1:1/;token=secret"])
def test_a_master_that_is_not_there_is_named_at_once(table, master):
    engine = ComputeEngine(spark=Spark(master))
    target = Target.expression("spark", b"id + 1")
    began = time.monotonic()
    (result,) = engine.capture_batch([CaptureRequest.of(table, target)], MemorySink())
    assert time.monotonic() - began < 20.0  # Spark alone tries for a minute
    assert result.outcome is Outcome.DEGRADED
    assert "nobody listens there (127.0.0.1:1: Connection refused); is the master running" in result.detail
    assert "secret" not in result.detail
