"""The Iceberg connector: schemas, row-level deletes, bounds, moved and odd tables, catalogs."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
import threading
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from capture.compute.readers.tasks import read
from capture.connectors.iceberg.connector import IcebergConnector
from capture.connectors.iceberg.deletes import matching, parse_vector
from capture.connectors.iceberg.io import LakeIO
from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.places import Unreadable
from store.errors import InvalidArgument, NotFound, StatflightError, UpstreamError
from store.sketches.theta import theta
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.contract import ConnectorContract, Truth

ROWS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "name", StringType()),
    NestedField(3, "score", DoubleType()),
    identifier_field_ids=[1],
)


def rows(start: int, stop: int) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("score", pa.float64())])
    ids = range(start, stop)
    return pa.table([list(ids), [None if i % 5 == 0 else f"n{i:03}" for i in ids], [i / 4 for i in ids]], schema)


def directory(path: Path | str, **options: str) -> IcebergConnector:
    return IcebergConnector(ConnectorConfig("lake", "iceberg", str(path), options))


def home(table) -> Path:
    return Path(table.metadata.location.removeprefix("file://"))


def current(connector, namespace="default", name="t") -> int:
    found = connector.enumerate_snapshots(namespace, name).current_snapshot_id
    assert found is not None
    return found


def stats(connector, snapshot=None, namespace="default", name="t", columns=None):
    snapshot = snapshot or current(connector, namespace, name)
    return connector.capture_snapshot_target_stats(namespace, name, snapshot, {}, columns)


def file_columns(native) -> dict[tuple[int, str], dict]:
    """Rows of `file_columns` by (place of the file, column)."""
    files = native.files["file_path"].to_pylist()
    rows = [row for table in native.file_columns() for row in table.to_pylist()]
    return {(files.index(row["file_path"]), row["column_name"]): row for row in rows}


def live(connector, snapshot=None, namespace="default", name="t") -> list[dict]:
    """The live rows, as an executor reads them."""
    found = []
    for task in connector.plan_files(namespace, name, snapshot or current(connector, namespace, name), {}):
        columns = {column.name: values.to_pylist() for column, values in read(task, task.columns)}
        found += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return found


class TestContract(ConnectorContract):
    is_directory = False

    @pytest.fixture
    def config(self, tmp_path):
        built.simple_table(tmp_path, ROWS, rows(0, 20), rows(20, 30))
        uri, warehouse = f"sqlite:///{tmp_path / 'catalog.db'}", f"file://{tmp_path / 'warehouse'}"
        return ConnectorConfig("c", "iceberg", uri, {"type": "sql", "name": "lake", "warehouse": warehouse})

    @pytest.fixture
    def truth(self, config):
        return Truth("db", "t", 30, rows(0, 30).to_pydict(), snapshots=2)


class TestContractOfADirectory(ConnectorContract):
    @pytest.fixture
    def config(self, tmp_path):
        table = built.simple_table(tmp_path, ROWS, rows(0, 20))
        return ConnectorConfig("c", "iceberg", str(home(table)))

    @pytest.fixture
    def truth(self, config):
        return Truth("default", "t", 20, rows(0, 20).to_pydict())


# Row-level deletes.


@pytest.fixture
def table(tmp_path):
    return built.simple_table(tmp_path, ROWS, rows(0, 100), rows(100, 150))


def expected(*gone: int) -> list[int]:
    return [i for i in range(150) if i not in gone]


def check_live(table, ids: list[int]) -> None:
    connector = directory(home(table))
    native = stats(connector)
    assert sorted(row["id"] for row in live(connector)) == ids
    assert native.row_count == len(ids)
    assert native.row_deletes
    data = native.files.filter(pa.array([c == "DATA" for c in native.files["file_content"].to_pylist()]))
    assert sum(data["row_count"].to_pylist()) == len(ids)
    assert native.data_file_count == data.num_rows
    assert native.total_size_bytes == sum(data["size_bytes"].to_pylist())


def paths(table) -> dict[int, str]:
    """First id → path."""
    return {rows: path for path, _ in built.data_paths(table) for rows in [_first(path)]}


def _first(path: str) -> int:
    import pyarrow.parquet as pq

    return pq.read_table(path.removeprefix("file://"))["id"][0].as_py()


def test_position_deletes_count_once(table):
    first, second = paths(table)[0], paths(table)[100]
    both = built.position_deletes(table, [(first, 3), (first, 3), (first, 99), (second, 0), ("elsewhere", 5)])
    again = built.position_deletes(table, [(first, 3)])
    built.commit_deletes(table, both, again)
    check_live(table, expected(3, 99, 100))


def test_a_delete_file_lists_its_rows(table):
    built.commit_deletes(table, built.position_deletes(table, [(paths(table)[0], 3)]))
    files = stats(directory(home(table))).files.to_pylist()
    assert Counter(file["file_content"] for file in files) == {"DATA": 2, "POSITION_DELETES": 1}
    assert [file["row_count"] for file in files if file["file_content"] != "DATA"] == [1]
    assert sorted(file["sequence_number"] for file in files) == [1, 2, 3]


def test_equality_deletes_are_null_safe_and_spare_what_came_later(table):
    built.commit_deletes(table, built.equality_deletes(table, {"name": ["n001", None]}))
    gone = [1, *range(0, 150, 5)]
    check_live(table, expected(*gone))


def test_equality_deletes_of_two_columns_match_pairs(table):
    keys = {"id": [1, 2, 7, 10], "name": ["n001", "n003", "n007", None]}
    built.commit_deletes(table, built.equality_deletes(table, keys), built.equality_deletes(table, {"id": [120]}))
    check_live(table, expected(1, 7, 10, 120))


def test_equality_and_position_deletes_of_one_row_count_once(table):
    first = paths(table)[0]
    built.commit_deletes(table, built.position_deletes(table, [(first, 1), (first, 2)]))
    built.commit_deletes(table, built.equality_deletes(table, {"id": [2, 3]}))
    check_live(table, expected(1, 2, 3))


def test_a_deletion_vector_replaces_position_deletes(table):
    first = paths(table)[0]
    built.commit_deletes(table, built.position_deletes(table, [(first, 1)]))
    built.commit_deletes(table, built.deletion_vector(table, first, [1, 5, 70]), format_version=3)
    check_live(table, expected(1, 5, 70))


def test_vectors_of_one_puffin_file_are_one_row_and_two_deletes(table):
    first, second = paths(table)[0], paths(table)[100]
    vectors = {first: list(range(10)), second: list(range(10, 20))}
    built.commit_deletes(table, *built.deletion_vectors(table, vectors), format_version=3)
    check_live(table, expected(*range(10), *range(110, 120)))
    files = stats(directory(home(table))).files.to_pylist()
    (puffin,) = (file for file in files if file["file_content"] == "POSITION_DELETES")
    assert (puffin["row_count"], puffin["file_format"], puffin["delete_files"]) == (20, "PUFFIN", None)
    applied = [vector for file in files if file["file_content"] == "DATA" for vector in file["delete_files"]]
    assert {vector["file_path"] for vector in applied} == {puffin["file_path"]}
    assert {vector["file_content"] for vector in applied} == {"DELETION_VECTOR"}
    content = Path(puffin["file_path"]).read_bytes()
    cut = [content[v["content_offset"] :][: v["content_size"]] for v in applied]
    assert sorted(parse_vector(blob).tolist() for blob in cut) == [list(range(10)), list(range(10, 20))]


def applied(native) -> dict[str, list[str]]:
    """Data file → names of the delete files that apply to it."""
    rows = [row for row in native.files.to_pylist() if row["file_content"] == "DATA"]
    return {row["file_path"]: sorted(Path(d["file_path"]).name for d in row["delete_files"]) for row in rows}


def test_delete_files_apply_by_sequence_number(table):
    first, second = (paths(table)[i].removeprefix("file://") for i in (0, 100))
    assert applied(stats(directory(home(table)))) == {first: [], second: []}
    equal = built.equality_deletes(table, {"id": [1], "name": ["n001"]})
    gone = built.position_deletes(table, [(paths(table)[0], 3), (paths(table)[100], 3)])
    built.commit_deletes(table, equal, gone)
    native = stats(directory(home(table)))
    both = sorted(Path(file.file_path).name for file in (equal, gone))
    assert applied(native) == {first: both, second: both}
    ids = {row["file_content"]: row["equality_field_ids"] for row in native.files.to_pylist()}
    assert ids == {"DATA": None, "POSITION_DELETES": None, "EQUALITY_DELETES": [1, 2]}
    (later,) = built.deletion_vectors(table, {paths(table)[0]: [3, 4]})
    built.commit_deletes(table, later, format_version=3)
    newest = stats(directory(home(table)))
    assert applied(newest) == {first: sorted(Path(f.file_path).name for f in (equal, later)), second: both}
    assert len({part.key for part in newest.parts} & {part.key for part in native.parts}) == 1  # that of `second`


def test_a_damaged_deletion_vector_is_an_error_that_says_so(table):
    blob = bytearray(built.vector_blob([1]))
    blob[-1] ^= 1
    built.commit_deletes(table, built.deletion_vector(table, paths(table)[0], [1], bytes(blob)), format_version=3)
    with pytest.raises(UpstreamError, match=r'table "default.t" cannot be read: .* checksum') as refused:
        stats(directory(home(table)))
    assert not refused.value.retryable


@pytest.mark.parametrize("rows", [[], [0], [5, 1, 2**31, 2**32 + 7, 2**40]])
def test_vectors_are_read(rows):
    assert parse_vector(built.vector_blob(rows)).tolist() == sorted(rows)


def test_deletes_stay_within_their_partition(tmp_path):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    data = pa.table({"id": [1, 2, 1, 2], "part": ["a", "a", "b", "b"]})
    table = built.simple_table(tmp_path, schema, data, partition_spec=spec)
    by_part = {partition[0]: (path, partition) for path, partition in built.data_paths(table)}
    built.commit_deletes(
        table,
        built.equality_deletes(table, {"id": [1]}, by_part["a"][1]),
        built.position_deletes(table, [(by_part["b"][0], 1), (by_part["a"][0], 1)], by_part["b"][1]),
    )
    connector = directory(home(table))
    assert stats(connector).row_count == 2
    assert sorted((row["id"], row["part"]) for row in live(connector)) == [(1, "b"), (2, "a")]
    files = stats(connector).files.to_pylist()
    assert {json.loads(file["partition_data_json"])["part"] for file in files} == {"a", "b"}
    kinds = {
        json.loads(file["partition_data_json"])["part"]: [d["file_content"] for d in file["delete_files"]]
        for file in files if file["file_content"] == "DATA"
    }  # fmt: skip
    assert kinds == {"a": ["EQUALITY_DELETES"], "b": ["POSITION_DELETES"]}


def test_what_deletes_leave_of_bounds_and_counts(table):
    first, second = paths(table)[0], paths(table)[100]
    gone = [(first, i) for i in range(50)] + [(second, i) for i in range(50)]
    built.commit_deletes(table, built.position_deletes(table, gone))
    connector = directory(home(table))
    native = stats(connector)
    place = native.files["file_path"].to_pylist().index(first.removeprefix("file://"))
    held = file_columns(native)
    score, name = held[place, "score"], held[place, "name"]
    assert (score["row_count"], score["null_count"], score["min"], score["max"]) == (50, 0, "0", "24.75")
    assert (score["min_is_exact"], score["max_is_exact"], name["null_count"]) == (False, False, None)
    empty = held[1 - place, "name"]
    assert (empty["row_count"], empty["null_count"], empty["min"], empty["max"]) == (0, 0, None, None)


def test_a_fingerprint_follows_the_deletes(table):
    def fingerprints():
        connector = directory(home(table))
        return {t.file_path: t.fingerprint for t in connector.plan_files("default", "t", current(connector), {})}

    before = fingerprints()
    built.commit_deletes(table, built.position_deletes(table, [(paths(table)[0], 1)]))
    after = fingerprints()
    assert [path for path in before if before[path] != after[path]] == [paths(table)[0].removeprefix("file://")]


def test_another_look_opens_no_manifest_no_deletes_and_no_data(table, monkeypatch):
    opened = []
    real = LakeIO.new_input_here

    def counting(self, place):
        opened.append(Path(place).name)
        return real(self, place)

    monkeypatch.setattr(LakeIO, "new_input_here", counting)
    data = [path for path, _ in built.data_paths(table)]
    positions = built.position_deletes(table, [(data[0], 3), (data[1], 7)])
    built.commit_deletes(table, positions, built.equality_deletes(table, {"id": [9]}))

    def look():
        """Live rows, and how many files of each kind the statistics and then the plan opened."""
        opened.clear()
        connector = directory(home(table))
        told = stats(connector)
        assert sum(rows.num_rows for rows in told.file_columns()) == 6
        kinds = Counter(Path(name).suffix for name in opened if not name.startswith("snap-"))
        opened.clear()
        assert len(list(connector.plan_files("default", "t", current(connector), {}))) == 2
        return told.row_count, kinds, {Path(path).name for path in data} & set(opened)

    rows_before, kinds, _ = look()
    assert (rows_before, kinds[".avro"]) == (147, 3) and kinds[".parquet"]
    rows_after, kinds, data_opened = look()
    assert (rows_after, set(kinds), data_opened) == (147, {".json"}, set())


def test_matching_treats_null_and_nan_as_values():
    keys = [pa.array([1.0, math.nan, None, 2.0]), pa.array(["a", "b", "c", None])]
    assert matching(keys, [pa.array([math.nan, None, 2.0, 1.0]), pa.array(["b", "c", None, "z"])]).tolist() == [
        False, True, True, True,
    ]  # fmt: skip
    assert matching([pa.array([1, 2])], [pa.array([], pa.int64())]).tolist() == [False, False]


def test_files_that_are_not_parquet_are_named_as_the_reason(table):
    gone = built.position_deletes(table, [(paths(table)[0], 1)])
    gone[1] = str(gone.file_path)
    gone[2] = built.FileFormat.AVRO
    built.commit_deletes(table, gone)
    with pytest.raises(Unreadable, match="AVRO"):
        stats(directory(home(table)))


# Schemas and bounds.


def test_types_leaves_and_constraints(tmp_path):
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "at", TimestamptzType()),
        NestedField(3, "place", StructType(
            NestedField(4, "lat", FloatType(), required=True),
            NestedField(5, "inner", StructType(NestedField(6, "word", StringType()))),
        ), required=False),
        NestedField(7, "tags", ListType(8, StringType())),
        NestedField(9, "money", DecimalType(9, 2)),
        identifier_field_ids=[1],
    )  # fmt: skip
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "id"), PartitionField(2, 1001, DayTransform(), "at_day")
    )
    table = built.simple_table(tmp_path, schema, partition_spec=spec, properties={"owner": "me"})
    connector = directory(home(table))
    told = connector.describe("default", "t")
    assert [(c.name, c.logical_type, c.nullable) for c in told.schema.columns] == [
        ("id", "INT", False), ("at", "TIMESTAMPTZ", True), ("place", "STRUCT", True), ("place.lat", "FLOAT", True),
        ("place.inner", "STRUCT", True), ("place.inner.word", "STRING", True), ("tags", "ARRAY", True),
        ("money", "DECIMAL(9,2)", True),
    ]  # fmt: skip
    assert [(c.kind, c.columns, c.clause) for c in told.constraints] == [
        ("PRIMARY KEY", ("id",), None), ("CHECK", ("id",), "id IS NOT NULL"),
    ]  # fmt: skip
    assert told.partition_keys == ("id", "day(at)")
    assert told.properties["owner"] == "me"
    assert told.table_id == str(table.metadata.table_uuid)
    listing = connector.enumerate_snapshots("default", "t")
    assert (listing.snapshots, listing.current_snapshot_id) == ((), None)
    with pytest.raises(NotFound, match="snapshot 7"):
        stats(connector, 7)


def test_bounds_and_their_exactness(tmp_path):
    schema = Schema(
        NestedField(1, "flag", BooleanType()), NestedField(2, "n", IntegerType()), NestedField(3, "x", DoubleType()),
        NestedField(4, "d", DateType()), NestedField(5, "t", TimestampType()), NestedField(6, "m", DecimalType(10, 2)),
        NestedField(7, "short", StringType()), NestedField(8, "long", StringType()), NestedField(9, "b", BinaryType()),
        NestedField(10, "u", UUIDType()), NestedField(11, "none", StringType()),
    )  # fmt: skip
    data = pa.table({
        "flag": [True, False, None], "n": pa.array([-5, 7, None], pa.int32()), "x": [-0.0, math.nan, 1e7],
        "d": [date(1969, 12, 31), date(2024, 2, 29), None],
        "t": pa.array([datetime(2024, 1, 1, 0, 0, 0, 120000), None, None], pa.timestamp("us")),
        "m": pa.array([Decimal("1.50"), Decimal("-2.25"), None], pa.decimal128(10, 2)), "short": ["é", "", None],
        "long": ["é" * 20, "a" * 16, None], "b": [b"\x00\xff", b"\x01", None],
        "u": pa.array([bytes(16), bytes([255] * 16), None], pa.binary(16)).cast(pa.uuid()),
        "none": pa.array([None] * 3, pa.string()),
    })  # fmt: skip
    table = built.simple_table(tmp_path, schema, data)
    held = file_columns(stats(directory(home(table))))
    told = {c: (r["min"], r["min_is_exact"], r["max"], r["max_is_exact"], r["null_count"])
            for (_, c), r in held.items()}  # fmt: skip
    zeros, ones = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
    assert told["flag"] == ("false", True, "true", True, 1)
    assert told["n"] == ("-5", True, "7", True, 1)
    assert told["x"] == ("0", True, "1.0E7", True, 0)
    assert held[0, "x"]["nan_count"] is None
    assert told["d"] == ("1969-12-31", True, "2024-02-29", True, 1)
    assert told["t"] == ("2024-01-01T00:00:00.12", True, "2024-01-01T00:00:00.12", True, 2)
    assert told["m"] == ("-2.25", True, "1.5", True, 1)
    assert told["short"] == ("", True, "é", True, 1)
    assert told["long"][0] == "a" * 16 and not told["long"][1]
    assert told["long"][2] > "é" * 15 and not told["long"][3]
    assert told["b"][:2] == ("AP8=", True) and not told["b"][3]
    assert told["u"] == (zeros, True, ones, True, 1)
    assert told["none"] == (None, None, None, None, 3)
    assert {c for _, c in held} == set(data.column_names)


def test_metrics_that_manifests_lack_come_from_footers(tmp_path):
    properties = {"write.metadata.metrics.default": "none", "write.metadata.metrics.column.id": "full"}
    table = built.simple_table(tmp_path, NESTED, name="db.t", properties=properties)
    table = built.make_catalog(tmp_path).load_table("db.t")
    table.append(pa.table({"id": [1, 2, 3], "s": [{"x": 5}, None, {"x": 2**40}]}))
    with table.update_schema() as update:
        update.add_column("later", StringType())
    table.append(pa.table({"id": [4], "s": [{"x": 9}], "later": ["z"]}))
    connector = directory(home(table))
    told = {
        (name, row["min"], row["max"], row["null_count"], row["min_is_exact"])
        for (_, name), row in file_columns(stats(connector)).items()
    }
    assert told == {
        ("id", "1", "3", 0, True), ("id", "4", "4", 0, True), ("later", "z", "z", 0, True),
        ("later", None, None, 3, None), ("s.x", "5", "1099511627776", 1, True), ("s.x", "9", "9", 0, True),
    }  # fmt: skip
    first = next(path for path, _ in built.data_paths(table) if len(read_parquet(path)) == 3)
    built.commit_deletes(table, built.position_deletes(table, [(first, 0)]))
    cut = [row for (_, name), row in file_columns(stats(directory(home(table)))).items()
           if name == "s.x" and row["row_count"] == 2]  # fmt: skip
    assert [(row["min"], row["null_count"], row["min_is_exact"]) for row in cut] == [("5", None, False)]
    Path(first.removeprefix("file://")).write_bytes(b"broken")
    lost = {name for (_, name), row in file_columns(stats(directory(home(table)))).items() if row["null_count"] is None}
    assert "s.x" in lost and "id" not in lost


def read_parquet(path: str) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(path.removeprefix("file://"))


def test_a_shorter_truncation_is_known_from_the_properties(tmp_path):
    schema = Schema(NestedField(1, "word", StringType()))
    properties = {"write.metadata.metrics.default": "truncate(4)"}
    table = built.simple_table(tmp_path, schema, pa.table({"word": ["abcdefgh", "abc"]}), properties=properties)
    row = file_columns(stats(directory(home(table))))[0, "word"]
    assert (row["min"], row["min_is_exact"], row["max"], row["max_is_exact"]) == ("abc", True, "abce", False)


def test_evolution_keeps_each_snapshot_its_schema(tmp_path):
    table = built.simple_table(tmp_path, Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", StringType())))
    table.append(pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", None]}))
    with table.update_schema() as update:
        update.rename_column("b", "c")
        update.update_column("a", LongType())
        update.add_column("e", DoubleType())
    table.append(pa.table({"a": [2**40], "c": ["y"], "e": [0.5]}))
    table.catalog.close()
    connector = directory(home(table))
    first, second = connector.enumerate_snapshots("default", "t").snapshots
    assert [c.name for c in first.schema.columns] == ["a", "b"]
    assert [c.name for c in second.schema.columns] == ["a", "c", "e"]
    assert (first.parent_snapshot_id, second.parent_snapshot_id) == (None, first.snapshot_id)
    assert (first.operation, first.sequence_number, second.sequence_number) == ("append", 1, 2)
    assert first.ordinal < second.ordinal
    assert live(connector, first.snapshot_id) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    rows = sorted(live(connector), key=lambda row: row["a"])
    assert rows[0] == {"a": 1, "c": "x", "e": None} and rows[2] == {"a": 2**40, "c": "y", "e": 0.5}
    nulls = Counter((c, r["null_count"]) for (_, c), r in file_columns(stats(connector)).items())
    assert nulls == {("a", 0): 2, ("c", 0): 1, ("c", 1): 1, ("e", 0): 1, ("e", 2): 1}
    only = file_columns(stats(connector, columns=frozenset({"c"})))
    assert {c for _, c in only} == {"c"}


# Where tables are.


def with_defaults(table, required: bool = False) -> IcebergConnector:
    """Adds fields to the schema that the table's files were written under, some of them inside of structs."""
    folder = home(table) / "metadata"
    document = json.loads(built.latest(folder).read_text())
    (schema,) = document["schemas"]
    held = schema["fields"][1]
    held["required"] = required
    held["type"]["fields"].append(
        {"id": 10, "name": "y", "type": "long", "required": False, "initial-default": 7, "write-default": 7}
    )
    for field_id, name, default in ((11, "whole", {"initial-default": {}, "write-default": {}}), (13, "empty", {})):
        leaf = {"id": field_id + 1, "name": "z.z", "type": "string", "required": False, "initial-default": "q"}
        schema["fields"].append({
            "id": field_id, "name": name, "required": False, "type": {"type": "struct", "fields": [leaf]}, **default,
        })  # fmt: skip
    built.write_metadata(folder, document)
    return directory(home(table))


NESTED = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "s", StructType(NestedField(3, "x", LongType())))
)  # fmt: skip


def test_defaults_within_structs(tmp_path):
    data = pa.table({"id": [1, 2, 3], "s": [{"x": 1}, None, {"x": None}]})
    connector = with_defaults(built.simple_table(tmp_path, NESTED, data))
    rows = live(connector)
    assert [row["s.y"] for row in rows] == [7, None, 7]  # not where the struct itself is null
    assert {row["whole.z.z"] for row in rows} == {"q"} and {row["empty.z.z"] for row in rows} == {None}
    told = {name: row for (_, name), row in file_columns(stats(connector)).items()}
    inner, whole, empty = told["s.y"], told["whole.z.z"], told["empty.z.z"]
    assert (inner["null_count"], inner["min"], inner["max"], inner["min_is_exact"]) == (None, "7", "7", False)
    assert (whole["null_count"], whole["min"], whole["max"], whole["min_is_exact"]) == (0, "q", "q", True)
    assert (empty["null_count"], empty["min"], empty["max"]) == (3, None, None)


def test_defaults_within_a_struct_that_is_never_null(tmp_path):
    data = pa.table({"id": [1, 2], "s": [{"x": 1}, {"x": None}]})
    connector = with_defaults(built.simple_table(tmp_path, NESTED, data), required=True)
    assert [row["s.y"] for row in live(connector)] == [7, 7]
    (inner,) = (row for (_, name), row in file_columns(stats(connector)).items() if name == "s.y")
    assert (inner["null_count"], inner["min"], inner["min_is_exact"]) == (0, "7", True)


def test_names_with_dots_are_paths_of_their_own(tmp_path):
    schema = Schema(
        NestedField(1, "st", StructType(NestedField(2, "x", LongType()), NestedField(3, "a.b", StringType()))),
        NestedField(4, "st.y", StringType()),
    )
    data = pa.table({"st": [{"x": 1, "a.b": "in"}, None], "st.y": ["beside", "it"]})
    table = built.simple_table(tmp_path, schema, data)
    connector = directory(home(table))
    columns = [column for column in connector.describe("default", "t").schema.columns if column.is_leaf]
    assert len({column.key for column in columns}) == len(columns) == 3
    (task,) = connector.plan_files("default", "t", current(connector), {})
    found = {column.column_id: values.to_pylist() for column, values in read(task, task.columns)}
    by_type = {column.field_id: column.logical_type for column in columns}
    values = {by_type[i]: held for i, held in found.items() if by_type[i] == "INT"}
    assert values == {"INT": [1, None]} and ["beside", "it"] in found.values() and ["in", None] in found.values()
    told = {row["column_id"]: row for table in stats(connector).file_columns() for row in table.to_pylist()}
    assert "it" in {row["max"] for row in told.values()}
    built.commit_deletes(table, built.equality_deletes(table, {"st.y": ["it"]}))
    assert stats(directory(home(table))).row_count == 1


def test_a_moved_table_is_read_by_rewriting(tmp_path, table):
    shutil.move(home(table), tmp_path / "moved" / "t")
    with pytest.raises(UpstreamError, match="missing") as refused:
        stats(directory(tmp_path / "moved"))
    assert str(tmp_path) not in str(refused.value)
    connector = directory(tmp_path / "moved", path_rewrite=f"{home(table)}={tmp_path / 'moved' / 't'}")
    assert stats(connector).row_count == 150
    assert all(Path(path).exists() for path in stats(connector).files["file_path"].to_pylist())


def test_version_hint_wins_over_the_greatest_number(table):
    folder = home(table) / "metadata"
    first = min(folder.glob("00001-*.metadata.json"))
    shutil.copy(first, folder / "v1.metadata.json")
    (folder / "version-hint.text").write_text("1")
    assert stats(directory(home(table))).row_count == 100
    (folder / "version-hint.text").write_text("77")
    assert stats(directory(home(table))).row_count == 150


def test_a_hint_that_lags_behind_is_caught_up_with(table):
    """Writers add the next version, then move the hint on; one may be killed between the two."""
    folder = home(table) / "metadata"
    for number, name in enumerate(sorted(file.name for file in folder.glob("0*.metadata.json"))[1:], 1):
        (folder / name).rename(folder / f"v{number}.metadata.json")
    (folder / "version-hint.text").write_text("1")
    assert stats(directory(home(table))).row_count == 150
    (folder / "v2.metadata.json").rename(folder / "v3.metadata.json")
    assert stats(directory(home(table))).row_count == 100


@pytest.mark.parametrize("name", ["00009-x.gz.metadata.json", "v9.metadata.json.gz"])
def test_metadata_may_be_compressed(table, name):
    folder = home(table) / "metadata"
    (folder / name).write_bytes(gzip.compress(built.latest(folder).read_bytes()))
    for file in folder.glob("0000[0-2]*.metadata.json"):
        file.unlink()
    assert stats(directory(home(table))).row_count == 150


def test_one_metadata_file_is_one_table(table):
    connector = directory(built.latest(home(table) / "metadata"))
    assert (connector.list_namespaces(), connector.list_tables("default")) == (["default"], ["t"])
    assert stats(connector).row_count == 150
    with pytest.raises(NotFound, match="nowhere"):
        directory("/no/nowhere.metadata.json").list_namespaces()


def test_nested_directories_are_dotted_namespaces(tmp_path, table):
    connector = directory(tmp_path / "warehouse")
    assert connector.list_namespaces() == ["db"]
    shutil.copytree(home(table), tmp_path / "lake/x.db/deep/u")
    assert directory(tmp_path / "lake").list_namespaces() == ["x.db.deep"]
    assert directory(tmp_path / "lake").describe("x.db.deep", "u").table_id


def test_a_table_in_trouble_names_itself_and_no_path(tmp_path, table):
    built.latest(home(table) / "metadata").write_text("{broken")
    with pytest.raises(UpstreamError, match=r'table "db.t"') as refused:
        directory(tmp_path / "warehouse").describe("db", "t")
    assert str(tmp_path) not in str(refused.value) and not refused.value.retryable


# Foreign statistics and Puffin.


def with_foreign_statistics(document: dict) -> dict:
    blob = {"snapshot-id": 1, "sequence-number": 1, "fields": [1], "properties": {}}
    document["statistics"] = [{
        "snapshot-id": document["current-snapshot-id"], "statistics-path": "/gone.stats", "file-size-in-bytes": 9,
        "file-footer-size-in-bytes": 9,
        "blob-metadata": [blob | {"type": "presto-sum-data-size-bytes-v1"},
                          blob | {"type": "apache-datasketches-theta-v1"}],
    }]  # fmt: skip
    return document


def test_foreign_blobs_do_not_stop_a_table(tmp_path, table):
    folder = home(table) / "metadata"
    built.write_metadata(folder, with_foreign_statistics(json.loads(built.latest(folder).read_text())))
    native = stats(directory(home(table)))
    assert (native.row_count, list(native.sketches)) == (150, [])


def test_a_variant_column_does_not_stop_a_table(table):
    folder = home(table) / "metadata"
    document = json.loads(built.latest(folder).read_text())
    document["schemas"][0]["fields"].append({"id": 9, "name": "v", "type": "variant", "required": False})
    built.write_metadata(folder, document | {"format-version": 3, "next-row-id": 0, "last-column-id": 9})
    connector = directory(home(table))
    assert connector.describe("default", "t").schema.columns[-1].logical_type == "VARIANT"
    assert {column for _, column in file_columns(stats(connector))} == {"id", "name", "score"}
    assert len(live(connector)) == 150


def sql(root: Path, **options: str) -> IcebergConnector:
    return IcebergConnector(ConnectorConfig("c", "iceberg", f"sqlite:///{root / 'catalog.db'}", options))


def test_publishing_would_not_lose_foreign_statistics(tmp_path, table):
    location = Path(table.metadata_location.removeprefix("file://"))
    location.write_text(json.dumps(with_foreign_statistics(json.loads(location.read_text()))))
    connector = sql(tmp_path)
    assert stats(connector, namespace="db").row_count == 150
    with pytest.raises(StatflightError, match="presto-sum-data-size-bytes-v1"):
        built.publish_thetas(connector, "db", "t", current(connector, "db"), [(1, b"theta", 5)])
    connector.close()


def sketch(count: int) -> bytes:
    return theta(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(1))


def test_sketches_of_the_snapshot_are_its_ndv(tmp_path, table):
    connector = sql(tmp_path)
    snapshot = current(connector, "db")
    built.publish_thetas(connector, "db", "t", snapshot, [(1, sketch(150), 150), (2, sketch(7), 7)])
    built.publish_thetas(connector, "db", "t", snapshot, [(2, sketch(90_000), 90_000), (3, b"not a sketch", 121)])
    native = stats(connector, namespace="db")
    assert {(id, role, data, params["ndv"]) for id, role, _, data, params in native.sketches} == {
        (1, "NDV", sketch(150), "150"), (2, "NDV", sketch(90_000), "90000"),
    }  # fmt: skip
    id, name, score = native.columns.to_pylist()
    assert (id["ndv"], id["ndv_exact"], id["ndv_lower"], id["ndv_upper"]) == (150, True, 150, 150)
    assert name["ndv_lower"] < name["ndv"] < name["ndv_upper"] and name["ndv"] == pytest.approx(90_000, rel=0.05)
    assert (name["ndv_exact"], score["ndv"], score["ndv_lower"]) == (False, 121.0, None)  # as the metadata says
    assert {row["row_count"] for row in (id, name, score)} == {native.row_count}
    older = built_snapshots(connector)[0]
    assert older != snapshot and stats(connector, older, namespace="db").columns is None
    connector.close()


def test_a_blob_carried_over_from_an_older_snapshot_is_not_the_newer_ones(tmp_path, table):
    connector = sql(tmp_path)
    older, newer = built_snapshots(connector)
    built.publish_thetas(connector, "db", "t", newer, [(1, sketch(150), 150)])
    table.refresh()
    (held,) = table.metadata.statistics
    document = held.model_dump(by_alias=True)
    for blob in document["blob-metadata"]:
        blob["snapshot-id"] = older
    with table.update_statistics() as update:
        update.set_statistics(StatisticsFile.model_validate(document))
    native = stats(connector, newer, namespace="db")
    assert native.columns is None and not native.sketches
    connector.close()


def built_snapshots(connector) -> list[int]:
    return [held.snapshot_id for held in connector.enumerate_snapshots("db", "t").snapshots]


# Catalogs.


def test_the_only_catalog_of_a_database_needs_no_name(tmp_path, table):
    connector = sql(tmp_path)
    assert connector.list_namespaces() == ["db"]
    connector.close()


def test_nested_namespaces_of_a_catalog(tmp_path):
    catalog = built.make_catalog(tmp_path)
    for namespace in ("a", "a.b", "empty"):
        catalog.create_namespace(namespace)
    catalog.create_table("a.b.t", ROWS).append(rows(0, 3))
    catalog.close()
    connector = sql(tmp_path, name="lake")
    assert connector.list_namespaces() == ["a.b"]
    assert connector.list_tables("a.b") == ["t"]
    assert stats(connector, namespace="a.b").row_count == 3
    connector.close()


def test_a_sql_uri_without_a_file_makes_none(tmp_path):
    with pytest.raises(NotFound, match="nothing"):
        IcebergConnector(ConnectorConfig("c", "iceberg", f"sqlite:///{tmp_path}/nothing.db")).list_namespaces()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "word"),
    [({"wharehouse": "x"}, "warehouse"), ({"type": "pigeon"}, "pigeon"), ({"path_rewrite": "x"}, "path_rewrite")],
)
def test_wrong_options_are_named(tmp_path, options, word):
    with pytest.raises(InvalidArgument, match=word):
        directory(tmp_path, **options)


def test_properties_of_pyiceberg_pass(tmp_path):
    directory(tmp_path, **{"s3.endpoint": "http://x", "token": "t", "warehouse": "w", "policy": "off"})


@pytest.fixture
def rest(tmp_path, table):
    """A REST catalog of one table, whose metadata lists a foreign blob."""
    document = with_foreign_statistics(json.loads(Path(table.metadata_location.removeprefix("file://")).read_text()))
    answers = {
        "/v1/config": {"defaults": {}, "overrides": {}},
        "/v1/namespaces": {"namespaces": [["db"]]},
        "/v1/namespaces?parent=db": {"namespaces": []},
        "/v1/namespaces/db/tables": {"identifiers": [{"namespace": ["db"], "name": "t"}]},
        "/v1/namespaces/db/tables/t": {"metadata-location": table.metadata_location, "metadata": document},
    }  # fmt: skip
    seen = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers.get("Authorization"))
            path = self.path if self.path in answers else self.path.partition("?")[0]
            body = json.dumps(
                answers.get(path, {"error": {"message": "no", "type": "NoSuchTableException", "code": 404}})
            )
            self.send_response(200 if path in answers else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_rest_catalog(rest):
    uri, seen = rest
    connector = IcebergConnector(ConnectorConfig("c", "iceberg", uri, {"token": "s3cret-token"}))
    assert connector.list_namespaces() == ["db"]
    assert connector.list_tables("db") == ["t"]
    assert stats(connector, namespace="db").row_count == 150
    with pytest.raises(NotFound, match=r"db\.other"):
        connector.describe("db", "other")
    assert "Bearer s3cret-token" in seen
    connector.close()


BASIC = {"type": "basic", "basic": {"username": "ann", "password": "pass-w0rd"}}


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({}, None),
        ({"auth": '{"type": "noop"}'}, None),
        ({"auth.type": "noop"}, None),
        ({"auth": json.dumps(BASIC)}, "Basic YW5uOnBhc3MtdzByZA=="),
        ({"auth.type": "basic", "auth.basic.username": "ann", "auth.basic.password": "pass-w0rd"},
         "Basic YW5uOnBhc3MtdzByZA=="),
        ({"header.authorization": "Custom x"}, "Custom x"),
    ],
)  # fmt: skip
def test_what_a_rest_catalog_is_sent_to_know_us(rest, options, header):
    uri, seen = rest
    connector = IcebergConnector(ConnectorConfig("c", "iceberg", uri, options))
    assert connector.list_namespaces() == ["db"] and stats(connector, namespace="db").row_count == 150
    assert set(seen) == {header}
    connector.close()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"auth": "pass-w0rd"}, "auth: must be a JSON object"),
        ({"auth": '"basic"'}, "auth: must be a JSON object"),
        ({"auth": '{"type": "pigeon"}'}, "type must be one of noop, basic"),
        ({"auth": '{"type": "legacyoauth2"}'}, "use the options token and credential"),
        ({"auth": '{"basic": {}}'}, "type must be one of"),
        ({"auth": '{"type": "basic", "basic": {"username": "ann"}}'}, "password is missing"),
        ({"auth": json.dumps({**BASIC, "oauth2": {}})}, "has no part oauth2"),
        ({"auth": '{"type": "noop", "noop": {"user": "ann"}}'}, "user is unknown; it takes nothing"),
        ({"auth": '{"type": "basic", "basic": "ann:pass-w0rd"}'}, "basic must be an object"),
        ({"auth.type": "custom"}, "impl is missing"),
        ({"auth.type": "basic", "auth.type.x": "y"}, "auth.type.x"),
        ({"ssl": "yes"}, "ssl: must be a JSON object"),
    ],
)
def test_credentials_of_the_wrong_form_are_refused_by_name(options, word):
    with pytest.raises(InvalidArgument, match=re.escape(word)) as refused:
        IcebergConnector(ConnectorConfig("c", "iceberg", "http://127.0.0.1:9", options))
    assert "pass-w0rd" not in str(refused.value)


def test_an_unreachable_catalog_may_be_tried_again(monkeypatch):
    monkeypatch.setattr("capture.connectors.retry.ATTEMPTS", 2)
    connector = IcebergConnector(ConnectorConfig("c", "iceberg", "http://127.0.0.1:9", {"token": "s3cret-token"}))
    with pytest.raises(UpstreamError, match="cannot be reached") as refused:
        connector.list_namespaces()
    assert refused.value.retryable and "s3cret" not in str(refused.value)


def test_partition_values_stand_in_for_columns_that_files_lack(tmp_path):
    import pyarrow.parquet as pq

    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    data = pa.table({"id": [1, 2], "day": pa.array([date(2024, 1, 5)] * 2, pa.date32())})
    table = built.simple_table(tmp_path, schema, data, partition_spec=spec)
    ((path, partition),) = built.data_paths(table)
    local = Path(path.removeprefix("file://"))
    pq.write_table(pq.read_table(local, partitioning=None).drop_columns(["day"]), local)
    assert live(directory(home(table))) == [{"id": 1, "day": date(2024, 1, 5)}, {"id": 2, "day": date(2024, 1, 5)}]
    assert partition == Record((date(2024, 1, 5) - date(1970, 1, 1)).days)
    (told,) = stats(directory(home(table))).files.to_pylist()
    assert told["partition_data_json"] == '{"day": "2024-01-05"}'


def test_sql_catalog_of_another_process_is_not_touched(tmp_path, table):
    before = (tmp_path / "catalog.db").read_bytes()
    connector = sql(tmp_path)
    stats(connector, namespace="db")
    connector.close()
    assert (tmp_path / "catalog.db").read_bytes() == before
    assert isinstance(built.make_catalog(tmp_path), SqlCatalog)
