"""Records of columns from the statistics that a source has of a whole table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from capture.connectors.spi import COLUMN_SCHEMA, FILE_SCHEMA, Column, EarlierColumns, NativeStats, Schema
from capture.engines.native.engine import NativeEngine
from capture.engines.rollup import combined, possible
from capture.spi import CaptureRequest, TableHandle
from store.model.targets import Target
from tests.capture.engine_contract import MemorySink

NOTHING = dict.fromkeys(COLUMN_SCHEMA.names)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"row_count": 10, "null_count": 4, "ndv": 9.0}, {"ndv": 6.0}),
        ({"row_count": 10, "ndv": 12.5, "ndv_upper": 13.0}, {"ndv": 10.0, "ndv_upper": 10.0}),
        ({"row_count": 10, "ndv_lower": -1.0}, {"ndv_lower": 0.0}),
        ({"row_count": None, "ndv": 12.0}, {"ndv": 12.0}),
        ({"row_count": 10, "null_count": 11}, {"null_count": None}),
        ({"row_count": 10, "null_count": -1}, {"null_count": None}),
        ({"avg_width_bytes": 9.0, "max_width_bytes": 8}, {"avg_width_bytes": None, "max_width_bytes": None}),
    ],
)
def test_impossible_values_are_clamped_or_null(row, expected):
    found = possible(dict(row))
    assert {name: found[name] for name in expected} == expected


def test_statistics_of_files_complete_those_of_the_source():
    files = {"row_count": 10, "null_count": 1, "min": "1", "max": "9", "min_is_exact": True, "max_is_exact": True}
    kept = NOTHING | {"ndv": 5.0, "max": "8", "max_is_exact": None}
    row = combined(files, kept)
    assert (row["ndv"], row["row_count"], row["min"], row["min_is_exact"]) == (5.0, 10, "1", True)
    assert (row["max"], row["max_is_exact"]) == ("8", None)  # a bound keeps its own exactness


class Lake:
    format = "made-up"

    def capture_snapshot_target_stats(self, *_: object) -> NativeStats:
        columns = pa.Table.from_pylist(
            [{"column_id": 1, "column_name": "v", "logical_type": "INT", "row_count": 7, "ndv": 9.0}], COLUMN_SCHEMA
        )
        return NativeStats(
            20, 0, 0, FILE_SCHEMA.empty_table(), lambda: iter(()), earlier=[EarlierColumns(3, "old", columns)]
        )


def test_statistics_of_an_earlier_snapshot_are_stored_for_it():
    table = TableHandle("c", "s", "t", "id", 5, Schema((Column("v", "INT"),)), {"v": 1}, Lake())
    sink = MemorySink()
    NativeEngine().capture_batch([CaptureRequest.of(table, Target.table())], sink)
    (row,) = sink.rows("stats.columns")
    assert (row["snapshot_id"], row["schema_hash"], row["row_count"], row["ndv"]) == (3, "old", 7, 7.0)
    assert row["completeness"] == "PARTIAL"
    assert [extra for flight, _, extra, _ in sink.puts if flight == "stats.columns"] == [True]
    sink = MemorySink()
    NativeEngine().capture_batch([CaptureRequest.of(table, Target.column(1))], sink)
    assert not sink.rows("stats.columns")  # not requested
