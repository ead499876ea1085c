"""Rows as text, JSON, CSV and Arrow; numbers as text."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.core.views import numbers, table_summary
from flight_server.faces.present import render
from flight_server.faces.present.render import Format
from store.model import figures


def written(table: pa.Table | pa.RecordBatchReader, format: Format) -> bytes:
    out = io.BytesIO()
    render.write(table, format, out)
    return out.getvalue()


ROWS = pa.table(
    {
        "text": ['a,"b"\n☃ é', "", None],
        "number": pa.array([2**53 + 1, None, -1], pa.int64()),
        "ratio": [math.nan, -math.inf, 0.5],
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 600, UTC), None, None], pa.timestamp("us", "UTC")),
        "day": [date(2026, 1, 2), None, None],
        "data": [b"\x00\xff", b"", None],
        "flag": [True, False, None],
        "ids": pa.array([[1, 2], [], None], pa.list_(pa.int64())),
    }
)


def test_json_has_typed_values():
    first, second, third = json.loads(written(ROWS, Format.JSON))
    assert first == {
        "text": 'a,"b"\n☃ é',
        "number": 2**53 + 1,
        "ratio": "NaN",
        "at": "2026-01-02T03:04:05.000600Z",
        "day": "2026-01-02",
        "data": "AP8=",
        "flag": True,
        "ids": [1, 2],
    }
    assert (second["text"], second["ratio"], second["data"], second["ids"]) == ("", "-Infinity", "", [])
    assert {name for name, value in third.items() if value is None} == {"text", "at", "day", "data", "flag", "ids"}


def test_json_of_no_rows_is_an_empty_array():
    assert json.loads(written(ROWS.slice(0, 0), Format.JSON)) == []


def test_csv_reads_back_and_distinguishes_null_from_empty():
    text = written(ROWS.select(["text", "number"]), Format.CSV).decode()
    assert text == 'text,number\n"a,""b""\n☃ é",9007199254740993\n"",\n,-1\n'
    assert [row["text"] for row in csv.DictReader(io.StringIO(text))] == ['a,"b"\n☃ é', "", ""]


def test_arrow_output_equals_the_table():
    with pa.ipc.open_stream(written(ROWS, Format.ARROW)) as stream:
        assert stream.read_all().drop("ratio").equals(ROWS.drop("ratio"))


@pytest.mark.parametrize("format", Format)
def test_stream_that_fails_at_once_writes_nothing(format):
    def fails():
        raise pa.ArrowInvalid("[X] no")
        yield

    out = io.BytesIO()
    with pytest.raises(pa.ArrowInvalid):
        render.write(pa.RecordBatchReader.from_batches(ROWS.schema, fails()), format, out)
    assert not out.getvalue()


def test_text_is_aligned_and_never_truncated():
    long = "x" * 300
    table = pa.table({"name": ["é☃", long, "日本"], "n": [1, 22, 333]})
    lines = written(table, Format.TABLE).decode().splitlines()
    assert len(lines) == 4
    assert long in lines[2]
    assert lines[0].endswith("  n") and lines[2].endswith("   22")


def test_text_has_no_control_characters():
    lines = written(pa.table({"a": ["x\x1b[31m\ny\u202e\x00"]}), Format.TABLE).decode()
    assert lines.splitlines()[1] == "x\\x1b[31m\\ny\\u202e\\x00"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "3"),
        (0.0, "0"),
        (-0.0, "0"),
        (1 / 3, "0.333333333"),
        (362262.57603832346, "362262.576"),
        (1e-9, "1e-09"),
        (0.99999, "0.99999"),
        (-2.0004, "-2.0004"),
        (1e20, "1e+20"),
        (2**60, "1152921504606846976"),
        (True, "true"),
        (None, ""),
        ([1, None], "[1, null]"),
    ],
)
def test_text_of_a_value(value, text):
    assert render.text_of(value) == text


@given(st.lists(st.tuples(st.text(), st.none() | st.text()), max_size=5))
def test_csv_round_trips_any_text(rows):
    table = pa.table({"a": [a for a, _ in rows], "b": pa.array([b for _, b in rows], pa.string())})
    text = written(table, Format.CSV).decode()
    back = list(csv.reader(io.StringIO(text, newline="")))[1:]
    assert [[cell.removeprefix("'") for cell in row] for row in back] == [
        [(a or "").removeprefix("'"), (b or "").removeprefix("'")] for a, b in rows
    ]


@pytest.mark.parametrize(
    "text", ["=1+2", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3+cmd", "-1+1", "+1:2", "-1.2.3", "\t=1", "\r=1"]
)
def test_no_csv_field_is_a_formula(text):
    out = written(pa.table({"a": [text]}), Format.CSV).decode()
    (_, (field,)) = csv.reader(io.StringIO(out, newline=""))
    assert field == "'" + text


@pytest.mark.parametrize(
    "text",
    [
        "-5",
        "+1.5",
        "-1.0E7",
        "-Infinity",
        "-.5",
        "-0044-03-15",
        "+12345-01-01T00:00:00.5Z",
        "-0044-03-15T00:00:00+00:00",
        "a=b",
        "1-2",
    ],
)
def test_numbers_and_dates_are_unchanged_in_csv(text):
    out = written(pa.table({"a": [text]}), Format.CSV).decode()
    assert out.splitlines()[1] == text


# Numbers as text.


@pytest.mark.parametrize(
    ("nulls", "rows", "text"),
    [
        (0, 10, "0"),
        (10, 10, "100"),
        (1, 3, "33.3"),
        (1, 10**6, "<0.1"),
        (999_999, 10**6, ">99.9"),
        (None, 5, ""),
        (0, 0, "0"),
    ],
)
def test_percent_null_text(nulls, rows, text):
    assert table_summary.percent_null({"null_count": nulls, "row_count": rows}) == text


@pytest.mark.parametrize(
    ("ndv", "exact", "lower", "upper", "text"),
    [
        (3.0, True, 3.0, 3.0, "3"),
        (50_000.0, False, 49_000.0, 51_500.0, "50,000 ±3.0%"),
        (50_000.0, None, None, None, "~50,000"),
        (0.0, False, 0.0, 0.0, "~0"),
        (None, None, None, None, ""),
    ],
)
def test_distinct_count_text(ndv, exact, lower, upper, text):
    assert table_summary.distinct({"ndv": ndv, "ndv_exact": exact, "ndv_lower": lower, "ndv_upper": upper}) == text


def test_error_of_another_snapshot_is_not_shown():
    row = {"ndv": 6000.0, "ndv_exact": False, "ndv_lower": 5800.0, "ndv_upper": 6000.0, "snapshot_id": 2}
    assert table_summary.distinct(row | {"distribution_snapshot_id": 2}) == "6,000 ±3.3%"
    assert table_summary.distinct(row | {"distribution_snapshot_id": 1}) == "~6,000"
    assert figures.interval_of_ndv(row | {"distribution_snapshot_id": 1}) is None


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "EXACT"),
        ({"freshness": None}, ""),
        ({"freshness": "STALE"}, "STALE (from 5)"),
        ({"distribution_freshness": "EXACT", "distribution_snapshot_id": 5}, "EXACT"),
        (
            {"distribution_freshness": "INHERITED", "distribution_snapshot_id": 4},
            "EXACT, distribution INHERITED (from 4)",
        ),
        (
            {"freshness": "INHERITED", "distribution_freshness": "INHERITED", "distribution_snapshot_id": 5},
            "INHERITED (from 5)",
        ),
        ({"completeness": "PARTIAL", "rows_scanned": 8000}, "EXACT, sample of 8,000 rows"),
        ({"completeness": "PARTIAL", "rows_scanned": None}, "EXACT"),
    ],
)
def test_freshness_names_what_the_distribution_is_of(changed, text):
    assert (
        table_summary.freshness({"freshness": "EXACT", "snapshot_id": 5, "completeness": "COMPLETE"} | changed) == text
    )


def test_quantiles_of_a_sample_do_not_pass_for_those_of_a_complete_record():
    row = {"freshness": "EXACT", "snapshot_id": 5, "completeness": "COMPLETE"}
    assert table_summary.freshness(row, sampled=True) == "EXACT, quantiles of a sample"
    sample = row | {"completeness": "PARTIAL", "rows_scanned": 8}
    assert table_summary.freshness(sample, sampled=True) == "EXACT, sample of 8 rows"


def test_inexact_bound_has_its_sign():
    assert table_summary.bound("5", True, "≥") == table_summary.bound("5", None, "≥") == "5"
    assert table_summary.bound("5", False, "≥") == "≥ 5"
    assert table_summary.bound("", True, "≥") == '""'
    assert table_summary.bound("x" * 99, True, "≥").endswith("…")


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**50, "1.0 PiB"), (None, "")]
)
def test_size_text(number, text):
    assert numbers.size(number) == text
