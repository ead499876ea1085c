"""Captures without a server: stored, read, and continued incrementally."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.spec import Budget, Sampling
from capture.spi import Outcome
from capture.store_sink import LocalStore
from store.model.errors import NotFound
from store.model.sketches.theta import theta
from store.model.targets import Target
from tests.capture.connectors import iceberg_tables as built
from tests.store.empty_store import place_for_database

NAME = "lake.default.events"


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "lake/events").mkdir(parents=True)
    write(tmp_path / "lake", 0, 100)
    return tmp_path / "lake"


def write(root: Path, start: int, stop: int) -> None:
    ids = range(start, stop)
    rows = pa.table({"id": pa.array(ids, pa.int64()), "word": [f"w{i % 7}" for i in ids]})
    pq.write_table(rows, root / f"events/{start}.parquet", row_group_size=10)


@pytest.fixture
def lake(root):
    connector = open_connector(ConnectorConfig("lake", "parquet", str(root)))
    yield connector
    connector.close()


def test_captured_table_can_be_read_also_after_reopening(tmp_path, lake):
    with LocalStore(tmp_path / "s.duckdb") as store:
        results = store.capture(lake, "lake", "default", "events")
        assert [result.outcome for result in results] == [Outcome.CAPTURED] * 3
        (table,) = store.read("stats.tables", NAME).to_pylist()
        assert (table["row_count"], table["data_file_count"], table["table_name"]) == (100, 1, "events")
        columns = {row["column_name"]: row for row in store.read("stats.columns", NAME).to_pylist()}
        assert (columns["id"]["ndv"], columns["id"]["max"], columns["id"]["mean"]) == (100, "99", 49.5)
        assert columns["word"]["ndv"] == 7
        assert store.read("stats.file_columns", NAME).num_rows == 2
        assert set(store.read("stats.sketches", NAME)["role"].to_pylist()) == {"NDV", "QUANTILES", "MCV"}
    with LocalStore(tmp_path / "s.duckdb") as store:  # reopened
        assert store.read("stats.columns", NAME).num_rows == 2


def test_later_capture_reads_only_the_new_files(lake, root):
    with LocalStore(place_for_database()) as store:
        store.capture(lake, "lake", "default", "events")
        write(root, 100, 150)
        results = store.capture(lake, "lake", "default", "events")
        assert [result.attributes.get("files_reused") for result in results] == [None, 1, 1]
        columns = {row["column_name"]: row for row in store.read("stats.columns", NAME).to_pylist()}
        assert (columns["id"]["ndv"], columns["id"]["row_count"], columns["id"]["mean"]) == (150, 150, 74.5)
        assert len(store.store.captured_snapshots(store.catalog.get(NAME))) == 2


def test_sample_does_not_replace_a_complete_record(lake):
    with LocalStore(place_for_database()) as store:
        store.capture(lake, "lake", "default", "events")
        how = {"sampling": Sampling.RANDOM_ROW_GROUP, "budget": Budget(max_rows=20)}
        store.capture(lake, "lake", "default", "events", targets=[Target.column(1)], **how)
        columns = {row["column_id"]: row for row in store.read("stats.columns", NAME).to_pylist()}
        assert (columns[1]["completeness"], columns[1]["ndv"], columns[1]["max"]) == ("COMPLETE", 100, "99")


def test_sketches_that_a_source_has_are_stored_by_column(tmp_path):
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType()))
    built.simple_table(tmp_path, schema, pa.table({"a": range(20), "b": range(20)}))
    iceberg = open_connector(ConnectorConfig("lake", "iceberg", f"sqlite:///{tmp_path / 'catalog.db'}"))
    snapshot = iceberg.enumerate_snapshots("db", "t").current_snapshot_id
    sketches = [(i, theta(np.arange(1, 10 * i + 1, dtype=np.uint64) << np.uint64(50)), 10 * i) for i in (1, 2)]
    built.publish_thetas(iceberg, "db", "t", snapshot, sketches)
    with LocalStore(":memory:") as store:
        store.capture(iceberg, "lake", "db", "t", targets=[Target.table()])
        stored = {row["column_id"]: row["data"] for row in store.read("stats.sketches", "lake.db.t").to_pylist()}
    iceberg.close()
    assert stored == {i: data for i, data, _ in sketches}


def test_cancelled_capture_stores_nothing(lake):
    with LocalStore(place_for_database()) as store:
        results = store.capture(
            lake, "lake", "default", "events", progress=lambda share, message: False, targets=[Target.column(1)]
        )
        assert [(r.outcome, r.detail) for r in results] == [(Outcome.DEGRADED, "cancelled")]
        assert store.read("stats.columns", NAME).num_rows == 0


def test_missing_tables_and_snapshots_are_not_found(lake):
    with LocalStore(place_for_database()) as store:
        with pytest.raises(NotFound, match="evnts"):
            store.capture(lake, "lake", "default", "evnts")
        with pytest.raises(NotFound, match="has no snapshot 5"):
            store.capture(lake, "lake", "default", "events", snapshot_id=5)
        with pytest.raises(NotFound):
            store.read("stats.columns", "lake.default.nothing")
