"""Bounds as text: golden vectors, any spelling, agreement of single texts and arrays."""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.model.bounds import (
    BadBound,
    ZonePolicy,
    canonical,
    canonicalize_array,
    encode_array,
    in_order,
    sort_keys,
)
from store.model.logical_types import parse, to_arrow
from tests.store.model.bounds.forms import canonical_text, encoded, texts

ROOT = Path(__file__).resolve().parents[4]
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
ORDERABLE = [
    "BOOLEAN",
    "INT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(38,10)",
    "STRING",
    "UUID",
    "BINARY",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "TIMESTAMPTZ",
]


# Golden vectors.


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['logical_type']} {v['input_kind']} {v['input']}"[:70])
def test_encode_agrees_with_the_golden_vectors(vector):
    type, value, expected = vector["logical_type"], READ[vector["input_kind"]](vector["input"]), vector.get("expected")
    policy = ZonePolicy("timestamp_no_tz_policy" in vector, vector.get("session_timezone", "UTC"))
    if expected is not None:
        assert canonical_text(expected, type) == expected
    if isinstance(value, str):
        if type not in ("BOOLEAN", "BINARY"):  # of these the vectors are about values, and a text is none
            assert canonical_text(value, type, policy) == expected
        return
    days = pa.int32() if type == "DATE" and abs(value) < 2**31 else None
    try:
        assert encoded(pa.array([value, None], days), type) == [expected, None]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError, ValueError):
        assert expected is None


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
        ("FLOAT", "1.00000005960464477540", "1.0000001"),  # through a double it would be 1.0
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
def test_texts_are_canonicalized_or_refused(type, text, expected):
    assert canonical_text(text, type) == expected


def test_lone_surrogate_is_refused_as_a_string():
    with pytest.raises(ValueError, match="Unicode"):
        canonical("\ud800", parse("STRING"))


def test_zoned_timestamps_are_converted_to_the_session_zone():
    here = ZonePolicy(True, "America/New_York")
    assert canonical_text("2026-07-01T00:30:00.5Z", "TIMESTAMP", here) == "2026-06-30T20:30:00.5"
    assert canonical_text("2026-07-01T00:30:00.5", "TIMESTAMP", here) == "2026-07-01T00:30:00.5"
    assert canonical_text("0000-01-01T00:00:00Z", "TIMESTAMP", here) is None
    assert canonical_text("2026-07-01T00:30:00Z", "TIMESTAMP", ZonePolicy(True, "No/Where")) is None


@pytest.mark.parametrize("kind", ["JSON", "ARRAY", "MAP", "STRUCT", "VARIANT"])
def test_types_without_order_have_no_bounds(kind):
    with pytest.raises(ValueError, match=kind):
        canonical("1", parse(kind))
    with pytest.raises(ValueError, match=kind):
        sort_keys(texts("1"), parse(kind))
    assert canonicalize_array(texts(None, None), parse(kind)).to_pylist() == [None, None]
    assert encode_array(pa.array([[1], None]), parse(kind)).to_pylist() == [None, None]


def test_error_has_the_index_of_the_first_bad_row():
    with pytest.raises(BadBound) as bad:
        canonicalize_array(texts("2000-01-01", None, "7", "2000-02-30", "x", "2000-02-30"), parse("DATE"))
    assert (bad.value.index, bad.value.text) == (3, "2000-02-30")
    assert "calendar" in bad.value.reason


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
        (
            "DECIMAL(5,2)",
            pa.array([Decimal("9.99"), Decimal("1.5"), None, Decimal("-0.01")], pa.decimal128(5, 2))[1:],
            ["1.5", None, "-0.01"],
        ),
        ("DECIMAL(5,2)", pa.array([Decimal("-0.01"), None, Decimal(0)], pa.decimal32(5, 2)), ["-0.01", None, "0"]),
        (
            "DECIMAL(60,10)",
            pa.array([Decimal("-0.0000000001"), Decimal(10**40)], pa.decimal256(60, 10)),
            ["-0.0000000001", "1" + "0" * 40],
        ),
        ("DECIMAL(7,0)", pa.array([Decimal(1500), None], pa.decimal128(5, -2)), ["1500", None]),
        ("DECIMAL(5,2)", pa.array([15, None]), ["15", None]),
        ("DECIMAL(5,2)", pa.array([0.1, None]), ["0.1", None]),
        ("STRING", pa.array(["a", None], pa.large_string()), ["a", None]),
        ("STRING", pa.array(["a", None], pa.string_view()), ["a", None]),
        ("STRING", pa.nulls(2), [None, None]),
        ("BINARY", pa.array([b"\0\x7f\xff", b"", None]), ["AH//", "", None]),
        ("BINARY", pa.array([b"ab", None], pa.binary(2)), ["YWI=", None]),
        ("BINARY", pa.array([b"ab"], pa.binary_view()), ["YWI="]),
        (
            "UUID",
            pa.array([None, b"\x01" * 16, bytes(range(240, 256))], pa.binary(16))[1:],
            ["01010101-0101-0101-0101-010101010101", "f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"],
        ),
        ("UUID", pa.array([b"\x01" * 16, None], pa.uuid()), ["01010101-0101-0101-0101-010101010101", None]),
        ("UUID", pa.array(["01010101-0101-0101-0101-01010101010F"]), ["01010101-0101-0101-0101-01010101010f"]),
        (
            "DATE",
            pa.array([-719529, -719528, 2932896, 2932897], pa.int32()).cast(pa.date32()),
            [None, "0000-01-01", "9999-12-31", None],
        ),
        ("DATE", pa.array([-1, 86_400_000, None], pa.int64()).cast(pa.date64()), ["1969-12-31", "1970-01-02", None]),
        ("TIME", pa.array([0, 86399999, None], pa.time32("ms")), ["00:00:00", "23:59:59.999", None]),
        ("TIME", pa.array([1, 1000], pa.time64("ns")), ["00:00:00", "00:00:00.000001"]),
        ("TIME(0)", pa.array([999_999], pa.time64("us")), ["00:00:00"]),
        (
            "TIMESTAMP",
            pa.array([-62167219201, -1, 2**62, None], pa.timestamp("s")),
            [None, "1969-12-31T23:59:59", None, None],
        ),
        (
            "TIMESTAMP",
            pa.array([-1, 999, 2**63 - 1, None], pa.timestamp("ns")),
            ["1969-12-31T23:59:59.999999", "1970-01-01T00:00:00", "2262-04-11T23:47:16.854775", None],
        ),
        ("TIMESTAMP(6)", pa.array([0], pa.timestamp("s")), ["1970-01-01T00:00:00.000000"]),
        (
            "TIMESTAMPTZ",
            pa.array([-1, 0, 100, 1500, None], pa.timestamp("ms", "Europe/Paris")),
            [
                "1969-12-31T23:59:59.999Z",
                "1970-01-01T00:00:00Z",
                "1970-01-01T00:00:00.100Z",
                "1970-01-01T00:00:01.500Z",
                None,
            ],
        ),
        ("TIMESTAMPTZ", pa.array([1000], pa.timestamp("us", "UTC")), ["1970-01-01T00:00:00.001Z"]),
        ("TIMESTAMPTZ(1)", pa.array([-1], pa.timestamp("ms", "UTC")), ["1969-12-31T23:59:59.9Z"]),
        ("INTERVAL", pa.array([1, None], pa.duration("s")), [None, None]),
    ],
)
def test_arrays_encode_to_canonical_text(type, array, expected):
    assert encoded(array, type) == expected


def test_array_must_have_a_zone_for_timestamptz_and_none_for_timestamp():
    with pytest.raises(ValueError, match="TIMESTAMP"):
        encode_array(pa.array([0], pa.timestamp("us", "UTC")), parse("TIMESTAMP"))
    with pytest.raises(ValueError, match="TIMESTAMPTZ"):
        encode_array(pa.array([0], pa.timestamp("us")), parse("TIMESTAMPTZ"))


@pytest.mark.parametrize("type", ORDERABLE)
def test_empty_and_null_arrays_stay_empty_and_null(type):
    lt = parse(type)
    assert encode_array(pa.array([], to_arrow(lt)), lt).type == pa.string()
    assert canonicalize_array(texts(), lt).type == pa.string()
    assert canonicalize_array(pa.nulls(2), lt).to_pylist() == [None, None]
    assert in_order(pa.nulls(2), texts(None, None), lt).to_pylist() == [None, None]


# Any spelling.

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
def test_canonicalization_of_any_spelling_is_idempotent(type):
    """The two forms agree on any text, refusals included, and their result is canonical."""

    @given(SPELLED[type])
    def holds(text):
        once = canonical_text(text, type)
        assert once is None or canonical_text(once, type) == once

    holds()


def test_base64_equals_that_of_the_standard_library():
    values = [bytes(range(n)) for n in range(50)] * 2
    assert encoded(pa.array(values), "BINARY") == [base64.b64encode(value).decode() for value in values]
