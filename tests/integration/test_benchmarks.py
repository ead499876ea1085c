"""The benchmarks, which no other run of the tests imports."""

import importlib
from pathlib import Path


def test_every_benchmark_can_be_imported():
    paths = sorted(Path(__file__).parents[1].glob("benchmarks/bench_*.py"))
    assert paths
    for path in paths:
        importlib.import_module(f"tests.benchmarks.{path.stem}")
