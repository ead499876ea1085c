"""Manifests with the typed metrics of Iceberg v4, made of manifests that pyiceberg wrote."""

from __future__ import annotations

from typing import Any

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import BooleanType, IntegerType, LongType, NestedField, StringType, StructType

from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import ROWS, directory, file_columns, home, rows, stats

METRIC_MAPS = {108, 109, 110, 125, 128, 137}  # of v1 to v3


def column(field_id: int, type: Any, required: bool = False, strings: bool = False) -> NestedField:
    """The struct of a column in `content_stats`."""
    base = 10_000 + 200 * field_id
    fields = [
        NestedField(base + 1, "lower_bound", type),
        NestedField(base + 2, "upper_bound", type),
        NestedField(base + 3, "tight_bounds", BooleanType()),
        NestedField(base + 4, "value_count", LongType()),
    ]
    if not required:
        fields.append(NestedField(base + 5, "null_value_count", LongType()))
    if strings:
        fields.append(NestedField(base + 7, "avg_value_size_in_bytes", IntegerType()))
    return NestedField(base, f"c{field_id}", StructType(*fields))


def rewritten(path: str, stats_of: StructType, values: dict[int, list[Any]]) -> None:
    """Replaces the maps of a manifest by `content_stats`, the same for each file."""
    io = PyArrowFileIO()
    with AvroFile[Any](io.new_input(path)) as reader:
        schema, metadata = reader.schema, {k: v for k, v in reader.header.meta.items() if not k.startswith("avro.")}
        entries = list(reader)
    at = next(i for i, item in enumerate(schema.fields) if item.field_id == 2)
    file = schema.fields[at].field_type
    kept = [i for i, item in enumerate(file.fields) if item.field_id not in METRIC_MAPS]
    typed = StructType(*(file.fields[i] for i in kept), NestedField(146, "content_stats", stats_of))
    fields = list(schema.fields)
    fields[at] = fields[at].model_copy(update={"field_type": typed})
    whole = Record(
        *(None if (given := values.get(item.field_id)) is None else Record(*given) for item in stats_of.fields)
    )
    for entry in entries:
        entry[at] = Record(*(entry[at][i] for i in kept), whole)
    with AvroOutputFile[Any](io.new_output(path), Schema(*fields), "manifest_entry", metadata=metadata) as writer:
        writer.write_block(entries)


def test_typed_metrics_are_read(tmp_path):
    table = built.simple_table(tmp_path, ROWS, rows(0, 50))
    (manifest,) = table.current_snapshot().manifests(table.io)
    rewritten(
        manifest.manifest_path,
        StructType(
            column(1, LongType(), required=True),
            column(2, StringType(), strings=True),
        ),
        {10_200: [-7, 99, False, 50], 10_400: ["a", "zz", True, 50, 10, 4]},
    )
    found = {name: row for (_, name), row in file_columns(stats(directory(home(table)))).items()}
    of_id, of_name, of_score = (found[name] for name in ("id", "name", "score"))
    assert (of_id["min"], of_id["max"], of_id["null_count"], of_id["min_is_exact"]) == ("-7", "99", 0, False)
    assert (of_name["min"], of_name["max"], of_name["null_count"], of_name["max_is_exact"]) == ("a", "zz", 10, True)
    assert of_score["min"] == "0", "a column without metrics is read from the footer"
