"""Captures scoped to partitions: how they are told, which files they are, what engines make of them."""

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
from capture.engines.compute.engine import SparkEngine
from capture.engines.native.engine import NativeEngine
from capture.registry import Registry
from capture.spec import MAX_PARTITIONS, parse_partitions
from capture.spi import CaptureEngine, CaptureRequest, Outcome, Sampling, TableHandle
from store import logical_types
from store.errors import InvalidArgument, InvalidField, NotFound
from store.targets import Target
from tests.capture.engine_contract import MemorySink, with_spec
from tests.capture.engines_made_up import FakeEngine

# How they are told.


def test_values_are_texts_and_doubles_go():
    told = [{"b": 1, "a": "x"}, {"a": "x", "b": 1}, {"a": None}, {"a": True}, {"a": 1.5}]
    found = parse_partitions(told)
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
def test_what_is_no_list_of_partitions_is_refused(wrong):
    with pytest.raises(InvalidField, match=r"partitions"):
        parse_partitions(wrong)


# Which files they are.

TYPES = {
    name: logical_types.parse(text)
    for name, text in zip("nxstm", ["INT", "DOUBLE", "STRING", "TIMESTAMP", "DECIMAL(5,2)"], strict=True)
} | {"day": logical_types.parse("DATE")}


def listing(*told: dict[str, Any] | None, content: str = "DATA") -> pa.Table:
    rows = [
        {"file_path": f"f{at}", "file_content": content, "partition_data_json": t and json.dumps(t)}
        for at, t in enumerate(told)
    ]
    return pa.Table.from_pylist(rows, FILE_SCHEMA)


def paths(files: pa.Table, *wanted: dict[str, Any]) -> list[str]:
    return partitions.paths_in(files, parse_partitions(list(wanted)), TYPES, "c.s.t").to_pylist()


def test_some_fields_or_all_of_them():
    files = listing({"n": 1, "s": "a"}, {"n": 1, "s": "b"}, {"n": 2, "s": "a"}, {"n": None, "s": "a"})
    assert paths(files, {"n": 1}) == ["f0", "f1"]
    assert paths(files, {"n": 1, "s": "a"}) == ["f0"]
    assert paths(files, {"n": 1, "s": "b"}, {"n": 2}, {"s": "b"}) == ["f1", "f2"]
    assert paths(files, {"n": None}) == ["f3"]


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        ({"n": 7}, {"n": "7"}), ({"n": "7"}, {"n": 7}), ({"x": 1.0}, {"x": 1}), ({"x": "1.0"}, {"x": "1"}),
        ({"t": "2024-05-01T00:00:00"}, {"t": "2024-05-01T00:00:00.000"}), ({"m": "1.50"}, {"m": 1.5}),
        ({"day": "2024-05-01"}, {"day": "2024-05-01"}), ({"ts_day": "2024-05-01"}, {"ts_day": "2024-05-01"}),
        ({"s": ""}, {"s": ""}),
    ],
)  # fmt: skip
def test_values_are_compared_as_the_columns_type(held, asked):
    assert paths(listing(held), asked) == ["f0"]


@pytest.mark.parametrize(
    ("held", "asked"), [({"s": "007"}, {"s": 7}), ({"s": ""}, {"s": None}), ({"day": "2024-05-01"}, {"day": "May"})]
)
def test_what_only_looks_alike_is_another_partition(held, asked):
    with pytest.raises(NotFound, match=r'no file of "c.s.t" is in .* its partitions are'):
        paths(listing(held), asked)


def test_files_of_another_partitioning_or_of_deletes_are_in_none():
    files = pa.concat_tables([listing({"n": 1}, {"s": "a"}, None), listing({"n": 1}, content="POSITION_DELETES")])
    assert paths(files, {"n": 1}) == ["f0"]


def test_a_field_it_is_not_partitioned_by():
    with pytest.raises(InvalidArgument, match=r'not partitioned by "dya"; did you mean "day"') as refused:
        paths(listing({"day": "2024-05-01"}), {"dya": "2024-05-01"})
    assert refused.value.code == "NOT_PARTITIONED"


def test_a_table_without_partitions():
    with pytest.raises(InvalidArgument, match=r'"c.s.t" is not partitioned; leave'):
        paths(listing(None, None), {"day": "2024-05-01"})
    with pytest.raises(NotFound, match="has no data file"):
        paths(listing(), {"day": "2024-05-01"})


# What engines make of them, on a hive-partitioned table of two files a day.

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


def ask(table: TableHandle, target: Target, **more: Any) -> CaptureRequest:
    return CaptureRequest.of(table, target, **{"partitions": FIRST} | more)


def captured(engine: CaptureEngine, *requests: CaptureRequest):
    sink = MemorySink()
    results, _ = Registry([engine]).capture_batch(list(requests), sink)
    return results, sink


def test_metadata_of_a_partition(table):
    results, sink = captured(NativeEngine(), ask(table, Target.table()), ask(table, Target.column(1)))
    assert [r.outcome for r in results] == [Outcome.CAPTURED] * 2
    assert results[0].detail.startswith("statistics of 2 of 6 files;")
    assert results[0].attributes == {"files": 2, "files_total": 6}
    assert not sink.rows("stats.tables") and not sink.rows("stats.columns")
    assert len(sink.rows("stats.files")) == 6  # a listing is whole or none
    assert {row["file_path"].split("/")[-2] for row in sink.rows("stats.file_columns")} == {f"day={DAYS[0]}"}


def test_only_the_files_of_a_partition_are_read(table):
    results, sink = captured(SparkEngine(), ask(table, Target.column(1)), ask(table, Target.column(2)))
    assert [r.outcome for r in results] == [Outcome.CAPTURED] * 2
    assert results[0].attributes["files_read"] == 2 and results[0].attributes["rows_read"] == 21
    assert not sink.rows("stats.columns")
    rows = [row for row in sink.rows("stats.file_columns") if row["column_id"] == 1]
    assert sorted((row["min"], row["max"], row["ndv"]) for row in rows) == [("0", "10", 11.0), ("0", "9", 10.0)]


def test_scoped_and_whole_requests_of_one_batch(table):
    scoped, whole = ask(table, Target.column(1)), ask(table, Target.column(1), partitions=())
    for engine in (SparkEngine(), NativeEngine()):
        results, sink = captured(engine, scoped, whole)
        assert [r.outcome for r in results] == [Outcome.CAPTURED] * 2
        (row,) = sink.rows("stats.columns")
        assert (row["row_count"], row["completeness"]) == (63, "COMPLETE")


@pytest.mark.parametrize("engine", [NativeEngine(), SparkEngine()], ids=lambda engine: engine.id)
@pytest.mark.parametrize(
    ("wanted", "detail"),
    [({"v": 1}, 'not partitioned by "v"'), ({"day": "2024-06-01"}, 'no file of "c.default.t" is in')],
)
def test_trouble_is_an_outcome_that_no_retry_helps(table, engine, wanted, detail):
    ((result,), sink) = captured(engine, ask(table, Target.column(1), partitions=parse_partitions([wanted])))
    assert result.outcome is Outcome.DEGRADED and detail in result.detail
    assert result.attributes == {"retryable": False}
    assert not sink.puts


def test_containers_and_unknown_columns_as_ever(table):
    ((result,), _) = captured(NativeEngine(), ask(table, Target.column(9)))
    assert result.outcome is Outcome.DEGRADED and "no column with id 9" in result.detail


@pytest.mark.parametrize("target", [Target.column_group([1, 2]), Target.file("x"), Target.expression("spark", b"v")])
def test_other_targets_have_no_partitions(table, target):
    for engine in (NativeEngine(), SparkEngine()):
        assert "unsupported" in engine.supports(ask(table, target))


def test_an_engine_that_knows_no_partitions_is_not_asked(table):
    engine = FakeEngine()
    request = ask(table, Target.column(1))
    assert engine.supports(request) == "partitions unsupported for target COLUMN"
    assert engine.supports(with_spec(request, partitions=())) == ""
    assert "sampling" in SparkEngine().supports(with_spec(request, sampling=Sampling.RANDOM_ROW_GROUP))
