"""Captures scoped to partitions: parsing, matching files, results of engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture import partitions
from capture.connectors import open_connector
from capture.connectors.spi import FILE_SCHEMA, ConnectorConfig
from capture.engines.compute.engine import ComputeEngine
from capture.engines.native.engine import NativeEngine
from capture.registry import Registry
from capture.spec import Sampling
from capture.spec_body import MAX_PARTITIONS, parse_partitions
from capture.spi import CaptureEngine, CaptureRequest, Outcome, TableHandle
from store.model import logical_types
from store.model.errors import InvalidArgument, InvalidField, NotFound
from store.model.targets import Target
from tests.capture.engine_contract import MemorySink, with_spec
from tests.capture.fake_engine import FakeEngine

# Parsing.


def test_values_become_texts_and_duplicates_are_dropped():
    given = [{"b": 1, "a": "x"}, {"a": "x", "b": 1}, {"a": None}, {"a": True}, {"a": 1.5}]
    found = parse_partitions(given)
    assert found == ((("a", "x"), ("b", "1")), (("a", None),), (("a", "true"),), (("a", "1.5"),))
    assert parse_partitions([dict(each) for each in found]) == found
    assert parse_partitions(None) == ()


WRONG = [
    [],
    {},
    "day=1",
    [[]],
    [{}],
    [{"a": [1]}],
    [{"a": {"b": 1}}],
    ["a"],
    [{"a": 1}] * (MAX_PARTITIONS + 1),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:20])
def test_invalid_list_of_partitions_is_refused(wrong):
    with pytest.raises(InvalidField, match=r"partitions"):
        parse_partitions(wrong)


# Matching files.

TYPES = {
    name: logical_types.parse(text)
    for name, text in zip("nxstm", ["INT", "DOUBLE", "STRING", "TIMESTAMP", "DECIMAL(5,2)"], strict=True)
} | {"day": logical_types.parse("DATE")}


def listing(*given: dict[str, Any] | None, content: str = "DATA") -> pa.Table:
    rows = [
        {"file_path": f"f{at}", "file_content": content, "partition_data_json": t and json.dumps(t)}
        for at, t in enumerate(given)
    ]
    return pa.Table.from_pylist(rows, FILE_SCHEMA)


def paths(files: pa.Table, *requested: dict[str, Any]) -> list[str]:
    return partitions.paths_in(files, parse_partitions(list(requested)), TYPES, "c.s.t").to_pylist()


def test_partition_may_have_some_or_all_fields():
    files = listing({"n": 1, "s": "a"}, {"n": 1, "s": "b"}, {"n": 2, "s": "a"}, {"n": None, "s": "a"})
    assert paths(files, {"n": 1}) == ["f0", "f1"]
    assert paths(files, {"n": 1, "s": "a"}) == ["f0"]
    assert paths(files, {"n": 1, "s": "b"}, {"n": 2}, {"s": "b"}) == ["f1", "f2"]
    assert paths(files, {"n": None}) == ["f3"]


@pytest.mark.parametrize(
    ("stored", "requested"),
    [
        ({"n": 7}, {"n": "7"}),
        ({"n": "7"}, {"n": 7}),
        ({"x": 1.0}, {"x": 1}),
        ({"x": "1.0"}, {"x": "1"}),
        ({"t": "2024-05-01T00:00:00"}, {"t": "2024-05-01T00:00:00.000"}),
        ({"m": "1.50"}, {"m": 1.5}),
        ({"day": "2024-05-01"}, {"day": "2024-05-01"}),
        ({"ts_day": "2024-05-01"}, {"ts_day": "2024-05-01"}),
        ({"s": ""}, {"s": ""}),
    ],
)
def test_values_are_compared_by_the_type_of_the_column(stored, requested):
    assert paths(listing(stored), requested) == ["f0"]


@pytest.mark.parametrize(
    ("stored", "requested"),
    [({"s": "007"}, {"s": 7}), ({"s": ""}, {"s": None}), ({"day": "2024-05-01"}, {"day": "May"})],
)
def test_similar_text_of_another_value_matches_no_file(stored, requested):
    with pytest.raises(NotFound, match=r'no file of "c.s.t" is in .* its partitions are'):
        paths(listing(stored), requested)


def test_delete_files_and_files_of_other_partition_fields_do_not_match():
    files = pa.concat_tables([listing({"n": 1}, {"s": "a"}, None), listing({"n": 1}, content="POSITION_DELETES")])
    assert paths(files, {"n": 1}) == ["f0"]


def test_unknown_partition_field_is_refused_with_a_suggestion():
    with pytest.raises(InvalidArgument, match=r'not partitioned by "dya"; did you mean "day"') as refused:
        paths(listing({"day": "2024-05-01"}), {"dya": "2024-05-01"})
    assert refused.value.code == "NOT_PARTITIONED"


def test_unpartitioned_table_and_table_without_files_are_refused():
    with pytest.raises(InvalidArgument, match=r'"c.s.t" is not partitioned; leave'):
        paths(listing(None, None), {"day": "2024-05-01"})
    with pytest.raises(NotFound, match="has no data file"):
        paths(listing(), {"day": "2024-05-01"})


# Engines, on a hive-partitioned table of two files a day.

DAYS = ("2024-05-01", "2024-05-02", "2024-05-03")
FIRST = parse_partitions([{"day": DAYS[0]}])


@pytest.fixture
def table(tmp_path) -> Iterator[TableHandle]:
    for at, day in enumerate(DAYS):
        for number in range(2):
            place = tmp_path / "t" / f"day={day}" / f"{number}.parquet"
            place.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"v": range(20 * at, 20 * at + 10 + number)}), place)
    connector = open_connector(ConnectorConfig("c", "parquet", str(tmp_path), {}))
    schema = connector.describe("default", "t").schema
    snapshot = connector.enumerate_snapshots("default", "t").current_snapshot_id
    ids = {column.name: at for at, column in enumerate(schema.columns, 1)}
    assert ids == {"v": 1, "day": 2}
    yield TableHandle("c", "default", "t", "id", snapshot, schema, ids, connector)
    connector.close()


def request_for(table: TableHandle, target: Target, **more: Any) -> CaptureRequest:
    return CaptureRequest.of(table, target, **{"partitions": FIRST} | more)


def captured(engine: CaptureEngine, *requests: CaptureRequest):
    sink = MemorySink()
    results, _ = Registry([engine]).capture_batch(list(requests), sink)
    return results, sink


def test_native_capture_of_a_partition_has_file_columns_only(table):
    results, sink = captured(NativeEngine(), request_for(table, Target.table()), request_for(table, Target.column(1)))
    assert [r.outcome for r in results] == [Outcome.CAPTURED] * 2
    assert results[0].detail.startswith("statistics of 2 of 6 files;")
    assert results[0].attributes == {"files": 2, "files_total": 6}
    assert not sink.rows("stats.tables") and not sink.rows("stats.columns")
    assert len(sink.rows("stats.files")) == 6  # a listing is never partial
    assert {row["file_path"].split("/")[-2] for row in sink.rows("stats.file_columns")} == {f"day={DAYS[0]}"}


def test_only_the_files_of_a_partition_are_read(table):
    results, sink = captured(
        ComputeEngine(), request_for(table, Target.column(1)), request_for(table, Target.column(2))
    )
    assert [r.outcome for r in results] == [Outcome.CAPTURED] * 2
    assert results[0].attributes["files_read"] == 2 and results[0].attributes["rows_read"] == 21
    assert not sink.rows("stats.columns")
    rows = [row for row in sink.rows("stats.file_columns") if row["column_id"] == 1]
    assert sorted((row["min"], row["max"], row["ndv"]) for row in rows) == [("0", "10", 11.0), ("0", "9", 10.0)]


def test_scoped_and_whole_requests_may_share_a_batch(table):
    scoped, whole = request_for(table, Target.column(1)), request_for(table, Target.column(1), partitions=())
    for engine in (ComputeEngine(), NativeEngine()):
        results, sink = captured(engine, scoped, whole)
        assert [r.outcome for r in results] == [Outcome.CAPTURED] * 2
        (row,) = sink.rows("stats.columns")
        assert (row["row_count"], row["completeness"]) == (63, "COMPLETE")


@pytest.mark.parametrize("engine", [NativeEngine(), ComputeEngine()], ids=lambda engine: engine.id)
@pytest.mark.parametrize(
    ("requested", "detail"),
    [({"v": 1}, 'not partitioned by "v"'), ({"day": "2024-06-01"}, 'no file of "c.default.t" is in')],
)
def test_invalid_partition_is_degraded_and_not_retryable(table, engine, requested, detail):
    ((result,), sink) = captured(engine, request_for(table, Target.column(1), partitions=parse_partitions([requested])))
    assert result.outcome is Outcome.DEGRADED and detail in result.detail
    assert result.attributes == {"retryable": False}
    assert not sink.puts


def test_unknown_column_is_degraded(table):
    ((result,), _) = captured(NativeEngine(), request_for(table, Target.column(9)))
    assert result.outcome is Outcome.DEGRADED and "no column with id 9" in result.detail


@pytest.mark.parametrize("target", [Target.column_group([1, 2]), Target.file("x"), Target.expression("spark", b"v")])
def test_partitions_of_other_targets_are_unsupported(table, target):
    for engine in (NativeEngine(), ComputeEngine()):
        assert "unsupported" in engine.supports(request_for(table, target))


def test_partitions_are_a_mismatch_for_an_engine_without_them(table):
    engine = FakeEngine()
    request = request_for(table, Target.column(1))
    assert engine.supports(request) == "partitions unsupported for target COLUMN"
    assert engine.supports(with_spec(request, partitions=())) == ""
    assert "sampling" in ComputeEngine().supports(with_spec(request, sampling=Sampling.RANDOM_ROW_GROUP))
