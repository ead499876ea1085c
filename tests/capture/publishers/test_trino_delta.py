"""The `trino` home: extended statistics of Delta tables, HyperLogLogs in airlift's bytes."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from capture.connectors.spi import ConnectorConfig
from capture.publishers.publishing import publish
from capture.publishers.spi import ColumnStatistics
from store.model.sketches.airlift_hll import HyperLogLog, hash_bytes, hash_longs, hash_values
from tests.capture.publishers.contract import PublisherContract, Table, rows

GOLDEN = Path(__file__).parents[2] / "golden/airlift_hll.jsonl"


def built(root: Path, table: pa.Table, **options: object) -> Table:
    path = root / "events"
    write_deltalake(path, table, **options)
    return Table("trino", ConnectorConfig("c", "delta", str(root)), "default", "events", path, table)


def document(table: Table) -> dict:
    return json.loads((table.path / "_delta_log/_trino_meta/extended_stats.json").read_text())


class TestContract(PublisherContract):
    reads_counts = False  # a HyperLogLog is estimated with bias tables that only readers need

    def build(self, root: Path) -> Table:
        return built(root, rows(0, 150))

    def append(self, table: Table, more: pa.Table) -> None:
        write_deltalake(table.path, more, mode="append")

    def count(self, table: Table) -> int:
        return DeltaTable(table.path).to_pyarrow_table().num_rows


@pytest.mark.parametrize("vector", [json.loads(line) for line in GOLDEN.read_text().splitlines()], ids=lambda v: v["n"])
def test_bytes_equal_those_of_the_java_library(vector):
    values = pa.array(np.arange(vector["n"]) * 7 + 3)
    whole, parts = HyperLogLog(), HyperLogLog()
    whole.add(hash_values(values, "INT"))
    for start in range(0, len(values), max(1, len(values) // 3)):
        part = HyperLogLog()
        part.add(hash_values(values[start : start + max(1, len(values) // 3)], "INT"))
        parts.merge(part)
    assert whole.serialize() == parts.serialize() == base64.b64decode(vector["dense_base64"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0xEF46DB3751D8E999),
        ("a", 0xD24EC4F1A98C6E5B),
        ("abc", 0x44BC2CF5AD770999),
        ("Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_xxhash64_of_texts_equals_reference_values(text, expected):
    assert [int(h) for h in hash_bytes(pa.array([text, text]))] == [expected] * 2


def test_texts_hash_alike_in_any_memory_layout():
    texts = [f"{'é' * (i % 70)}{i}" for i in range(500)]
    one_by_one = {int(hash_bytes(pa.array([text]))[0]) for text in texts}
    plain = pa.array(["skipped", *texts])[1:]
    for array in (plain, plain.cast(pa.large_string()), plain.cast(pa.string_view()), plain.dictionary_encode()):
        assert set(map(int, hash_values(array, "STRING"))) == one_by_one


def longs(*values: int) -> list[int]:
    return [int(h) for h in hash_longs(np.array(values, np.int64))]


@pytest.mark.parametrize(
    ("array", "type", "expected"),
    [
        (pa.array([True, False]), "BOOLEAN", longs(1, 0)),
        (pa.array([-1, None], pa.int8()), "INT", longs(-1)),
        (pa.array([0.0, -0.0, 1.5]), "DOUBLE", longs(0, 0, 0x3FF8000000000000)),
        (pa.array([float("nan")]), "DOUBLE", longs(0x7FF8000000000000)),
        (pa.array([-1.5, -0.0], pa.float32()), "FLOAT", longs(-0x40400000, 0)),
        (pa.array([Decimal("-1.50")], pa.decimal128(10, 2)), "DECIMAL(10,2)", longs(-150)),
        (pa.array([Decimal("-1.50")], pa.decimal128(38, 2)), "DECIMAL(38,2)", [longs(-1)[0] ^ longs(-150)[0]]),
        (pa.array([date(1969, 12, 31)]), "DATE", longs(-1)),
        (pa.array([datetime(1970, 1, 1, 0, 0, 1, 5)], pa.timestamp("us")), "TIMESTAMP", longs(1_000_005)),
        (
            pa.array([datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)], pa.timestamp("us", "UTC")),
            "TIMESTAMPTZ",
            longs(-1),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_hash_as_in_trino(array, type, expected):
    assert [int(h) for h in hash_values(array, type)] == expected


def test_statistics_file_has_the_layout_of_trino(tmp_path):
    table = built(tmp_path, rows(0, 150))
    publish(table.publisher())
    found = document(table)
    assert (found["modelVersion"], set(found)) == (
        4,
        {"modelVersion", "alreadyAnalyzedModifiedTimeMax", "columnStatistics"},
    )
    actions = pa.table(DeltaTable(table.path).get_add_actions())
    newest = pc.max(actions["modification_time"].cast(pa.timestamp("ms"))).as_py().replace(tzinfo=UTC)
    assert datetime.fromisoformat(found["alreadyAnalyzedModifiedTimeMax"]) == newest
    statistics = found["columnStatistics"]
    assert "totalSizeInBytes" not in statistics["id"]
    labels = [label for label in table.rows["label"].to_pylist() if label]
    assert statistics["label"]["totalSizeInBytes"] == sum(map(len, labels))
    sketch = HyperLogLog()
    sketch.add(hash_values(pa.array(labels), "STRING"))
    assert base64.b64decode(statistics["label"]["ndvSummary"]) == sketch.serialize()


def test_deleted_rows_are_not_counted(tmp_path):
    table = built(tmp_path, rows(0, 150))
    DeltaTable(table.path).delete("id >= 10")
    publish(table.publisher())
    sketch = HyperLogLog()
    sketch.add(hash_values(pa.array(range(10)), "INT"))
    assert base64.b64decode(document(table)["columnStatistics"]["id"]["ndvSummary"]) == sketch.serialize()


def test_partition_columns_and_nested_columns_are_left_out(tmp_path):
    inner = pa.array([{"x": i} for i in range(150)], pa.struct([("x", pa.int64())]))
    table = built(tmp_path, rows(0, 150).append_column("place", inner), partition_by=["label"])
    columns = tuple(
        ColumnStatistics(i, name, type, 150, 0, ndv=9.0)
        for i, (name, type) in enumerate([("id", "INT"), ("label", "STRING"), ("place.x", "INT")], 1)
    )
    publication = publish(table.publisher(table.statistics(columns=columns)))
    assert publication.columns == ("id",)
    assert "partition" in publication.left_out["label"] and "top-level" in publication.left_out["place.x"]


def test_columns_are_named_by_their_physical_names(tmp_path):
    """Column mapping, in a handwritten log: deltalake does not write it."""
    path = tmp_path / "mapped"
    (path / "_delta_log").mkdir(parents=True)
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"col-7f": pa.array(range(20), pa.int64())}), path / "part-0.parquet")
    field = {
        "name": "id",
        "type": "long",
        "nullable": True,
        "metadata": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-7f"},
    }
    actions = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        {
            "metaData": {
                "id": "4c1c0f5a-0000-4000-8000-000000000001",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": [field]}),
                "partitionColumns": [],
                "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"},
                "createdTime": 0,
            }
        },
        {
            "add": {
                "path": "part-0.parquet",
                "partitionValues": {},
                "size": (path / "part-0.parquet").stat().st_size,
                "modificationTime": 1_700_000_000_123,
                "dataChange": True,
            }
        },
    ]
    (path / "_delta_log/00000000000000000000.json").write_text("\n".join(map(json.dumps, actions)))
    table = Table(
        "trino", ConnectorConfig("c", "delta", str(tmp_path)), "default", "mapped", path, pa.table({"id": range(20)})
    )
    publication = publish(table.publisher())
    assert publication.columns == ("id",) and list(document(table)["columnStatistics"]) == ["col-7f"]
    assert document(table)["alreadyAnalyzedModifiedTimeMax"] == "2023-11-14T22:13:20.123Z"
    assert "1 data files have no statistics in the log" in publication.detail
    stored = table.publisher().read()
    assert stored is not None and set(stored.distinct) == {"id"}
