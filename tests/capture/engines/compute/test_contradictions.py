"""What counts as a contradiction between the metadata of a file and its values."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from capture.compute.partial import Partial
from capture.connectors.spi import FILE_COLUMN_SCHEMA, NativeStats, ScanTask
from capture.engines.compute.contradictions import StatedFiles, summary
from store.model.logical_types import parse

TASKS = [ScanTask("parquet", path, path, 10, 100, (), path) for path in ("a", "b")]
STATED = {
    "file_path": "b",
    "column_id": 7,
    "column_name": "c",
    "logical_type": "INT",
    "row_count": 10,
    "null_count": 2,
    "min": "-5",
    "max": "10",
    "min_is_exact": True,
    "max_is_exact": True,
}
FOUND = Partial(10, 2, None, "-5", "10")


def stated(**changed):
    rows = pa.Table.from_pylist([STATED | changed, STATED | {"column_id": 8}], FILE_COLUMN_SCHEMA)
    native = NativeStats(None, 2, None, pa.table({}), lambda: iter([rows, rows.slice(0, 0)]))
    return StatedFiles(native, TASKS, [7])


def check(found=FOUND, *, type="INT", whole=True, **changed):
    return stated(**changed).contradiction("b", 7, parse(type), found, whole=whole)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, ""),
        ({"row_count": 11}, "row_count 11, the data 10"),
        ({"null_count": 0}, "null_count 0, the data 2"),
        ({"min": "-4"}, "min -4, the data -5"),
        ({"max": "9"}, "max 9, the data 10"),
        ({"min": "-100", "max": "100"}, ""),  # encloses
        ({"row_count": None, "null_count": None, "min": None, "max": None}, ""),
    ],
)
def test_counts_must_be_equal_and_bounds_enclose(changed, message):
    assert check(**changed) == message


def test_counts_of_a_sample_must_be_possible():
    part = replace(FOUND, row_count=5, null_count=1)
    assert check(part, whole=False) == ""
    assert check(part, whole=False, null_count=0) == "null_count 0, the data at least 1"
    assert check(part, whole=False, null_count=8) == "2 values, the data at least 4"
    assert check(part, whole=False, max="9") == "max 9, the data 10"


def test_bounds_that_were_rounded_outwards_contradict_nothing():
    part = replace(FOUND, max_is_exact=False)
    assert check(part, max="9") == ""


def test_texts_are_compared_by_bytes_and_shown_shortened():
    part = replace(FOUND, min="é" * 100, max="é" * 100)
    assert check(part, type="STRING", min="a", max="ê") == ""
    assert check(part, type="STRING", min="a", max="z") == f'max "z", the data "{"é" * 60}…"'


def test_files_and_columns_of_which_the_metadata_says_nothing_are_not_contradicted():
    assert stated(max="9").contradiction("a", 7, parse("INT"), FOUND) == ""
    assert stated(max="9").contradiction("c", 7, parse("INT"), FOUND) == ""
    assert stated(max="9").contradiction("b", 8, parse("INT"), FOUND) == ""
    empty = NativeStats(None, 0, None, pa.table({}), lambda: iter(()))
    assert StatedFiles(empty, TASKS, [7]).contradiction("b", 7, parse("INT"), FOUND) == ""


def test_summary_counts_the_files():
    assert summary(["x"]).endswith(": x")
    assert summary(["x", "y", "z"]).endswith(": x (and 2 more files)")
