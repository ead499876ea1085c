"""Statistics that a lake's own engines stored in it, from the lake to the reader: freshness, and what they answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from capture.connectors.iceberg.connector import IcebergConnector
from capture.connectors.spi import ConnectorConfig
from store.model.sketches.theta import theta
from tests.capture.connectors.iceberg_tables import (
    commit_deletes,
    data_paths,
    deletion_vectors,
    publish_thetas,
    simple_table,
)
from tests.flight_server.live_server import Client

pytestmark = pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # of the library's writer


def connect(client: Client, format: str, uri: Path) -> None:
    client.act("register_connector", {"catalog": "lake", "format": format, "uri": str(uri)})
    client.act("discover", {"catalog": "lake"})


def capture_table(client: Client, name: str) -> None:
    (result,) = client.act("capture", {"requests": [{"table": name, "mode": "SYNC", "latency_budget_ms": 10_000}]})
    assert result["outcome"] == "CAPTURED", result


def resolve_ndv(client: Client, name: str) -> dict[str, Any]:
    request = {
        "table": name,
        "target": {"kind": "COLUMN", "column_id": 1},
        "kinds": ["NDV"],
        "latency_budget_ms": 10_000,
    }
    return client.act("resolve", {"requests": [request]})[0]


def column(client: Client, **more: Any) -> dict[str, Any]:
    predicate = {"column": "column_name", "op": "EQ", "values": ["id"]}
    return client.get({"table": "stats.columns", "predicates": [predicate], **more}).to_pylist()[0]


def test_statistics_of_an_older_paimon_snapshot_are_not_read_for_a_newer_one(client, tmp_path):
    import pypaimon

    catalog = pypaimon.CatalogFactory.create({"warehouse": str(tmp_path / "wh")})
    catalog.create_database("sales", False)
    schema = pa.schema([("id", pa.int64())])
    catalog.create_table("sales.events", pypaimon.Schema.from_pyarrow_schema(schema), False)
    path = tmp_path / "wh" / "sales.db" / "events"

    def append(start: int, stop: int) -> None:
        builder = catalog.get_table("sales.events").new_batch_write_builder()
        writer = builder.new_write()
        writer.write_arrow(pa.table({"id": range(start, stop)}, schema))
        builder.new_commit().commit(writer.prepare_commit())
        writer.close()

    append(0, 10)
    (path / "statistics").mkdir()
    stats = {"colId": 0, "distinctCount": 10, "min": "0", "max": "9", "nullCount": 0, "avgLen": 8, "maxLen": 8}
    (path / "statistics" / "stat-a-0").write_text(
        json.dumps(
            {
                "snapshotId": 1,
                "schemaId": 0,
                "mergedRecordCount": 10,
                "mergedRecordSize": 80,
                "colStats": {"id": stats},
            }
        )
    )
    latest = json.loads((path / "snapshot" / "snapshot-1").read_text())
    latest |= {"id": 2, "commitKind": "ANALYZE", "statistics": "stat-a-0"}
    (path / "snapshot" / "snapshot-2").write_text(json.dumps(latest))
    (path / "snapshot" / "LATEST").write_text("2")

    connect(client, "paimon", tmp_path / "wh" / "sales.db")
    name = "lake.default.events"
    capture_table(client, name)
    assert (column(client)["ndv"], column(client, snapshot="current")["freshness"]) == (10.0, "EXACT")
    assert resolve_ndv(client, name)["outcome"] == "HIT"

    append(10, 20_000)
    client.act("discover", {"catalog": "lake"})
    capture_table(client, name)
    uncomputed = column(client, snapshot="current")  # bounds of its own files, nothing from the older statistics
    assert (uncomputed["snapshot_id"], uncomputed["freshness"], uncomputed["row_count"]) == (3, "EXACT", 20_000)
    assert (uncomputed["ndv"], uncomputed["ndv_exact"], uncomputed["max"]) == (10.0, False, "19999")
    inherited = (uncomputed["distribution_snapshot_id"], uncomputed["distribution_freshness"])
    assert inherited == (2, "INHERITED"), "the older statistics are those of their own snapshot"
    answer = resolve_ndv(client, name)
    assert answer["outcome"] == "CAPTURED" and answer["record"]["ndv"] == pytest.approx(20_000, rel=0.05)
    recomputed = column(client, snapshot="current")
    assert (recomputed["snapshot_id"], recomputed["freshness"]) == (3, "EXACT")
    assert (recomputed["distribution_snapshot_id"], recomputed["distribution_freshness"]) == (3, "EXACT")


def test_all_snapshots_are_captured_though_later_ones_have_statistics_of_earlier_ones(client, tmp_path):
    """Both the metadata of a snapshot and those statistics then have a record of it."""
    import lance

    path, name = tmp_path / "wh" / "dots.lance", "lake.default.dots"
    lance.write_dataset(pa.table({"id": [1, 2, None]}), path)
    connect(client, "lance", tmp_path / "wh")
    assert resolve_ndv(client, name)["outcome"] == "CAPTURED"
    client.act("publish", {"table": name, "to": "lance"})
    lance.write_dataset(pa.table({"id": [4]}), path, mode="append")
    client.act("discover", {"catalog": "lake"})
    (outcome,) = client.act("capture", {"requests": [{"table": name, "snapshot": "all"}]})
    assert outcome["outcome"] == "CAPTURED", outcome
    counts = {row["snapshot_id"]: row["row_count"] for row in client.get({"table": "stats.tables"}).to_pylist()}
    assert counts == {1: 3, 2: 3, 3: 4}


def test_published_statistics_of_an_older_lance_version_are_inherited(client, tmp_path):
    """Later versions of the dataset keep the published statistics in their config."""
    import lance

    path, name = tmp_path / "wh" / "dots.lance", "lake.default.dots"
    lance.write_dataset(pa.table({"id": range(10)}), path)
    connect(client, "lance", tmp_path / "wh")
    assert resolve_ndv(client, name)["outcome"] == "CAPTURED"
    (publication,) = client.act("publish", {"table": name, "to": "lance"})
    assert publication["snapshot_id"] == 1  # the config with the statistics is version 2, of the same rows
    lance.write_dataset(pa.table({"id": range(10, 20_000)}), path, mode="append")
    client.act("delete_stats", {"table": name})  # from here on, statistics come from the lake only
    client.act("discover", {"catalog": "lake"})
    capture_table(client, name)
    found = client.get({"table": "stats.columns", "snapshot": "current", "allow_stale": True}).to_pylist()
    assert [(row["snapshot_id"], row["freshness"], row["ndv"], row["max"]) for row in found] == [
        (2, "INHERITED", 10.0, "9")
    ]
    assert {row["usable_for"] for row in found} == {"PLANNING"} and found[0]["row_count"] == 10
    answer = resolve_ndv(client, name)
    assert answer["outcome"] == "CAPTURED" and answer["record"]["ndv"] == pytest.approx(20_000, rel=0.05)
    row = column(client, snapshot="current")
    assert (row["snapshot_id"], row["freshness"], row["max"]) == (3, "EXACT", "19999")


def test_withdraw_removes_the_statistics_from_the_lake(client, tmp_path):
    import lance

    path, name = tmp_path / "wh" / "dots.lance", "lake.default.dots"
    lance.write_dataset(pa.table({"id": range(10)}), path)
    connect(client, "lance", tmp_path / "wh")
    assert resolve_ndv(client, name)["outcome"] == "CAPTURED"
    client.act("publish", {"table": name, "to": "lance"})
    assert any(key.startswith("lance.stats.") for key in lance.dataset(path).config())
    withdraw = {"table": name, "to": "lance"}
    assert client.act("withdraw", withdraw) == [withdraw | {"withdrawn": True}]
    assert not any(key.startswith("lance.stats.") for key in lance.dataset(path).config())
    assert client.get({"table": "sys.publications"}).num_rows == 0
    assert client.act("withdraw", withdraw) == [withdraw | {"withdrawn": False}]


def test_recapture_reads_sketches_registered_since_the_last_one(client, tmp_path):
    """Registering statistics creates no snapshot: the same snapshot is captured again."""
    table = simple_table(tmp_path, Schema(NestedField(1, "id", LongType())), pa.table({"id": range(100)}))
    connector = IcebergConnector(ConnectorConfig("c", "iceberg", f"sqlite:///{tmp_path / 'catalog.db'}"))
    name = "lake.db.t"
    client.act(
        "register_connector", {"catalog": "lake", "format": "iceberg", "uri": f"sqlite:///{tmp_path / 'catalog.db'}"}
    )
    client.act("discover", {"catalog": "lake"})
    capture_table(client, name)
    assert column(client)["ndv"] is None
    data = theta(np.arange(1, 101, dtype=np.uint64) << np.uint64(50))
    publish_thetas(connector, "db", "t", table.current_snapshot().snapshot_id, [(1, data, 100)])
    connector.close()
    capture_table(client, name)
    row = column(client)
    assert (row["ndv"], row["ndv_exact"], row["max"], row["completeness"]) == (100.0, True, "99", "COMPLETE")
    assert (row["freshness"], row["usable_for"]) == ("EXACT", "PRUNING")
    assert resolve_ndv(client, name)["outcome"] == "HIT"


def test_two_deletion_vectors_in_one_puffin_file_are_captured(client, tmp_path):
    schema = Schema(NestedField(1, "id", LongType()))
    table = simple_table(tmp_path, schema, *(pa.table({"id": range(i, i + 100)}) for i in (0, 100)))
    vectors = {path: list(range(10)) for path, _ in data_paths(table)}
    commit_deletes(table, *deletion_vectors(table, vectors), format_version=3)
    connect(client, "iceberg", Path(table.metadata.location.removeprefix("file://")))
    capture_table(client, "lake.default.t")
    (row,) = client.get({"table": "stats.tables", "snapshot": "current"}).to_pylist()
    assert (row["row_count"], row["data_file_count"]) == (180, 2)
    files = client.get({"table": "stats.files", "snapshot": "current"}).to_pylist()
    assert sorted((file["file_content"], file["row_count"]) for file in files) == [
        ("DATA", 90),
        ("DATA", 90),
        ("POSITION_DELETES", 20),
    ]
    assert len({d["content_offset"] for file in files for d in file["delete_files"] or ()}) == 2
