"""Native engine: the contract on a Parquet table, and roll-ups of files with their exactness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from capture.connectors import open_connector
from capture.connectors.spi import FILE_COLUMN_SCHEMA, FILE_SCHEMA, Column, ConnectorConfig, NativeStats, Schema
from capture.engines.native.engine import NativeEngine
from capture.flight_rows import flight_rows
from capture.spi import CaptureRequest, Outcome, TableHandle
from store.model.errors import UpstreamError
from store.model.targets import Target
from tests.capture.engine_contract import EngineContract, MemorySink, with_spec


class KeepingSink(MemorySink):
    def requested(self, flight, table, columns):
        rows = pa.concat_tables([rows for name, rows, extra, _ in self.puts if name == flight and not extra])
        return rows.filter(pc.equal(rows["snapshot_id"], table.snapshot_id)).select(columns)


class TestNativeEngine(EngineContract):
    @pytest.fixture
    def engine(self):
        return NativeEngine()

    @pytest.fixture
    def table(self, tmp_path) -> Iterator[TableHandle]:
        (tmp_path / "t").mkdir()
        for number in range(3):
            rows = pa.table({"a": range(number, number + 4), "b": ["x", None, "y", "z"]})
            pq.write_table(rows, tmp_path / "t" / f"{number}.parquet")
        connector = open_connector(ConnectorConfig("c", "parquet", str(tmp_path), {}))
        schema = connector.describe("default", "t").schema
        snapshot = connector.enumerate_snapshots("default", "t").current_snapshot_id
        yield TableHandle("c", "default", "t", "id", snapshot, schema, {"a": 1, "b": 2}, connector)
        connector.close()

    def capturable(self, table):
        return [Target.table(), Target.column(1), Target.column(2)]

    def foreign(self, table):
        return [Target.expression("spark", b"k"), Target.column_group([1, 2])]

    def test_table_capture_includes_its_columns_and_files(self, engine, table):
        sink = MemorySink()
        engine.capture_batch(self.requests(table, Target.table()), sink)
        (row,) = sink.rows("stats.tables")
        assert (row["row_count"], row["data_file_count"]) == (12, 3)
        assert len(sink.rows("stats.files")) == 3 and len(sink.rows("stats.file_columns")) == 6
        assert {row["column_id"] for row in sink.rows("stats.columns")} == {1, 2}
        # extra: never in place of a stored record
        assert all(extra for flight, _, extra, _ in sink.puts if flight in ("stats.columns", "stats.file_columns"))

    def test_statistics_that_were_computed_are_not_read_too(self, engine, table):
        sink = self.computed(table)
        (result,) = engine.capture_batch(self.requests(table, Target.table()), sink)
        assert result.outcome is Outcome.CAPTURED
        assert len(sink.rows("stats.tables")) == 1 and len(sink.rows("stats.files")) == 3
        assert not any(extra for _, _, extra, _ in sink.puts)

    def test_containers_have_rows_beside_computed_columns(self, engine, table):
        """Other engines put records of leaves only."""
        schema = Schema((*table.columns.columns, Column("l", "ARRAY")))
        nested = replace(table, columns=schema, column_ids={**table.column_ids, "l": 3})
        sink = self.computed(table)
        engine.capture_batch(self.requests(nested, Target.table()), sink)
        (row,) = (row for row in sink.rows("stats.columns") if row["column_id"] == 3)
        assert (row["row_count"], row["null_count"], row["logical_type"]) == (12, None, "ARRAY")

    @pytest.mark.parametrize("lacks", [{"columns": 1}, {"files": 1}, {"snapshot_id": 7}])
    def test_statistics_that_were_computed_in_part_are_all_read(self, engine, table, lacks):
        sink = self.computed(table, **lacks)
        engine.capture_batch(self.requests(table, Target.table()), sink)
        extra = {flight: rows.num_rows for flight, rows, extra, _ in sink.puts if extra}
        assert extra == {"stats.columns": 2, "stats.file_columns": 6}

    def test_a_later_capture_reads_what_an_earlier_one_did_not_need(self, engine, table):
        engine.capture_batch(self.requests(table, Target.table()), self.computed(table))
        later, first = MemorySink(), MemorySink()
        for each, sink in ((engine, later), (NativeEngine(), first)):
            each.capture_batch(self.requests(table, Target.table()), sink)
        for flight in ("stats.columns", "stats.file_columns"):
            rows, expected = (
                [{k: v for k, v in row.items() if not k.endswith("_at")} for row in sink.rows(flight)]
                for sink in (later, first)
            )
            assert rows == expected and rows

    def computed(self, table, columns=2, files=3, snapshot_id=None):
        """A sink that has records of some columns and files, as after another engine."""
        key = table.key | ({"snapshot_id": snapshot_id} if snapshot_id else {})
        native = table.connector.capture_snapshot_target_stats(
            table.schema, table.name, table.snapshot_id, table.column_ids
        )
        paths = native.files["file_path"].to_pylist()
        sink = KeepingSink()
        sink.put("stats.columns", flight_rows("stats.columns", [{"column_id": i} for i in range(1, 1 + columns)], key))
        rows = [{"column_id": i, "file_path": path} for path in paths for i in (1, 2)]
        sink.put("stats.file_columns", flight_rows("stats.file_columns", rows[: 2 * files], key))
        return sink

    @pytest.mark.parametrize("selectors", [("b",), ("#2",), (" b ", "#2", "nosuch", "#77", "#x")])
    def test_table_capture_includes_only_the_selected_columns(self, engine, table, selectors):
        sink = MemorySink()
        (request,) = self.requests(table, Target.table())
        engine.capture_batch([with_spec(request, column_selectors=selectors)], sink)
        assert len(sink.rows("stats.tables")) == 1 and len(sink.rows("stats.files")) == 3
        for flight, rows in (("stats.columns", 1), ("stats.file_columns", 3)):
            assert [row["column_name"] for row in sink.rows(flight)] == ["b"] * rows

    def test_selectors_and_columns_of_one_batch_are_united(self, engine, table):
        sink = MemorySink()
        narrow, column = self.requests(table, Target.table(), Target.column(1))
        engine.capture_batch([with_spec(narrow, column_selectors=("#2",)), column], sink)
        found = {
            row["column_id"]: extra
            for name, part, extra, _ in sink.puts
            if name == "stats.columns"
            for row in part.to_pylist()
        }
        assert found == {1: False, 2: True}
        sink = MemorySink()
        engine.capture_batch([with_spec(narrow, column_selectors=("#2",)), narrow], sink)
        assert {row["column_id"] for row in sink.rows("stats.columns")} == {1, 2}

    def test_selectors_without_a_match_capture_only_the_table(self, engine, table):
        sink = MemorySink()
        (request,) = self.requests(table, Target.table())
        engine.capture_batch([with_spec(request, column_selectors=("nosuch",))], sink)
        assert {name for name, *_ in sink.puts} == {"stats.tables", "stats.files"}

    def test_column_capture_includes_nothing_else(self, engine, table):
        sink = MemorySink()
        engine.capture_batch(self.requests(table, Target.column(2)), sink)
        assert [(name, extra) for name, _, extra, _ in sink.puts] == [("stats.columns", False)]
        (row,) = sink.rows("stats.columns")
        assert (row["null_count"], row["min"], row["max"]) == (3, "x", "z")


# Roll-ups, of a fake lake.

SCHEMA = Schema((Column("v", "INT"),))


class Lake:
    format = "made-up"

    def __init__(self, *files: dict[str, Any], **changed: Any):
        self.files, self.changed = files, changed

    def capture_snapshot_target_stats(self, *_: Any) -> NativeStats:
        rows = [
            {"file_path": f"f{i}", "column_name": "v", "column_id": 1, "logical_type": "INT"} | f
            for i, f in enumerate(self.files)
        ]
        facts = {
            "row_count": sum(f.get("row_count") or 0 for f in self.files),
            "data_file_count": len(self.files),
            "total_size_bytes": 1,
            "files": FILE_SCHEMA.empty_table(),
        } | self.changed
        # in two parts, as connectors return them
        table = pa.Table.from_pylist(rows, FILE_COLUMN_SCHEMA)
        return NativeStats(**facts, file_columns=lambda: iter([table.slice(0, 1), table.slice(1)]))


def file(
    low: str | None = "1", high: str | None = "9", rows: int = 10, nulls: int | None = 0, **more: Any
) -> dict[str, Any]:
    return {
        "row_count": rows,
        "null_count": nulls,
        "min": low,
        "max": high,
        "min_is_exact": True,
        "max_is_exact": True,
    } | more


def roll_up(*files: dict[str, Any], **changed: Any) -> dict[str, Any]:
    table = TableHandle("c", "s", "t", "id", 1, SCHEMA, {"v": 1}, Lake(*files, **changed))
    sink = MemorySink()
    (result,) = NativeEngine().capture_batch([CaptureRequest.of(table, Target.column(1))], sink)
    assert result.outcome is Outcome.CAPTURED, result.detail
    return sink.rows("stats.columns")[0]


def test_counts_are_summed_and_bounds_are_outermost():
    row = roll_up(file("5", "20", nulls=1), file("-3", "7", nulls=2), file("10", "100"))
    assert (row["row_count"], row["null_count"], row["min"], row["max"]) == (30, 3, "-3", "100")
    assert (row["min_is_exact"], row["max_is_exact"], row["completeness"]) == (True, True, "COMPLETE")


def test_value_unknown_of_one_file_is_unknown_of_the_table():
    row = roll_up(file(nulls=None), file(nulls=2))
    assert row["null_count"] is None and row["completeness"] == "PARTIAL"
    row = roll_up(file(low=None), file())
    assert row["min"] is None and row["min_is_exact"] is None and row["max"] == "9"


def test_file_of_nulls_needs_no_bounds():
    row = roll_up(file(None, None, rows=4, nulls=4), file("2", "3"))
    assert (row["min"], row["max"], row["null_count"]) == ("2", "3", 4)


@pytest.mark.parametrize(
    ("inner", "outer", "exact"),
    [(True, True, True), (False, True, True), (True, False, False), (True, None, None), (False, False, False)],
)
def test_exactness_is_that_of_the_outermost_bound(inner, outer, exact):
    assert roll_up(file("5", min_is_exact=inner), file("1", min_is_exact=outer))["min_is_exact"] is exact


@pytest.mark.parametrize("others", [False, None])
def test_one_exact_bound_among_equal_ones_makes_it_exact(others):
    assert roll_up(file("1", min_is_exact=others), file("1", min_is_exact=True))["min_is_exact"] is True


def test_deleted_rows_make_bounds_inexact():
    row = roll_up(file(), row_deletes=True)
    assert (row["min"], row["min_is_exact"], row["max_is_exact"]) == ("1", False, False)


def test_files_missing_in_the_metadata_make_the_record_partial():
    row = roll_up(file(), data_file_count=2, row_count=None)
    assert row["completeness"] == "PARTIAL"
    assert (row["null_count"], row["min"], row["max"], row["row_count"]) == (None, None, None, None)


def test_numbers_are_compared_as_numbers():
    row = roll_up(file("9", "9"), file("10", "10"))
    assert (row["min"], row["max"]) == ("9", "10")


def test_rows_of_columns_may_be_interleaved():
    part = pa.Table.from_pylist(
        [
            {"file_path": f"f{i}", "column_name": name, "logical_type": "INT"} | file(str(i), str(i))
            for i in range(3)
            for name in ("v", "w")
        ],
        FILE_COLUMN_SCHEMA,
    )

    class Interleaved(Lake):
        def capture_snapshot_target_stats(self, *_: Any) -> NativeStats:
            return NativeStats(30, 3, 1, FILE_SCHEMA.empty_table(), lambda: iter([part]))

    schema = Schema((Column("v", "INT"), Column("w", "INT")))
    table = TableHandle("c", "s", "t", "id", 1, schema, {"v": 1, "w": 2}, Interleaved())
    sink = MemorySink()
    NativeEngine().capture_batch([CaptureRequest.of(table, Target.column(i)) for i in (1, 2)], sink)
    assert {(r["column_name"], r["min"], r["max"], r["row_count"]) for r in sink.rows("stats.columns")} == {
        ("v", "0", "2", 30),
        ("w", "0", "2", 30),
    }


def test_table_without_a_row_count_is_partial():
    table = TableHandle("c", "s", "t", "id", 1, SCHEMA, {"v": 1}, Lake(file(), row_count=None))
    sink = MemorySink()
    (result,) = NativeEngine().capture_batch([CaptureRequest.of(table, Target.table())], sink)
    assert result.outcome is Outcome.CAPTURED and "live" in result.detail
    assert sink.rows("stats.tables")[0]["completeness"] == "PARTIAL"


def test_failure_of_one_table_does_not_affect_another():
    class Broken(Lake):
        def capture_snapshot_target_stats(self, *_: Any) -> NativeStats:
            raise UpstreamError("away")

    tables = [
        TableHandle("c", "s", name, name, 1, SCHEMA, {"v": 1}, lake)
        for name, lake in (("bad", Broken()), ("good", Lake(file())))
    ]
    results = NativeEngine().capture_batch([CaptureRequest.of(t, Target.column(1)) for t in tables], MemorySink())
    assert [r.outcome for r in results] == [Outcome.DEGRADED, Outcome.CAPTURED]
    assert results[0].attributes == {"retryable": True}


@pytest.mark.parametrize("target", [Target.column(9), Target.file("nowhere")])
def test_target_missing_in_the_snapshot_is_not_retryable(target):
    table = TableHandle("c", "s", "t", "id", 1, SCHEMA, {"v": 1}, Lake(file()))
    (result,) = NativeEngine().capture_batch([CaptureRequest.of(table, target)], MemorySink())
    assert result.outcome is Outcome.DEGRADED and result.attributes == {"retryable": False}


def test_a_struct_selects_its_leaves():
    columns = (
        Column("s", "STRUCT"),
        Column("s.a", "INT"),
        Column("s.b", "INT"),
        Column("sa", "INT"),
        Column("l", "ARRAY"),
    )
    ids = {column.name: at for at, column in enumerate(columns, 1)}
    table = TableHandle("c", "s", "t", "id", 1, Schema(columns), ids, Lake())
    assert table.selected(["s"]) == table.selected(["#1"]) == {"s.a", "s.b"}
    assert table.selected(["s.b", "l", ""]) == {"s.b"}


def test_columns_of_a_table_without_rows_have_zero_counts(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(
        tmp_path / "t", pa.table({"a": pa.array([], pa.int64()), "f": pa.array([], pa.float64())})
    )
    connector = open_connector(ConnectorConfig("c", "delta", str(tmp_path), {}))
    table = TableHandle(
        "c", "default", "t", "id", 0, connector.describe("default", "t").schema, {"a": 1, "f": 2}, connector
    )
    sink = MemorySink()
    targets = [Target.table(), Target.column(1), Target.column(2)]
    results = NativeEngine().capture_batch([CaptureRequest.of(table, target) for target in targets], sink)
    assert {result.outcome for result in results} == {Outcome.CAPTURED}
    rows = sink.rows("stats.columns")
    names = ("column_id", "row_count", "null_count", "nan_count", "min", "completeness")
    assert [tuple(row[n] for n in names) for row in rows] == [
        (1, 0, 0, None, None, "COMPLETE"),
        (2, 0, 0, 0, None, "COMPLETE"),
    ]


# Named kinds: what metadata does not have is left to an engine that reads data.


class StoredSink(MemorySink):
    """A sink whose store has records of column 1."""

    def __init__(self, **row: Any):
        super().__init__()
        self.row = {"column_id": 1, "snapshot_id": 1, "logical_type": "INT", "row_count": 10, "null_count": 0} | row

    def stored(self, flight, table, columns=None, column_ids=None):
        return flight_rows(flight, [self.row]).select(columns or flight_rows(flight, []).column_names)


def ask(*kinds: str, files: Any = (), sink: Any = None, type: str = "INT", **changed: Any):
    files = [part | {"logical_type": type} for part in files or [file()]]
    table = TableHandle("c", "s", "t", "id", 1, Schema((Column("v", type),)), {"v": 1}, Lake(*files, **changed))
    request = CaptureRequest.of(table, Target.column(1), kinds=frozenset(kinds))
    (result,) = NativeEngine().capture_batch([request], sink := sink or MemorySink())
    return result, sink


@pytest.mark.parametrize(
    ("kinds", "part", "changed", "lacks"),
    [
        (["NULL_COUNT"], file(nulls=None), {}, "NULL_COUNT"),
        (["MIN_MAX"], file(low=None), {}, "MIN_MAX"),
        (["MIN_MAX", "ROW_COUNT"], file(), {"data_file_count": 2}, "MIN_MAX"),
        (["ROW_COUNT"], file(), {"data_file_count": 2, "row_count": None}, "ROW_COUNT"),
        (["WIDTH"], file(), {}, "WIDTH"),
    ],
)
def test_named_kind_that_metadata_lacks_is_left_to_a_scan(kinds, part, changed, lacks):
    result, sink = ask(*kinds, files=[part], **changed)
    assert result.outcome is Outcome.UNCAPTURABLE and lacks in result.detail, result
    assert not sink.puts


def test_column_of_nulls_has_known_bounds():
    result, _ = ask("MIN_MAX", "NULL_COUNT", files=[file(None, None, rows=4, nulls=4)])
    assert result.outcome is Outcome.CAPTURED


def test_bounds_that_are_not_exact_keep_saying_so():
    result, sink = ask("MIN_MAX", files=[file(min_is_exact=False, max_is_exact=None)])
    (row,) = sink.rows("stats.columns")
    assert result.outcome is Outcome.CAPTURED and (row["min_is_exact"], row["max_is_exact"]) == (False, None)


def test_only_double_lacks_a_count_of_nans():
    assert ask("NAN_COUNT")[0].outcome is Outcome.CAPTURED
    assert ask("NAN_COUNT", type="DOUBLE")[0].outcome is Outcome.UNCAPTURABLE


def test_width_of_a_type_with_one_width_is_known():
    result, sink = ask("WIDTH", files=[file("2026-01-01", "2026-01-02")], type="DATE")
    (row,) = sink.rows("stats.columns")
    assert result.outcome is Outcome.CAPTURED and (row["avg_width_bytes"], row["max_width_bytes"]) == (4.0, 4)


def test_record_that_knows_more_is_not_replaced():
    result, sink = ask("MIN_MAX", sink=StoredSink(min="1", max="9", ndv=3.0))
    assert result.outcome is Outcome.CAPTURED and not sink.puts
    result, sink = ask("MIN_MAX", sink=StoredSink(min="1", max="9", ndv=3.0, snapshot_id=7))
    assert result.outcome is Outcome.CAPTURED and [extra for *_, extra, _ in sink.puts] == [False]
    result, sink = ask("MIN_MAX", sink=StoredSink(ndv=3.0))  # a scan makes a record with both
    assert result.outcome is Outcome.UNCAPTURABLE and not sink.puts


def test_result_says_what_was_read():
    result, _ = ask("MIN_MAX", files=[file(), file()])
    assert result.reason == "from metadata of 2 files; no data read" and result.detail == ""
