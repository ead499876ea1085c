"""Bounds of manifests enclose the values that the stored texts enclose, as readers of Iceberg compare them."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types
from pyiceberg.conversions import from_bytes

from flight_server.faces.iceberg_rest.column_bounds import MOST_LETTERS, bounds_of
from store.model import bounds
from store.model.logical_types import parse

SINGLE = st.floats(width=32, allow_nan=False)
VALUES = {
    "BOOLEAN": (types.BooleanType(), st.booleans()),
    "INT": (types.LongType(), st.integers(-(2**63), 2**63 - 1)),
    "FLOAT": (types.FloatType(), SINGLE),
    "DOUBLE": (types.DoubleType(), st.floats(allow_nan=False)),
    "DECIMAL(9,2)": (types.DecimalType(9, 2), st.decimals(-9999999, 9999999, places=2)),
    "STRING": (types.StringType(), st.text(max_size=2 * MOST_LETTERS)),
    "DATE": (types.DateType(), st.dates()),
    "TIME": (types.TimeType(), st.times()),
    "TIMESTAMP": (types.TimestampType(), st.datetimes()),
    "TIMESTAMPTZ": (types.TimestamptzType(), st.datetimes()),
}


def told(value: Any, type: types.IcebergType) -> Any:
    """A value as the numbers or texts by which bounds compare."""
    if isinstance(type, types.TimeType):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    if isinstance(type, types.TimestampType | types.TimestamptzType):
        return (value - datetime(1970, 1, 1)) // np.timedelta64(1, "us").item()
    return (value - date(1970, 1, 1)).days if isinstance(type, types.DateType) else value


def java_order(value: float) -> tuple[float, float]:
    """Java puts -0.0 below 0.0."""
    return value, math.copysign(1.0, value)


@pytest.mark.parametrize("logical", VALUES)
@given(st.data())
def test_bounds_enclose_all_values(logical, data):
    type, strategy = VALUES[logical]
    values = data.draw(st.lists(strategy, min_size=1, max_size=4))
    texts = [bounds.canonical(text(value, logical), parse(logical)) for value in values]
    ordered = sorted(zip((told(value, type) for value in values), texts, strict=True))
    low, high = ordered[0], ordered[-1]
    found = bounds_of(type, logical, low[1], high[1])
    if found is None:  # only a long text has no upper bound of fewer letters
        assert logical == "STRING" and len(high[1]) > MOST_LETTERS
        return
    lower, upper = (from_bytes(type, each) for each in found)
    for value, _ in ordered:
        if logical in ("FLOAT", "DOUBLE"):
            assert java_order(lower) <= java_order(value) <= java_order(upper)
        else:
            assert lower <= value <= upper


def text(value: Any, logical: str) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return "Infinity" if value == math.inf else "-Infinity" if value == -math.inf else repr(value)
        case datetime():
            return value.isoformat() + ("Z" if logical == "TIMESTAMPTZ" else "")
    return str(value)


@pytest.mark.parametrize("zero", ["0.0", "-0.0"])
def test_both_zeros_lie_within_bounds_that_are_zero(zero):
    for logical, type in (("FLOAT", types.FloatType()), ("DOUBLE", types.DoubleType())):
        lower, upper = (from_bytes(type, each) for each in bounds_of(type, logical, zero, zero))
        assert math.copysign(1.0, lower) == -1.0 and math.copysign(1.0, upper) == 1.0


def test_a_float_bound_that_is_no_float_moves_outward():
    lower, upper = (from_bytes(types.FloatType(), each) for each in bounds_of(types.FloatType(), "FLOAT", "0.1", "0.7"))
    assert lower <= 0.1 and upper >= 0.7 and upper - lower < 0.6001


def test_a_decimal_of_another_scale_moves_outward():
    type = types.DecimalType(9, 2)
    found = bounds_of(type, "DECIMAL(12,4)", "-1.2345", "1.2345")
    assert [from_bytes(type, each) for each in found] == [Decimal("-1.24"), Decimal("1.24")]


@pytest.mark.parametrize(
    ("type", "logical", "low", "high"),
    [
        (types.DoubleType(), "DOUBLE", "NaN", "NaN"),
        (types.DoubleType(), "INT", "1", "2"),  # the column was widened since
        (types.LongType(), None, "1", "2"),
        (types.IntegerType(), "INT", "1", str(2**40)),
        (types.DecimalType(4, 2), "DECIMAL(9,2)", "1", "1000"),
        (types.StringType(), "JSON", "1", "2"),
        (types.StringType(), "STRING", "a", "\U0010ffff" * (MOST_LETTERS + 1)),
        (types.BinaryType(), "BINARY", "AA==", "AA=="),
        (types.LongType(), "INT", "x", "2"),
    ],
)
def test_what_cannot_be_told_has_no_bounds(type, logical, low, high):
    assert bounds_of(type, logical, low, high) is None
