"""Bounds of writers that are not known to be right: PLANNING until the data was read, with the reason."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.connectors import open_connector
from capture.connectors.metadata import known_writers
from capture.connectors.spi import ConnectorConfig
from capture.spec import Budget, Sampling
from capture.spi import Outcome
from capture.store_sink import LocalStore
from store.model.freshness import EXACT, UNCONFIRMED, usable_for
from store.model.targets import Target
from tests.store.empty_store import place_for_database

NAME = "lake.default.t"
REASON = "writer acme 1.0 is not known for INT"
METADATA = {"kinds": frozenset({"MIN_MAX", "NULL_COUNT"})}


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "lake/t").mkdir(parents=True)
    write(tmp_path / "lake/t/known.parquet", [1, 2, None])
    write(tmp_path / "lake/t/unknown.parquet", [5, 900], b"acme version 1.0")
    return tmp_path / "lake"


def write(path: Path, values: list[int | None], created_by: bytes = b"") -> None:
    pq.write_table(
        pa.table({"v": pa.array(values, pa.int64()), "empty": pa.nulls(len(values), pa.int64())}),
        path,
        row_group_size=10,
    )
    if created_by:
        data, own = path.read_bytes(), pq.read_metadata(path).created_by.encode()
        assert data.count(own) == 1 and len(created_by) <= len(own)
        path.write_bytes(data.replace(own, created_by.ljust(len(own))))


@pytest.fixture
def lake(root):
    connector = open_connector(ConnectorConfig("lake", "parquet", str(root)))
    yield connector
    connector.close()


@pytest.fixture
def store():
    with LocalStore(place_for_database()) as local:
        yield local


def label(row):
    return usable_for(EXACT, row), row["confidence_level"], row["min_is_exact"], row["max_is_exact"]


def column(store, name="v"):
    (row,) = (row for row in store.read("stats.columns", NAME).to_pylist() if row["column_name"] == name)
    return row


def files(store, name="v"):
    rows = store.read("stats.file_columns", NAME).to_pylist()
    return {Path(row["file_path"]).stem: row for row in rows if row["column_name"] == name}


def test_bounds_of_an_unknown_writer_are_planning_with_the_reason(store, lake):
    result, of_empty = store.capture(
        lake, "lake", "default", "t", targets=[Target.column(1), Target.column(2)], **METADATA
    )
    assert (result.outcome, REASON in result.detail) == (Outcome.CAPTURED, True)
    assert "not known" not in of_empty.detail
    row = column(store)
    assert (row["min"], row["max"], row["null_count"]) == ("1", "900", 1)
    assert label(row) == ("PLANNING", UNCONFIRMED, None, None)
    assert label(column(store, "empty"))[:2] == ("PRUNING", None)  # its counts do not depend on the writer


def test_each_file_has_the_label_of_its_own_writer(store, lake):
    (result,) = store.capture(lake, "lake", "default", "t", targets=[Target.table()])
    assert REASON in result.detail
    of = files(store)
    assert label(of["known"]) == ("PRUNING", None, True, True)
    assert label(of["unknown"]) == ("PLANNING", UNCONFIRMED, None, None)
    assert label(column(store))[0] == "PLANNING"


def test_a_scan_confirms_them_and_a_later_look_at_metadata_keeps_that(store, lake):
    store.capture(lake, "lake", "default", "t", targets=[Target.table()])
    store.capture(lake, "lake", "default", "t")
    sure = ("PRUNING", None, True, True)
    assert label(column(store)) == sure
    assert {name: label(row) for name, row in files(store).items()} == {"known": sure, "unknown": sure}
    store.capture(lake, "lake", "default", "t", targets=[Target.table()])
    store.capture(lake, "lake", "default", "t", targets=[Target.column(1)], **METADATA)
    assert label(column(store)) == sure
    assert label(files(store)["unknown"]) == sure


def test_a_trusted_writer_is_known(store, lake):
    known_writers.trust(["acme*"])
    try:
        (result,) = store.capture(lake, "lake", "default", "t", targets=[Target.column(1)], **METADATA)
    finally:
        known_writers.trust([])
    assert "not known" not in result.detail
    assert label(column(store)) == ("PRUNING", None, True, True)


def test_a_sample_has_bounds_of_known_writers_only(store, lake, root):
    how = {"sampling": Sampling.RANDOM_ROW_GROUP, "budget": Budget(max_rows=20)}
    write(root / "t/known.parquet", list(range(500)))
    store.capture(lake, "lake", "default", "t", targets=[Target.column(1)], **how)
    assert column(store)["min"] is None
    write(root / "t/unknown.parquet", list(range(900)))
    store.capture(lake, "lake", "default", "t", targets=[Target.column(1)], **how)
    assert (column(store)["min"], column(store)["max"]) == ("0", "899")


@pytest.mark.parametrize("is_appended", [False, True])
def test_stored_bounds_follow_the_setting_once_they_are_captured_again(root, tmp_path, is_appended):
    doubted, sure = ("PLANNING", UNCONFIRMED, None, None), ("PRUNING", None, True, True)
    for number, (patterns, expected) in enumerate((([], doubted), (["acme*"], sure), ([], doubted))):
        known_writers.trust(patterns)  # as another process
        if is_appended:
            write(root / f"t/another{number}.parquet", [7])
        connector = open_connector(ConnectorConfig("lake", "parquet", str(root)))
        try:
            with LocalStore(tmp_path / "stats.duckdb") as store:
                store.capture(connector, "lake", "default", "t", targets=[Target.table()])
                found = column(store), files(store)
        finally:
            known_writers.trust([])
            connector.close()
        assert (label(found[0]), label(found[1]["unknown"])) == (expected, expected)
        assert label(found[1]["known"]) == sure


def test_a_scan_is_kept_though_the_setting_changes_with_it(root, tmp_path):
    for patterns, targets in (([], [Target.table()]), (["acme*"], None), ([], [Target.table()])):
        known_writers.trust(patterns)
        connector = open_connector(ConnectorConfig("lake", "parquet", str(root)))
        try:
            with LocalStore(tmp_path / "stats.duckdb") as store:
                store.capture(connector, "lake", "default", "t", **({} if targets is None else {"targets": targets}))
                row = column(store)
        finally:
            known_writers.trust([])
            connector.close()
    assert (row["engine_id"], row["ndv"]) == ("local", 4.0)
    assert label(row) == ("PRUNING", None, True, True)
