"""Formatting of changes between snapshots."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from flight_server.core.views.table_summary import TableSummary
from flight_server.faces.commands.comparing import _worded
from flight_server.faces.present.comparison import Change, changes
from tests.flight_server.command_line import KEY, NAME, column_row


@pytest.mark.parametrize(
    ("change", "formatted"),
    [
        (
            Change("t", "row_count", 9999, 1_010_000, 1_000_001, 10_001.0),
            ("9,999", "1,010,000", "+1,000,001", "+10,001%"),
        ),
        (Change("c", "mean", 2.0, 1.987654321, -0.012345679, -0.617), ("2", "1.98765", "-0.0123457", "-0.617%")),
        (
            Change("t", "row_count", 2**60 + 1, 2**60 + 2, 1, 8.7e-17),
            ("1,152,921,504,606,846,977", "1,152,921,504,606,846,978", "+1", "+8.7e-17%"),
        ),
        (
            Change("t", "row_count", 3_000_000, 1, -2_999_999, -99.99996666),
            ("3,000,000", "1", "-2,999,999", "<-99.9%"),
        ),
        (Change("c", "ndv", 19_993.6, 59_200.2, 39_206.6, 196.1), ("19,994", "59,200", "+39,206", "+196%")),
        (Change("c", "max", "a", None), ("a", "", "", "")),
        (Change("c", "stddev", 1.0, math.nan), ("1", "NaN", "", "")),
    ],
)
def test_change_is_formatted_for_people(change, formatted):
    assert _worded(change) == formatted


def summary(schema: str | None, *ids: int) -> TableSummary:
    """A snapshot of which these columns are captured."""
    rows: list[dict[str, Any]] = [
        {"column_id": i, "column_name": f"c{i}", "logical_type": "INT", "schema_hash": schema} for i in ids
    ]
    return TableSummary("lake.s.t", pa.Table.from_pylist(rows), {"row_count": 1, "schema_hash": schema})


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (summary("a", 1), summary("a", 1, 2), Change("c2", "logical_type", None, "INT")),
        (summary("a", 1, 2), summary("a", 1), Change("c2", "logical_type", "INT", None)),
        (summary("a", 1), summary("b"), Change("c1", "logical_type", "INT", None)),
        (summary("a", 1), summary("b", 1, 2), Change("c2", "added")),
        (summary("a", 1, 2), summary("b", 1), Change("c2", "dropped")),
        (summary(None, 1, 2), summary(None, 1), Change("c2", "dropped")),
    ],
)
def test_columns_are_added_or_dropped_only_by_another_schema(before, after, expected):
    assert changes(before, after) == [expected]


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (("first", "current"), "first and current are one snapshot, for no earlier one is captured; run: statflight"),
        ((4, "current"), "4 and current are one snapshot\n"),
        ((4, 5), "the statistics of 4 and 5 are the same"),
    ],
)
def test_a_snapshot_compared_with_itself_is_told(server, run, pair, said):
    server.rows("sys.snapshots", KEY | {"snapshot_id": 4, "is_current": True, "captured": True})
    server.rows("stats.tables", KEY | {"snapshot_id": 4, "row_count": 5})
    server.rows("stats.columns", column_row(snapshot_id=4))
    status, _, err = run("diff", NAME, *pair)
    assert status == 0 and said in err
