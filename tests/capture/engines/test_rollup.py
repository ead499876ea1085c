"""Roll-ups of files: one after the other, all at once, and of parts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.connectors.spi import FILE_COLUMN_SCHEMA
from capture.engines.rollup import Rollup

COUNTS = st.none() | st.integers(0, 5)
BOUNDS = st.none() | st.integers(-9, 9).map(lambda value: f"{value}.5")
ROWS = st.fixed_dictionaries(
    {
        "row_count": st.integers(5, 20),
        "null_count": COUNTS,
        "nan_count": COUNTS,
        "min": BOUNDS,
        "max": BOUNDS,
        "min_is_exact": st.none() | st.booleans(),
        "max_is_exact": st.none() | st.booleans(),
    }
)
EMPTY = st.integers(0, 3).map(
    lambda n: {
        "row_count": n,
        "null_count": n,
        "nan_count": 0,
        "min": None,
        "max": None,
        "min_is_exact": None,
        "max_is_exact": None,
    }
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    full = [
        {"file_path": f"f{n}", "column_id": 1, "column_name": "v", "logical_type": "DOUBLE"} | row
        for n, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in FILE_COLUMN_SCHEMA.names} for row in full], FILE_COLUMN_SCHEMA
    )


def rolled(*tables: pa.Table) -> Rollup:
    found = Rollup("v", "DOUBLE")
    for rows in tables:
        found.add(rows)
    return found


@settings(deadline=None)
@given(st.lists(ROWS | EMPTY, min_size=2, max_size=5))
def test_rollup_is_independent_of_the_division_into_tables_and_parts(rows):
    whole = rolled(table(rows))
    assert rolled(*(table([row]) for row in rows)).scalars(None, None, False) == whole.scalars(None, None, False)
    parts = [rolled(table([row])) for row in rows]
    assert Rollup.of("v", "DOUBLE", parts).scalars(None, None, False) == whole.scalars(None, None, False)
