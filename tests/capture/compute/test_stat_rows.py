"""Records of partials: nulls and the ndv of column groups."""

from __future__ import annotations

import numpy as np
import pytest

from capture.compute.partial import Partial
from capture.compute.stat_rows import Coverage, scalars
from store import logical_types
from store.sketches.theta import theta


@pytest.mark.parametrize(("kind", "nulls", "ndv"), [("STRUCT", 4, 6.0), ("STRUCT", 0, 7.0), ("INT", 3, 7.0)])
def test_all_null_tuple_of_a_column_group_is_not_a_value(kind, nulls, ndv):
    sketch = theta(np.arange(1, 8, dtype=np.uint64) << np.uint64(50))
    row = scalars(Partial(10, nulls, theta=sketch), logical_types.parse(kind), Coverage(10, 1, 100))
    assert (row["ndv"], row["ndv_lower"], row["ndv_upper"], row["ndv_exact"]) == (ndv, ndv, ndv, True)
    assert row["ndv"] <= row["row_count"] - row["null_count"]
