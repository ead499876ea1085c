"""Order of bounds: of one pair, of arrays, by sort keys, and by value."""

from __future__ import annotations

import base64
import math
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import pairwise, product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.model.bounds import (
    canonical,
    canonicalize_array,
    encode_array,
    in_order,
    is_range,
    sort_keys,
)
from store.model.logical_types import parse, to_arrow
from tests.store.model.bounds.forms import text_of, texts

ORDERED = {
    "INT": ["-9223372036854775808", "-1", "0", "9", "10", "9223372036854775806", "9223372036854775807"],
    "DOUBLE": [
        "-Infinity",
        "-1.0E300",
        "-10.0",
        "-9.0",
        "-4.9E-324",
        "0",
        "4.9E-324",
        "9.0",
        "10.0",
        "1.0E7",
        "Infinity",
        "NaN",
    ],
    "FLOAT": ["-Infinity", "-1.0", "0", "1.4E-45", "2.0", "10.0", "3.4028235E38", "Infinity", "NaN"],
    "DECIMAL(38,10)": ["-10", "-9.5", "0", "0.0000000001", "9", "10", "12345678901234567890.5"],
    "DECIMAL(5,2)": ["-" + "1" * 40, "-0.001", "0", "0.0005", "9", "10", "1" * 40],  # more digits than the type has
    "DECIMAL(76,10)": ["-" + "1" * 70, "-5", "0." + "0" * 60 + "1", "0.5", "1" * 70],  # than any decimal type
    "BOOLEAN": ["false", "true"],
    "STRING": ["", "10", "9", "Z", "a", "é", "\uffff", "😀"],
    "BINARY": ["", "AA==", "fw==", "gA==", "/w=="],
    "UUID": [
        "00000000-0000-0000-0000-000000000001",
        "7f000000-0000-0000-0000-000000000000",
        "80000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ],
    "DATE": ["0000-01-01", "0005-01-01", "1969-12-31", "1970-01-01", "9999-12-31"],
    "TIME": ["00:00:00", "09:59:59.999999", "10:00:00", "10:00:00.1", "10:00:00.12", "23:59:59.999999"],
    "TIMESTAMP": ["0000-01-01T00:00:00", "1969-12-31T23:59:59.999999", "1970-01-01T00:00:00"],
    "TIMESTAMPTZ": [
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:00.100Z",
        "1970-01-01T00:00:00.100001Z",
    ],
}


@pytest.mark.parametrize("type", ORDERED)
def test_in_order_and_sort_keys_follow_the_order_of_values(type):
    lt, ascending = parse(type), ORDERED[type]
    n = len(ascending)
    keys = sort_keys(texts(None, *ascending), lt)
    assert keys[0].as_py() is None
    assert pc.sort_indices(keys[1:]).to_pylist() == list(range(n))
    pairs = list(product(range(n), repeat=2))
    low, high = (texts(*ascending).take(pa.array([pair[side] for pair in pairs])) for side in (0, 1))
    assert in_order(low, high, lt).to_pylist() == [i <= j for i, j in pairs]
    assert [is_range(ascending[i], ascending[j], lt) for i, j in pairs] == [i <= j for i, j in pairs]


def test_positive_and_negative_zero_are_equal():
    double = parse("DOUBLE")
    assert in_order(texts("0", "-0.0", "NaN"), texts("-0.0", "0", "NaN"), double).to_pylist() == [True, True, True]


def test_bounds_of_which_one_is_unknown_are_a_range():
    assert is_range(None, "1", parse("INT")) and is_range("1", None, parse("INT")) and is_range("1", "1", parse("INT"))
    assert not is_range("2", "1", parse("INT"))


KEY_TYPES = {
    "INT": pa.int64(),
    "DOUBLE": pa.int64(),
    "FLOAT": pa.int64(),
    "BOOLEAN": pa.uint8(),
    "DATE": pa.int64(),
    "TIME": pa.int64(),
    "TIMESTAMP": pa.int64(),
    "TIMESTAMPTZ": pa.int64(),
    "STRING": pa.binary(),
    "UUID": pa.binary(),
    "BINARY": pa.binary(),
    "DECIMAL(38,10)": pa.string(),
}


@pytest.mark.parametrize("type", KEY_TYPES)
def test_sort_keys_have_the_arrow_type_of_the_logical_type(type):
    assert sort_keys(texts(*ORDERED[type]), parse(type)).type == KEY_TYPES[type]


# Properties.

VALUES = {
    "BOOLEAN": st.booleans(),
    "INT": st.integers(-(2**63), 2**63 - 1),
    "FLOAT": st.floats(width=32),
    "DOUBLE": st.floats(),
    "DECIMAL(38,10)": st.decimals(-(10**27), 10**27, places=10, allow_nan=False),
    "STRING": st.text(),
    "UUID": st.uuids(),
    "BINARY": st.binary(),
    "DATE": st.dates(),
    "TIME": st.times(),
    "TIMESTAMP": st.datetimes(),
    "TIMESTAMPTZ": st.datetimes(timezones=st.just(UTC)),
}


READ = {
    "BOOLEAN": lambda text: text == "true",
    "INT": int,
    "FLOAT": lambda text: float(np.float32(text)),
    "DOUBLE": float,
    "DECIMAL(38,10)": Decimal,
    "STRING": str,
    "UUID": uuid.UUID,
    "BINARY": base64.b64decode,
    "DATE": date.fromisoformat,
    "TIME": time.fromisoformat,
    "TIMESTAMP": datetime.fromisoformat,
    "TIMESTAMPTZ": datetime.fromisoformat,
}


def rank(value):
    """Sort key that orders values in Python as their type does."""
    if isinstance(value, float):
        return (math.isnan(value), 0 if math.isnan(value) else value)
    if isinstance(value, str):
        return value.encode()
    return value.bytes if isinstance(value, uuid.UUID) else value


@pytest.mark.parametrize("type", VALUES)
def test_encoded_values_round_trip_and_keep_their_order(type):
    lt = parse(type)

    # Each call of a kernel costs more than its values: few lists, and long ones.
    @settings(max_examples=settings.default.max_examples // 3)
    @given(st.lists(VALUES[type], min_size=6, max_size=24))
    def holds(values):
        written = [text_of(value, lt) for value in values]
        assert [rank(READ[type](text)) for text in written] == [rank(value) for value in values]
        assert [canonical(text, lt) for text in written] == written
        carried = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
        assert encode_array(pa.array(carried, to_arrow(lt)), lt).to_pylist() == written
        assert canonicalize_array(texts(*written), lt).to_pylist() == written
        keys = sort_keys(texts(*written), lt).to_pylist()
        for (a, x, k), (b, y, m) in pairwise(zip(written, values, keys, strict=True)):
            expected = (rank(x) > rank(y)) - (rank(x) < rank(y))
            assert expected == (k > m) - (k < m) and is_range(a, b, lt) == (expected <= 0)
        pairs = in_order(texts(*written[:-1]), texts(*written[1:]), lt).to_pylist()
        assert pairs == [rank(x) <= rank(y) for x, y in pairwise(values)]

    holds()


@pytest.mark.parametrize(("scale", "digits"), [(0, 38), (0, 39), (7, 53), (7, 31), (7, 32), (0, 76), (38, 38), (38, 1)])
def test_decimals_of_many_digits_sort_by_value(scale, digits):
    """Arrow's cast of a text with more digits than the type has wraps around."""
    written = ["9" * digits, "-" + "9" * digits, "4" + "2" * (digits - 1), "0", "1", "-1"]
    keys = sort_keys(texts(*written), parse(f"DECIMAL(76,{scale})")).to_pylist()
    order = sorted(range(len(written)), key=lambda at: keys[at])
    assert [int(written[at]) for at in order] == sorted(map(int, written))
