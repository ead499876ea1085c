"""Descriptions of tables and comments of columns, in each format that has them, written by the format's library."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq

from capture.connectors import open_connector
from capture.connectors.metadata.comments import comments_in
from capture.connectors.spi import ConnectorConfig
from capture.inspection import look_at_table

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "who": pa.array([{"name": "a"}, {"name": "b"}])})
SPARK = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {"comment": "its number"}},
        {
            "name": "who",
            "nullable": True,
            "metadata": {},
            "type": {
                "type": "struct",
                "fields": [
                    {"name": "name", "type": "string", "nullable": True, "metadata": {"comment": "as in the passport"}}
                ],
            },
        },
    ],
}
COMMENTS = {"id": "its number", "who.name": "as in the passport"}


def look(tmp_path, format: str, namespace: str = "default", name: str = "t") -> tuple[str | None, dict[str, str]]:
    connector = open_connector(ConnectorConfig("lake", format, str(tmp_path)))
    found = look_at_table(connector, namespace, name)
    connector.close()
    return found["description"], found["comments"]


def test_delta(tmp_path):
    from deltalake import Schema, write_deltalake

    schema = pa.schema(Schema.from_json(json.dumps(SPARK)))
    write_deltalake(tmp_path / "t", ROWS.cast(schema), description="people")
    assert look(tmp_path, "delta") == ("people", COMMENTS)


def test_iceberg(tmp_path):
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType, StructType

    from tests.capture.connectors import iceberg_tables as built

    name = NestedField(3, "name", StringType(), required=False, doc="as in the passport")
    who = NestedField(2, "who", StructType(name), required=False)
    schema = Schema(NestedField(1, "id", LongType(), required=False, doc="its number"), who)
    catalog = built.make_catalog(tmp_path)
    catalog.create_namespace("db")
    catalog.create_table("db.t", schema, properties={"comment": "people"})
    connector = open_connector(
        ConnectorConfig(
            "c",
            "iceberg",
            f"sqlite:///{tmp_path / 'catalog.db'}",
            {"type": "sql", "name": "lake", "warehouse": f"file://{tmp_path / 'warehouse'}"},
        )
    )
    found = look_at_table(connector, "db", "t")
    connector.close()
    assert (found["description"], found["comments"]) == ("people", COMMENTS)


def test_paimon(tmp_path):
    from pypaimon import CatalogFactory, Schema

    catalog = CatalogFactory.create({"warehouse": str(tmp_path)})
    catalog.create_database("sales", True)
    schema = Schema.from_pyarrow_schema(ROWS.schema, comment="people")
    schema.fields[0].description = "its number"
    catalog.create_table("sales.t", schema, False)
    assert look(tmp_path, "paimon", "sales") == ("people", {"id": "its number"})


def test_parquet_written_by_spark(tmp_path):
    (tmp_path / "t").mkdir()
    said = {"org.apache.spark.sql.parquet.row.metadata": json.dumps(SPARK)}
    pq.write_table(ROWS.replace_schema_metadata(said), tmp_path / "t" / "a.parquet")
    assert look(tmp_path, "parquet") == (None, COMMENTS)


def test_what_is_no_schema_has_no_comments():
    for text in (None, "", "[", "[]", "3", '{"fields": 3}', '{"fields": [{"doc": "x"}]}', b"\xff"):
        assert comments_in(text) == {}
