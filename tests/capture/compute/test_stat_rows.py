"""Records of partials: nulls and the ndv of column groups."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.compute.kernels import summarise
from capture.compute.partial import Partial
from capture.compute.stat_rows import Coverage, scalars
from capture.flight_rows import flight_rows
from store.history.validation import prepare
from store.model import logical_types
from store.model.schemas import FLIGHTS
from store.model.sketches.theta import theta


@pytest.mark.parametrize(("kind", "nulls", "ndv"), [("STRUCT", 4, 6.0), ("STRUCT", 0, 7.0), ("INT", 3, 7.0)])
def test_all_null_tuple_of_a_column_group_is_not_a_value(kind, nulls, ndv):
    sketch = theta(np.arange(1, 8, dtype=np.uint64) << np.uint64(50))
    row = scalars(Partial(10, nulls, theta=sketch), logical_types.parse(kind), Coverage(10, 1, 100))
    assert (row["ndv"], row["ndv_lower"], row["ndv_upper"], row["ndv_exact"]) == (ndv, ndv, ndv, True)
    assert row["ndv"] <= row["row_count"] - row["null_count"]


@given(
    st.lists(st.sampled_from([None, float("nan"), 1.0, 2.0]), min_size=1, max_size=30),
    st.integers(0, 100),
    st.none() | st.integers(0, 130),
    st.integers(0, 2),
)
def test_counts_of_a_sample_add_up_and_are_accepted(values, unread, known_nulls, groups):
    """Whatever metadata says of the nulls, in a sample and in what is left of a capture with failed files."""
    part = summarise(pa.chunked_array([pa.array(values, pa.float64())]), logical_types.parse("DOUBLE"))
    covers = Coverage(len(values) + unread, 1, 1, row_groups=groups, failed=1, known={"null_count": known_nulls})
    row = scalars(part, logical_types.parse("DOUBLE"), covers)
    key = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
    prepare(FLIGHTS["stats.columns"], flight_rows("stats.columns", [row | {"column_id": 1}], key))
    assert row["null_count"] + row["nan_count"] + part.numbers <= row["row_count"]
    assert row["null_count"] >= part.null_count and row["nan_count"] >= part.nan_count
