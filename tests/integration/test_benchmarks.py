"""The benchmarks, which no other run of the tests imports."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = sorted(Path(__file__).parents[1].glob("benchmarks/bench_*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_can_be_imported(path):
    importlib.import_module(f"tests.benchmarks.{path.stem}")
