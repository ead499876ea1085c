"""Schemas of Iceberg tables: types, nested leaves, evolution, default values."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from capture.compute.readers.tasks import read
from capture.connectors.iceberg.connector import IcebergConnector
from capture.connectors.iceberg.schema import partition_json
from store.model.errors import NotFound
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import NESTED, current, directory, file_columns, home, live, stats


def test_describe_returns_types_leaves_constraints_and_partition_keys(tmp_path):
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "at", TimestamptzType()),
        NestedField(
            3,
            "place",
            StructType(
                NestedField(4, "lat", FloatType(), required=True),
                NestedField(5, "inner", StructType(NestedField(6, "word", StringType()))),
            ),
            required=False,
        ),
        NestedField(7, "tags", ListType(8, StringType())),
        NestedField(9, "money", DecimalType(9, 2)),
        identifier_field_ids=[1],
    )
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "id"), PartitionField(2, 1001, DayTransform(), "at_day")
    )
    table = built.simple_table(tmp_path, schema, partition_spec=spec, properties={"owner": "me"})
    connector = directory(home(table))
    described = connector.describe("default", "t")
    assert [(c.name, c.logical_type, c.nullable) for c in described.schema.columns] == [
        ("id", "INT", False),
        ("at", "TIMESTAMPTZ", True),
        ("place", "STRUCT", True),
        ("place.lat", "FLOAT", True),
        ("place.inner", "STRUCT", True),
        ("place.inner.word", "STRING", True),
        ("tags", "ARRAY", True),
        ("money", "DECIMAL(9,2)", True),
    ]
    assert [(c.kind, c.columns, c.clause) for c in described.constraints] == [
        ("PRIMARY KEY", ("id",), None),
        ("CHECK", ("id",), "id IS NOT NULL"),
    ]
    assert described.partition_keys == ("id", "day(at)")
    assert described.properties["owner"] == "me"
    assert described.table_id == str(table.metadata.table_uuid)
    listing = connector.enumerate_snapshots("default", "t")
    assert (listing.snapshots, listing.current_snapshot_id) == ((), None)
    with pytest.raises(NotFound, match="snapshot 7"):
        stats(connector, 7)


def test_snapshots_keep_their_schema_after_evolution(tmp_path):
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


def with_defaults(table, required: bool = False) -> IcebergConnector:
    """Adds fields to the schema of the table's existing files, some of them inside structs."""
    folder = home(table) / "metadata"
    document = json.loads(built.latest(folder).read_text())
    (schema,) = document["schemas"]
    struct = schema["fields"][1]
    struct["required"] = required
    struct["type"]["fields"].append(
        {"id": 10, "name": "y", "type": "long", "required": False, "initial-default": 7, "write-default": 7}
    )
    for field_id, name, default in ((11, "whole", {"initial-default": {}, "write-default": {}}), (13, "empty", {})):
        leaf = {"id": field_id + 1, "name": "z.z", "type": "string", "required": False, "initial-default": "q"}
        schema["fields"].append(
            {
                "id": field_id,
                "name": name,
                "required": False,
                "type": {"type": "struct", "fields": [leaf]},
                **default,
            }
        )
    built.write_metadata(folder, document)
    return directory(home(table))


def test_initial_defaults_within_structs_are_read(tmp_path):
    data = pa.table({"id": [1, 2, 3], "s": [{"x": 1}, None, {"x": None}]})
    connector = with_defaults(built.simple_table(tmp_path, NESTED, data))
    rows = live(connector)
    assert [row["s.y"] for row in rows] == [7, None, 7]  # null where the struct itself is null
    assert {row["whole.z.z"] for row in rows} == {"q"} and {row["empty.z.z"] for row in rows} == {None}
    by_name = {name: row for (_, name), row in file_columns(stats(connector)).items()}
    inner, whole, empty = by_name["s.y"], by_name["whole.z.z"], by_name["empty.z.z"]
    assert (inner["null_count"], inner["min"], inner["max"], inner["min_is_exact"]) == (None, "7", "7", False)
    assert (whole["null_count"], whole["min"], whole["max"], whole["min_is_exact"]) == (0, "q", "q", True)
    assert (empty["null_count"], empty["min"], empty["max"]) == (3, None, None)


def test_initial_defaults_within_a_required_struct_are_exact(tmp_path):
    data = pa.table({"id": [1, 2], "s": [{"x": 1}, {"x": None}]})
    connector = with_defaults(built.simple_table(tmp_path, NESTED, data), required=True)
    assert [row["s.y"] for row in live(connector)] == [7, 7]
    (inner,) = (row for (_, name), row in file_columns(stats(connector)).items() if name == "s.y")
    assert (inner["null_count"], inner["min"], inner["min_is_exact"]) == (0, "7", True)


def test_columns_with_dots_in_their_names_are_distinguished(tmp_path):
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
    values = {by_type[i]: numbers for i, numbers in found.items() if by_type[i] == "INT"}
    assert values == {"INT": [1, None]} and ["beside", "it"] in found.values() and ["in", None] in found.values()
    by_id = {row["column_id"]: row for table in stats(connector).file_columns() for row in table.to_pylist()}
    assert "it" in {row["max"] for row in by_id.values()}
    built.commit_deletes(table, built.equality_deletes(table, {"st.y": ["it"]}))
    assert stats(directory(home(table))).row_count == 1


def test_variant_column_does_not_stop_a_capture(table):
    folder = home(table) / "metadata"
    document = json.loads(built.latest(folder).read_text())
    document["schemas"][0]["fields"].append({"id": 9, "name": "v", "type": "variant", "required": False})
    built.write_metadata(folder, document | {"format-version": 3, "next-row-id": 0, "last-column-id": 9})
    connector = directory(home(table))
    assert connector.describe("default", "t").schema.columns[-1].logical_type == "VARIANT"
    assert {column for _, column in file_columns(stats(connector))} == {"id", "name", "score"}
    assert len(live(connector)) == 150


def test_files_without_field_ids_are_read_by_the_name_mapping(tmp_path):
    schema = pa.schema({"a": pa.int64(), "s": pa.struct({"x": pa.int64()}), "b": pa.string()})
    catalog = built.make_catalog(tmp_path)
    catalog.create_namespace("default")
    table = catalog.create_table("default.t", schema)
    path = tmp_path / "written_by_another.parquet"
    pq.write_table(pa.table([["u", "v"], [{"x": 3}, None], [1, 2]], ["b", "s", "a"]), path)
    table.add_files([str(path)])
    with table.update_schema() as update:
        update.rename_column("a", "number")
        update.rename_column("s.x", "y")
        update.add_column("later", StringType())
    first, second = live(directory(home(table)))
    assert first == {"number": 1, "s.y": 3, "b": "u", "later": None}
    assert second == {"number": 2, "s.y": None, "b": "v", "later": None}


@pytest.mark.parametrize(
    ("type", "transform", "value", "expected"),
    [
        (BinaryType(), TruncateTransform(2), b"", ""),
        (BinaryType(), TruncateTransform(2), b"\xff\x00", "/wA="),
        (StringType(), TruncateTransform(2), "", ""),
        (StringType(), IdentityTransform(), None, None),
    ],
)
def test_partition_values_are_canonical_texts(type, transform, value, expected):
    spec = PartitionSpec(PartitionField(1, 1000, transform, "part"))
    found = partition_json(spec, Schema(NestedField(1, "source", type)), (value,))
    assert json.loads(found) == {"part": expected}
