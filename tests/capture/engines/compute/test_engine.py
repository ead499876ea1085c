"""The computing engine in this process, without a JVM: records, outcomes, incremental capture, samples, groups."""

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from capture.compute import fold as incremental
from capture.compute import kernels
from capture.compute.fold import Fold
from capture.compute.readers import tasks
from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.engines.compute import plan
from capture.engines.compute.engine import ComputeEngine
from capture.spec import Budget, FileSketches, Sampling
from capture.spi import CaptureRequest, Mode, Outcome, TableHandle
from store.model import logical_types, sketches
from store.model.columns import KINDS
from store.model.errors import UpstreamError
from store.model.targets import Target
from store.model.units import bytes_text
from tests.capture.engines.compute.lake import Lake, MemorySink, all_columns, column


def test_records_of_columns_and_files(engine, table):
    sink = MemorySink()
    results = engine.capture_batch(all_columns(table, mode=Mode.ASYNC), sink)
    assert [result.outcome for result in results] == [Outcome.CAPTURED] * 4
    attributes = results[0].attributes
    assert (attributes["execution"], attributes["files"], attributes["files_reused"]) == ("inline", 2, 0)
    assert (attributes["files_read"], "files_failed" in attributes) == (2, False)
    found = sink.columns()
    assert set(found) == {"id", "word", "ratio", "part"}
    row = found["id"]
    assert {name: row[name] for name in table.key} == table.key
    expected = {
        "logical_type": "INT",
        "row_count": 1500,
        "null_count": 0,
        "nan_count": None,
        "ndv": 1500,
        "ndv_exact": True,
        "ndv_lower": 1500,
        "ndv_upper": 1500,
        "min": "0",
        "max": "1499",
        "min_is_exact": True,
        "max_is_exact": True,
        "avg_width_bytes": 8,
        "max_width_bytes": 8,
        "producer": "ENGINE_COMPUTED",
        "completeness": "COMPLETE",
        "confidence_level": None,
        "engine_id": "local",
        "capture_mode": "ASYNC",
        "rows_scanned": 1500,
        "files_scanned": 2,
        "row_groups_sampled": 0,
        "schema_hash": table.columns.hash,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["captured_at"] == row["refreshed_at"]
    assert row["bytes_scanned"] > 0
    assert (found["word"]["null_count"], found["word"]["ndv"], found["word"]["avg_width_bytes"]) == (150, 90, 2.9)
    assert (found["ratio"]["nan_count"], found["ratio"]["max"]) == (0, "187.375")
    assert (found["part"]["min"], found["part"]["max"], found["part"]["ndv"]) == ("a", "b", 2)
    assert (row["mean"], row["stddev"]) == (749.5, pytest.approx(433.157, abs=1e-3))
    assert [found[name]["mean"] for name in ("word", "part")] == [None, None]
    files = {(row["file_path"], row["column_name"]): row for row in sink.get("stats.file_columns")}
    assert len(files) == 8
    assert files["t/b.parquet", "id"]["mean"] == 999.5
    assert (files["t/b.parquet", "id"]["min"], files["t/b.parquet", "id"]["row_count"]) == ("500", 1000)
    assert sum(files[path, "id"]["bytes_scanned"] for path in ("t/a.parquet", "t/b.parquet")) == row["bytes_scanned"]
    found = sink.get("stats.sketches")
    roles = {(row["column_id"], row["role"]) for row in found if row["target_kind"] == "COLUMN"}
    assert roles == {
        (1, "NDV"),
        (1, "QUANTILES"),
        (1, "MCV"),
        (2, "NDV"),
        (2, "MCV"),
        (3, "NDV"),
        (3, "QUANTILES"),
        (3, "MCV"),
        (4, "NDV"),
        (4, "MCV"),
    }
    assert sum(row["target_kind"] == "FILE" for row in found) == 20
    assert all(("fingerprint" in json.loads(row["params"])) == (row["target_kind"] == "FILE") for row in found)
    assert sink.shares == sorted(sink.shares)


def test_only_the_requested_columns_and_kinds_are_captured(engine, table):
    sink = MemorySink()
    kinds = frozenset({"MIN_MAX", "NDV"})
    engine.capture_batch([column(table, "id", kinds=kinds)], sink)
    assert set(sink.columns()) == {"id"}
    assert {row["role"] for row in sink.get("stats.sketches")} == {"NDV"}


def test_progress_counts_files_and_bytes(engine, table, lake):
    sink = MemorySink()
    engine.capture_batch(all_columns(table), sink)
    files = [words.split(",")[0] for words in sink.messages if "file" in words]
    assert list(dict.fromkeys(files)) == ["0 of 2 files", "1 of 2 files", "2 of 2 files"]
    total = bytes_text(sum(file.stat().st_size for file in lake.path.glob("*.parquet")))
    assert f"{total} of {total}" in sink.messages[-1]


def test_repeated_capture_has_the_same_content(engine, table):
    first, second = MemorySink(), MemorySink()
    engine.capture_batch(all_columns(table), first)
    engine.capture_batch(all_columns(table), second)
    assert first.content() == second.content()


def test_incremental_capture_reads_only_new_and_changed_files(engine, table, lake, monkeypatch):
    sink = MemorySink()
    engine.capture_batch(all_columns(table), sink)
    lake.add("c.parquet", range(1500, 1600))
    lake.add("b.parquet", range(500, 1400))  # another file of the same name
    opened = []
    actual = tasks.open_task
    monkeypatch.setattr(tasks, "open_task", lambda task: opened.append(task.file_path) or actual(task))
    again = MemorySink()
    again.rows = {flight: list(rows) for flight, rows in sink.rows.items()}
    before = {flight: len(rows) for flight, rows in again.rows.items()}
    later = replace(table, snapshot_id=8)
    results = engine.capture_batch(all_columns(later), again)
    assert opened == ["t/b.parquet", "t/c.parquet"]
    assert results[0].attributes["files_reused"] == 1
    again.rows = {flight: rows[before[flight] :] for flight, rows in again.rows.items()}
    fresh = MemorySink()
    engine.capture_batch(all_columns(later), fresh)
    assert again.content() == fresh.content()


@pytest.mark.parametrize(
    ("stored", "grows", "expected"), [("spark", False, "spark"), ("local", False, "local"), ("spark", True, "local")]
)
def test_records_keep_the_engine_that_computed_them_where_nothing_is_left_to_read(
    engine, table, lake, stored, grows, expected
):
    sink = MemorySink()
    engine.capture_batch(all_columns(table), sink)
    for rows in sink.rows["stats.file_columns"]:
        assert set(rows["engine_id"].to_pylist()) == {"local"}
    sink.rows["stats.file_columns"] = [_computed_by(stored, rows) for rows in sink.rows["stats.file_columns"]]
    if grows:
        lake.add("c.parquet", range(1500, 1600))
    again = MemorySink()
    again.stored = sink.stored
    results = engine.capture_batch(all_columns(table), again)
    assert {row["engine_id"] for row in again.columns().values()} == {expected}
    assert {(result.engine_id, result.attributes["execution"]) for result in results} == {("local", "inline")}


def _computed_by(engine_id: str, rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index("engine_id")
    return rows.set_column(at, rows.schema.field(at), pa.array([engine_id] * len(rows)))


@pytest.mark.parametrize("union", [True, False])
def test_incremental_capture_of_one_new_file_equals_a_full_capture(engine, table, lake, union):
    """One file is added to thirty; with whole sketches of files, the content agrees byte for byte."""
    engine.file_sketches = FileSketches.FULL
    for number in range(28):
        lake.add(f"f{number:03}.parquet", range(number * 90, number * 90 + 100))
    sink = MemorySink()
    engine.capture_batch(all_columns(table), sink)
    if not union:  # without sketches of the table, whose params list their files
        (stored,) = sink.rows["stats.sketches"]
        sink.rows["stats.sketches"] = [stored.filter(pa.compute.is_valid(stored["file_path"]))]
    lake.add("f010x.parquet", range(70_000, 70_100))
    later, again, fresh = replace(table, snapshot_id=8), MemorySink(), MemorySink()
    again.stored = sink.stored
    results = engine.capture_batch(all_columns(later, mode=Mode.ASYNC), again)
    attributes = results[0].attributes
    assert (attributes["execution"], attributes["files"], attributes["files_reused"]) == ("inline", 31, 30)
    assert (attributes["files_read"], attributes["rows_read"]) == (1, 100)
    engine.capture_batch(all_columns(later, mode=Mode.ASYNC), fresh)
    assert again.content() == fresh.content()


def test_columns_are_captured_in_as_many_passes_as_what_is_stored_of_them_needs(engine, table, lake, monkeypatch):
    """Two columns of three files fit into memory at once; a column that was never scanned has a pass without them."""
    monkeypatch.setattr(plan, "KNOWN_RESULTS", 6)
    everything = all_columns(table)
    sink = MemorySink()
    engine.capture_batch(everything[:-1], sink)
    lake.add("c.parquet", range(1500, 1600))
    again, fresh, asked = MemorySink(), MemorySink(), []

    def stored(flight, table, columns=None, column_ids=None):
        if flight == "stats.sketches":
            asked.append(tuple(column_ids))
        return sink.stored(flight, table, columns, column_ids)

    again.stored = stored
    later = all_columns(replace(table, snapshot_id=8))
    results = engine.capture_batch(later, again)
    assert [result.target for result in results] == [request.target for request in later]
    assert [result.attributes["files_reused"] for result in results] == [2, 2, 2, 0]
    assert asked == [(4,), (1, 2), (3,)]
    monkeypatch.undo()
    engine.capture_batch(later, fresh)
    assert again.content() == fresh.content()


def test_values_of_a_removed_file_are_no_longer_counted(engine, table, lake):
    sink = MemorySink()
    engine.capture_batch(all_columns(table), sink)
    (lake.path / "a.parquet").unlink()
    later = MemorySink()
    later.rows = dict(sink.rows)
    engine.capture_batch([column(replace(table, snapshot_id=8), "id")], later)
    (row,) = [row for row in later.get("stats.columns") if row["snapshot_id"] == 8]
    assert (row["ndv"], row["min"]) == (1000, "500")


def test_capture_without_quantiles_is_not_reused_for_quantiles(engine, table):
    sink = MemorySink()
    engine.capture_batch([column(table, "id", kinds=frozenset({"NDV"}))], sink)
    (result,) = engine.capture_batch([column(table, "id", kinds=frozenset({"NDV"}))], sink)
    assert result.attributes["files_reused"] == 2
    (result,) = engine.capture_batch([column(table, "id")], sink)
    assert result.attributes["files_reused"] == 0


def test_table_without_files_has_zero_counts(engine, table, lake):
    for file in lake.path.glob("*"):
        file.unlink()
    sink = MemorySink()
    group = CaptureRequest.of(table, Target.column_group([1, 2]))
    results = engine.capture_batch([*all_columns(table), group], sink)
    assert {result.outcome for result in results} == {Outcome.CAPTURED}
    for row in [*sink.columns().values(), *sink.get("stats.column_groups")]:
        assert (row["row_count"], row["null_count"], row["ndv"], row["min"]) == (0, 0, 0, None)
        assert row["ndv_exact"]


def test_damaged_file_is_named_and_the_others_are_captured(engine, table, lake):
    (lake.path / "a.parquet").write_bytes(b"PAR1 not at all PAR1")
    sink = MemorySink()
    (result,) = engine.capture_batch([column(table, "id")], sink)
    assert result.outcome is Outcome.CAPTURED
    assert result.detail.startswith('file "t/a.parquet": ')
    row = sink.columns()["id"]
    assert (row["completeness"], row["row_count"], row["min"], row["ndv_exact"]) == ("PARTIAL", 1001, None, False)
    assert (row["rows_scanned"], row["ndv"], row["ndv_upper"]) == (1000, 1000.0, 1001.0)
    (lake.path / "b.parquet").write_bytes(b"")
    sink = MemorySink()
    (result,) = engine.capture_batch([column(table, "id")], sink)
    assert result.outcome is Outcome.DEGRADED
    assert "1 more of 2 files" in result.detail
    assert sink.get("stats.columns") == []


def test_bounds_of_files_that_are_gone_come_from_metadata(engine, tmp_path):
    for start in (0, 100):
        write_deltalake(tmp_path / "t", pa.table({"id": range(start, start + 100)}), mode="append")
    next((tmp_path / "t").glob("*.parquet")).unlink()
    connector = open_connector(ConnectorConfig("c", "delta", str(tmp_path), {}))
    schema = connector.describe("default", "t").schema
    table = TableHandle("c", "default", "t", "id", 1, schema, {"id": 1}, connector)
    sink = MemorySink()
    (result,) = engine.capture_batch([CaptureRequest.of(table, Target.column(1))], sink)
    row = sink.columns()["id"]
    assert "no such file" in result.detail and (row["completeness"], row["row_count"]) == ("PARTIAL", 200)
    assert (row["min"], row["max"], row["max_is_exact"]) == ("0", "199", True)


def test_outcomes_keep_the_order_of_requests(engine, table):
    requests = [
        column(table, "shape"),
        column(table, "id"),
        CaptureRequest.of(table, Target.column(99)),
        CaptureRequest.of(table, Target.table()),
        column(table, "word"),
        column(table, "pause"),
        CaptureRequest.of(table, Target.expression("abacus", b"x")),
        column(table, "id", kinds=frozenset({"FILE_COUNT"})),
        CaptureRequest.of(table, Target.column_group([1, 5])),
        CaptureRequest.of(table, Target.expression("spark", b"id"), sampling=Sampling.METADATA_GUIDED),
    ]
    results = engine.capture_batch(requests, MemorySink())
    assert [result.target for result in results] == [request.target for request in requests]
    no, yes = Outcome.UNCAPTURABLE, Outcome.CAPTURED
    assert [r.outcome for r in results] == [no, yes, Outcome.DEGRADED, no, yes, yes, no, no, no, no]
    assert results[0].detail == "target unsupported: VARIANT column has no scalar statistics"
    assert "99" in results[2].detail
    assert all("unsupported" in result.detail for result in results if result.outcome is no)


def test_interval_column_has_only_counts(engine, table):
    sink = MemorySink()
    engine.capture_batch([column(table, "pause")], sink)
    row = sink.columns()["pause"]
    assert (row["null_count"], row["ndv"], row["ndv_exact"], row["min"]) == (1500, None, None, None)


def test_container_has_only_counts_and_does_not_keep_others_from_being_reused(engine, table):
    sink = MemorySink()
    engine.capture_batch(all_columns(table), sink)
    results = engine.capture_batch([*all_columns(table), column(table, "tags")], sink)
    assert {result.outcome for result in results} == {Outcome.CAPTURED}
    assert [result.attributes["files_reused"] for result in results] == [2, 2, 2, 2, 0]
    row = sink.columns()["tags"]
    assert (row["row_count"], row["null_count"]) == (1500, 1500), "no file has it"
    assert {row[name] for name in ("ndv", "ndv_exact", "min", "min_is_exact", "avg_width_bytes", "mean")} == {None}


@pytest.mark.parametrize(
    ("error", "detail"),
    [(UpstreamError("the lake is dry"), "the lake is dry"), (RuntimeError("boom"), "capture failed: RuntimeError")],
)
def test_connector_errors_are_degraded_outcomes(engine, table, lake, error, detail):
    lake.error = error
    results = engine.capture_batch(all_columns(table), MemorySink())
    assert {(result.outcome, result.detail) for result in results} == {(Outcome.DEGRADED, detail)}


def test_cancelled_capture_stores_no_columns(engine, table):
    sink = MemorySink(cancel_after=2)
    results = engine.capture_batch(all_columns(table), sink)
    assert {(result.outcome, result.detail) for result in results} == {(Outcome.DEGRADED, "cancelled")}
    assert sink.get("stats.columns") == []


def test_tables_of_one_batch_do_not_mix(engine, table, tmp_path):
    other = Lake(tmp_path / "other")
    other.path.mkdir()
    other.add("x.parquet", range(3))
    bad = Lake(tmp_path, error=UpstreamError("no"))
    handles = [table, replace(table, name="u", connector=other), replace(table, name="v", connector=bad)]
    sink = MemorySink()
    results = engine.capture_batch([column(handle, "id") for handle in [*handles, table]], sink)
    yes, no = Outcome.CAPTURED, Outcome.DEGRADED
    assert [result.outcome for result in results] == [yes, yes, no, yes]
    assert {(row["table_name"], row["max"]) for row in sink.get("stats.columns")} == {("t", "1499"), ("u", "2")}


def test_record_of_a_sample_is_labelled(engine, table, lake):
    for name in ("a", "b"):
        lake.add(f"{name}.parquet", range(1000), row_group_size=100)
    sink = MemorySink()
    engine.capture_batch([column(table, "word", sampling=Sampling.RANDOM_ROW_GROUP)], sink)
    row = sink.columns()["word"]
    assert (row["completeness"], row["row_groups_sampled"], row["rows_scanned"]) == ("PARTIAL", 2, 200)
    assert (row["row_count"], row["null_count"], row["confidence_level"] < 1) == (2000, 200, True)
    assert (row["ndv_exact"], row["min"], row["max_is_exact"]) == (False, None, None)
    assert row["ndv_lower"] <= 90 <= row["ndv_upper"]
    assert sink.get("stats.file_columns") == []
    params = json.loads(sink.get("stats.sketches")[0]["params"])
    assert (params["rows"], params["rows_seen"], params["completeness"]) == (2000, 200, "PARTIAL")


def test_sample_of_all_rows_is_complete(engine, table):
    sink = MemorySink()
    how = {"sampling": Sampling.RANDOM_ROW_GROUP, "budget": Budget(max_rows=1500)}
    engine.capture_batch([column(table, "id", **how)], sink)
    row = sink.columns()["id"]
    assert (row["completeness"], row["row_groups_sampled"], row["rows_scanned"]) == ("COMPLETE", 0, 1500)


def test_column_group_has_distinct_tuples_and_dependencies(engine, table):
    sink = MemorySink()
    group = CaptureRequest.of(table, Target.column_group([4, 2]))
    (result, _) = engine.capture_batch([group, column(table, "id")], sink)
    assert result.outcome is Outcome.CAPTURED
    (row,) = sink.get("stats.column_groups")
    assert (row["column_ids"], row["column_names"], row["logical_type"]) == ([2, 4], ["word", "part"], "STRUCT")
    assert (row["ndv"], row["ndv_exact"], row["row_count"], row["min"]) == (2 * 91, True, 1500, None)
    (sketch,) = [row for row in sink.get("stats.sketches") if row["role"] == "TUPLE_NDV"]
    assert sketch["storage_id"] == Target.column_group([2, 4]).storage_id
    # 91 words, null among them, of two parts; each part has all of them
    assert [(d["determinant"], d["dependent"], d["degree"]) for d in result.attributes["dependencies"]] == [
        ([2], [4], 91 / 182),
        ([4], [2], 2 / 182),
    ]
    assert json.loads(sketch["params"])["dependencies"] == result.attributes["dependencies"]


def test_scan_of_a_group_asks_for_nothing_that_is_stored(engine, table):
    sink = MemorySink()
    sink.stored = None
    results = engine.capture_batch([CaptureRequest.of(table, Target.column_group([1, 2])), column(table, "word")], sink)
    assert [(result.outcome, result.detail) for result in results] == [(Outcome.CAPTURED, "")] * 2


def test_overlapping_groups_and_a_column_may_share_a_batch(engine, table):
    sink = MemorySink()
    groups = [CaptureRequest.of(table, Target.column_group(ids)) for ids in ([1, 2], [2, 4], [1, 2, 4])]
    results = engine.capture_batch([*groups, column(table, "word")], sink)
    found = [{d["determinant"][0]: d["degree"] for d in r.attributes.get("dependencies", [])} for r in results]
    assert found == [{1: 1.0, 2: 91 / 1500}, {2: 0.5, 4: 2 / 182}, {1: 1.0, 2: 91 / 1500, 4: 2 / 1500}, {}]
    assert sink.columns()["word"]["ndv"] == 90


@pytest.mark.parametrize("unknown", ["sampled", "damaged", "empty"])
def test_unknown_degrees_of_dependency_are_absent(engine, table, lake, unknown):
    sink = MemorySink()
    lake.add("a.parquet", range(500), row_group_size=10)
    if unknown == "damaged":
        (lake.path / "b.parquet").write_bytes(b"PAR1 not at all PAR1")
    if unknown == "empty":
        for file in lake.path.glob("*"):
            file.unlink()
    sampling = Sampling.RANDOM_ROW_GROUP if unknown == "sampled" else Sampling.NONE
    (result,) = engine.capture_batch([CaptureRequest.of(table, Target.column_group([1, 2]), sampling=sampling)], sink)
    assert result.outcome is Outcome.CAPTURED
    assert "dependencies" not in result.attributes
    (sketch,) = sink.get("stats.sketches")
    assert "dependencies" not in json.loads(sketch["params"])


# Folding.


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 700])
def test_fold_of_many_files_is_their_union(count):
    lt = logical_types.parse("INT")
    fold = Fold(lt)
    for part in range(count):
        values = pa.chunked_array([pa.array(np.arange(part * 10, part * 10 + 20))])
        fold.add(kernels.summarise(values, lt), 5)
    found = fold.result()
    assert (found.row_count, fold.parts, fold.size_bytes) == (20 * count, count, 5 * count)
    distinct = 10 * count + 10 if count else 0
    assert sketches.estimate(found.theta).ndv == pytest.approx(distinct, rel=3 / 64)
    if count:
        assert (found.min, found.max) == ("0", str(distinct - 1))
        (median,) = sketches.quantiles(found.kll, [0.5])
        assert abs(median - distinct / 2) <= 0.02 * distinct + 10


def test_fingerprint_of_invalid_params_is_empty():
    fingerprints = {incremental._parameter(params, "fingerprint") for params in ("no json", "[1]", None)}
    assert fingerprints == {""}


def test_capabilities_list_known_kinds(engine):
    capabilities = engine.capabilities
    assert isinstance(capabilities.target_kinds, Mapping)
    assert all(kinds <= set(KINDS) for kinds in capabilities.target_kinds.values())
    assert (engine.id, engine.priority) == ("spark", 100)


# Columns of an actual lake.


def captured(path, columns):
    """Rows of stats.columns by column id of the only table below a directory; `columns` are its schema's, in order."""
    connector = open_connector(ConnectorConfig("c", "parquet", str(path), {}))
    schema = connector.describe("default", "t").schema
    assert [c.name for c in schema.columns] == columns
    ids = {c.key: number for number, c in enumerate(schema.columns, 1)}
    snapshot = connector.enumerate_snapshots("default", "t").current_snapshot_id
    table = TableHandle("c", "default", "t", "id", snapshot, schema, ids, connector)
    sink = MemorySink()
    leaves = [i for i, c in table.by_id.items() if c.is_leaf]
    results = ComputeEngine().capture_batch([CaptureRequest.of(table, Target.column(i)) for i in leaves], sink)
    assert {(result.outcome, result.detail) for result in results} == {(Outcome.CAPTURED, "")}
    return {row["column_id"]: row for row in sink.get("stats.columns")}


def test_a_duration_is_counted_without_bounds(tmp_path):
    (tmp_path / "t").mkdir()
    pauses = pa.array([1, None, 3], pa.duration("ms"))
    pq.write_table(pa.table({"a": [1, 2, 3], "pause": pauses}), tmp_path / "t/0.parquet")
    row = captured(tmp_path, ["a", "pause"])[2]
    assert (row["logical_type"], row["row_count"], row["null_count"]) == ("INTERVAL", 3, 1)
    assert [row[name] for name in ("min", "max", "ndv", "mean")] == [None] * 4


def test_rounded_bounds_of_a_lake_enclose_nanoseconds(tmp_path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"at": pa.array([5001, 5002, 7000], pa.timestamp("ns"))}), tmp_path / "t/0.parquet")
    row = captured(tmp_path, ["at"])[1]
    assert (row["min"], row["min_is_exact"]) == ("1970-01-01T00:00:00.000005", False)
    assert (row["max"], row["max_is_exact"], row["ndv"]) == ("1970-01-01T00:00:00.000007", True, 3)


def test_kind_that_a_type_does_not_have_is_named(engine, table):
    wanted = [column(table, name, kinds=frozenset({"NDV", "HISTOGRAM"})) for name in ("word", "id")]
    results = engine.capture_batch(wanted, MemorySink())
    assert [result.outcome for result in results] == [Outcome.CAPTURED] * 2
    assert [result.detail for result in results] == ["a value of type STRING has no HISTOGRAM; ask without it", ""]
