"""Rows of a put: casts, errors that name the field, normal form, storage ids."""

import math
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from store.history.validation import prepare, required
from store.model.bounds import ZonePolicy
from store.model.errors import InvalidField
from store.model.schemas import FLIGHTS
from tests.store.record_tables import FILES, KEY, put, refused, rows

# Casts.

ZONED = pa.timestamp("us", "UTC")
FITTING = {
    "table_catalog": pa.array(["c"], pa.large_string()),
    "table_schema": pa.array(["s"]).dictionary_encode(),
    "table_name": pa.array(["t"], pa.string_view()),
    "snapshot_id": pa.array([1], pa.uint8()),
    "column_id": pa.array([1], pa.int16()).dictionary_encode(),
    "column_name": pa.nulls(1),
    "row_count": pa.array([2**32 - 1], pa.uint32()),
    "null_count": pa.array([0], pa.uint64()),
    "ndv": pa.array([0.5], pa.float32()),
    "ndv_upper": pa.array([0.5], pa.float16()),
    "captured_at": pa.array([1_000], pa.timestamp("ms", "UTC")),
    "refreshed_at": pa.array([2_000_000], pa.timestamp("ns", "Europe/Paris")),
    "freshness": pa.array([7]),
}


def test_arrow_type_variants_are_cast():
    table = prepare(FLIGHTS["stats.columns"], pa.table(FITTING))
    assert table.schema.names == [n for n in FLIGHTS["stats.columns"].schema.names if n in FITTING and n != "freshness"]
    assert all(field.type == FLIGHTS["stats.columns"].schema.field(field.name).type for field in table.schema)
    (row,) = table.to_pylist()
    assert (row["row_count"], row["ndv"], row["column_name"]) == (2**32 - 1, 0.5, None)
    assert row["captured_at"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert row["refreshed_at"] == datetime(1970, 1, 1, 0, 0, 0, 2000, tzinfo=UTC)


def test_binary_and_list_variants_are_cast():
    for ids in (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.uint8(), 2)):
        table = rows("stats.column_groups", {"column_ids": [1, 2]})
        table = table.set_column(4, "column_ids", pa.array([[1, 2]], ids))
        assert prepare(FLIGHTS["stats.column_groups"], table)["column_ids"].to_pylist() == [[1, 2]]
    for key in (pa.large_binary(), pa.binary_view(), pa.binary(2)):
        table = rows("stats.expressions", {"engine_kind": "x", "engine_expression_key": b"ab"})
        table = table.set_column(5, "engine_expression_key", pa.array([b"ab"], key))
        assert prepare(FLIGHTS["stats.expressions"], table)["engine_expression_key"].to_pylist() == [b"ab"]


LOSSY = {
    "uint64 above int64": ("row_count", pa.array([2**63], pa.uint64()), "int64"),
    "nanoseconds": ("captured_at", pa.array([1], pa.timestamp("ns", "UTC")), "timestamp[us"),
    "no zone": ("captured_at", pa.array([1], pa.timestamp("us")), "timestamp[us"),
    "far seconds": ("captured_at", pa.array([2**62], pa.timestamp("s", "UTC")), "timestamp[us"),
    "text for a number": ("row_count", pa.array(["7"]), "int64"),
    "number for text": ("min", pa.array([7]), "utf8"),
    "bytes for text": ("min", pa.array([b"7"]), "utf8"),
    "fraction for a count": ("row_count", pa.array([7.0]), "int64"),
    "text for a truth": ("ndv_exact", pa.array(["true"]), "bool"),
    "number for a truth": ("ndv_exact", pa.array([1]), "bool"),
    "list for a number": ("row_count", pa.array([[7]]), "int64"),
    "date for a time": ("captured_at", pa.array([1], pa.date32()), "timestamp[us"),
    "texts by number": ("row_count", pa.array(["7"]).dictionary_encode(), "int64"),
    "struct": ("min", pa.array([{"a": 1}]), "utf8"),
}


@pytest.mark.parametrize(("name", "values", "expected"), LOSSY.values(), ids=LOSSY)
def test_lossy_casts_are_refused(name, values, expected):
    table = rows("stats.columns", {"column_id": 1}).append_column(name, values)
    refused(name, expected, values.type, call=lambda: prepare(FLIGHTS["stats.columns"], table))


# Shape of the table.


def test_a_batch_without_rows_keeps_its_schema():
    table = prepare(FILES, rows("stats.files", {"file_path": "a", "row_count": 1}).slice(1))
    assert (table.num_rows, table.schema.names) == (0, [*KEY, "file_path", "row_count"])
    assert prepare(FILES, table.schema.empty_table()).num_rows == 0


def test_chunked_table_has_continuous_row_numbers():
    table = pa.concat_tables([rows("stats.files", {"file_path": f" {i}"}) for i in range(3)])
    assert prepare(FILES, table)["file_path"].to_pylist() == ["0", "1", "2"]
    bad = pa.concat_tables(
        [table, rows("stats.files", {"file_path": "a", "size_bytes": -1})], promote_options="default"
    )
    refused("size_bytes", "-1", "row 14", call=lambda: prepare(FILES, bad, first_row=10))


def test_slices_are_read_from_their_offset():
    groups = [{"column_ids": [i, 9, 3], "column_names": [f"n{i}", "nine", "three"]} for i in (1, 2, 4)]
    for table in (rows("stats.column_groups", *groups), rows("stats.column_groups", {"column_ids": [1]}, *groups)):
        done = prepare(FLIGHTS["stats.column_groups"], table.slice(table.num_rows - 2)).to_pylist()
        assert [row["column_ids"] for row in done] == [[2, 3, 9], [3, 4, 9]]


@pytest.mark.parametrize("name", [name for name, flight in FLIGHTS.items() if flight.writable])
def test_required_columns_must_be_present_and_not_null(name):
    sample = KEY | {
        "file_path": "a",
        "column_id": 1,
        "engine_kind": "e",
        "engine_expression_key": b"k",
        "column_ids": [1, 2],
        "role": "NDV",
        "sketch_type": "x",
        "data": b"",
        "target_kind": "TABLE",
    }
    flight = FLIGHTS[name]
    table = rows(name, {column: value for column, value in sample.items() if column in flight.schema.names})
    assert prepare(flight, table).num_rows == 1
    also = {"stats.columns": ["column_id"], "stats.file_columns": ["column_id"], "stats.sketches": ["target_kind"]}
    for missing in [*required(flight), *also.get(name, [])]:
        refused(missing, call=lambda missing=missing: prepare(flight, table.drop_columns(missing)))
        at = table.schema.get_field_index(missing)
        none = table.set_column(at, missing, pa.nulls(1, table.schema.field(missing).type))
        refused(missing, "row 1", call=lambda none=none: prepare(flight, none))


def test_column_name_suffices_without_a_column_id():
    assert put("stats.columns", {"column_name": "a"}, {"column_id": 2})[1]["column_name"] is None
    refused("column_id", "column_name", "row 2", call=lambda: put("stats.columns", {"column_name": "a"}, {}))


def test_unknown_and_duplicate_columns_are_refused():
    table = rows("stats.columns", {"column_id": 1, "ndv": 1.0})
    columns = FLIGHTS["stats.columns"]
    refused("ndvs", '"ndv"', call=lambda: prepare(columns, table.append_column("ndvs", pa.array([1.0]))))
    refused("ndv", "twice", call=lambda: prepare(columns, table.append_column("ndv", pa.array([1.0]))))
    refused("NDV", call=lambda: prepare(columns, table.rename_columns([*table.schema.names[:-1], "NDV"])))
    refused("sys.flights", call=lambda: prepare(FLIGHTS["sys.flights"], table))


def test_a_corrupt_batch_is_refused():
    batch = rows("stats.files", {"file_path": "a"}, {"file_path": "b"}).to_batches()[0]
    offsets = pa.py_buffer(np.array([0, 1_000_000, 1], np.int32))
    bad = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a")])
    refused("corrupt", call=lambda: prepare(FILES, batch.set_column(4, "file_path", bad)))
    not_utf8 = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    refused("corrupt", call=lambda: prepare(FILES, batch.set_column(4, "file_path", not_utf8)))


# Rules of the fields.

GOOD = {"column_id": 1, "logical_type": "INT", "row_count": 10}
BAD_COLUMNS = [
    ({"null_count": 11}, ["null_count", "11", "10"]),
    *(
        ({name: -1}, [name, "-1"])
        for name in (
            "row_count",
            "null_count",
            "nan_count",
            "max_width_bytes",
            "rows_scanned",
            "files_scanned",
            "row_groups_sampled",
            "bytes_scanned",
            "snapshot_id",
        )
    ),
    ({"avg_width_bytes": -0.5}, ["avg_width_bytes", "-0.5"]),
    ({"confidence_level": 1.1}, ["confidence_level", "1.1", "0 to 1"]),
    ({"confidence_level": -0.1}, ["confidence_level", "-0.1"]),
    ({"confidence_level": math.nan}, ["confidence_level", "nan"]),
    ({"ndv": math.nan}, ["ndv", "nan"]),
    ({"ndv": -1.0}, ["ndv", "-1.0"]),
    ({"ndv_upper": math.inf}, ["ndv_upper", "inf"]),
    ({"ndv": 5.0, "ndv_lower": 6.0}, ["ndv_lower", "5.0", "6.0"]),
    ({"ndv": 5.0, "ndv_upper": 4.0}, ["ndv", "ndv_upper", "5.0", "4.0"]),
    ({"ndv": 11.0}, ["ndv", "row_count - null_count", "11.0"]),
    ({"null_count": 4, "ndv": 6.5}, ["ndv", "6.5"]),
    ({"null_count": 4, "ndv": 6.0, "ndv_upper": 7.0}, ["ndv_upper", "7.0"]),
    ({"null_count": 6, "nan_count": 5}, ["nan_count", "null_count", "5"]),
    ({"nan_count": 11}, ["nan_count", "11"]),
    ({"avg_width_bytes": 8.5, "max_width_bytes": 8}, ["avg_width_bytes", "max_width_bytes", "8.5"]),
    ({"mean": math.nan}, ["mean", "nan"]),
    ({"stddev": -0.5}, ["stddev", "-0.5"]),
    ({"mean": math.inf}, ["mean", "infinite", "INT"]),
    ({"logical_type": "DECIMAL(9,2)", "stddev": math.inf}, ["stddev", "infinite", "DECIMAL"]),
    ({"min": "1", "max": "9", "mean": 9.5}, ["mean", "min to max", "9.5"]),
    ({"max": "9", "mean": 9.5}, ["mean", "min to max", "9.5"]),
    ({"min": "1", "max": "9", "mean": 0.5}, ["mean", "min to max", "0.5"]),
    ({"logical_type": "FLOAT", "min": "3.4", "max": "3.4", "mean": 3.4}, ["mean", "min to max"]),  # 3.4000000953…
    ({"logical_type": "DOUBLE", "min": "-Infinity", "max": "5.0", "mean": math.inf}, ["mean", "inf"]),
    ({"logical_type": "DECIMAL(9,2)", "min": "0.5", "max": "0.75", "mean": 0.8}, ["mean", "0.8"]),
    ({"min": "1", "max": "9", "stddev": 6.0}, ["stddev", "(max - min)", "6.0"]),
    ({"min": "5", "max": "5", "stddev": 0.1}, ["stddev", "0.1"]),
    *(
        ({"logical_type": type, name: 1.5}, [name, type, "DECIMAL"])
        for type in ("STRING", "BINARY", "BOOLEAN", "DATE", "TIMESTAMP", "UUID")
        for name in ("mean", "stddev")
    ),
    *(
        ({"logical_type": type, "nan_count": 1}, ["nan_count", type, "0 or null"])
        for type in ("INT", "DECIMAL(9,2)", "STRING")
    ),
    ({"logical_type": "INT96"}, ["logical_type", "INT96"]),
    ({"min": "abc"}, ["min", "abc", "INT"]),
    ({"max": "1.0"}, ["max", "1.0"]),
    ({"max": ""}, ["max"]),
    ({"min": "10", "max": "9"}, ["min", "10", "9"]),
    ({"logical_type": "STRUCT", "min": "1"}, ["min", "STRUCT", "1"]),
    ({"logical_type": "JSON", "max": "1"}, ["max", "JSON"]),
    ({"logical_type": "INTERVAL", "max": "1"}, ["max", "INTERVAL"]),
    ({"producer": "GUESSED"}, ["producer", "GUESSED", "SOURCE_NATIVE"]),
    ({"producer": ""}, ["producer"]),
    ({"completeness": "MOSTLY"}, ["completeness", "MOSTLY"]),
    ({"capture_mode": "LAZY"}, ["capture_mode", "LAZY"]),
    ({"column_id": 0}, ["column_id", "got 0"]),
    ({"column_id": -5}, ["column_id", "-5"]),
    ({"table_name": ""}, ["table_name", "empty"]),
    *(
        ({name: int(micros)}, [name, "years 1 to 9999", f"{micros} microseconds"])
        for name, micros in (("captured_at", "-62135596800000001"), ("refreshed_at", "253402300800000000"))
    ),
]


@pytest.mark.parametrize(("wrong", "mentions"), BAD_COLUMNS, ids=lambda part: str(part)[:60])
@pytest.mark.parametrize("others", [[], [{"column_id": 7, "logical_type": "STRING", "min": "b", "max": "c"}]])
def test_invalid_column_record_is_refused_with_field_and_row(wrong, mentions, others):
    given = [GOOD | {"column_id": 8}, *others, GOOD | wrong, *others]
    with pytest.raises(InvalidField) as refusal:
        put("stats.columns", *given, first_row=100)
    message = str(refusal.value)
    assert all(word in message for word in [*mentions, f"row {102 + len(others)}"]), message
    assert refusal.value.field == mentions[0]


def deletes(**more):
    """A delete file of a data file."""
    return {"file_path": "d", "file_content": "POSITION_DELETES", "content_offset": None, "content_size": None} | more


BAD_TARGETS = [
    ("stats.files", {"file_path": "  "}, ["file_path", "blank"]),
    ("stats.files", {"file_path": ""}, ["file_path", "blank"]),
    ("stats.files", {"file_path": "a", "size_bytes": -1}, ["size_bytes", "-1"]),
    ("stats.files", {"file_path": "a", "file_content": "NOISE"}, ["file_content", "NOISE"]),
    *(
        ("stats.files", {"file_path": "a", "partition_data_json": text}, ["partition_data_json"])
        for text in ("{", "[]", "7", "", '{"a": NaN}', '{"a":' * 100_000)
    ),
    ("stats.files", {"file_path": "a", "equality_field_ids": [1, 0]}, ["equality_field_ids", "positive", "0"]),
    *(
        ("stats.files", {"file_path": "a", "delete_files": [deletes(), deletes(**wrong)]}, ["delete_files", *mentions])
        for wrong, mentions in (
            ({"file_path": " "}, ["file_path"]),
            ({"file_path": None}, ["file_path"]),
            ({"file_path": "", "file_content": "DELETION_VECTOR"}, ["file_path"]),
            ({"file_content": "DATA"}, ["file_content", "DELETION_VECTOR"]),
            ({"content_offset": -1}, ["content_offset"]),
            ({"content_size": -1}, ["content_size"]),
        )
    ),
    ("stats.tables", {"row_count": -1}, ["row_count", "-1"]),
    ("stats.tables", {"total_size_bytes": -1}, ["total_size_bytes", "-1"]),
    ("stats.tables", {"merged_size_bytes": -1}, ["merged_size_bytes", "-1"]),
    ("stats.tables", {"data_file_count": -1}, ["data_file_count", "-1"]),
    ("stats.expressions", {"engine_kind": " ", "engine_expression_key": b"x"}, ["engine_kind", "blank"]),
    ("stats.expressions", {"engine_kind": "spark", "engine_expression_key": b""}, ["engine_expression_key"]),
    ("stats.column_groups", {"column_ids": [1]}, ["column_ids", "at least 2", "[1]"]),
    ("stats.column_groups", {"column_ids": []}, ["column_ids", "at least 2"]),
    ("stats.column_groups", {"column_ids": [1, 2, 1]}, ["column_ids", "distinct", "[1, 2, 1]"]),
    ("stats.column_groups", {"column_ids": [0, 1]}, ["column_ids", "positive", "0"]),
    ("stats.column_groups", {"column_ids": [1, None]}, ["column_ids", "positive"]),
    ("stats.column_groups", {"column_ids": [1, 2], "column_names": ["a"]}, ["column_names"]),
]


@pytest.mark.parametrize(("name", "row", "mentions"), BAD_TARGETS, ids=lambda part: str(part)[:60])
def test_invalid_target_or_payload_is_refused(name, row, mentions):
    refused(*mentions, call=lambda: put(name, row), where="row 1")


def test_every_statistic_may_be_null():
    for name in ("stats.tables", "stats.columns"):
        flight = FLIGHTS[name]
        nothing = {field.name: None for field in flight.schema if field.name not in (*KEY, "column_id")}
        put(name, nothing | ({"column_id": 1} if name == "stats.columns" else {}))


def test_values_at_the_limits_are_accepted():
    put(
        "stats.columns",
        GOOD | {"snapshot_id": 0, "null_count": 10, "confidence_level": 1.0, "min": "5", "max": "5"},
        GOOD
        | {
            "snapshot_id": 2**63 - 1,
            "confidence_level": 0.0,
            "ndv": 2.0,
            "ndv_lower": 2.0,
            "ndv_upper": 2.0,
            "captured_at": datetime.min.replace(tzinfo=UTC),
            "refreshed_at": datetime.max.replace(tzinfo=UTC),
        },
    )


@pytest.mark.parametrize(
    "row",
    [
        {"mean": 5.0, "min": "5", "max": "5", "stddev": 0.0},
        {"mean": 1e300, "stddev": 1e300},
        {"mean": 4.0, "max": "5"},
        {"logical_type": None, "mean": 5.0, "min": "x", "max": "y", "nan_count": 3},
        {"nan_count": 0},
        {"logical_type": "FLOAT", "min": "3.4", "max": "3.4", "mean": 3.4000000953674316},
        {"logical_type": "DOUBLE", "min": "0.1", "max": "0.1", "mean": 0.09999999999999999, "stddev": 1.4e-17},
        {"logical_type": "DOUBLE", "min": "1.0", "max": "NaN", "mean": 7.0, "nan_count": 2},
        {"logical_type": "DOUBLE", "min": "-Infinity", "max": "Infinity", "mean": math.inf},
        {"logical_type": "DOUBLE", "min": "Infinity", "max": "Infinity", "mean": math.inf},
        {"logical_type": "DECIMAL(38,0)", "min": "9" * 38, "max": "9" * 38, "mean": 1e38},
        {"min": str(2**63 - 1), "max": str(2**63 - 1), "mean": 2.0**63},
        {"min": "0", "max": "2", "stddev": 2**0.5},
        {"logical_type": "STRING", "min": "a", "max": "b"},
        {"logical_type": "STRUCT", "min": None, "max": None, "nan_count": 1},
    ],
)
def test_possible_moments_are_accepted(row):
    put("stats.columns", GOOD | row, GOOD | {"column_id": 9, "logical_type": "BINARY", "max": "AA=="})


def test_moments_of_a_capture_may_be_rounded():
    row = GOOD | {"min": "5", "max": "5", "mean": 5.1}
    assert prepare(FLIGHTS["stats.columns"], rows("stats.columns", row), clamp=True)["mean"].to_pylist() == [5.1]


def test_counts_beyond_the_precision_of_doubles_are_compared_exactly():
    most = 2**63 - 1
    put(
        "stats.columns",
        GOOD
        | {
            "row_count": most,
            "null_count": 0,
            "nan_count": 0,
            "ndv": 1.0,
            "avg_width_bytes": 1.0,
            "max_width_bytes": most,
        },
    )


def test_estimates_of_a_capture_are_clamped():
    row = GOOD | {"null_count": 4, "ndv": 7.5, "ndv_lower": 5.0, "ndv_upper": 9.0}
    (kept,) = prepare(FLIGHTS["stats.columns"], rows("stats.columns", row), clamp=True).to_pylist()
    assert (kept["ndv"], kept["ndv_lower"], kept["ndv_upper"]) == (6.0, 5.0, 6.0)


def test_inline_deletion_vector_may_have_no_path():
    vector = deletes(file_path=None, file_content="DELETION_VECTOR", content_size=52)
    (kept,) = put("stats.files", {"file_path": "a", "delete_files": [deletes(), vector]})
    assert kept["delete_files"] == [deletes(), vector]


def test_delete_files_are_cast_and_kept():
    given = deletes(content_offset=4, content_size=9)
    files = rows("stats.files", {"file_path": "a", "delete_files": [given]}, {"file_path": "b", "delete_files": None})
    at = files.schema.get_field_index("delete_files")
    narrow = pa.list_(
        pa.struct(
            [
                ("file_path", pa.large_string()),
                ("file_content", pa.string()),
                ("content_offset", pa.int32()),
                ("content_size", pa.int32()),
            ]
        )
    )
    cast = prepare(FILES, files.set_column(at, "delete_files", files["delete_files"].cast(narrow)))
    assert cast["delete_files"].to_pylist() == [[given], None]
    other = pa.list_(pa.struct([("path", pa.string())]))
    column = pa.array([[{"path": "d"}], None], other)
    refused(
        "delete_files", "has the wrong type", call=lambda: prepare(FILES, files.set_column(at, "delete_files", column))
    )


# Normal form.


def test_types_and_bounds_become_canonical():
    done = put(
        "stats.columns",
        {"column_id": 1, "logical_type": "bigint", "min": "007", "max": " 12 "},
        {"column_id": 2, "logical_type": "double  precision", "min": "-0.0", "max": "1e7"},
        {"column_id": 3, "logical_type": None, "min": "z", "max": "a"},
        {"column_id": 4, "logical_type": "long", "min": "+1", "max": None},
        {"column_id": 5, "logical_type": "INTERVAL", "min": "P2D", "max": "P1D"},
        {"column_id": 6, "logical_type": "STRUCT"},
        {"column_id": 7, "logical_type": "STRING", "min": "", "max": "é"},
    )
    assert [(row["logical_type"], row["min"], row["max"]) for row in done] == [
        ("INT", "7", "12"),
        ("DOUBLE", "0", "1.0E7"),
        (None, "z", "a"),
        ("INT", "1", None),
        ("INTERVAL", "P2D", "P1D"),
        ("STRUCT", None, None),
        ("STRING", "", "é"),
    ]


@pytest.mark.parametrize(
    ("type_", "low", "high", "expected"),
    [
        (
            "TIMESTAMP(3)",
            "2026-01-01T00:00:00.1231",
            "2026-01-01T00:00:00.1239",
            ("2026-01-01T00:00:00.123", "2026-01-01T00:00:00.124"),
        ),
        (
            "TIMESTAMP",
            "1969-12-31T23:59:59.999999001",
            "1969-12-31T23:59:59.999999999",
            ("1969-12-31T23:59:59.999999", "1970-01-01T00:00:00"),
        ),
        (
            "TIMESTAMP",
            "9999-12-31T23:59:59.999999",
            "9999-12-31T23:59:59.9999991",
            ("9999-12-31T23:59:59.999999", None),
        ),
        (
            "TIMESTAMPTZ(0)",
            "2026-01-01T00:00:00.1Z",
            "2026-12-31T23:59:59.000001Z",
            ("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ),
        ("TIME", "12:00:00.0000001", "12:00:00.0000002", ("12:00:00", "12:00:00.000001")),
        ("TIME(3)", "12:00:00.0001", "23:59:59.9999", ("12:00:00.000", None)),
        ("DECIMAL(5,2)", "1.005", "23.456", ("1", "23.46")),
        ("DECIMAL(5,2)", "-1.005", "-0.001", ("-1.01", "0")),
        ("DECIMAL(5,0)", "1.5", "7.25", ("1", "8")),
        ("DECIMAL(38,10)", "1E-11", "9999999999.99999999991", ("0", "10000000000")),
        ("DECIMAL(76,0)", f"-{'9' * 75}.5", f"{'9' * 75}.5", (f"-1{'0' * 75}", f"1{'0' * 75}")),
    ],
)
def test_bounds_finer_than_their_type_are_rounded_outwards_and_inexact(type_, low, high, expected):
    exact = {"min_is_exact": True, "max_is_exact": True}
    other = {"column_id": 2, "logical_type": "INT", "min": "1", "max": "2"} | exact
    whole = {"column_id": 3, "logical_type": type_, "min": expected[0], "max": expected[1]} | exact
    _, done, same = put(
        "stats.columns", other, {"column_id": 1, "logical_type": type_, "min": low, "max": high} | exact, whole
    )
    assert (done["min"], done["max"]) == (same["min"], same["max"]) == expected
    assert [(row["min_is_exact"], row["max_is_exact"]) for row in (done, same)] == [
        (low == expected[0], False),
        (True, True),
    ]
    (alone,) = put("stats.columns", {"column_id": 1, "logical_type": type_, "min": low, "max": high} | exact)
    assert (alone["min"], alone["max"], alone["max_is_exact"]) == (*expected, False)


def test_zoned_bound_follows_the_zone_policy():
    row = {"column_id": 1, "logical_type": "TIMESTAMP", "min": "2026-02-26T12:34:56+02:00"}
    refused("min", call=lambda: put("stats.columns", row))
    (done,) = put("stats.columns", row, policy=ZonePolicy(True, "UTC"))
    assert done["min"] == "2026-02-26T10:34:56"


def test_targets_are_normalized():
    (row,) = put("stats.files", {"file_path": " \u2003/a b.parquet\n"})
    assert row["file_path"] == "/a b.parquet"
    (row,) = put("stats.expressions", {"engine_kind": " TRINO ", "engine_expression_key": b"\x00"})
    assert row["engine_kind"] == "trino"
    done = put(
        "stats.column_groups",
        {"column_ids": [3, 1, 2], "column_names": ["c", "a", None]},
        {"column_ids": [5, 4], "column_names": None},
        {"column_ids": [7, 6], "column_names": ["g", "f"]},
    )
    assert [(row["column_ids"], row["column_names"]) for row in done] == [
        ([1, 2, 3], ["a", None, "c"]),
        ([4, 5], None),
        ([6, 7], ["f", "g"]),
    ]
