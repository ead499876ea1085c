"""Ranges of partition transforms: they enclose every value that pyiceberg maps to the partition value."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import BinaryType, DateType, DecimalType, LongType, StringType, TimestampType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from capture.connectors.iceberg.bounds import span
from store.model.logical_types import parse

DATES = st.dates(date(1, 1, 2), date(9900, 1, 1)).map(date_to_days)
INSTANTS = st.datetimes(datetime(1, 1, 2), datetime(9900, 1, 1)).map(datetime_to_micros)
TIMES = [YearTransform(), MonthTransform(), DayTransform()]
CASES = [
    *((transform, DateType(), "DATE", DATES) for transform in TIMES),
    *((transform, TimestampType(), "TIMESTAMP", INSTANTS) for transform in [*TIMES, HourTransform()]),
    *((TruncateTransform(width), LongType(), "INT", st.integers(-(1 << 62), 1 << 62)) for width in (1, 10)),
    (TruncateTransform(50), DecimalType(18, 2), "DECIMAL(18,2)", st.decimals(-(10**12), 10**12, places=2)),
    (TruncateTransform(2), StringType(), "STRING", st.text(max_size=4)),
    (TruncateTransform(2), BinaryType(), "BINARY", st.binary(max_size=4)),
]


@pytest.mark.parametrize(("transform", "source", "type", "values"), CASES, ids=str)
@given(data=st.data())
def test_ranges_enclose_what_a_transform_maps_to_a_value(transform, source, type, values, data):
    value = data.draw(values)
    found = span(transform, transform.transform(source)(value), parse(type))
    assert found is not None
    low, high = found
    assert low <= value and (high is None or value <= high)


def test_ranges_are_narrow():
    day = (date(2026, 1, 31) - date(1970, 1, 1)).days
    start = datetime_to_micros(datetime(2026, 1, 31))
    assert span(DayTransform(), day, parse("DATE")) == (day, day)
    assert span(DayTransform(), day, parse("TIMESTAMP")) == (
        start,
        start + timedelta(days=1) // timedelta(microseconds=1) - 1,
    )
    assert span(TruncateTransform(10), -10, parse("INT")) == (-10, -1)
    assert span(TruncateTransform(10), Decimal("1.20"), parse("DECIMAL(9,2)")) == (Decimal("1.20"), Decimal("1.29"))
    assert span(TruncateTransform(3), "ab", parse("STRING")) == ("ab", "ab")
    assert span(TruncateTransform(3), "abc", parse("STRING")) == ("abc", None)


def test_times_before_1970_may_have_been_rounded_up():
    assert span(DayTransform(), 0, parse("DATE")) == (-1, 0)
    assert span(DayTransform(), -5, parse("DATE")) == (-6, -5)


@pytest.mark.parametrize(
    ("transform", "value", "type"),
    [
        (BucketTransform(4), 1, "INT"),
        (DayTransform(), 10**9, "DATE"),
        (DayTransform(), 1, "INT"),
        (YearTransform(), "x", "DATE"),
        (TruncateTransform(10_000), 2147477296, "INT"),  # -2147483648, which wrapped around
        (TruncateTransform(10_000), 9223372036854775616, "INT"),
        (TruncateTransform(2_000_000_000), -2_000_000_000, "INT"),  # 1,900,000,000 by 32 bits
        (TruncateTransform(50), Decimal("99.97"), "DECIMAL(4,2)"),
        (TruncateTransform(30), Decimal("99.90"), "DECIMAL(4,2)"),
        (TruncateTransform(50), Decimal("-100.00"), "DECIMAL(4,2)"),
    ],
)
def test_what_may_have_overflowed_and_other_transforms_have_no_range(transform, value, type):
    assert span(transform, value, parse(type)) is None


def test_a_range_that_passes_the_limit_of_32_bits_is_none():
    assert span(TruncateTransform(10_000), 2_147_480_000, parse("INT"), 32) is None
    assert span(TruncateTransform(10_000), 2_147_480_000, parse("INT")) == (2_147_480_000, 2_147_489_999)


def test_a_text_is_whole_only_if_it_is_shorter_in_any_unit():
    assert span(TruncateTransform(4), "\U0001f600", parse("STRING")) == ("\U0001f600", None)
