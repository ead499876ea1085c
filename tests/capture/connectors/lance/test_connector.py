"""The Lance connector: versions, fragments, deletes, zone maps, and statistics of Spark's ANALYZE."""

from __future__ import annotations

import math
import shutil
from datetime import UTC, datetime
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

from capture.compute.readers.tasks import read
from capture.connectors.lance.connector import LanceConnector
from capture.connectors.lance.statistics import dataset_uri, schema_hash, spark_type
from capture.connectors.spi import ConnectorConfig
from store.model.errors import InvalidArgument, NotFound, UpstreamError
from store.model.format_facts import FormatFacts
from tests.capture.connectors.contract import METADATA, ConnectorContract, Truth

IDS = {"id": 1, "x": 2, "label": 3}


def rows(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": [i / 2 for i in ids],
            "label": [None if i % 4 == 0 else f"p{i % 10}" for i in ids],
        }
    )


@pytest.fixture
def path(tmp_path):
    """Three versions: 100 rows, 50 more, 30 of the first deleted."""
    lance.write_dataset(rows(0, 100), tmp_path / "points")
    lance.write_dataset(rows(100, 150), tmp_path / "points", mode="append").delete("id < 30")
    return tmp_path / "points"


def connect(uri, **options) -> LanceConnector:
    return LanceConnector(ConnectorConfig("c", "lance", str(uri), options))


def stats(connector, version, columns=None, ids=None):
    return connector.capture_snapshot_target_stats("default", "points", version, ids or IDS, columns)


def file_rows(native) -> list[dict]:
    return [row for table in native.file_columns() for row in table.to_pylist()]


class TestContract(ConnectorContract):
    facts = FormatFacts(reads_by_id=False, merges_rows=False, analyzes_columns=True)
    metadata = METADATA - {"format_schema"}
    has_table_id = False
    has_native_bounds = False
    has_null_counts = False

    @pytest.fixture
    def config(self, path):
        return ConnectorConfig("c", "lance", str(path.parent))

    @pytest.fixture
    def truth(self, config):
        return Truth("default", "points", 120, rows(30, 150).to_pydict(), snapshots=3)


def test_versions_are_snapshots(path):
    first, second, third = connect(path).enumerate_snapshots("default", "points").snapshots
    assert [s.snapshot_id for s in (first, second, third)] == [1, 2, 3] == [s.ordinal for s in (first, second, third)]
    assert [s.parent_snapshot_id for s in (first, second, third)] == [None, 1, 2]
    assert (second.operation, third.operation) == ("append", "delete")
    assert all(abs((datetime.now(UTC) - s.committed_at).total_seconds()) < 60 for s in (first, second, third))


def test_cleaned_up_version_is_not_found(path):
    from datetime import timedelta

    lance.dataset(path).cleanup_old_versions(older_than=timedelta(0))
    connector = connect(path)
    listing = connector.enumerate_snapshots("default", "points")
    assert (listing.live_snapshot_ids, listing.snapshots[0].parent_snapshot_id) == ({3}, None)
    with pytest.raises(NotFound, match="snapshot 1"):
        stats(connector, 1)


@pytest.mark.parametrize(
    ("version", "count", "files", "deletes"), [(1, 100, 1, False), (2, 150, 2, False), (3, 120, 2, True)]
)
def test_live_rows_and_files_of_each_version(path, version, count, files, deletes):
    connector = connect(path.parent)
    native = stats(connector, version)
    assert (native.row_count, native.data_file_count, native.row_deletes) == (count, files, deletes)
    listed = native.files.to_pylist()
    assert sum(file["row_count"] for file in listed) == count
    assert all(
        (path / "data" / file["file_path"].rpartition("/")[2]).stat().st_size == file["size_bytes"] for file in listed
    )
    found = []
    for task in connector.plan_files("default", "points", version, IDS):
        values = {column.name: values for column, values in read(task, task.columns)}
        assert task.row_count == len(values["id"])
        found += values["id"].to_pylist()
    assert len(found) == count


def test_deleted_rows_change_the_fingerprint_of_their_fragment_only(path):
    connector = connect(path)
    before, after = (
        {t.file_path: t.fingerprint for t in connector.plan_files("default", "points", version, IDS)}
        for version in (2, 3)
    )
    assert [before[file] == after[file] for file in before] == [False, True]


def test_other_names_change_the_fingerprint(path):
    """A column is known by its name: names that are swapped have other values in the same files."""
    dataset, found = lance.dataset(path), []
    for old, new in (("x", "tmp"), ("id", "x"), ("tmp", "id")):
        found.append([task.fingerprint for task in connect(path.parent).plan_files("default", "points", 3, IDS)])
        dataset.alter_columns({"path": old, "name": new})
    version = lance.dataset(path).version
    swapped = [task.fingerprint for task in connect(path.parent).plan_files("default", "points", version, IDS)]
    assert found[0] == found[1] == found[2] and set(swapped).isdisjoint(found[0])


def test_added_columns_are_in_files_of_their_own(path):
    dataset = lance.dataset(path)
    dataset.add_columns({"twice": "id * 2"})
    connector = connect(path)
    native = stats(connector, dataset.version)
    assert native.data_file_count == sum(len(f.data_files()) for f in dataset.get_fragments()) == 4
    counts = native.files["row_count"].to_pylist()  # the rows of a fragment are counted once
    assert (len(counts), sum(filter(None, counts)), counts.count(None)) == (4, native.row_count, 2)
    (task, _) = connector.plan_files("default", "points", dataset.version, {**IDS, "twice": 4})
    assert [column.name for column in task.columns] == ["id", "x", "label", "twice"]
    schemas = {
        s.snapshot_id: len(s.schema.columns) for s in connector.enumerate_snapshots("default", "points").snapshots
    }
    assert (schemas[3], schemas[dataset.version]) == (3, 4)


def test_structs_have_leaves_with_logical_types(tmp_path):
    table = pa.table(
        {
            "s": pa.array([{"a": 1, "b": {"c": "x"}}]),
            "l": [[1]],
            "d": pa.array([1], pa.decimal128(9, 2)),
            "t": pa.array([0], pa.timestamp("us", "UTC")),
        }
    )
    lance.write_dataset(table, tmp_path / "nest.lance")
    connector = connect(tmp_path)
    assert connector.list_tables("default") == ["nest"]
    columns = connector.describe("default", "nest").schema.columns
    assert [(c.name, c.logical_type) for c in columns] == [
        ("s", "STRUCT"),
        ("s.a", "INT"),
        ("s.b", "STRUCT"),
        ("s.b.c", "STRING"),
        ("l", "ARRAY"),
        ("d", "DECIMAL(9,2)"),
        ("t", "TIMESTAMPTZ"),
    ]
    (task,) = connector.plan_files("default", "nest", 1, {"s.a": 1, "s.b.c": 2, "d": 3, "t": 4})
    assert {column.name: values.to_pylist()[0] for column, values in read(task, task.columns)}["s.b.c"] == "x"


def test_columns_with_quotes_in_their_names_are_read(tmp_path):
    table = pa.table({'a "b" c': [1, 2], "s": [{'x"y': "p"}, {'x"y': None}]})
    lance.write_dataset(table, tmp_path / "points")
    connector = connect(tmp_path)
    columns = connector.describe("default", "points").schema.columns
    (task,) = connector.plan_files("default", "points", 1, {c.key: i for i, c in enumerate(columns, 1) if c.is_leaf})
    values = {column.name: values.to_pylist() for column, values in read(task, task.columns)}
    assert values == {'a "b" c': [1, 2], 's.x"y': ["p", None]}


def test_deletions_of_a_fragment_are_its_delete_file(path):
    cut, whole = sorted(stats(connect(path), 3).files.to_pylist(), key=lambda row: row["row_count"], reverse=True)
    (deletes,) = cut["delete_files"]
    assert (deletes["file_content"], Path(deletes["file_path"]).parent) == ("DELETION_VECTOR", path / "_deletions")
    assert Path(deletes["file_path"]).exists() and whole["delete_files"] == []


def test_zone_maps_are_native_bounds(path):
    dataset = lance.dataset(path)
    for column in IDS:
        dataset.create_scalar_index(column, index_type="ZONEMAP")
    found = {(row["column_name"], row["row_count"]): row for row in file_rows(stats(connect(path), dataset.version))}
    whole, cut, text = found["id", 50], found["id", 70], found["label", 50]
    assert (whole["min"], whole["max"], whole["min_is_exact"], whole["null_count"]) == ("100", "149", True, 0)
    assert (cut["min"], cut["max"], cut["min_is_exact"]) == ("30", "99", False)
    assert (text["min"], text["max"], text["min_is_exact"], text["null_count"]) == ("p0", "p9", False, 13)
    assert found["label", 70]["null_count"] is None
    assert file_rows(stats(connect(path), dataset.version, frozenset({"x"})))[0]["column_id"] == 2


def test_zone_map_with_nan_has_no_maximum_and_no_later_rows(tmp_path):
    dataset = lance.write_dataset(pa.table({"x": [math.nan, -0.0, 2.5]}), tmp_path / "points")
    dataset.create_scalar_index("x", index_type="ZONEMAP")
    dataset.insert(pa.table({"x": [99.0]}))
    (row,) = file_rows(stats(connect(tmp_path), dataset.version, ids={"x": 1}))
    assert (row["min"], row["max"], row["nan_count"], row["row_count"]) == ("0", None, 1, 3)


def test_zone_map_of_rows_that_are_all_gone_says_nothing_of_later_ones(tmp_path):
    dataset = lance.write_dataset(pa.table({"x": [1, 2]}), tmp_path / "points")
    dataset.create_scalar_index("x", index_type="ZONEMAP")
    dataset.delete("true")
    dataset.create_scalar_index("x", index_type="ZONEMAP")
    dataset.insert(pa.table({"x": [99]}))
    native = stats(connect(tmp_path), dataset.version, ids={"x": 1})
    assert (native.row_count, file_rows(native)) == (1, [])


ODD = {
    "ns": (pa.array([1_001, 5_001], pa.timestamp("ns")), "1970-01-01T00:00:00.000001", "1970-01-01T00:00:00.000006"),
    "zoned": (
        pa.array([-1, 1_000], pa.timestamp("ns", "UTC")),
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00.000001Z",
    ),
    "time": (pa.array([1_001, 5_000], pa.time64("ns")), "00:00:00.000001", "00:00:00.000005"),
    "big": (pa.array([1, 2**64 - 1], pa.uint64()), "1", None),
    "half": (pa.array(np.array([1.5, -2], np.float16)), "-2.0", "1.5"),
    "long ago": (pa.array([-(2**62), 5], pa.timestamp("s")), None, "1970-01-01T00:00:05"),
    "day": (pa.array([86_400_000, None], pa.date64()), "1970-01-02", "1970-01-02"),
    "wide": (pa.array([1, -2], pa.decimal256(50, 2)), "-2", "1"),
}


@pytest.mark.parametrize("name", ODD)
def test_zone_map_bounds_of_uncommon_types_enclose_the_values(tmp_path, name):
    values, low, high = ODD[name]
    dataset = lance.write_dataset(pa.table({"v": values, "id": range(len(values))}), tmp_path / "points")
    for column in ("v", "id"):
        dataset.create_scalar_index(column, index_type="ZONEMAP")
    native = stats(connect(tmp_path), dataset.version, ids={"v": 1, "id": 2})
    by_name = {row["column_name"]: row for row in file_rows(native)}
    assert (by_name["v"]["min"], by_name["v"]["max"]) == (low, high)
    assert (by_name["id"]["max"], by_name["id"]["null_count"]) == ("1", 0)
    for side, text in (("min", low), ("max", high)):
        exact = {"ns": False, "zoned": side == "max", "time": side == "max"}.get(name, True)
        assert by_name["v"][f"{side}_is_exact"] is (exact if text is not None else None)


def test_zone_of_nan_alone_does_not_hide_the_bounds_of_others(tmp_path):
    some = pa.array([math.nan] * 9_000 + [1.5] * 20_000)  # a zone is 8192 rows
    dataset = lance.write_dataset(pa.table({"v": some}), tmp_path / "points")
    dataset.create_scalar_index("v", index_type="ZONEMAP")
    (row,) = file_rows(stats(connect(tmp_path), dataset.version, ids={"v": 1}))
    assert (row["min"], row["max"], row["nan_count"]) == ("1.5", None, 9_000)


def analyze(path, **changes: str) -> int:
    """Writes the statistics of lance-spark's ANALYZE, as one config update."""
    dataset = lance.dataset(path)
    written = {
        "version": "1",
        "computedAtVersion": str(dataset.version + 1),
        "numRows": str(dataset.count_rows()),
        "schemaHash": schema_hash(dataset.schema) or "",
        "column.id.version": "2",
        "column.id.distinctCount": "118",
        "column.id.min": "30",
        "column.id.max": "149",
        "column.id.nullCount": "0",
        "column.id.avgLen": "8",
        "column.id.maxLen": "8",
        "column.label.version": "2",
        "column.label.nullCount": "30",
        "column.x.version": "3",
    }
    dataset.update_config({f"lance.stats.{name}": value for name, value in (written | changes).items()})
    return dataset.version


def test_analyzed_statistics_are_read_back(path):
    version = analyze(path)
    by_name = {row["column_name"]: row for row in stats(connect(path), version).columns.to_pylist()}
    assert set(by_name) == {"id", "label"}  # x has a newer format version
    native = stats(connect(path), version)
    assert native.sources == (f"lance.stats.* of version {version}",)
    assert native.remarks == ["lance.stats.column.x.* is refused: column.x.version is 3, up to 2 is known"]
    given = {name: value for name, value in by_name["id"].items() if value is not None}
    assert given == {
        "column_id": 1,
        "column_name": "id",
        "logical_type": "INT",
        "row_count": 120,
        "null_count": 0,
        "ndv": 118.0,
        "ndv_exact": False,
        "min": "30",
        "max": "149",
        "min_is_exact": True,
        "max_is_exact": True,
        "avg_width_bytes": 8.0,
        "max_width_bytes": 8,
    }
    assert by_name["label"]["null_count"] == 30 and by_name["label"]["ndv"] is None
    assert not any(name.startswith("lance.stats") for name in connect(path).describe("default", "points").properties)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "2"},
        {"complete": "false"},
        {"computedAtVersion": "999"},
        {"computedAtVersion": "soon"},
        {"numRows": "7"},
        {"schemaHash": "0" * 64},
    ],
    ids=str,
)
def test_analyzed_statistics_of_another_state_are_refused(path, changes):
    version = analyze(path, **changes)
    native = stats(connect(path), version)
    assert native.columns is None and not native.sources
    (remark,), (name,) = native.remarks, changes
    assert remark.startswith(f"the statistics in the config are refused: lance.stats.{name} ")


def test_statistics_of_a_version_before_the_last_change_are_not_of_this_one(path):
    version = analyze(path, computedAtVersion="3")
    native = stats(connect(path), version)
    assert native.columns is None and native.remarks  # other rows than `numRows` says


def test_analyzed_statistics_without_a_schema_hash_are_ignored(path):
    """Also for a schema with a type that has no hash."""
    lance.write_dataset(pa.table({"id": [1], "u": pa.array([1], pa.uint64())}), path, mode="overwrite")
    dataset = lance.dataset(path)
    assert schema_hash(dataset.schema) is None
    analyze(path, computedAtVersion=str(dataset.version + 2))
    dataset = lance.dataset(path)
    dataset.delete_config_keys(["lance.stats.schemaHash"])
    assert dataset.config()["lance.stats.computedAtVersion"] == str(dataset.version)
    assert stats(connect(path), dataset.version, ids={"id": 1, "u": 2}).columns is None


def test_analyzed_statistics_belong_to_their_version(path):
    version = analyze(path)
    dataset = lance.dataset(path)
    dataset.delete("id = 40")
    native = stats(connect(path), dataset.version)
    assert native.row_count == 119 and native.columns is None
    (earlier,) = native.earlier
    snap = next(s for s in connect(path).enumerate_snapshots("default", "points").snapshots if s.snapshot_id == version)
    assert (earlier.snapshot_id, earlier.schema_hash) == (version, snap.schema.hash)
    assert earlier.columns.to_pylist()[0]["row_count"] == 120 and not stats(connect(path), version).earlier


def test_analyzed_statistics_of_another_schema_keep_their_version(path):
    analyze(path)
    dataset = lance.dataset(path)
    dataset.add_columns({"y": "id + 1"})
    assert [e.snapshot_id for e in stats(connect(path), dataset.version).earlier] == [dataset.version - 1]
    dataset.delete_config_keys(["lance.stats.schemaHash"])
    assert not stats(connect(path), dataset.version).earlier


def test_malformed_values_of_analyze_are_unknown(path):
    version = analyze(path, **{"column.id.min": "abc", "column.id.nullCount": "121", "column.id.distinctCount": "-1"})
    row = stats(connect(path), version, frozenset({"id"})).columns.to_pylist()[0]
    assert (row["min"], row["min_is_exact"], row["null_count"], row["ndv"], row["max"]) == (
        None,
        None,
        None,
        None,
        "149",
    )


@pytest.mark.parametrize(
    ("name", "low", "high", "expected"),
    [
        ("x", "0.5", "NaN", ("0.5", None)),
        ("x", "NaN", "NaN", (None, None)),
        ("id", "149", "30", (None, None)),
        ("id", "30", "149", ("30", "149")),
    ],
)
def test_impossible_bounds_of_analyze_are_unknown(path, name, low, high, expected):
    """Spark orders NaN above every number; a minimum above the maximum would refuse the whole capture."""
    version = analyze(
        path, **{f"column.{name}.{key}": text for key, text in (("version", "2"), ("min", low), ("max", high))}
    )
    (row,) = stats(connect(path), version, frozenset({name})).columns.to_pylist()
    assert (row["min"], row["max"]) == expected


def test_arrow_types_have_names_of_spark_types():
    types = {"long": pa.int64(), "list": pa.list_(pa.utf8()), "s": pa.struct([("a", pa.int32()), ("b", pa.date32())])}
    assert [spark_type(t) for t in types.values()] == ["bigint", "array<string>", "struct<a:int,b:date>"]
    assert spark_type(pa.decimal128(5, 1)) == "decimal(5,1)" and spark_type(pa.timestamp("us", "UTC")) == "timestamp"
    assert spark_type(pa.list_(pa.duration("s"))) is None and schema_hash(pa.schema([("a", pa.uint64())])) is None


def test_error_names_the_table_and_no_path(path):
    next((path / "_versions").glob("*.manifest")).write_bytes(b"broken")
    for manifest in (path / "_versions").glob("*.manifest"):
        manifest.write_bytes(b"broken")
    with pytest.raises(UpstreamError, match=r'table "default.points" cannot be read') as refused:
        connect(path.parent).describe("default", "points")
    assert str(path) not in str(refused.value) and not refused.value.retryable


def test_missing_data_file_is_an_error_of_its_task_only(path):
    shutil.rmtree(path / "data")
    connector = connect(path)
    assert stats(connector, 3).row_count == 120
    for task in connector.plan_files("default", "points", 3, IDS):
        with pytest.raises(UpstreamError):
            list(read(task, task.columns))


def test_error_names_the_unknown_option(tmp_path):
    with pytest.raises(InvalidArgument, match="colour"):
        connect(tmp_path, colour="red")


def test_locations_in_object_stores_are_encoded():
    assert dataset_uri("s3://b/a%20é ?#/t") == "s3://b/a%2520é %3F%23/t"
    assert dataset_uri("/a%20b?/t") == "/a%20b?/t"
