"""Logical types: parsing by the golden vectors, conversion from and to Arrow types."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from store.model.errors import InvalidField
from store.model.logical_types import Kind, LogicalType, from_arrow, parse, to_arrow

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = next(path for path in (ROOT / "tests/golden", ROOT.parent / "shared/golden") if path.is_dir())
VECTORS = [json.loads(line) for line in (GOLDEN / "logical_types.jsonl").read_text().splitlines() if line]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["input"] or "blank")
def test_parse_agrees_with_the_golden_vectors(vector):
    if vector.get("error"):
        with pytest.raises(InvalidField) as refused:
            parse(vector["input"])
        assert refused.value.field == "logical_type"
        assert refused.value.params["expected"]
        assert refused.value.params["actual"] == vector["input"]
    else:
        assert parse(vector["input"]).text == vector["expected"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  decimal (\t10 ,2 )\n", "DECIMAL(10,2)"),
        ("timestamp\twith  time zone ( 3 )", "TIMESTAMPTZ(3)"),
        ("interval day( 2 )  to second ( 3 )", "INTERVAL DAY(2) TO SECOND(3)"),
        ("interval", "INTERVAL"),
        ("INTERVAL YEAR TO MONTH", "INTERVAL YEAR TO MONTH"),
        ("INTERVAL DAY TO SECOND(0)", "INTERVAL DAY TO SECOND(0)"),
        ("INTERVAL SECOND(6)", "INTERVAL SECOND(6)"),
        ("char(3)", "STRING"),
        ("text", "STRING"),
        ("character varying(10)", "STRING"),
        ("timestamp_ntz", "TIMESTAMP"),
        ("TIMESTAMP WITHOUT TIME ZONE(3)", "TIMESTAMP(3)"),
        ("timestamp_ltz", "TIMESTAMPTZ"),
        ("FLOAT4", "FLOAT"),
        ("ubigint", "INT"),
        ("blob", "BINARY"),
        ("bytes", "BINARY"),
    ],
)
def test_aliases_parse_to_the_canonical_text(text, expected):
    assert parse(text).text == expected


@pytest.mark.parametrize(
    "text",
    [
        "DECIMAL(٣,٢)",
        "DECIMAL(77,0)",
        "VARCHAR()",
        "VARCHAR(-1)",
        "TIMESTAMP(7)",
        "INTERVAL YEAR(0) TO MONTH",
        "INTERVALS",
        "INT64)",
        "(3)",
        "DOUBLE(3)",
        "BOOLEAN()",
        "DECIMAL(1,1,1)",
        "TIMEZ",
        "ARRAY(INT)",
        "INT\x00",
    ],
)
def test_invalid_type_texts_are_refused(text):
    with pytest.raises(InvalidField, match="logical_type"):
        parse(text)


def test_error_suggests_the_nearest_type():
    with pytest.raises(InvalidField, match='did you mean "DOUBLE"'):
        parse("DUBLE")


@pytest.mark.parametrize("text", sorted({v["expected"] for v in VECTORS if "expected" in v} | set(Kind) - {"DECIMAL"}))
def test_canonical_text_parses_to_itself(text):
    assert parse(text).text == text
    assert parse(parse(text).text) == parse(text.lower())


def test_intervals_json_and_nested_types_are_not_orderable():
    unordered = {kind for kind in Kind if not LogicalType(kind).orderable}
    assert unordered == {"INTERVAL", "JSON", "ARRAY", "MAP", "STRUCT", "VARIANT"}


ARROW = {
    "INT": [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()],
    "FLOAT": [pa.float16(), pa.float32()],
    "DOUBLE": [pa.float64()],
    "BOOLEAN": [pa.bool_(), pa.bool8()],
    "DECIMAL(10,2)": [pa.decimal128(10, 2), pa.decimal256(10, 2), pa.decimal64(10, 2)],
    "DECIMAL(12,0)": [pa.decimal128(10, -2)],
    "DECIMAL(5,5)": [pa.decimal128(2, 5)],
    "STRING": [pa.string(), pa.large_string(), pa.string_view(), pa.null(), pa.dictionary(pa.int32(), pa.string())],
    "UUID": [pa.uuid()],
    "JSON": [pa.json_()],
    "BINARY": [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(16)],
    "DATE": [pa.date32(), pa.date64()],
    "TIME": [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    "TIMESTAMP": [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")],
    "TIMESTAMPTZ": [pa.timestamp("ns", "Europe/Paris")],
    "INTERVAL": [pa.duration("s"), pa.month_day_nano_interval()],
    "ARRAY": [pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2), pa.list_view(pa.int8())],
    "MAP": [pa.map_(pa.string(), pa.int8())],
    "STRUCT": [pa.struct({"a": pa.int8()})],
}


@pytest.mark.parametrize(("text", "type"), [(text, type) for text, types in ARROW.items() for type in types], ids=str)
def test_from_arrow_returns_the_logical_type(text, type):
    assert from_arrow(type).text == text


def test_arrow_union_has_no_logical_type_and_a_run_end_array_has():
    assert from_arrow(pa.sparse_union([pa.field("a", pa.int8())])) is None
    assert from_arrow(pa.run_end_encoded(pa.int32(), pa.string())) == parse("STRING")


@pytest.mark.parametrize(
    "text",
    [
        "BOOLEAN",
        "INT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL(38,10)",
        "DECIMAL(39,10)",
        "STRING",
        "BINARY",
        "DATE",
        "TIME",
        "TIMESTAMP",
        "TIMESTAMPTZ",
    ],
)
def test_to_arrow_and_from_arrow_round_trip(text):
    assert from_arrow(to_arrow(parse(text))).text == text


def test_to_arrow_returns_the_storage_type_of_json_uuid_and_timestamptz():
    assert to_arrow(parse("JSON")) == pa.string()
    assert to_arrow(parse("UUID")) == pa.binary(16)
    assert to_arrow(parse("TIMESTAMPTZ(3)")) == pa.timestamp("us", "UTC")


@pytest.mark.parametrize("kind", ["ARRAY", "MAP", "STRUCT", "VARIANT", "INTERVAL"])
def test_to_arrow_refuses_nested_types_and_intervals(kind):
    with pytest.raises(ValueError, match=kind):
        to_arrow(parse(kind))
