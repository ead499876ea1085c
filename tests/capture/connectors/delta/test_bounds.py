"""Bounds of a Delta log enclose what readers see in the files, in the type that they compare in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.compute.file_scan import Work, scan
from capture.connectors.delta.bounds import of_log, of_partition
from store.logical_types import parse
from tests.capture.connectors.delta.test_connector import captured, connector, ids_of

LAKES = Path(__file__).resolve().parents[5] / "shared/lakes"
needs_lakes = pytest.mark.skipif(not LAKES.exists(), reason="the shared lakes are elsewhere")
INTACT = pa.array([False])


def bounds_of(value: float, **options):
    values = pa.array([value], pa.float64())
    counts = pa.array([1]), pa.array([1])
    facts = of_log(parse("DOUBLE"), pa.array([0]), values, values, *counts, INTACT, **options)
    return [facts[name][0].as_py() for name in ("lower", "upper", "lower_exact", "upper_exact")]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_text_of_a_float_is_moved_to_that_float(value):
    text = float(np.format_float_positional(np.float32(value), unique=True))  # as a log of floats has it
    lower, upper, lower_exact, upper_exact = bounds_of(text, was_float=True)
    assert lower <= float(np.float32(value)) <= upper
    assert lower_exact == upper_exact == (text == float(np.float32(value)))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_stays_enclosed(value):
    lower, upper, *_ = bounds_of(value, was_float=True)
    assert lower <= value <= upper
    assert bounds_of(value) == [value, value, True, True]


def test_what_no_float_prints_is_exact():
    assert bounds_of(1.234567890123, was_float=True)[2:] == [True, True]
    assert bounds_of(1e300, was_float=True) == [1e300, 1e300, True, True]
    assert bounds_of(3.4, was_float=True) == [3.4, 3.4000000953674316, False, False]


def test_a_partition_of_nan_counts_it():
    facts = of_partition(pa.array([1.5, float("nan"), None]), pa.array([2, 3, 4]))
    assert facts["nan_count"].to_pylist() == [0, 3, 0]
    assert facts["null_count"].to_pylist() == [0, 0, 4]
    assert facts["upper"].to_pylist() == [1.5, None, None]


@needs_lakes
@pytest.mark.parametrize(
    ("lake", "name", "column", "greatest"),
    [("delta", "type-widening", "float_double", 3.4000000953674316), ("written_by_spark", "delta_widened", "d", 1e300)],
)
def test_widened_floats_enclose_the_files(lake, name, column, greatest):
    rows = captured(connector(LAKES / lake), name)[1][column]
    assert max(float(row["max"]) for row in rows) >= greatest
    inexact = [row for row in rows if not (row["min_is_exact"] and row["max_is_exact"])]
    assert inexact
    assert all(row["nan_count"] is None for row in rows)


@needs_lakes
def test_a_widened_integer_is_as_wide_as_its_type():
    found = connector(LAKES / "written_by_spark")
    ids = ids_of(found, "delta_widened")
    tasks = list(found.plan_files("default", "delta_widened", 7, ids))
    widths = {(a.partial.width_sum / a.partial.row_count, a.partial.width_max)
              for n, task in enumerate(tasks) for a in scan(n, task, Work((ids["a"],)))}  # fmt: skip
    assert widths == {(4.0, 4)}
    before = {task.fingerprint for task in found.plan_files("default", "delta_widened", 1, ids)}
    assert before.isdisjoint(task.fingerprint for task in tasks)
