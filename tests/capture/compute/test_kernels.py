"""Kernels: statistics of columns against those of plain Python."""

import datetime as dt
import math
import uuid
from collections import Counter
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.compute import kernels
from capture.compute.partial import SketchSelection
from store.model import bounds, logical_types, sketches
from store.model.sketches import murmur3
from tests.store.model.bounds.forms import text_of


def summarise(values, text, **options):
    values = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    return kernels.summarise(values, logical_types.parse(text), **options)


def ndv(partial):
    found = sketches.estimate(partial.theta)
    assert found.exact
    return found.ndv


def items(partial):
    return {item.value: item.count for item in sketches.frequent_items(partial.mcv)}


UTC = dt.UTC
COLUMNS = {
    "BOOLEAN": (pa.bool_(), [True, False, None, True], 1),
    "INT": (pa.int64(), [2**53 + 1, -5, None, -5, 2**63 - 1], 8),
    "INT tiny": (pa.int8(), [-128, 127, 0, None, 127], 1),
    "INT unsigned": (pa.uint32(), [2**32 - 1, 0, None], 4),
    "FLOAT": (pa.float32(), [1.5, -2.25, None, 1.5], 4),
    "DOUBLE": (pa.float64(), [1e300, -0.5, None, math.inf], 8),
    "DECIMAL(10,2)": (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("-99999999.99"), None], 8),
    "DECIMAL(38,10)": (pa.decimal128(38, 10), [Decimal(10**27), Decimal(-(10**20)), None, Decimal("0.1")], 16),
    "DECIMAL(50,10)": (pa.decimal256(50, 10), [Decimal(10**39), Decimal("-1E-10"), None, Decimal(-(10**39))], 32),
    "DECIMAL(76,0)": (pa.decimal256(76, 0), [Decimal(10**76 - 1), Decimal(1 - 10**76), Decimal(0), None], 32),
    "STRING": (pa.string(), ["é", "", "z", None, "Z" * 40, "~", "z"], None),
    "BINARY": (pa.binary(), [b"\xff\x00", b"", None, b"a"], None),
    "UUID": (pa.binary(16), [uuid.UUID(int=9).bytes, uuid.UUID(int=2**127).bytes, None], 16),
    "DATE": (pa.date32(), [dt.date(1960, 2, 29), dt.date(2026, 1, 1), None], 4),
    "TIME": (pa.time64("us"), [dt.time(23, 59, 59, 1), dt.time(0), None], 8),
    "TIMESTAMP": (pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 250_000), dt.datetime(2026, 1, 1)], 8),
    "TIMESTAMPTZ": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 1, tzinfo=UTC), None], 8),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("form", ["plain", "sliced", "chunks", "dictionary", "many"])
def test_statistics_of_each_type_and_layout(name, form):
    text, (type, values, width) = name.split(" ")[0], COLUMNS[name]
    lt = logical_types.parse(text)
    array = pa.array(values, type)
    match form:
        case "sliced":
            array = pa.concat_arrays([array[:2], array, array[1:]]).slice(2, len(values))
        case "chunks":
            array = pa.chunked_array([array[:1], array[:0], array[1:]])
        case "dictionary":
            array = array.dictionary_encode()
        case "many":  # enough rows for the path of large columns
            array, values = pa.concat_arrays([array] * 700), values * 700
    found = summarise(array, text)
    given = [value for value in values if value is not None]
    assert (found.row_count, found.null_count) == (len(values), len(values) - len(given))
    counts = {text_of(value, lt): count for value, count in Counter(given).items()}
    keys = bounds.sort_keys(pa.array(counts), lt).to_pylist()
    ranked = sorted(zip(keys, counts, strict=True))
    assert (found.min, found.max) == (ranked[0][1], ranked[-1][1])
    assert ndv(found) == len(counts)
    assert items(found) == counts
    widths = [width or len(value.encode() if isinstance(value, str) else value) for value in given]
    assert (found.width_sum, found.width_max) == (sum(widths), max(widths))
    assert found.nan_count == (0 if text in ("FLOAT", "DOUBLE") else None)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_nulls_and_empty_columns_have_no_bounds(name):
    for rows in (3, 0):
        found = summarise(pa.nulls(rows, COLUMNS[name][0]), name.split(" ")[0])
        assert (found.row_count, found.null_count, found.min, found.max, found.width_max) == (
            rows,
            rows,
            None,
            None,
            None,
        )
        assert ndv(found) == 0
        assert items(found) == {}


@pytest.mark.parametrize(("type", "text"), [(pa.float64(), "DOUBLE"), (pa.float32(), "FLOAT"), (pa.float16(), "FLOAT")])
def test_nans_are_one_value_and_signed_zeros_are_one_value(type, text):
    found = summarise(pa.array([math.nan, -0.0, 0.0, None, 1.5, math.nan], type), text)
    assert (found.nan_count, found.null_count, found.min, found.max) == (2, 1, "0", "1.5")
    assert ndv(found) == 3
    assert items(found) == {"0": 2, "NaN": 2, "1.5": 1}
    only = summarise(pa.array([math.nan] * 3, type), text)
    assert (only.nan_count, only.min, only.max, ndv(only)) == (3, None, None, 1)
    assert sketches.read_kll(only.kll) is None


def test_an_unsigned_value_above_int64_has_no_bound():
    found = summarise(pa.array([2**64 - 1, 7], pa.uint64()), "INT")
    assert (found.min, found.max, ndv(found)) == ("7", None, 2)


@pytest.mark.parametrize("type", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint64()])
def test_integers_of_all_widths_hash_alike(type):
    values = pa.array([0, 1, 100, 127], type)
    assert summarise(values, "INT").theta == sketches.theta(murmur3.hash_longs(np.array([0, 1, 100, 127])))


@pytest.mark.parametrize("type", [pa.int8(), pa.int16(), pa.int64(), pa.uint64()])
def test_values_at_the_ends_of_the_integer_range_are_counted(type):
    info = np.iinfo(type.to_pandas_dtype())
    values = [info.min, info.min + 1] * 400 + [info.max] * (100 if type.bit_width == 8 else 0)
    found = summarise(pa.array(values, type), "INT")
    assert found.min == str(info.min)
    assert ndv(found) == len(set(values))


def test_unit_of_a_time_does_not_change_its_statistics():
    instants = [dt.datetime(1969, 12, 31, 23, 59, 59, 999_000), dt.datetime(2026, 5, 4, 3, 2, 1)]
    expected = summarise(pa.array(instants, pa.timestamp("us")), "TIMESTAMP")
    for unit in ("ms", "ns"):
        assert summarise(pa.array(instants, pa.timestamp(unit)), "TIMESTAMP") == expected
    days = [dt.date(1969, 12, 31), dt.date(2026, 1, 1)]
    assert summarise(pa.array(days, pa.date64()), "DATE") == summarise(pa.array(days, pa.date32()), "DATE")
    clock = [dt.time(1, 2, 3)]
    assert summarise(pa.array(clock, pa.time32("s")), "TIME") == summarise(pa.array(clock, pa.time64("us")), "TIME")


def test_promoted_values_equal_values_of_the_new_type():
    assert summarise(pa.array([1.5], pa.float32()), "DOUBLE") == summarise(pa.array([1.5]), "DOUBLE")
    narrow = pa.array([Decimal("1.5")], pa.decimal128(5, 2))
    assert summarise(narrow, "DECIMAL(20,2)") == summarise(narrow.cast(pa.decimal128(20, 2)), "DECIMAL(20,2)")


@pytest.mark.parametrize("type", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_layout_of_texts_does_not_change_their_statistics(type):
    texts = ["b", "", None, "long enough not to be inlined"] * 30
    plain = pa.array(texts)
    other = plain.dictionary_encode().cast(type) if pa.types.is_dictionary(type) else plain.cast(type)
    assert summarise(other, "STRING") == summarise(plain, "STRING")


def test_uuid_extension_type_has_bounds_in_text_form():
    values = pa.array([uuid.UUID(int=5).bytes, None], pa.uuid())
    assert summarise(values, "UUID").min == "00000000-0000-0000-0000-000000000005"


def test_unused_entries_of_a_dictionary_are_ignored():
    array = pa.DictionaryArray.from_arrays(pa.array([1, 1, None]), pa.array(["a", "b", "z"]))
    found = summarise(array, "STRING")
    assert (found.min, found.max, ndv(found), items(found)) == ("b", "b", 1, {"b": 2})


def test_json_has_no_bounds_and_an_array_only_counts():
    assert summarise(pa.array(["{}"]), "JSON").min is None
    found = summarise(pa.array([[1], None]), "ARRAY")
    assert (found.row_count, found.null_count, found.theta) == (2, 1, None)


def test_constant_with_a_count_equals_its_repeated_values():
    for values, text in (
        (pa.array([7]), "INT"),
        (pa.array(["x"]), "STRING"),
        (pa.array([math.nan]), "DOUBLE"),
        (pa.array([True]), "BOOLEAN"),
        (pa.nulls(1, pa.string()), "STRING"),
    ):
        repeated = pa.chunked_array([values.take(pa.array([0] * 1000))])
        assert summarise(values, text, times=1000) == summarise(repeated, text)


def test_only_selected_sketches_are_built():
    values = pa.array(["a", "b"] * 600)
    found = summarise(values, "STRING", wanted=SketchSelection(False, False))
    assert (found.kll, found.mcv) == (None, None)
    assert found.theta == summarise(values, "STRING").theta
    found = summarise(pa.array([1, 2]), "INT", wanted=SketchSelection(quantiles=False))
    assert found.kll is None
    assert found.mcv is not None


@pytest.mark.parametrize("text", ["INT", "DOUBLE", "STRING", "DECIMAL(18,0)", "DATE"])
def test_estimates_of_large_columns_are_within_their_errors(text):
    """Beyond the capacity of the sketches: ndv within its error, heavy values found, median right."""
    generator = np.random.default_rng(1)
    rows = 60_000
    numbers = np.where(generator.random(rows) < 0.2, 77, generator.integers(0, 2**20, rows))
    array = pa.array(numbers)
    match text:
        case "DOUBLE":
            array = array.cast(pa.float64())
        case "STRING":
            array = array.cast(pa.string())
        case "DECIMAL(18,0)":
            array = array.cast(pa.decimal128(19, 0)).cast(pa.decimal128(18, 0))
        case "DATE":
            array = array.cast(pa.int32()).view(pa.date32())
    found = summarise(array, text)
    distinct = len(set(numbers.tolist()))
    reported = sketches.estimate(found.theta)
    assert not reported.exact
    assert reported.ndv == pytest.approx(distinct, rel=3 / 64)
    top = sketches.frequent_items(found.mcv, 1)[0]
    hot = int(np.count_nonzero(numbers == 77))
    assert (
        top.value
        == bounds.encode_array(array.filter(pa.array(numbers == 77))[:1], logical_types.parse(text))[0].as_py()
    )
    assert top.lower <= hot == top.upper
    if text != "STRING":
        (median,) = sketches.quantiles(found.kll, [0.5])
        assert abs(np.searchsorted(np.sort(numbers), median) / rows - 0.5) <= 0.01


def test_a_text_that_is_not_utf_8_is_refused():
    values = pa.array([b"a", b"\xc3", b"\xa4", b"b"]).view(pa.string())  # together two of them would be a letter
    with pytest.raises(UnicodeDecodeError):
        summarise(values, "STRING")


def test_long_texts_are_left_out_of_common_values():
    found = summarise(pa.array(["x" * 5000] * 3 + ["y"] * 5 + ["z"]), "STRING")
    assert sketches.frequent_items(found.mcv) == [("y", 5, 2, 5)]
    assert found.max == "z"


@given(st.lists(st.binary(max_size=4) | st.text("ab\x00é", max_size=4).map(str.encode), min_size=1, max_size=60))
def test_bounds_of_bytes_are_the_minimum_and_the_maximum(values):
    array = pa.array([b"skipped", *values], pa.binary())[1:]
    ends = pa.array([min(values), max(values)], pa.binary())
    found = summarise(array, "BINARY")
    assert [found.min, found.max] == bounds.encode_array(ends, logical_types.parse("BINARY")).to_pylist()


@pytest.mark.parametrize("name", COLUMNS)
def test_merge_of_parts_equals_the_whole(name):
    text, (type, values, _) = name.split(" ")[0], COLUMNS[name]
    array = pa.array(values * 3 + [None], type)
    lt = logical_types.parse(text)
    parts = [summarise(array[start:stop], text) for start, stop in ((0, 2), (2, 2), (2, 7), (7, len(array)))]
    merged, whole = kernels.merge(parts, lt), summarise(array, text)
    slack = 1e-12 * (whole.stddev or 0)
    assert (merged.mean, merged.stddev) == (pytest.approx(whole.mean, abs=slack), pytest.approx(whole.stddev))
    assert replace(merged, mean=whole.mean, stddev=whole.stddev) == whole


def test_column_summarised_in_pieces_equals_the_whole(monkeypatch):
    array = pa.array([3, None, 1, 2] * 50)
    whole = summarise(array, "INT")
    monkeypatch.setattr(kernels, "PIECE_ROWS", 30)
    assert summarise(array, "INT") == whole


@pytest.mark.parametrize("name", COLUMNS)
def test_row_hashes_equal_those_of_the_theta_sketch(name):
    text, (type, values, _) = name.split(" ")[0], COLUMNS[name]
    array = pa.chunked_array([pa.array(values, type)])
    hashes, null = kernels.row_hashes(array, logical_types.parse(text))
    assert [value is None for value in values] == (null.tolist() if null is not None else [False] * len(values))
    assert sketches.theta(hashes if null is None else hashes[~null]) == summarise(array, text).theta


def test_row_hashes_of_an_array_column_are_refused():
    with pytest.raises(ValueError, match="not hashed"):
        kernels.row_hashes(pa.chunked_array([pa.array([[1]])]), logical_types.parse("ARRAY"))


@pytest.mark.parametrize("heavy", [0, 40])
def test_common_values_are_found_among_very_many_texts(heavy):
    """Too many texts to sort them all: frequent ones are found, and their counts are within the bounds."""
    often = [f"often-{i}" for i in range(heavy) for _ in range(1250 + 5 * i)]
    texts = np.array([f"{i:032x}" for i in range(150_000)] + often)
    np.random.default_rng(7).shuffle(texts)
    values = pa.chunked_array([pa.array(part.tolist()) for part in np.array_split(texts, 3)])
    found = summarise(values, "STRING", times=2)
    reported = {item.value: item for item in sketches.frequent_items(found.mcv)}
    assert reported.keys() == {f"often-{i}" for i in range(heavy)}
    for i in range(heavy):
        item, count = reported[f"often-{i}"], 2 * (1250 + 5 * i)
        assert item.lower <= count == item.upper
    *_, offset = sketches.read_frequent(found.mcv)
    assert 0 < offset < len(texts) / 1000
    assert found.theta == sketches.theta(hashes_of(np.unique(texts)))


def hashes_of(texts):
    octets = [text.encode() for text in texts.tolist()]
    offsets = np.cumsum([0, *map(len, octets)])
    return murmur3.hash_bytes(np.frombuffer(b"".join(octets), np.uint8), offsets)


# Instants finer than a microsecond, or out of the range of microseconds.


def test_nanoseconds_are_counted_before_bounds_are_rounded():
    found = summarise(pa.array([5001, 5002, 7000], pa.timestamp("ns")), "TIMESTAMP")
    assert sketches.estimate(found.theta).ndv == 3
    assert (found.min, found.min_is_exact) == ("1970-01-01T00:00:00.000005", False)
    assert (found.max, found.max_is_exact) == ("1970-01-01T00:00:00.000007", True)
    found = summarise(pa.array([-1, 5001], pa.timestamp("ns", "UTC")), "TIMESTAMPTZ")
    assert (found.min, found.min_is_exact) == ("1969-12-31T23:59:59.999999Z", False)
    assert (found.max, found.max_is_exact) == ("1970-01-01T00:00:00.000006Z", False)


def test_whole_microseconds_hash_alike_from_any_unit():
    of = [
        summarise(pa.array([1_000_000 * n for n in ticks], pa.timestamp(unit)), "TIMESTAMP").theta
        for unit, ticks in (("us", [1, 2]), ("ns", [1000, 2000]))
    ]
    assert of[0] == of[1]


@pytest.mark.parametrize("type", [pa.time64("ns"), pa.timestamp("ns")])
def test_bound_is_exact_if_a_value_has_no_finer_digits(type):
    text = "TIME" if pa.types.is_time(type) else "TIMESTAMP"
    found = summarise(pa.array([5000, 5999], type), text)
    assert (found.min_is_exact, found.max_is_exact, sketches.estimate(found.theta).ndv) == (True, False, 2)


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_instants_out_of_range_are_counted_without_a_bound(unit):
    array = pa.array([2**62, 1, 2**62 + 1, None], pa.timestamp(unit))
    found = summarise(array, "TIMESTAMP")
    assert (found.null_count, sketches.estimate(found.theta).ndv, found.max) == (1, 3, None)
    assert found.min == ("1970-01-01T00:00:01" if unit == "s" else "1970-01-01T00:00:00.001")
    near = summarise(pa.array([5], pa.timestamp(unit)), "TIMESTAMP")
    assert (
        kernels.merge([near, found], logical_types.parse("TIMESTAMP")).max is None
    )  # unknown in a part, and so in all


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1), st.sampled_from([0, 3, 6, None]))
def test_rounded_bounds_enclose_nanoseconds(ticks, precision):
    text = "TIMESTAMP" if precision is None else f"TIMESTAMP({precision})"
    found = summarise(pa.array(ticks, pa.timestamp("ns")), text)
    low, high = (int(np.datetime64(t, "ns").astype(np.int64)) for t in (found.min, found.max))
    assert low <= min(ticks) and max(ticks) <= high
    assert (found.min_is_exact, found.max_is_exact) == (low == min(ticks), high == max(ticks))
    assert sketches.estimate(found.theta).ndv == len(set(ticks))


def test_row_hashes_distinguish_nanoseconds():
    hashes, _ = kernels.row_hashes(
        pa.chunked_array([pa.array([5001, 5002], pa.timestamp("ns"))]), logical_types.parse("TIMESTAMP")
    )
    assert hashes[0] != hashes[1]


def test_merge_with_a_value_out_of_range_has_unknown_bounds():
    lt = logical_types.parse("INT")
    parts = [summarise(pa.array([5]), "INT"), summarise(pa.array([2**64 - 1], pa.uint64()), "INT")]
    merged = kernels.merge(parts, lt)
    assert (merged.min, merged.max) == (None, None)
