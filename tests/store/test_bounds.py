"""Bounds: golden vectors, properties, and the scalar form as the reference of the array form."""

import base64
import json
import math
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.bounds import (
    BadBound,
    ZonePolicy,
    canonical,
    canonicalize_array,
    compare,
    decode,
    encode,
    encode_array,
    in_order,
    java_double,
    java_float,
    sort_keys,
)
from store.logical_types import parse, to_arrow

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = next(path for path in (ROOT / "tests/golden", ROOT.parent / "shared/golden") if path.is_dir())
VECTORS = [json.loads(line) for line in (GOLDEN / "bounds.jsonl").read_text().splitlines() if line]
READ = {
    "float_hex": float.fromhex,
    "float_name": float,
    "int": int,
    "bool": lambda text: text == "true",
    "decimal": Decimal,
    "string": str,
    "bytes_hex": bytes.fromhex,
}
ORDERABLE = ["BOOLEAN", "INT", "FLOAT", "DOUBLE", "DECIMAL(38,10)", "STRING", "UUID", "BINARY", "DATE", "TIME",
             "TIMESTAMP", "TIMESTAMPTZ"]  # fmt: skip


def texts(*values):
    return pa.array(values, pa.string())


def encoded(array, type):
    result = encode_array(array, parse(type))
    result.validate(full=True)
    assert result.type == pa.string()
    return result.to_pylist()


def settled(text, type, policy=None):
    """The canonical text by both forms, which agree; None if refused."""
    policy = policy or ZonePolicy()
    try:
        one = canonical(text, parse(type), policy)
    except ValueError as error:
        with pytest.raises(BadBound) as bad:
            canonicalize_array(texts(None, text), parse(type), policy)
        assert (bad.value.index, bad.value.text, bad.value.reason) == (1, text, str(error))
        return None
    assert canonicalize_array(texts(text, None, text), parse(type), policy).to_pylist() == [one, None, one]
    return one


# Golden vectors.


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['logical_type']} {v['input_kind']} {v['input']}"[:70])
def test_golden(vector):
    type, value, expected = vector["logical_type"], READ[vector["input_kind"]](vector["input"]), vector.get("expected")
    policy = ZonePolicy("timestamp_no_tz_policy" in vector, vector.get("session_timezone", "UTC"))
    if expected is None:
        with pytest.raises(ValueError, match=" "):
            encode(value, parse(type), policy)
    else:
        assert encode(value, parse(type), policy) == expected
        assert settled(expected, type) == expected
        assert encode(decode(expected, parse(type)), parse(type)) == expected
    if isinstance(value, str) and type not in ("BOOLEAN", "BINARY"):
        assert settled(value, type, policy) == expected


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["input_kind"] == "float_hex" and "expected" in v])
def test_golden_floats_as_arrays(vector):
    value = float.fromhex(vector["input"])
    assert encoded(pa.array([value, None]), vector["logical_type"]) == [vector["expected"], None]


# Texts.


@pytest.mark.parametrize(
    ("type", "text", "expected"),
    [
        ("BOOLEAN", "T", "true"),
        ("BOOLEAN", "False", "false"),
        ("BOOLEAN", "yes", None),
        ("INT", "-0", "0"),
        ("INT", "+5", "5"),
        ("INT", "9223372036854775807", "9223372036854775807"),
        ("INT", "-9223372036854775809", None),
        ("INT", "1" * 5000, None),
        ("INT", "1_0", None),
        ("INT", "१२", None),
        ("INT", "0x10", None),
        ("INT", "", None),
        ("DOUBLE", "-0.0", "0"),
        ("DOUBLE", "1.50", "1.5"),
        ("DOUBLE", "100000000.0", "1.0E8"),
        ("DOUBLE", "1.0E5", "100000.0"),
        ("DOUBLE", "1.000000000000000000001", "1.0"),
        ("DOUBLE", "inf", None),
        ("DOUBLE", "1d", None),
        ("DOUBLE", "", None),
        ("FLOAT", "16777217.0", "1.6777216E7"),
        ("FLOAT", "1.00000005960464477540", "1.0000001"),  # by way of a double it would be 1.0
        ("DECIMAL(5,2)", "1.50", "1.5"),
        ("DECIMAL(5,2)", "-0.00", "0"),
        ("DECIMAL(5,2)", "1e2", "100"),
        ("DECIMAL(5,2)", "1E+999999999", None),
        ("DECIMAL(5,2)", "1E-999999999", None),
        ("DECIMAL(5,2)", "NaN", None),
        ("DATE", "0000-02-29", "0000-02-29"),
        ("DATE", "2000-02-29", "2000-02-29"),
        ("DATE", "1900-02-29", None),
        ("DATE", "2024-04-31", None),
        ("DATE", "19000", "2022-01-08"),
        ("DATE", "20240102", None),
        ("DATE", "2024-01-02\n", None),
        ("TIME", "24:00:00", None),
        ("TIME(3)", "01:02:03", "01:02:03.000"),
        ("TIMESTAMP", "2024-02-30T00:00:00", None),
        ("TIMESTAMPTZ", "0000-01-01T00:00:00+01:00", None),
        ("TIMESTAMPTZ", "9999-12-31T23:59:59-01:00", None),
        ("TIMESTAMPTZ", "2024-01-01T00:00:00.0001Z", "2024-01-01T00:00:00.000100Z"),
        ("TIMESTAMPTZ", "2024-01-01T00:00:00.000Z", "2024-01-01T00:00:00Z"),
        ("TIMESTAMPTZ(3)", "2024-01-01T00:00:00Z", "2024-01-01T00:00:00.000Z"),
        ("UUID", "f47ac10b58cc4372a5670e02b2c3d479", None),
        ("BINARY", "AA=", None),
        ("BINARY", "A A=", None),
        ("BINARY", "/x==", "/w=="),
        ("BINARY", "é", None),
        ("INTERVAL", "P1Y2M3DT4H5M6.7S", "P1Y2M3DT4H5M6.7S"),
        ("INTERVAL", "PT", None),
        ("INTERVAL", "1 day", None),
        ("STRING", "", ""),
    ],
)
def test_texts(type, text, expected):
    assert settled(text, type) == expected


def test_a_lone_surrogate_is_no_string():
    with pytest.raises(ValueError, match="Unicode"):
        canonical("\ud800", parse("STRING"))


def test_the_session_zone():
    here = ZonePolicy(True, "America/New_York")
    assert settled("2026-07-01T00:30:00.5Z", "TIMESTAMP", here) == "2026-06-30T20:30:00.5"
    assert settled("2026-07-01T00:30:00.5", "TIMESTAMP", here) == "2026-07-01T00:30:00.5"
    assert settled("0000-01-01T00:00:00Z", "TIMESTAMP", here) is None
    assert settled("2026-07-01T00:30:00Z", "TIMESTAMP", ZonePolicy(True, "No/Where")) is None


@pytest.mark.parametrize("kind", ["JSON", "ARRAY", "MAP", "STRUCT", "VARIANT"])
def test_kinds_without_bounds(kind):
    with pytest.raises(ValueError, match=kind):
        canonical("1", parse(kind))
    with pytest.raises(ValueError, match=kind):
        encode([1], parse(kind))
    with pytest.raises(ValueError, match=kind):
        decode("1", parse(kind))
    with pytest.raises(ValueError, match=kind):
        compare("1", "1", parse(kind))
    with pytest.raises(ValueError, match=kind):
        sort_keys(texts("1"), parse(kind))
    assert canonicalize_array(texts(None, None), parse(kind)).to_pylist() == [None, None]
    assert encode_array(pa.array([[1], None]), parse(kind)).to_pylist() == [None, None]


def test_the_first_bad_row_is_told():
    with pytest.raises(BadBound) as bad:
        canonicalize_array(texts("2000-01-01", None, "7", "2000-02-30", "x", "2000-02-30"), parse("DATE"))
    assert (bad.value.index, bad.value.text) == (3, "2000-02-30")
    assert "calendar" in bad.value.reason


# Values.


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        ("TIMESTAMPTZ", datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "2023-12-31T23:00:00Z"),
        ("TIMESTAMPTZ", datetime(2024, 1, 1), None),
        ("TIMESTAMP", datetime(2024, 1, 1, 0, 0, 0, 120), "2024-01-01T00:00:00.00012"),
        ("TIMESTAMP", datetime(2024, 1, 1, tzinfo=UTC), None),
        ("TIMESTAMP", 1, None),
        ("DATE", datetime(2024, 1, 1), None),
        ("DATE", date(5, 1, 2), "0005-01-02"),
        ("DATE", 1.5, None),
        ("DATE", True, None),
        ("DATE", 2_932_897, None),
        ("TIME", time(1, 2, 3, 400), "01:02:03.0004"),
        ("TIME", time(1, tzinfo=UTC), None),
        ("TIME", 5, None),
        ("INT", True, None),
        ("INT", None, None),
        ("INT", np.int64(5), "5"),
        ("INT", 3.0, "3"),
        ("FLOAT", np.float32(0.1), "0.1"),
        ("FLOAT", 1e40, "Infinity"),
        ("DOUBLE", -(10**400), "-Infinity"),
        ("DECIMAL(5,2)", 0.1, "0.1"),
        ("DECIMAL(5,2)", math.nan, None),
        ("STRING", 1, None),
        ("UUID", b"x", None),
        ("UUID", bytes(16), "00000000-0000-0000-0000-000000000000"),
        ("BINARY", bytearray(b"\xff"), "/w=="),
        ("INTERVAL", timedelta(days=-1, microseconds=5), "PT-86399.999995S"),
        ("INTERVAL", "P1D", "P1D"),
    ],
)
def test_values(type, value, expected):
    if expected is None:
        with pytest.raises(ValueError, match=" "):
            encode(value, parse(type))
    else:
        assert encode(value, parse(type)) == expected


# Floating point as Java prints it.


def javadoc(value, single):
    """`Double.toString` of JDK 19 and later as its documentation has it, in rational numbers."""
    kind, bits = (np.float32, np.int32) if single else (np.float64, np.int64)
    v = kind(abs(value))
    above, below = float(np.nextafter(v, kind(np.inf))), float(np.nextafter(v, kind(0)))
    exact, below = Fraction(float(v)), Fraction(below)
    above = Fraction(above) if math.isfinite(above) else 2 * exact - below
    low, high, closed = (exact + below) / 2, (exact + above) / 2, int(v.view(bits)) % 2 == 0
    exponent = math.floor(math.log10(float(v)))
    exponent += (Fraction(10) ** (exponent + 1) <= exact) - (Fraction(10) ** exponent > exact)

    def nearest(length):
        unit = Fraction(10) ** (exponent - length + 1)
        around = [exact // unit, exact // unit + 1]
        good = [n for n in around if n and (low < n * unit < high or (closed and n * unit in (low, high)))]
        return [min((abs(n * unit - exact), n % 2, n) for n in good)[2] * unit] if good else []

    shortest = next(length for length in range(1, 20) if nearest(length))
    decimal = nearest(max(shortest, 2))[0]
    exponent += decimal >= Fraction(10) ** (exponent + 1)
    digits = str(decimal / Fraction(10) ** (exponent - 20)).rstrip("0")
    sign = "-" if value < 0 else ""
    if not Fraction(1, 1000) <= decimal < 10**7:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
    plain = digits.ljust(exponent + 1, "0") if exponent >= 0 else "0" * -exponent + digits
    point = max(exponent, 0) + 1
    return f"{sign}{plain[:point]}.{plain[point:] or '0'}"


def awkward(single):
    """Powers of two and ten with their neighbours, the smallest numbers, few digits, any bits."""
    kind, bits = (np.float32, np.uint32) if single else (np.float64, np.uint64)
    random = np.random.default_rng(7)
    twos = kind(2) ** np.arange(-148 if single else -1073, 128 if single else 1024, 1 if single else 5).astype(kind)
    tens = np.array([float(f"{m}e{k}") for k in (range(-44, 38) if single else range(-323, 308, 5)) for m in (1, 2, 9)])
    middle = np.concatenate([twos, tens.astype(kind)]).view(bits)
    near = [(middle + bits(step)).view(kind) for step in (0, 1)] + [(middle - bits(1)).view(kind)]
    others = [
        np.arange(1, 300).astype(bits).view(kind),
        random.integers(0, np.iinfo(bits).max, 500, dtype=bits).view(kind),
        np.round(10.0 ** random.uniform(-6, 10, 500), 3).astype(kind),
        random.integers(0, 2**40, 200).astype(kind),
    ]
    values = np.concatenate(near + others)
    return values[np.isfinite(values) & (values != 0)]


@pytest.mark.parametrize("single", [False, True], ids=["double", "float"])
def test_floats_print_as_the_javadoc_says(single):
    values = awkward(single)
    expected = [javadoc(value, single) for value in values.tolist()]
    assert encoded(pa.array(values), "FLOAT" if single else "DOUBLE") == expected
    assert [(java_float if single else java_double)(value) for value in values.tolist()] == expected


@pytest.mark.parametrize("count", [50_000, pytest.param(1_000_000, marks=pytest.mark.benchmark)])
@pytest.mark.parametrize("single", [False, True], ids=["double", "float"])
def test_random_floats_round_trip(single, count):
    kind, bits, type = (np.float32, np.uint32, "FLOAT") if single else (np.float64, np.uint64, "DOUBLE")
    values = np.random.default_rng(13).integers(0, np.iinfo(bits).max, count, dtype=bits, endpoint=True).view(kind)
    values = values[~np.isnan(values) & (values != 0)]
    printed = encode_array(pa.array(values), parse(type))
    assert canonicalize_array(printed, parse(type)).equals(printed)
    assert np.array_equal(printed.cast(pa.from_numpy_dtype(kind)).to_numpy().view(bits), values.view(bits))


@pytest.mark.parametrize("single", [False, True], ids=["double", "float"])
def test_the_array_form_of_floats_is_the_scalar_form(single):
    kind, bits = (np.float32, np.uint32) if single else (np.float64, np.uint64)
    type, java = ("FLOAT", java_float) if single else ("DOUBLE", java_double)
    random = np.random.default_rng(11)
    any_bits = random.integers(0, np.iinfo(bits).max, 20_000, dtype=bits, endpoint=True).view(kind)
    usual = (random.normal(size=20_000) * 10.0 ** random.uniform(-6, 10, 20_000)).astype(kind)
    values = pa.array(np.concatenate([any_bits, usual, np.array([0, -0.0, np.nan, np.inf, -np.inf], kind)]))
    printed = encode_array(values, parse(type))
    assert printed.to_pylist() == [java(value) for value in values.to_pylist()]
    assert canonicalize_array(printed, parse(type)).equals(printed)
    numbers = [0.0 if value == 0 else value for value in values.to_pylist()]
    assert np.array_equal(printed.cast(values.type).to_numpy(), np.array(numbers, kind), equal_nan=True)


# Arrays.


@pytest.mark.parametrize(
    ("type", "array", "expected"),
    [
        ("INT", pa.array([1, -128, None], pa.int8()), ["1", "-128", None]),
        ("INT", pa.array([2**63 - 1, 2**63, None], pa.uint64()), ["9223372036854775807", None, None]),
        ("INT", pa.array([2**64 - 1], pa.uint64()), [None]),
        ("INT", pa.chunked_array([], pa.int64()), []),
        ("BOOLEAN", pa.array([True, None, False]), ["true", None, "false"]),
        ("FLOAT", pa.array(np.array([1.5, 0.1], np.float16)), ["1.5", "0.099975586"]),
        ("FLOAT", pa.array([1e40, 0.1, None]), ["Infinity", "0.1", None]),
        ("DOUBLE", pa.chunked_array([[1.5], [None, math.nan, -0.0]]), ["1.5", None, "NaN", "0"]),
        ("DOUBLE", pa.array([1, None]), ["1.0", None]),
        ("DOUBLE", pa.array([1.5, None, 1.5]).dictionary_encode(), ["1.5", None, "1.5"]),
        ("DECIMAL(5,2)", pa.array([Decimal("9.99"), Decimal("1.5"), None, Decimal("-0.01")], pa.decimal128(5, 2))[1:],
         ["1.5", None, "-0.01"]),
        ("DECIMAL(5,2)", pa.array([Decimal("-0.01"), None, Decimal(0)], pa.decimal32(5, 2)), ["-0.01", None, "0"]),
        ("DECIMAL(60,10)", pa.array([Decimal("-0.0000000001"), Decimal(10**40)], pa.decimal256(60, 10)),
         ["-0.0000000001", "1" + "0" * 40]),
        ("DECIMAL(7,0)", pa.array([Decimal(1500), None], pa.decimal128(5, -2)), ["1500", None]),
        ("DECIMAL(5,2)", pa.array([15, None]), ["15", None]),
        ("DECIMAL(5,2)", pa.array([0.1, None]), ["0.1", None]),
        ("STRING", pa.array(["a", None], pa.large_string()), ["a", None]),
        ("STRING", pa.array(["a", None], pa.string_view()), ["a", None]),
        ("STRING", pa.nulls(2), [None, None]),
        ("BINARY", pa.array([b"\0\x7f\xff", b"", None]), ["AH//", "", None]),
        ("BINARY", pa.array([b"ab", None], pa.binary(2)), ["YWI=", None]),
        ("BINARY", pa.array([b"ab"], pa.binary_view()), ["YWI="]),
        ("UUID", pa.array([None, b"\x01" * 16, bytes(range(240, 256))], pa.binary(16))[1:],
         ["01010101-0101-0101-0101-010101010101", "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"]),
        ("UUID", pa.array([b"\x01" * 16, None], pa.uuid()), ["01010101-0101-0101-0101-010101010101", None]),
        ("UUID", pa.array(["01010101-0101-0101-0101-01010101010F"]), ["01010101-0101-0101-0101-01010101010f"]),
        ("DATE", pa.array([-719529, -719528, 2932896, 2932897], pa.int32()).cast(pa.date32()),
         [None, "0000-01-01", "9999-12-31", None]),
        ("DATE", pa.array([-1, 86_400_000, None], pa.int64()).cast(pa.date64()), ["1969-12-31", "1970-01-02", None]),
        ("TIME", pa.array([0, 86399999, None], pa.time32("ms")), ["00:00:00", "23:59:59.999", None]),
        ("TIME", pa.array([1, 1000], pa.time64("ns")), ["00:00:00", "00:00:00.000001"]),
        ("TIME(0)", pa.array([999_999], pa.time64("us")), ["00:00:00"]),
        ("TIMESTAMP", pa.array([-62167219201, -1, 2**62, None], pa.timestamp("s")),
         [None, "1969-12-31T23:59:59", None, None]),
        ("TIMESTAMP", pa.array([-1, 999, 2**63 - 1, None], pa.timestamp("ns")),
         ["1969-12-31T23:59:59.999999", "1970-01-01T00:00:00", "2262-04-11T23:47:16.854775", None]),
        ("TIMESTAMP(6)", pa.array([0], pa.timestamp("s")), ["1970-01-01T00:00:00.000000"]),
        ("TIMESTAMPTZ", pa.array([-1, 0, 100, 1500, None], pa.timestamp("ms", "Europe/Paris")),
         ["1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.100Z", "1970-01-01T00:00:01.500Z",
          None]),
        ("TIMESTAMPTZ", pa.array([1000], pa.timestamp("us", "UTC")), ["1970-01-01T00:00:00.001Z"]),
        ("TIMESTAMPTZ(1)", pa.array([-1], pa.timestamp("ms", "UTC")), ["1969-12-31T23:59:59.9Z"]),
        ("INTERVAL", pa.array([1, None], pa.duration("s")), [None, None]),
    ],
)  # fmt: skip
def test_arrays_of_values(type, array, expected):
    assert encoded(array, type) == expected


def test_a_zoned_array_is_no_timestamp():
    with pytest.raises(ValueError, match="TIMESTAMP"):
        encode_array(pa.array([0], pa.timestamp("us", "UTC")), parse("TIMESTAMP"))
    with pytest.raises(ValueError, match="TIMESTAMPTZ"):
        encode_array(pa.array([0], pa.timestamp("us")), parse("TIMESTAMPTZ"))


@pytest.mark.parametrize("type", ORDERABLE)
def test_empty_and_null(type):
    lt = parse(type)
    assert encode_array(pa.array([], to_arrow(lt)), lt).type == pa.string()
    assert canonicalize_array(texts(), lt).type == pa.string()
    assert canonicalize_array(pa.nulls(2), lt).to_pylist() == [None, None]
    assert in_order(pa.nulls(2), texts(None, None), lt).to_pylist() == [None, None]


# Order.

ORDERED = {
    "INT": ["-9223372036854775808", "-1", "0", "9", "10", "9223372036854775806", "9223372036854775807"],
    "DOUBLE": ["-Infinity", "-1.0E300", "-10.0", "-9.0", "-4.9E-324", "0", "4.9E-324", "9.0", "10.0", "1.0E7",
               "Infinity", "NaN"],
    "FLOAT": ["-Infinity", "-1.0", "0", "1.4E-45", "2.0", "10.0", "3.4028235E38", "Infinity", "NaN"],
    "DECIMAL(38,10)": ["-10", "-9.5", "0", "0.0000000001", "9", "10", "12345678901234567890.5"],
    "DECIMAL(5,2)": ["-" + "1" * 40, "-0.001", "0", "0.0005", "9", "10", "1" * 40],  # more digits than the type has
    "DECIMAL(76,10)": ["-" + "1" * 70, "-5", "0." + "0" * 60 + "1", "0.5", "1" * 70],  # than any decimal type has
    "BOOLEAN": ["false", "true"],
    "STRING": ["", "10", "9", "Z", "a", "é", "\uffff", "😀"],
    "BINARY": ["", "AA==", "fw==", "gA==", "/w=="],
    "UUID": ["00000000-0000-0000-0000-000000000001", "7f000000-0000-0000-0000-000000000000",
             "80000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "DATE": ["0000-01-01", "0005-01-01", "1969-12-31", "1970-01-01", "9999-12-31"],
    "TIME": ["00:00:00", "09:59:59.999999", "10:00:00", "10:00:00.1", "10:00:00.12", "23:59:59.999999"],
    "TIMESTAMP": ["0000-01-01T00:00:00", "1969-12-31T23:59:59.999999", "1970-01-01T00:00:00"],
    "TIMESTAMPTZ": ["1969-12-31T23:59:59.999999Z", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.100Z",
                    "1970-01-01T00:00:00.100001Z"],
}  # fmt: skip


@pytest.mark.parametrize("type", ORDERED)
def test_order(type):
    lt, ascending = parse(type), ORDERED[type]
    n = len(ascending)
    keys = sort_keys(texts(None, *ascending), lt)
    assert keys[0].as_py() is None
    assert pc.sort_indices(keys[1:]).to_pylist() == list(range(n))
    pairs = list(product(range(n), repeat=2))
    low, high = (texts(*ascending).take(pa.array([pair[side] for pair in pairs])) for side in (0, 1))
    assert in_order(low, high, lt).to_pylist() == [i <= j for i, j in pairs]
    assert [compare(ascending[i], ascending[j], lt) for i, j in pairs] == [(i > j) - (i < j) for i, j in pairs]


def test_zeros_are_equal():
    double = parse("DOUBLE")
    assert compare("0", "-0.0", double) == compare("-0.0", "0", double) == 0
    assert in_order(texts("0", "-0.0"), texts("-0.0", "0"), double).to_pylist() == [True, True]
    assert compare("NaN", "NaN", double) == 0


KEY_TYPES = {"INT": pa.int64(), "DOUBLE": pa.int64(), "FLOAT": pa.int64(), "BOOLEAN": pa.uint8(), "DATE": pa.int64(),
             "TIME": pa.int64(), "TIMESTAMP": pa.int64(), "TIMESTAMPTZ": pa.int64(), "STRING": pa.binary(),
             "UUID": pa.binary(), "BINARY": pa.binary(), "DECIMAL(38,10)": pa.decimal128(38, 10)}  # fmt: skip


@pytest.mark.parametrize("type", KEY_TYPES)
def test_the_types_of_keys(type):
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


def rank(value):
    """A key of Python's own order that is the order of the type."""
    if isinstance(value, float):
        return (math.isnan(value), 0 if math.isnan(value) else value)
    if isinstance(value, str):
        return value.encode()
    return value.bytes if isinstance(value, uuid.UUID) else value


@pytest.mark.parametrize("type", VALUES)
def test_properties(type):
    lt = parse(type)

    @settings(max_examples=30, deadline=None)
    @given(st.lists(VALUES[type], min_size=2, max_size=8))
    def holds(values):
        written = [encode(value, lt) for value in values]
        assert [rank(decode(text, lt)) for text in written] == [rank(value) for value in values]
        assert [canonical(text, lt) for text in written] == written
        carried = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
        assert encode_array(pa.array(carried, to_arrow(lt)), lt).to_pylist() == written
        assert canonicalize_array(texts(*written), lt).to_pylist() == written
        keys = sort_keys(texts(*written), lt).to_pylist()
        for (a, x, k), (b, y, m) in pairwise(zip(written, values, keys, strict=True)):
            expected = (rank(x) > rank(y)) - (rank(x) < rank(y))
            assert compare(a, b, lt) == expected == (k > m) - (k < m)
        pairs = in_order(texts(*written[:-1]), texts(*written[1:]), lt).to_pylist()
        assert pairs == [rank(x) <= rank(y) for x, y in pairwise(values)]

    holds()


SPELLED = {
    "INT": st.from_regex(r"\A ?[+-]?[0-9]{1,21}\Z"),
    "DOUBLE": st.from_regex(r"\A[+-]?[0-9]{0,9}(\.[0-9]{0,9})?([eE][+-]?[0-9]{1,3})?\Z"),
    "FLOAT": st.from_regex(r"\A[+-]?[0-9]{0,9}(\.[0-9]{0,9})?([eE][+-]?[0-9]{1,2})?\Z"),
    "DECIMAL(20,5)": st.from_regex(r"\A-?[0-9]{0,9}(\.[0-9]{0,9})?(E[+-]?[0-9]{1,2})?\Z"),
    "DATE": st.from_regex(r"\A[0-9]{4}-[01][0-9]-[0-3][0-9]\Z"),
    "TIME": st.from_regex(r"\A[0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,10})?)?\Z"),
    "TIMESTAMP(3)": st.from_regex(r"\A[0-9]{4}-02-[0-3][0-9]T[0-2][0-9]:00(:00(\.[0-9]{1,9})?)?Z?\Z"),
    "TIMESTAMPTZ": st.from_regex(r"\A[0-9]{4}-02-[0-3][0-9]T[0-2][0-9]:00:00(\.[05]{1,9})?(Z|[+-][01][0-9]:30)?\Z"),
    "BINARY": st.from_regex(r"\A[A-Z/+]{0,8}={0,2}\Z"),
}


@pytest.mark.parametrize("type", SPELLED)
def test_any_spelling_settles_once(type):
    """The two forms agree on any text, refusals included, and what they give is canonical."""

    @settings(max_examples=50, deadline=None)
    @given(SPELLED[type])
    def holds(text):
        once = settled(text, type)
        assert once is None or settled(once, type) == once

    holds()


def test_base64_is_that_of_the_standard_library():
    values = [bytes(range(n)) for n in range(50)] * 2
    assert encoded(pa.array(values), "BINARY") == [base64.b64encode(value).decode() for value in values]


@pytest.mark.parametrize(("scale", "digits"), [(0, 38), (0, 39), (7, 53), (7, 31), (7, 32), (0, 76), (38, 38), (38, 1)])
def test_decimals_of_many_digits_sort_by_value(scale, digits):
    """Arrow's cast of a text with more digits than the type has wraps around."""
    written = ["9" * digits, "-" + "9" * digits, "4" + "2" * (digits - 1), "0", "1", "-1"]
    keys = sort_keys(texts(*written), parse(f"DECIMAL(76,{scale})")).to_pylist()
    order = sorted(range(len(written)), key=lambda at: keys[at])
    assert [int(written[at]) for at in order] == sorted(map(int, written))


@pytest.mark.parametrize("kind", ["FLOAT", "DOUBLE"])
def test_few_floats_print_as_many_do(kind):
    few = [0.0, -0.0, 1.0, -1e7, 9.9e-4, 3.4, 1e-3, 5e-324, math.nan, math.inf, -math.inf, 1.7e308, 123456.7, None]
    printed = encode_array(pa.array(few, pa.float64()), parse(kind)).to_pylist()
    assert encode_array(pa.array(few * 20, pa.float64()), parse(kind)).to_pylist() == printed * 20
