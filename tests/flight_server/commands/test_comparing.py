"""Formatting of changes between snapshots."""

from __future__ import annotations

import math

import pytest

from flight_server.commands.comparing import _worded
from flight_server.present.comparison import Change


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
        (Change("c", "max", "a", None), ("a", "", "", "")),
        (Change("c", "stddev", 1.0, math.nan), ("1", "NaN", "", "")),
    ],
)
def test_change_is_formatted_for_people(change, formatted):
    assert _worded(change) == formatted
