"""Flight SQL metadata: schemas with their nullability, patterns, SQL info."""

import re
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.core.wire.flight_sql import read_any, write_any
from flight_server.faces.sql import metadata
from flight_server.faces.sql.flights import TABLES
from store.model.schemas import FLIGHTS


def call(name, *fields):
    return metadata.answer(read_any(write_any(name, *fields)), "1.2.3")


@pytest.mark.parametrize("name", metadata.SCHEMAS)
def test_result_schema_equals_the_announced_schema(name):
    command = read_any(write_any(name, (5, 1)))
    assert metadata.answer(command, "1").schema.equals(metadata.schema_of(command), check_metadata=True)


def test_required_fields_are_not_nullable():
    required = {name: [f.name for f in schema if not f.nullable] for name, schema in metadata.SCHEMAS.items()}
    assert required["CommandGetTables"] == ["table_name", "table_type"] and required["CommandGetCatalogs"] == [
        "catalog_name"
    ]
    assert required["CommandGetPrimaryKeys"] == ["table_name", "column_name", "key_sequence"]
    assert required["CommandGetSqlInfo"] == ["info_name", "value"]
    assert len(required["CommandGetXdbcTypeInfo"]) == 7


def test_get_tables_filters_by_schema_name_and_type():
    found = call("CommandGetTables", (2, b"stats"), (3, b"col%"), (5, 1)).to_pylist()
    assert [row["table_name"] for row in found] == ["column_groups", "columns"]
    schema = pa.ipc.read_schema(pa.py_buffer(found[1]["table_schema"]))
    assert schema.names == FLIGHTS["stats.columns"].schema.names and schema.field("captured_at").type == pa.timestamp(
        "us"
    )
    assert call("CommandGetTables").num_rows == len(TABLES) == call("CommandGetTables", (1, b"statflight")).num_rows
    assert call("CommandGetTables", (4, b"BASE TABLE"), (4, b"table")).num_rows == len(TABLES)  # as Grafana sends it
    assert call("CommandGetTables", (4, b"TABLE")).num_rows == len(TABLES)  # as tools of JDBC and ADBC ask
    for no_match in ((1, b"other"), (4, b"VIEW"), (3, b"SELECT * FROM stats.columns"), (3, b"")):
        assert call("CommandGetTables", no_match).num_rows == 0


def test_columns_of_tables_say_their_types_in_sql():
    (found,) = call("CommandGetTables", (2, b"stats"), (3, b"files"), (5, 1)).to_pylist()
    schema = pa.ipc.read_schema(pa.py_buffer(found["table_schema"]))
    names = {field.name: field.metadata[b"ARROW:FLIGHT:SQL:TYPE_NAME"].decode() for field in schema}
    assert (names["row_count"], names["file_path"], names["captured_at"]) == ("BIGINT", "VARCHAR", "TIMESTAMP")
    assert (names["partition_spec_id"], names["equality_field_ids"]) == ("INTEGER", "BIGINT[]")
    assert names["delete_files"].startswith("STRUCT(file_path VARCHAR, ")
    assert schema.field("row_count").metadata[b"ARROW:FLIGHT:SQL:PRECISION"] == b"19"


def test_escaped_wildcards_match_literally():
    """DBeaver puts the escape that GetSqlInfo declares before each wildcard of a name."""
    exact = (2, rb"information\_schema"), (3, rb"key\_column\_usage"), (5, 1)
    (found,) = call("CommandGetTables", *exact).to_pylist()
    assert (found["db_schema_name"], found["table_name"]) == ("information_schema", "key_column_usage")
    assert call("CommandGetDbSchemas", (2, rb"stats\_all")).num_rows == 1
    for no_match in (rb"key\%", rb"key\_column", b"\\", rb"key\\_column\_usage"):
        assert call("CommandGetTables", (3, no_match)).num_rows == 0


def like_regex(pattern):
    found, at = "", 0
    while at < len(pattern):
        if pattern[at] == "\\" and at + 1 < len(pattern):
            at += 1
            found += re.escape(pattern[at])
        else:
            found += {"%": ".*", "_": "."}.get(pattern[at], re.escape(pattern[at]))
        at += 1
    return re.compile(found, re.DOTALL)


@given(st.text("ab_%.\\", max_size=12), st.text("ab_%.\\", max_size=12))
def test_patterns_match_like_sql_like(pattern, name):
    assert bool(metadata._pattern(pattern).fullmatch(name)) == bool(like_regex(pattern).fullmatch(name))


@pytest.mark.parametrize(
    "pattern", ["%a" * 5000, "_" * 10_000, "%" * 10_000 + "!", "%_" * 31 + "x", "(" * 64, "%a%a%a%a%a%b" * 8]
)
def test_pathological_patterns_are_fast(pattern):
    start = time.thread_time()
    assert call("CommandGetTables", (3, pattern.encode())).num_rows == 0
    assert time.thread_time() - start < 2


def test_sql_info_has_the_required_values():
    every = {row["info_name"]: row["value"] for row in call("CommandGetSqlInfo").to_pylist()}
    assert (every[0], every[1], every[3], every[504]) == ("statflight", "1.2.3", True, '"')
    assert isinstance(every[508], list)  # JDBC requires a list here
    assert set(range(500, 577)) <= set(every)  # JDBC fails on each missing one
    assert dict(every[517])[19] and every[507] == 3 and every[540] == 3
    some = call("CommandGetSqlInfo", (1, 504), (1, 1), (1, 99_999))
    assert some["info_name"].to_pylist() == [504, 1]
    some.validate(full=True)


def test_primary_keys_of_flights():
    def key(schema, name):
        found = call("CommandGetPrimaryKeys", (1, b"statflight"), (2, schema), (3, name)).to_pylist()
        assert [row["key_sequence"] for row in found] == list(range(1, len(found) + 1))
        return [row["column_name"] for row in found]

    table = ["table_catalog", "table_schema", "table_name", "snapshot_id"]
    assert key(b"stats", b"tables") == table and key(b"stats_all", b"columns") == [*table, "column_id"]
    assert key(b"stats", b"file_columns") == [*table, "file_path", "column_id"]
    assert key(b"stats", b"histograms") == key(b"stats", b"nothing") == key(b"sys", b"columns") == []


def test_xdbc_type_info():
    every = call("CommandGetXdbcTypeInfo").to_pylist()
    assert [row["data_type"] for row in every] == sorted(row["data_type"] for row in every)
    assert {"BIGINT", "DOUBLE", "VARCHAR", "TIMESTAMP"} <= {row["type_name"] for row in every}
    (one,) = call("CommandGetXdbcTypeInfo", (1, (1 << 64) - 5)).to_pylist()  # as protobuf writes a negative int32
    assert (one["type_name"], one["column_size"], one["num_prec_radix"]) == ("BIGINT", 19, 10)
    (instant,) = call("CommandGetXdbcTypeInfo", (1, 93)).to_pylist()
    assert (instant["sql_data_type"], instant["datetime_subcode"]) == (9, 3)
