import json
import math
import os
import random
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute.readers import tasks
from capture.connectors import open_connector
from capture.connectors.footers.leaf_types import promoted
from capture.connectors.parquet.connector import ParquetConnector
from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage import lake_directories
from capture.connectors.storage.lake_directories import folder_at
from capture.connectors.storage.places import Unreadable
from store.model.columns import REMARK
from store.model.errors import InvalidArgument, NotFound, StatflightError, UpstreamError
from store.model.format_facts import FormatFacts
from store.model.logical_types import parse
from tests.capture.connectors.contract import ConnectorContract, Truth

LAKES = Path(__file__).resolve().parents[5] / "shared/lakes"


def connector(uri, **options) -> ParquetConnector:
    found = open_connector(ConnectorConfig("c", "parquet", str(uri), options))
    assert isinstance(found, ParquetConnector)
    return found


def captured(found: ParquetConnector, name: str, namespace: str = "default", columns=None):
    """Native statistics, and the rows of the files by column."""
    listing = found.enumerate_snapshots(namespace, name)
    schema = found.describe(namespace, name).schema
    ids = {column.name: i for i, column in enumerate(schema.columns, 1)}
    stats = found.capture_snapshot_target_stats(namespace, name, listing.current_snapshot_id, ids, columns)
    rows: dict[str, list[dict]] = {}
    for table in stats.file_columns():
        for row in table.to_pylist():
            rows.setdefault(row["column_name"], []).append(row)
    return stats, rows


def write(path: Path, table: pa.Table, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


class TestContract(ConnectorContract):
    facts = FormatFacts(False, False, False, plain_parquet=True, platform="file")
    has_table_id = False
    has_column_sizes = True

    @pytest.fixture
    def config(self, tmp_path):
        rows = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "place": [{"x": 1.5}, None, {"x": -0.0}]})
        write(tmp_path / "lake/t/part-0.parquet", rows)
        return ConnectorConfig("c", "parquet", str(tmp_path / "lake"))

    @pytest.fixture
    def truth(self, config):
        columns = {"id": [1, 2, 3], "name": ["a", None, "c"], "place.x": [1.5, None, -0.0]}
        return Truth("default", "t", 3, columns)


# Bounds.

VALUES = {
    "flag": ([True, False, None], pa.bool_(), "false", "true"),
    "tiny": ([-128, 3], pa.int8(), "-128", "3"),
    "unsigned": ([2**32 - 1, 7], pa.uint32(), "7", "4294967295"),
    "unsigned64": ([2**63 - 1, 7], pa.uint64(), "7", "9223372036854775807"),
    "long": ([2**53 + 1, -(2**63)], pa.int64(), "-9223372036854775808", "9007199254740993"),
    "single": ([0.1, 2.5], pa.float32(), "0.1", "2.5"),
    "with_nan": ([math.nan, 1.0, -3.0], pa.float64(), "-3.0", "1.0"),
    "zeros": ([0.0, -0.0], pa.float64(), "0", "0"),
    "infinite": ([math.inf, -math.inf], pa.float64(), "-Infinity", "Infinity"),
    "half": ([1.5, -2.0], pa.float16(), "-2.0", "1.5"),
    "money": ([Decimal("-1.50"), Decimal("2.25")], pa.decimal128(5, 2), "-1.5", "2.25"),
    "wide": ([Decimal(-(10**27)), Decimal(200)], pa.decimal128(38, 10), "-1000000000000000000000000000", "200"),
    "text": (["", "é", "z"], pa.string(), "", "é"),
    "long_text": (["x" * 300], pa.large_string(), "x" * 300, "x" * 300),
    "bytes": ([b"\xff", b"\x00"], pa.binary(), "AA==", "/w=="),
    "fixed": ([b"\xff" * 3, b"\x00" * 3], pa.binary(3), "AAAA", "////"),
    "uid": ([uuid.UUID(int=255).bytes], pa.uuid(), str(uuid.UUID(int=255)), str(uuid.UUID(int=255))),
    "day": ([date(1960, 2, 28), date(2020, 1, 1)], pa.date32(), "1960-02-28", "2020-01-01"),
    "clock": ([time(1, 2, 3, 4000)], pa.time64("us"), "01:02:03.004", "01:02:03.004"),
    "clock_ms": ([time(1, 2, 3)], pa.time32("ms"), "01:02:03", "01:02:03"),
    "local": ([datetime(1969, 12, 31, 23, 59, 59, 1)], pa.timestamp("us"), *["1969-12-31T23:59:59.000001"] * 2),
    "milli": ([datetime(2020, 1, 1)], pa.timestamp("ms"), "2020-01-01T00:00:00", "2020-01-01T00:00:00"),
    "zoned": ([datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin"), *["2020-01-01T00:00:00Z"] * 2),
    "coded": (["b", "a"], pa.dictionary(pa.int32(), pa.string()), "a", "b"),
}


@pytest.mark.parametrize("name", VALUES)
def test_bounds_are_canonical_and_exact(tmp_path, name):
    values, type, low, high = VALUES[name]
    write(tmp_path / "t/a.parquet", pa.table({name: pa.array(values, type)}), row_group_size=1)
    stats, rows = captured(connector(tmp_path), "t")
    (row,) = rows[name]
    if name == "with_nan":  # a row group of nothing but NaN has no bounds
        assert (row["min"], row["nan_count"]) == (None, None)
        write(tmp_path / "t/a.parquet", pa.table({name: pa.array(values, type)}))
        stats, rows = captured(connector(tmp_path), "t")
        (row,) = rows[name]
    assert (row["min"], row["max"]) == (low, high)
    assert (row["min_is_exact"], row["max_is_exact"]) == (True, True)
    assert row["null_count"] == values.count(None)
    assert row["row_count"] == stats.row_count == len(values)


def test_nanoseconds_are_widened_to_microseconds(tmp_path):
    write(tmp_path / "t/a.parquet", pa.table({"at": pa.array([-1500, 1500, 3000], pa.timestamp("ns"))}))
    _, rows = captured(connector(tmp_path), "t")
    (row,) = rows["at"]
    assert (row["min"], row["min_is_exact"]) == ("1969-12-31T23:59:59.999998", False)
    assert (row["max"], row["max_is_exact"]) == ("1970-01-01T00:00:00.000003", True)


def test_null_columns_have_no_bounds_and_nested_columns_no_statistics(tmp_path):
    table = pa.table(
        {
            "nothing": pa.nulls(3),
            "none": pa.array([None] * 3, pa.int64()),
            "tags": [["a"], [], None],
            "pairs": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        }
    )
    write(tmp_path / "t/a.parquet", table)
    found = connector(tmp_path)
    types = {column.name: column.logical_type for column in found.describe("default", "t").schema.columns}
    assert types == {"nothing": "STRING", "none": "INT", "tags": "ARRAY", "pairs": "MAP"}
    _, rows = captured(found, "t")
    assert set(rows) == {"nothing", "none"}
    for (row,) in rows.values():
        assert (row["null_count"], row["min"], row["max"], row["min_is_exact"]) == (3, None, None, None)


def test_file_without_statistics_has_unknown_counts_and_bounds(tmp_path):
    write(tmp_path / "t/a.parquet", pa.table({"a": [1, None]}), write_statistics=False)
    _, rows = captured(connector(tmp_path), "t")
    (row,) = rows["a"]
    assert (row["null_count"], row["min"], row["max"]) == (None, None, None)


def test_int96_has_no_bounds(tmp_path):
    at = pa.array([datetime(2020, 1, 1)], pa.timestamp("ns"))
    write(tmp_path / "t/a.parquet", pa.table({"at": at}), use_deprecated_int96_timestamps=True)
    _, rows = captured(connector(tmp_path), "t")
    assert (rows["at"][0]["logical_type"], rows["at"][0]["min"]) == ("TIMESTAMP", None)


def test_truncated_strings_are_inexact(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "t").mkdir()
    duckdb.connect().execute(f"COPY (SELECT repeat('x', 400) AS s, 'y' AS y, 7 AS n) TO '{tmp_path}/t/a.parquet'")
    _, rows = captured(connector(tmp_path), "t")
    text = "x" * 400
    assert rows["s"][0]["min"] <= text <= rows["s"][0]["max"]
    assert rows["s"][0]["min_is_exact"] is rows["s"][0]["max_is_exact"] is False
    assert rows["y"][0]["max_is_exact"] is rows["n"][0]["max_is_exact"] is True


# Many files.


def test_schemas_of_files_are_united(tmp_path):
    first = pa.table(
        {
            "a": pa.array([1], pa.int32()),
            "f": pa.array([0.5], pa.float32()),
            "n": pa.nulls(1),
            "p": [{"x": 1}],
            "d": pa.array([Decimal("1.5")], pa.decimal128(4, 1)),
        }
    )
    second = pa.table(
        {
            "p": [{"x": 2, "y": "q"}],
            "a": pa.array([2**40], pa.int64()),
            "f": [1e300],
            "n": ["text"],
            "late": [True],
            "d": pa.array([Decimal("2.25")], pa.decimal128(9, 2)),
        }
    )
    write(tmp_path / "t/1.parquet", first)
    write(tmp_path / "t/2.parquet", second)
    found = connector(tmp_path)
    columns = [(c.name, c.logical_type, c.nullable) for c in found.describe("default", "t").schema.columns]
    assert columns == [
        ("a", "INT", True),
        ("f", "DOUBLE", True),
        ("n", "STRING", True),
        ("p", "STRUCT", True),
        ("p.x", "INT", True),
        ("p.y", "STRING", True),
        ("d", "DECIMAL(9,2)", True),
        ("late", "BOOLEAN", True),
    ]
    stats, rows = captured(found, "t")
    assert (stats.row_count, stats.data_file_count) == (2, 2)
    assert [(r["null_count"], r["min"]) for r in rows["late"]] == [(1, None), (0, "true")]
    assert [r["max"] for r in rows["f"]] == ["0.5", "1.0E300"]
    assert [r["max"] for r in rows["d"]] == ["1.5", "2.25"]
    assert [r["null_count"] for r in rows["n"]] == [1, 0]
    ids = {name: i for i, (name, *_) in enumerate(columns, 1)}
    current = found.enumerate_snapshots("default", "t").current_snapshot_id
    one, two = found.plan_files("default", "t", current, ids)
    late = {c.name: c for c in one.columns}["late"]
    assert late.path is None
    assert late.constant.to_pylist() == [None]
    assert {c.name: c.path for c in two.columns}["p.y"] == "p.y"
    assert one.row_count == 1


def test_incompatible_types_of_files_are_refused(tmp_path):
    write(tmp_path / "t/1.parquet", pa.table({"a": [1]}))
    write(tmp_path / "t/2.parquet", pa.table({"a": ["x"]}))
    with pytest.raises(Unreadable, match=r'"default.t": column a is STRING in file "2.parquet" and INT'):
        connector(tmp_path).describe("default", "t")


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("INT", "DOUBLE", "DOUBLE"),
        ("FLOAT", "DOUBLE", "DOUBLE"),
        ("DECIMAL(4,1)", "DECIMAL(9,2)", "DECIMAL(9,2)"),
        ("INT", "DECIMAL(3,2)", "DECIMAL(21,2)"),
        ("DATE", "TIMESTAMP", "TIMESTAMP"),
        ("STRING", "INT", None),
        ("TIMESTAMP", "TIMESTAMPTZ", None),
        ("DECIMAL(76,0)", "DECIMAL(76,10)", None),
    ],
)
def test_promoted_type_has_the_values_of_both(one, other, both):
    for pair in ((one, other), (other, one)):
        found = promoted(*map(parse, pair))
        assert (found and found.text) == both


@pytest.mark.parametrize("values", [("", "1"), ("\u0661", "2"), ("__HIVE_DEFAULT_PARTITION__", "2020-01-01")])
def test_hive_partitions_have_the_values_that_duckdb_reads(tmp_path, values):
    for at, value in enumerate(values):
        write(tmp_path / f"t/k={value}/{at}.parquet", pa.table({"v": [at]}))
    _, rows = captured(connector(tmp_path), "t", columns=frozenset({"k"}))
    files = f"read_parquet('{tmp_path}/t/*/*.parquet', hive_partitioning = true, filename = true)"
    read = duckdb.sql(f"SELECT filename, k::VARCHAR, (k IS NULL)::INT FROM {files}").fetchall()
    found = [(row["file_path"], row["min"], row["max"], row["null_count"]) for row in rows["k"]]
    assert sorted(found) == sorted((path, value, value, nulls) for path, value, nulls in read)
    assert {row["logical_type"] for row in rows["k"]} == {"DATE" if "2020-01-01" in values else "STRING"}


def test_hive_partitions_are_constant_columns(tmp_path):
    for year, where in ((2020, "a%20b"), (2021, "__HIVE_DEFAULT_PARTITION__")):
        path = tmp_path / f"t/year={year}/day=2020-01-0{year - 2019}/where={where}/x.parquet"
        write(path, pa.table({"v": [1, 2]}))
    found = connector(tmp_path)
    table = found.describe("default", "t")
    assert table.partition_keys == ("year", "day", "where")
    assert [(c.name, c.logical_type, c.nullable) for c in table.schema.columns] == [
        ("v", "INT", True),
        ("year", "INT", False),
        ("day", "DATE", False),
        ("where", "STRING", True),
    ]
    stats, rows = captured(found, "t")
    assert [(r["min"], r["max_is_exact"], r["null_count"]) for r in rows["where"]] == [
        ("a b", True, 0),
        (None, None, 2),
    ]
    assert [r["min"] for r in rows["year"]] == ["2020", "2021"]
    assert [r["bytes_scanned"] for r in rows["year"]] == [0, 0] and rows["v"][0]["bytes_scanned"] > 0
    assert json.loads(stats.files["partition_data_json"][0].as_py()) == {
        "year": 2020,
        "day": "2020-01-01",
        "where": "a b",
    }
    current = found.enumerate_snapshots("default", "t").current_snapshot_id
    tasks = list(found.plan_files("default", "t", current, {"v": 1, "year": 2, "day": 3, "where": 4}))
    assert [t.columns[1].constant.to_pylist() for t in tasks] == [[2020], [2021]]
    assert tasks[0].columns[2].constant.to_pylist() == [date(2020, 1, 1)]
    without = connector(tmp_path, hive_partitioning="false").describe("default", "t")
    assert [c.name for c in without.schema.columns] == ["v"]
    with pytest.raises(InvalidArgument, match="hive_partitioning"):
        connector(tmp_path, hive_partitioning="perhaps")


def test_partition_value_of_a_file_without_rows_is_not_a_bound(tmp_path):
    for day, rows in enumerate((0, 2, 3), 1):
        write(tmp_path / f"t/day={day}/x.parquet", pa.table({"v": pa.array([7] * rows, pa.int64())}))
    found = captured(connector(tmp_path), "t")[1]["day"]
    assert [(row["row_count"], row["min"], row["max_is_exact"]) for row in found] == [
        (0, None, None),
        (2, "2", True),
        (3, "3", True),
    ]


def test_uneven_hive_partitions_are_ignored_or_refused(tmp_path):
    write(tmp_path / "t/year=2020/x.parquet", pa.table({"v": [1]}))
    write(tmp_path / "t/x.parquet", pa.table({"v": [1]}))
    described = connector(tmp_path).describe("default", "t")
    assert described.partition_keys == ()
    assert "differ in partition keys: none of x.parquet, year of year=2020/x.parquet" in described.properties[REMARK]
    with pytest.raises(Unreadable, match="differ in partition keys"):
        connector(tmp_path, hive_partitioning="true").describe("default", "t")


def test_the_odd_file_is_named_after_the_usual_ones(tmp_path):
    for part in ("hour=00/a", "hour=01/b", "extra"):
        write(tmp_path / f"t/{part}.parquet", pa.table({"v": [1]}))
    remark = connector(tmp_path).describe("default", "t").properties[REMARK]
    assert "hour of hour=00/a.parquet, none of extra.parquet" in remark
    for options in ({"hive_partitioning": "false"}, {}):
        if not options:
            (tmp_path / "t/extra.parquet").unlink()
        assert REMARK not in connector(tmp_path, **options).describe("default", "t").properties


@pytest.mark.parametrize("column", [[1, 2], ["a", "b"], [{"y": 1}, {"y": 2}]], ids=str)
def test_a_column_of_the_directories_takes_precedence_over_one_in_the_files(tmp_path, column):
    """As DuckDB, polars and Spark read it."""
    for part in (7, 8):
        write(tmp_path / f"t/x={part}/f.parquet", pa.table({"x": column, "v": [3, 4]}))
    found = connector(tmp_path)
    stats, rows = captured(found, "t")
    assert [(c.name, c.logical_type) for c in found.describe("default", "t").schema.columns] == [
        ("v", "INT"),
        ("x", "INT"),
    ]
    assert [(r["min"], r["max"]) for r in rows["x"]] == [("7", "7"), ("8", "8")]
    assert [json.loads(text) for text in stats.files["partition_data_json"].to_pylist()] == [{"x": 7}, {"x": 8}]
    tasks = found.plan_files("default", "t", found.enumerate_snapshots("default", "t").current_snapshot_id, {"x": 1})
    assert [task.columns[0].constant.to_pylist() for task in tasks] == [[7], [8]]


def test_a_file_with_two_columns_of_one_name_is_refused(tmp_path):
    write(tmp_path / "t/f.parquet", pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"]))
    with pytest.raises(Unreadable, match=r'table "default\.t": file "f\.parquet" has two columns x'):
        connector(tmp_path).describe("default", "t")


@pytest.mark.parametrize(
    ("folder", "of"), [("P=1", "of the directories"), ("", "of files before it")], ids=["directory", "file"]
)
def test_columns_that_differ_in_case_alone_are_refused(tmp_path, folder, of):
    """DuckDB and Spark read them as one column, polars and Arrow as two: no bounds are right for both."""
    if not folder:
        write(tmp_path / "t/a.parquet", pa.table({"P": [1]}))
    write(tmp_path / "t" / folder / "b.parquet", pa.table({"p": [2]}))
    with pytest.raises(Unreadable, match=rf'"default\.t": column p of file "b\.parquet" and P {of} differ in case'):
        connector(tmp_path).describe("default", "t")


def test_columns_of_one_file_that_differ_in_case_are_two(tmp_path):
    write(tmp_path / "t/f.parquet", pa.table({"p": [1], "P": [2]}))
    _, rows = captured(connector(tmp_path), "t")
    assert (rows["p"][0]["max"], rows["P"][0]["max"]) == ("1", "2")


def test_bounds_that_no_row_attains_are_not_exact(tmp_path):
    """Arrow's bounds of a dictionary with nulls may be those of an entry that is not used."""
    words = pa.DictionaryArray.from_arrays(pa.array([0, 0, None, 1]), pa.array(["a", "b", "z"]))
    full = pa.DictionaryArray.from_arrays(pa.array([0, 2, 0, 1]), pa.array(["a", "b", "z"]))
    write(tmp_path / "t/f.parquet", pa.table({"words": words, "full": full, "plain": ["a", "b", None, "z"]}))
    _, rows = captured(connector(tmp_path), "t")
    assert rows["words"][0]["max"] >= "b" and rows["words"][0]["max_is_exact"] is None
    assert [(rows[name][0]["max"], rows[name][0]["max_is_exact"]) for name in ("full", "plain")] == [
        ("z", True),
        ("z", True),
    ]


# Locations.


def test_only_folders_that_may_hold_files_of_a_glob_are_listed(tmp_path, monkeypatch):
    for name in ("a/x/1", "a/y/1", "b/x/1", "a/x/z/1", "1"):
        write(tmp_path / f"{name}.parquet", pa.table({"v": [1]}))
    listed = []
    monkeypatch.setattr(lake_directories, "folder_at", lambda place: listed.append(place.path) or folder_at(place))

    def read(glob):
        listed.clear()
        count = captured(connector(f"{tmp_path}/{glob}"), tmp_path.name)[0].data_file_count
        return count, {str(Path(path).relative_to(tmp_path)) for path in listed}

    assert read("[1-9].parquet") == (1, {"."})
    assert read("*/x/*.parquet") == (2, {".", "a", "b", "a/x", "b/x"})
    assert read("*/x/**") == (3, {".", "a", "b", "a/x", "b/x", "a/x/z"})


def test_glob_without_a_folder_is_one_of_the_working_directory(tmp_path, monkeypatch):
    for name in ("ab", "xb"):
        write(tmp_path / f"{name}.parquet", pa.table({"v": [1]}))
    monkeypatch.chdir(tmp_path)
    assert captured(connector("a*.parquet"), tmp_path.name)[0].data_file_count == 1
    with pytest.raises(NotFound):
        connector("/xb.par*").list_namespaces()


def test_uri_may_be_a_file_or_a_glob(tmp_path):
    for name in ("a-1", "a-2", "b-1"):
        write(tmp_path / f"data/{name}.parquet", pa.table({"v": [1]}))
    file = connector(tmp_path / "data/a-1.parquet")
    assert (file.list_namespaces(), file.list_tables("default")) == (["default"], ["a-1"])
    assert captured(file, "a-1")[0].row_count == 1
    glob = connector(f"file://{tmp_path}/data/a-*.parquet")
    assert glob.list_tables("default") == ["data"]
    assert captured(glob, "data")[0].data_file_count == 2
    assert captured(connector(f"{tmp_path}/**/*-1.parquet"), tmp_path.name)[0].data_file_count == 2
    assert captured(connector(f"{tmp_path}/data/[ab]-[!2].parquet"), "data")[0].data_file_count == 2
    assert captured(connector(f"{tmp_path}/*/[ab]-1.parquet"), tmp_path.name)[0].data_file_count == 2
    with pytest.raises(NotFound, match=r"c-\*.parquet"):
        connector(f"{tmp_path}/data/c-*.parquet").list_namespaces()
    with pytest.raises(NotFound, match=r"nowhere\.parquet"):
        connector(tmp_path / "data/nowhere.parquet").list_namespaces()


def test_hidden_files_and_delta_tables_are_ignored(tmp_path):
    write(tmp_path / "t/a.parquet", pa.table({"v": [1]}))
    write(tmp_path / "t/_metadata.parquet", pa.table({"v": [1]}))
    (tmp_path / "t/_SUCCESS").touch()
    (tmp_path / "t/.a.parquet.crc").touch()
    write(tmp_path / "d/a.parquet", pa.table({"v": [1]}))
    (tmp_path / "d/_delta_log").mkdir()
    found = connector(tmp_path)
    assert found.list_tables("default") == ["t"]
    assert captured(found, "t")[0].data_file_count == 1


def test_snapshot_changes_with_the_listing_of_files(tmp_path):
    file = write(tmp_path / "t/a.parquet", pa.table({"v": [1]}))
    found = connector(tmp_path)
    before = found.enumerate_snapshots("default", "t")
    assert 0 < before.current_snapshot_id < 2**63
    assert before == connector(tmp_path).enumerate_snapshots("default", "t") or before.snapshots[0].ordinal
    assert before.snapshots[0].operation == "listing"
    assert before.snapshots[0].committed_at.timestamp() == pytest.approx(file.stat().st_mtime, abs=1e-5)
    write(tmp_path / "t/b.parquet", pa.table({"v": [2]}))
    after = found.enumerate_snapshots("default", "t")
    assert after.live_snapshot_ids == {after.current_snapshot_id} != before.live_snapshot_ids
    assert after.snapshots[0].ordinal > before.snapshots[0].ordinal
    with pytest.raises(Unreadable, match=r"listing of files has changed.*discover") as gone:
        found.capture_snapshot_target_stats("default", "t", before.current_snapshot_id, {})
    assert not gone.value.retryable
    os.utime(file, ns=(1, 1))
    assert found.enumerate_snapshots("default", "t").current_snapshot_id != after.current_snapshot_id


# Errors.


@pytest.mark.parametrize("content", [b"PAR1 not a Parquet file PAR1", b"x", b"PAR1\xff\xff\xff\x7fPAR1"])
def test_broken_footer_is_named_and_other_tables_are_read(tmp_path, content):
    write(tmp_path / "good/a.parquet", pa.table({"v": [1]}))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/b.parquet").write_bytes(content)
    found = connector(tmp_path)
    assert found.list_tables("default") == ["bad", "good"]
    with pytest.raises(UpstreamError, match=r'"default.bad".*"b.parquet"') as broken:
        found.describe("default", "bad")
    assert not broken.value.retryable
    assert str(tmp_path) not in str(broken.value)
    assert captured(found, "good")[0].row_count == 1


@pytest.mark.parametrize("seed", range(3))
def test_damaged_footers_raise_statflight_errors_and_never_crash(tmp_path, seed):
    chance = random.Random(seed)
    table = pa.table({"i": [1, 2, None], "s": ["a", "b", "c"], "d": [0.5, 1.5, 2.5], "p": [{"x": True}] * 3})
    sound = write(tmp_path / "t/a.parquet", table, row_group_size=2).read_bytes()
    length = int.from_bytes(sound[-8:-4], "little")
    found = connector(tmp_path)
    for _ in range(60):
        damaged = bytearray(sound)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(sound) - 8 - length, len(sound) - 8)] = chance.randrange(256)
        (tmp_path / "t/a.parquet").write_bytes(damaged)
        try:
            stats, rows = captured(found, "t")
        except StatflightError as error:
            assert str(tmp_path) not in str(error)
            continue
        for row in (row for column in rows.values() for row in column):
            assert row["row_count"] == stats.row_count == 3
            assert row["null_count"] is None or 0 <= row["null_count"] <= 3


def test_file_columns_of_large_tables_are_streamed(tmp_path, monkeypatch):
    monkeypatch.setattr("capture.connectors.parquet.connector.ROWS_PER_TABLE", 4)
    for i in range(5):
        write(tmp_path / f"t/{i}.parquet", pa.table({"a": [i], "b": [i]}))
    found = connector(tmp_path)
    current = found.enumerate_snapshots("default", "t").current_snapshot_id
    stats = found.capture_snapshot_target_stats("default", "t", current, {"a": 1})
    tables = list(stats.file_columns())
    assert [table.num_rows for table in tables] == [4, 4, 2]
    assert {(r["column_name"], r["column_id"]) for t in tables for r in t.to_pylist()} == {("a", 1), ("b", None)}


def test_file_columns_of_a_wide_table_are_one_chunk_not_one_for_each_column(tmp_path):
    write(tmp_path / "t/a.parquet", pa.table({f"c{number}": [number] for number in range(100)}))
    found = connector(tmp_path)
    current = found.enumerate_snapshots("default", "t").current_snapshot_id
    (table,) = found.capture_snapshot_target_stats("default", "t", current, {}).file_columns()
    assert (table.num_rows, table["min"].num_chunks) == (100, 1)


@pytest.mark.skipif(not LAKES.exists(), reason="the shared lakes are elsewhere")
@pytest.mark.parametrize("file", sorted((LAKES / "parquet").glob("*.parquet")), ids=lambda file: file.stem)
def test_files_of_other_writers_are_read(file):
    found = connector(file)
    stats, rows = captured(found, file.stem)
    assert stats.row_count == pq.read_metadata(file).num_rows
    if file.stem == "fixed_length_decimal":  # parquet-mr 1.8 compared the bytes of decimals: its minimum is wrong
        assert rows["value"][0]["min"] is None
    if file.stem == "floating_orders_nan_count":
        assert rows["double_typedef"][0]["nan_count"] == 14


def test_policy_and_aws_options_are_accepted(tmp_path):
    write(tmp_path / "t/a.parquet", pa.table({"v": [1]}))
    config = ConnectorConfig("c", "parquet", str(tmp_path), {"policy": "auto"})
    assert open_connector(replace(config, options={**config.options, "aws_region": "x"})).list_tables("default") == [
        "t"
    ]


def test_columns_with_equal_dotted_names_are_distinguished(tmp_path):
    """`a.b` in one part, `a` → `b`, and a dotted name inside a struct."""
    inner = pa.array([{"b": 7, "c.d": 1}, {"b": 9, "c.d": None}, None])
    pq.write_table(pa.table({"a.b": [1, 2, None], "a": inner, "part": ["x"] * 3}), tmp_path / "t.parquet")
    found = connector(tmp_path)
    schema = found.describe("default", tmp_path.name).schema
    assert [(c.name, c.key, c.path) for c in schema.columns if c.is_leaf] == [
        ("a.b", '"a.b"', ("a.b",)),
        ("a.b", "a.b", ("a", "b")),
        ("a.c.d", 'a."c.d"', ("a", "c.d")),
        ("part", "part", ("part",)),
    ]
    ids = {column.key: number for number, column in enumerate(schema.columns, 1)}
    snapshot = found.enumerate_snapshots("default", tmp_path.name).current_snapshot_id
    native = found.capture_snapshot_target_stats("default", tmp_path.name, snapshot, ids)
    rows = {row["column_id"]: row for part in native.file_columns() for row in part.to_pylist()}
    bounds = {
        key: tuple(rows[i][n] for n in ("column_name", "min", "max", "null_count"))
        for key, i in ids.items()
        if i in rows
    }
    assert bounds == {
        '"a.b"': ("a.b", "1", "2", 1),
        "a.b": ("a.b", "7", "9", 1),
        'a."c.d"': ("a.c.d", "1", "1", 2),
        "part": ("part", "x", "x", 0),
    }
    (task,) = found.plan_files("default", tmp_path.name, snapshot, ids)
    values = {column.column_id: read.to_pylist() for column, read in tasks.read(task, task.columns)}
    assert {key: values[i] for key, i in ids.items() if i in values} == {
        '"a.b"': [1, 2, None],
        "a.b": [7, 9, None],
        'a."c.d"': [1, None, None],
        "part": ["x"] * 3,
    }


def test_width_of_an_integer_is_that_of_the_widest_file(tmp_path):
    (tmp_path / "t").mkdir()
    for number, type in enumerate((pa.int32(), pa.int64())):
        rows = {"a": pa.array([1, 2], type), "b": pa.array([1, 2], pa.int16())}
        pq.write_table(pa.table(rows), tmp_path / f"t/{number}.parquet")
    found = connector(tmp_path)
    snapshot = found.enumerate_snapshots("default", "t").current_snapshot_id
    tasks_of = list(found.plan_files("default", "t", snapshot, {"a": 1, "b": 2}))
    assert [[column.width_bytes for column in task.columns] for task in tasks_of] == [[8, None], [8, None]]
    alone = connector(tmp_path / "t/0.parquet")
    snapshot = alone.enumerate_snapshots("default", "0").current_snapshot_id
    (task,) = alone.plan_files("default", "0", snapshot, {"a": 1, "b": 2})
    assert [column.width_bytes for column in task.columns] == [None, None]
