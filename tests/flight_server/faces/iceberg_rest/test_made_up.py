"""Metadata that is made up, as pyiceberg's models read it, and the partition values of plans."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.name_mapping import parse_mapping_from_json

from flight_server.faces.iceberg_rest.made_up import (
    Columns,
    delta_type,
    document,
    iceberg_type,
    spec_id,
    struct_of,
    totals,
)
from flight_server.faces.iceberg_rest.partitions import result_type, single_value
from flight_server.planning.scan_plan import FileTotals
from store.model.errors import Unimplemented


def field(name: str, type, **metadata) -> dict:
    return {"name": name, "type": type, "nullable": True, "metadata": metadata}


def struct(*fields: dict) -> dict:
    return {"type": "struct", "fields": list(fields)}


PHYSICAL = "delta.columnMapping.physicalName"
POINT = struct(field("x", "double"), field("tags", {"type": "array", "elementType": "string", "containsNull": True}))
DELTA = struct(
    field("id", "long"),
    field("day", "date"),
    field("price", "decimal(10,2)"),
    field("at", "timestamp"),
    field("points", {"type": "array", "elementType": POINT}),
    field("raw", "variant"),
    field("by_name", {"type": "map", "keyType": "string", "valueType": "integer"}),
    field("region", "string"),
)


def mapped(metadata: TableMetadataV2, *path: str) -> int:
    """The field id of names in the name mapping."""
    fields = parse_mapping_from_json(metadata.properties["schema.name-mapping.default"]).root
    for name in path:
        found = next(field for field in fields if name in field.names)
        fields = found.fields
    return found.field_id


def made(columns: Columns, partition: list[str], *patterns: list[bool]) -> TableMetadataV2:
    found = document(
        columns,
        columns.partition(partition),
        patterns,
        table_id="not a uuid",
        location="file:///t",
        snapshot_id=1,
        committed_at=datetime(2026, 1, 1, tzinfo=UTC),
        totals={"total-records": "7"},
    )
    return TableMetadataV2.model_validate_json(json.dumps(found))


def test_metadata_of_a_delta_table():
    columns = Columns(DELTA, delta_type)
    metadata = made(columns, ["region", "day"], [False, True], [True, True])
    assert str(metadata.schema().find_type("price")) == "decimal(10, 2)"
    assert str(metadata.schema().find_type("points.element.tags.element")) == "string"
    assert str(metadata.schema().find_type("by_name.value")) == "int"
    assert json.loads(metadata.properties["statflight.columns-left-out"]) == ["raw"] == columns.left_out
    for name in ("id", "points.element.tags.element", "by_name.key"):
        assert mapped(metadata, *name.split(".")) == metadata.schema().find_field(name).field_id
    for name in ("raw", "region", "day"):  # of a partition's column a file's own values, if any, do not count
        assert mapped(metadata, name) not in metadata.schema().field_ids  # pyiceberg refuses columns without an entry
    assert {spec.spec_id: [part.name for part in spec.fields] for spec in metadata.partition_specs} == {
        0: ["region", "day"],
        spec_id([False, True]): ["region"],
        spec_id([True, True]): [],
    }
    assert metadata.current_snapshot().snapshot_id == 1 and metadata.default_spec_id == 0
    for place in ("data", "metadata"):
        assert not metadata.properties[f"write.{place}.path"].startswith(metadata.location), "writers would write there"


def test_ids_and_physical_names_of_mapped_columns():
    about = {"delta.columnMapping.id": 7, "delta.columnMapping.physicalName": "col-7"}
    inner = {"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "col-9"}
    struct_ = struct(
        field("renamed", {"type": "array", "elementType": "long"}, **about),
        field("s", struct(field("a", "long", **inner))),
    )
    metadata = made(Columns(struct_, delta_type), [])
    ids = {name: metadata.schema().find_field(name).field_id for name in ("renamed", "renamed.element", "s", "s.a")}
    assert ids["renamed"] == 7 and ids["s.a"] == 9 and len(set(ids.values())) == 4
    assert mapped(metadata, "col-7") == 7 and mapped(metadata, "s", "col-9") == 9


def test_columns_of_a_parquet_table():
    stored = [
        ["id", "INT", False, None],
        ["s", "STRUCT", True, None, ["s"]],
        ["s.a.b", "TIMESTAMP(6)", True, None, ["s", "a.b"]],
        ["list", "ARRAY", True, None, ["list"]],
        ["price", "DECIMAL(12,3)", True, None],
        ["big", "DECIMAL(50,3)", True, None],
        ["only", "STRUCT", True, None, ["only"]],
        ["only.m", "MAP", True, None, ["only", "m"]],
    ]
    columns = Columns(struct_of(stored), iceberg_type)
    assert columns.left_out == ["list", "big", "only.m", "only"]
    schema = made(columns, []).schema()
    assert [str(schema.find_type(name)) for name in ("id", "price")] == ["long", "decimal(12, 3)"]
    assert (
        str(schema.find_type("s").fields[0].field_type) == "timestamp" and schema.find_type("s").fields[0].name == "a.b"
    )


def test_what_iceberg_cannot_express_is_refused():
    with pytest.raises(Unimplemented, match="raw"):
        Columns(struct(field("raw", "variant")), delta_type)
    for name in ("points", "nosuch"):
        with pytest.raises(Unimplemented, match=name):
            Columns(DELTA, delta_type).partition([name])


@pytest.mark.parametrize(
    ("value", "type", "text", "internal"),
    [
        (5, "int", 5, 5),
        ("5", "long", 5, 5),
        (None, "date", None, None),
        ("true", "boolean", True, True),
        ("2026-01-02", "date", "2026-01-02", 20455),
        ("1969-12-31", "date", "1969-12-31", -1),
        ("2026-01-02T03:04:05.000006", "timestamp", "2026-01-02T03:04:05.000006", 1767323045000006),
        ("2026-01-02T03:04:05Z", "timestamptz", "2026-01-02T03:04:05+00:00", 1767323045000000),
        ("00:00:01.5", "time", "00:00:01.5", 1500000),
        ("12.50", "decimal(9, 2)", "12.50", "12.50"),
        ("12.00", "decimal(9, 2)", "12.00", 12),
        ("YWI=", "binary", "6162", "6162"),
        ("a b", "string", "a b", "a b"),
        ("1.5", "double", 1.5, 1.5),
        ("12345678901234567.25", "decimal(20, 2)", "12345678901234567.25", "12345678901234567.25"),
        ("9" * 38, "decimal(38, 0)", "9" * 38, 10**38 - 1),
    ],
)
def test_partition_values(value, type, text, internal):
    assert single_value(value, type, internal=False) == text
    assert single_value(value, type, internal=True) == internal


def test_a_partition_value_that_json_lacks_is_refused():
    for value, type in (("NaN", "double"), ("Infinity", "double"), ("word", "double"), ("word", "decimal(9, 2)")):
        with pytest.raises(Unimplemented, match=value):
            single_value(value, type, internal=True)


def test_types_of_transforms():
    pairs = [("bucket[4]", "int"), ("truncate[2]", "long"), ("day", "date"), ("year", "int"), ("identity", "long")]
    assert [result_type(transform, "long") for transform, _ in pairs] == [type for _, type in pairs]
    assert result_type("void", None) == "string"


def test_totals_are_texts_and_unknown_ones_are_left_out():
    counted = {"total-data-files": "2", "total-delete-files": "0"}
    known = {"total-records": "7", "total-files-size": str(2**63)}
    assert totals(FileTotals(2, 7, 2**63, False, ())) == counted | known
    assert totals(FileTotals(2, None, None, False, ())) == counted
    assert set(totals(FileTotals(0, 0, 0, False, ())).values()) == {"0"}


@pytest.mark.parametrize(
    "others",
    [
        [field("a.b", "long"), field("a", struct(field("b", "long")))],
        [field("a", {"type": "array", "elementType": "long"}), field("a.element", "string")],
        [field("a", struct(field("b.c", "long"), field("b", struct(field("c", "long")))))],
        [
            field("a", "long", **{PHYSICAL: "x.y"}),
            field("b", struct(field("z", "long", **{PHYSICAL: "y"})), **{PHYSICAL: "x"}),
        ],
    ],
)
def test_columns_that_share_a_full_name_are_left_out(others):
    columns = Columns(struct(field("id", "long"), *others, field("b.a", "long")), delta_type)
    metadata = made(columns, [])
    assert [field.name for field in metadata.schema().fields] == ["id", "b.a"]
    assert columns.left_out == [other["name"] for other in others]
    names = parse_mapping_from_json(metadata.properties["schema.name-mapping.default"]).root
    assert [field.names for field in names] == [["id"], ["b.a"]]
