"""Decimals against Python's integers."""

from collections import Counter
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.compute import decimals, kernels
from store.model import logical_types, sketches
from store.model.logical_types import LogicalType
from store.model.sketches import murmur3

LIMIT = 10**76 - 1
EDGES = [
    0,
    -1,
    LIMIT,
    -LIMIT,
    *(
        sign * 2**bits + more
        for bits in (7, 8, 63, 64, 127, 128, 191, 192, 251)
        for sign in (1, -1)
        for more in (-1, 0, 1)
    ),
]
NUMBERS = st.lists(st.one_of(st.sampled_from(EDGES), st.integers(-LIMIT, LIMIT)), min_size=1, max_size=30)
EXACT = Context(prec=80)


def column(numbers, scale=0) -> tuple[pa.ChunkedArray, LogicalType]:
    array = pa.array([EXACT.scaleb(Decimal(number), -scale) for number in numbers], pa.decimal256(76, scale))
    half = len(array) // 2
    return pa.chunked_array([array[:half], array[half:]]), logical_types.parse(f"DECIMAL(76,{scale})")


def hash_of(number: int) -> int:
    octets = number.to_bytes(((number if number >= 0 else ~number).bit_length() + 8) // 8, "big", signed=True)
    return int(murmur3.hash_bytes(np.frombuffer(octets, np.uint8), np.array([0, len(octets)]))[0])


@settings(deadline=None)
@given(NUMBERS)
def test_counts_and_hashes_agree_with_python_integers(numbers):
    values, lt = column(numbers)
    found, counts = decimals.count(decimals.words(values, lt))
    expected = sorted(Counter(numbers).items())
    texts = [int(value) for value in decimals.to_arrow(found, lt).to_pylist()]
    assert list(zip(texts, counts.tolist(), strict=True)) == expected
    assert murmur3.hash_wide_decimals(found).tolist() == [hash_of(number) for number, _ in expected]
    assert decimals.doubles(found, lt).tolist() == pytest.approx([float(number) for number, _ in expected])


@settings(deadline=None)
@given(NUMBERS, st.sampled_from([0, 10, 76]))
def test_statistics_of_wide_decimals_agree_with_python_integers(numbers, scale):
    values, lt = column(numbers, scale)
    found = kernels.summarise(values, lt)
    assert [Decimal(text) for text in (found.min, found.max)] == [
        EXACT.scaleb(Decimal(edge), -scale) for edge in (min(numbers), max(numbers))
    ]
    assert sketches.estimate(found.theta).ndv == len(set(numbers))
    low, high = sketches.quantiles(found.kll, [0, 1])
    assert (low, high) == pytest.approx([number / 10**scale for number in (min(numbers), max(numbers))])
    hashes, nulls = kernels.row_hashes(values, lt)
    assert (hashes.tolist(), nulls) == ([hash_of(number) for number in numbers], None)


@settings(deadline=None)
@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=20))
def test_values_hash_alike_in_any_precision(numbers):
    wide, wide_lt = column(numbers)
    narrow = pa.chunked_array([pa.array(list(map(Decimal, numbers)), pa.decimal128(38, 0))])
    hashes = kernels.row_hashes(narrow, logical_types.parse("DECIMAL(38,0)"))[0]
    assert hashes.tolist() == kernels.row_hashes(wide, wide_lt)[0].tolist()


def test_narrow_file_of_a_widened_column_is_summarised():
    narrow = pa.chunked_array([pa.array([Decimal("1.25"), None], pa.decimal128(10, 2))])
    found = kernels.summarise(narrow, logical_types.parse("DECIMAL(50,4)"))
    assert (found.row_count, found.null_count, found.min, found.width_max) == (2, 1, "1.25", 32)


def test_quantiles_of_small_and_large_decimals_are_ordered():
    numbers = [10**30, -1, -3, -2, 10**20]
    for type in (pa.decimal128(38, 0), pa.decimal256(76, 0)):
        lt = logical_types.from_arrow(type)
        found = kernels.summarise(pa.chunked_array([pa.array(list(map(Decimal, numbers)), type)]), lt)
        assert sketches.quantiles(found.kll, [0, 0.2, 0.4, 0.6, 1]) == pytest.approx([-3, -3, -2, -1, 1e30])
