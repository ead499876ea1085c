"""The differential test with many seeds: STATFLIGHT_SEEDS per format (100), starting at STATFLIGHT_FIRST_SEED (0).

`python -m pytest tests/benchmarks/bench_differential.py -m benchmark`; a failure shows format and seed.
"""

import os

import pytest

from capture.spec import Sampling
from tests.integration import test_differential as differential
from tests.integration import test_differential_bounds as bounds
from tests.integration import test_differential_history as histories
from tests.integration import test_differential_scans as scans
from tests.integration.random_lakes import FORMATS

FIRST = int(os.environ.get("STATFLIGHT_FIRST_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("STATFLIGHT_SEEDS", "100")))

pytestmark = [pytest.mark.benchmark, differential.pytestmark]
server = bounds.server


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_capture_method_in_process(format, seed):
    for check in (differential.check_computed, differential.check_native, differential.check_partitioned):
        check(format, seed)
    for method in (Sampling.RANDOM_ROW_GROUP, Sampling.METADATA_GUIDED):
        differential.check_sampled(format, seed, method)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_random_histories(format, seed):
    histories.check_history(format, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("home", histories.HOMES)
def test_published_statistics(tmp_path, home, seed):
    histories.check_published(home, seed, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_conditions_on_bounds(server, format, seed):
    bounds.check_skipped(format, seed, server, count=4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("format", FORMATS)
def test_planned_scans(tmp_path, format, seed):
    scans.check_scans(format, seed, tmp_path, count=50)
