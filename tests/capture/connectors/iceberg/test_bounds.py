"""Bounds and counts of Iceberg columns, from manifests, footers and partitions."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    UUIDType,
)

from capture.connectors.footers.leaf_types import FooterLeaf
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import NESTED, directory, file_columns, home, live, stats


def test_bounds_of_each_type_and_their_exactness(tmp_path):
    schema = Schema(
        NestedField(1, "flag", BooleanType()),
        NestedField(2, "n", IntegerType()),
        NestedField(3, "x", DoubleType()),
        NestedField(4, "d", DateType()),
        NestedField(5, "t", TimestampType()),
        NestedField(6, "m", DecimalType(10, 2)),
        NestedField(7, "short", StringType()),
        NestedField(8, "long", StringType()),
        NestedField(9, "b", BinaryType()),
        NestedField(10, "u", UUIDType()),
        NestedField(11, "none", StringType()),
    )
    data = pa.table(
        {
            "flag": [True, False, None],
            "n": pa.array([-5, 7, None], pa.int32()),
            "x": [-0.0, math.nan, 1e7],
            "d": [date(1969, 12, 31), date(2024, 2, 29), None],
            "t": pa.array([datetime(2024, 1, 1, 0, 0, 0, 120000), None, None], pa.timestamp("us")),
            "m": pa.array([Decimal("1.50"), Decimal("-2.25"), None], pa.decimal128(10, 2)),
            "short": ["é", "", None],
            "long": ["é" * 20, "a" * 16, None],
            "b": [b"\x00\xff", b"\x01", None],
            "u": pa.array([bytes(16), bytes([255] * 16), None], pa.binary(16)).cast(pa.uuid()),
            "none": pa.array([None] * 3, pa.string()),
        }
    )
    table = built.simple_table(tmp_path, schema, data)
    found = file_columns(stats(directory(home(table))))
    bounds = {
        c: (r["min"], r["min_is_exact"], r["max"], r["max_is_exact"], r["null_count"]) for (_, c), r in found.items()
    }
    zeros, ones = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
    assert bounds["flag"] == ("false", True, "true", True, 1)
    assert bounds["n"] == ("-5", True, "7", True, 1)
    assert bounds["x"] == ("0", True, "1.0E7", True, 0)
    assert found[0, "x"]["nan_count"] is None
    assert bounds["d"] == ("1969-12-31", True, "2024-02-29", True, 1)
    assert bounds["t"] == ("2024-01-01T00:00:00.12", True, "2024-01-01T00:00:00.12", True, 2)
    assert bounds["m"] == ("-2.25", True, "1.5", True, 1)
    assert bounds["short"] == ("", None, "é", None, 1)
    assert bounds["long"][0] == "a" * 16 and not bounds["long"][1]
    assert bounds["long"][2] > "é" * 15 and not bounds["long"][3]
    assert bounds["b"][:2] == ("AP8=", None) and not bounds["b"][3]
    assert bounds["u"] == (zeros, True, ones, True, 1)
    assert bounds["none"] == (None, None, None, None, 3)
    assert {c for _, c in found} == set(data.column_names)


def test_a_promoted_column_beside_others_of_its_type(tmp_path):
    schema = Schema(NestedField(1, "was_int", IntegerType()), NestedField(2, "n", LongType()))
    table = built.simple_table(
        tmp_path, schema, pa.table({"was_int": pa.array([-5, 7], pa.int32()), "n": pa.array([1 << 40, None])})
    )
    with table.update_schema() as change:
        change.update_column("was_int", LongType())
    table.append(pa.table({"was_int": [1 << 40], "n": [2]}))
    found = file_columns(stats(directory(home(table)))).items()
    bounds = {
        c: {(r["min"], r["min_is_exact"], r["max"], r["max_is_exact"]) for (_, of), r in found if of == c}
        for c in ("was_int", "n")
    }
    most = str(1 << 40)
    assert bounds["was_int"] == {("-5", True, "7", True), (most, True, most, True)}
    assert bounds["n"] == {("2", True, "2", True), (most, True, most, True)}


def test_metrics_missing_in_manifests_come_from_footers(tmp_path):
    properties = {"write.metadata.metrics.default": "none", "write.metadata.metrics.column.id": "full"}
    table = built.simple_table(tmp_path, NESTED, name="db.t", properties=properties)
    table = built.make_catalog(tmp_path).load_table("db.t")
    table.append(pa.table({"id": [1, 2, 3], "s": [{"x": 5}, None, {"x": 2**40}]}))
    with table.update_schema() as update:
        update.add_column("later", StringType())
    table.append(pa.table({"id": [4], "s": [{"x": 9}], "later": ["z"]}))
    connector = directory(home(table))
    metrics = {
        (name, row["min"], row["max"], row["null_count"], row["min_is_exact"])
        for (_, name), row in file_columns(stats(connector)).items()
    }
    assert metrics == {
        ("id", "1", "3", 0, True),
        ("id", "4", "4", 0, True),
        ("later", "z", "z", 0, True),
        ("later", None, None, 3, None),
        ("s.x", "5", "1099511627776", 1, True),
        ("s.x", "9", "9", 0, True),
    }
    sizes = {
        (name, row["row_count"]): row["bytes_scanned"] for (_, name), row in file_columns(stats(connector)).items()
    }
    assert sizes.pop(("later", 3)) == 0 and all(size > 0 for size in sizes.values())
    first = next(path for path, _ in built.data_paths(table) if len(read_parquet(path)) == 3)
    built.commit_deletes(table, built.position_deletes(table, [(first, 0)]))
    cut = [
        row
        for (_, name), row in file_columns(stats(directory(home(table)))).items()
        if name == "s.x" and row["row_count"] == 2
    ]
    assert [(row["min"], row["null_count"], row["min_is_exact"]) for row in cut] == [("5", None, False)]
    Path(first.removeprefix("file://")).write_bytes(b"broken")
    lost = {name for (_, name), row in file_columns(stats(directory(home(table)))).items() if row["null_count"] is None}
    assert "s.x" in lost and "id" not in lost


def test_columns_of_a_footer_are_looked_up_without_a_walk_for_each(tmp_path, monkeypatch):
    names = [f"c{number}" for number in range(60)]
    schema = Schema(*(NestedField(at, name, LongType()) for at, name in enumerate(names, 1)))
    properties = {"write.metadata.metrics.default": "none"}
    table = built.simple_table(tmp_path, schema, name="db.t", properties=properties)
    table.append(pa.table({name: [at] for at, name in enumerate(names)}))
    reads = []
    is_leaf = FooterLeaf.is_leaf.fget
    monkeypatch.setattr(FooterLeaf, "is_leaf", property(lambda leaf: reads.append(leaf.name) or is_leaf(leaf)))
    found = file_columns(stats(directory(home(table))))
    assert {name: row["min"] for (_, name), row in found.items()} == {name: str(at) for at, name in enumerate(names)}
    assert 0 < len(reads) <= 10 * len(names)


def read_parquet(path: str) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(path.removeprefix("file://"))


@pytest.mark.parametrize("written_with", ["truncate(4)", "TRUNCATE(4)"])
@pytest.mark.parametrize("kept", [True, False])
def test_bounds_cut_by_a_property_that_is_gone_are_not_exact(tmp_path, written_with, kept):
    schema = Schema(NestedField(1, "word", StringType()), NestedField(2, "one", StringType()))
    properties = {"write.metadata.metrics.default": "truncate(4)"}
    data = pa.table({"word": ["abcdefgh", "abc"], "one": ["x", "x"]})
    table = built.simple_table(tmp_path, schema, data, properties=properties)
    with table.transaction() as transaction:
        transaction.remove_properties("write.metadata.metrics.default")
        if kept:
            transaction.set_properties({"write.metadata.metrics.default": written_with})
    found = file_columns(stats(directory(home(table))))
    row = found[0, "word"]
    assert (row["min"], row["min_is_exact"], row["max"], row["max_is_exact"]) == ("abc", None, "abce", None)
    row = found[0, "one"]
    assert (row["min"], row["min_is_exact"], row["max"], row["max_is_exact"]) == ("x", True, "x", True)


def test_partition_values_replace_columns_missing_in_files(tmp_path):
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
    (file,) = stats(directory(home(table))).files.to_pylist()
    assert file["partition_data_json"] == '{"day": "2024-01-05"}'


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"value_counts": {3: 2}, "null_value_counts": {3: 0}}, 2),
        ({"value_counts": {3: 3}, "null_value_counts": {3: 1}}, 2),
        ({"value_counts": {3: 4}, "null_value_counts": {3: 2}}, 2),
        ({"null_value_counts": {3: 2}}, 2),
        ({"value_counts": {3: 2}}, None),
        ({"value_counts": {1: 3, 3: 2}, "null_value_counts": {1: 1, 3: 0}}, 2),
    ],
)
def test_rows_of_null_structs_that_counts_leave_out_are_null(tmp_path, counts, expected):
    """Iceberg's Java library counts floats as it writes them, and writes nothing within a null struct."""
    import pyarrow.parquet as pq

    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "s", StructType(NestedField(3, "x", DoubleType())))
    )
    data = pa.table({"id": range(4), "s": [None, {"x": 1.5}, {"x": 2.5}, None]})
    table = built.simple_table(tmp_path, schema)
    path = tmp_path / "data.parquet"
    pq.write_table(data, path, write_statistics=False)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=4,
        file_size_in_bytes=path.stat().st_size,
        **counts,
    )
    file.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(file)
    found = file_columns(stats(directory(home(table))))
    assert found[0, "s.x"]["null_count"] == expected
    assert found[0, "id"]["null_count"] == counts.get("null_value_counts", {}).get(1)  # a column is in no struct


def test_partition_values_in_nanoseconds(tmp_path):
    """Written as whole numbers, since pyiceberg writes no such columns, and named timestamp_ns afterwards."""
    table = built.simple_table(
        tmp_path,
        Schema(NestedField(1, "at", LongType()), NestedField(2, "n", LongType())),
        name="db.t",
        properties={"write.metadata.metrics.default": "none"},
        partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "at")),
    )
    whole, beyond = (int(datetime(2026, 3, 5, tzinfo=UTC).timestamp()) * 10**9 + rest for rest in (1000, 1))
    table.append(pa.table({"at": [whole, whole, beyond], "n": [1, 2, 3]}))
    document = json.loads(built.latest(home(table) / "metadata").read_text())
    document["format-version"] = 3
    document["schemas"][0]["fields"][0]["type"] = "timestamp_ns"
    built.write_metadata(home(table) / "metadata", document | {"next-row-id": 0})
    for path in table.inspect.data_files()["file_path"].to_pylist():
        Path(path.removeprefix("file://")).write_bytes(b"without a footer")
    connector = directory(home(table))
    found = stats(connector)
    day = "2026-03-05T00:00:00.00000"
    columns = [row for (_, name), row in file_columns(found).items() if name == "at"]
    assert sorted((str(row["min"]), str(row["max"]), row["row_count"]) for row in columns) == [
        (f"{day}1", f"{day}1", 2),
        ("None", "None", 1),
    ]
    texts = {json.loads(row["partition_data_json"])["at"] for row in found.files.to_pylist()}
    assert texts == {f"{day}1", "2026-03-05T00:00:00"}
