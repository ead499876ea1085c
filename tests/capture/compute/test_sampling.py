"""Samples: choice and order of row groups, budgets, labels of the records."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.compute import kernels
from capture.compute.readers import tasks
from capture.compute.sampling import Draw, random_points, spread_points
from capture.compute.stat_rows import Coverage, _scaled, scalars
from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig, ScanColumn, ScanTask
from capture.engines.compute.engine import ComputeEngine
from capture.registry import Registry
from capture.spec import Budget, Sampling
from capture.spi import Capabilities, CaptureRequest, Outcome, TableHandle
from store.model import logical_types, sketches
from store.model.errors import UpstreamError
from store.model.targets import Target, TargetKind
from tests.capture.engine_contract import MemorySink

RANDOM, GUIDED = Sampling.RANDOM_ROW_GROUP, Sampling.METADATA_GUIDED
METHODS = (RANDOM, GUIDED)


def points(method: Sampling, seed: str = "s"):
    return random_points(seed) if method is RANDOM else spread_points()


# Order of row groups.


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[ScanTask]:
    """Files of 1 to 7 row groups of 10 rows, and an empty one."""
    path = tmp_path_factory.mktemp("files")
    found = []
    for number, groups in enumerate((3, 1, 7, 0, 4)):
        rows = pa.table({"v": pa.array(range(number * 100, number * 100 + 10 * groups), pa.int64())})
        pq.write_table(rows, path / f"{number}", row_group_size=10)
        column = ScanColumn(1, "v", "INT", "v")
        size = (path / f"{number}").stat().st_size
        found.append(ScanTask("parquet", f"t/{number}", str(path / f"{number}"), len(rows), size, (column,), "v"))
    return found


def drawn(draw: Draw, *how: Any) -> list[tuple[str, int]]:
    return [(task.file_path, group) for task in draw.take(*how) for group in task.arguments.get("row_groups", [0])]


@pytest.mark.parametrize("count", [2, 5, 16, 100, 1000])
def test_spread_points_have_even_gaps(count):
    found = sorted(islice(spread_points(), count))
    gaps = [right - left for left, right in pairwise([*found, 1 + found[0]])]
    assert max(gaps) < 3 * min(gaps)


def test_random_points_are_repeatable():
    first, again, other = (list(islice(random_points(seed), 3)) for seed in "aab")
    assert first == again != other


@settings(deadline=None)
@given(st.sampled_from(METHODS), st.text(max_size=3), st.lists(st.integers(1, 9), max_size=20))
def test_every_row_group_is_drawn_once(files, method, seed, counts):
    draw = Draw(files, points(method, seed), Budget())
    found = [unit for count in counts for unit in drawn(draw, count)] + drawn(draw)
    everything = {(task.file_path, group) for task in files for group in range(max(task.row_count // 10, 1))}
    assert len(found) == len(set(found)) and set(found) == everything
    assert (draw.rows, draw.ended_by, drawn(draw)) == (150, "", [])


@settings(deadline=None)
@given(st.sampled_from(METHODS), st.text(max_size=3), st.integers(1, 200))
def test_draw_stays_within_the_budget_of_rows(files, method, seed, most):
    draw = Draw(files, points(method, seed), Budget(max_rows=most))
    assert draw.rows_at_most == min(most, 150)
    found = drawn(draw)
    assert draw.rows == max(10, min(most, 150) // 10 * 10)
    assert len(set(found) - {("t/3", 0)}) == draw.rows // 10
    assert draw.ended_by == ("rows" if most < 150 else "")
    assert drawn(draw) == []


@settings(deadline=None)
@given(st.sampled_from(METHODS), st.integers(1, 3000))
def test_draw_stays_within_the_budget_of_bytes(files, method, most):
    draw = Draw(files, points(method), Budget(max_bytes=most))
    draw.take()
    metadata = [pq.read_metadata(task.location) for task in files]
    sizes = [m.row_group(i).column(0).total_compressed_size for m in metadata for i in range(m.num_row_groups)]
    assert draw.size_bytes <= max(most, max(sizes))
    assert draw.ended_by == ("bytes" if most < sum(sizes) else "")


def test_draw_past_its_deadline_takes_one_row_group(files):
    draw = Draw(files, spread_points(), Budget())
    found = [unit for _ in range(3) for unit in drawn(draw, 100, time.monotonic())]
    assert len(found) == len(set(found)) == 3
    assert len(drawn(draw, 100, time.monotonic() + 3600)) == 13


def test_files_are_drawn_in_proportion_to_their_rows(files):
    first = Counter(drawn(Draw(files, random_points(str(seed)), Budget()), 1)[0][0] for seed in range(1500))
    assert {path: round(n / 1500, 1) for path, n in first.items()} == {"t/0": 0.2, "t/1": 0.1, "t/2": 0.5, "t/4": 0.3}


def test_missing_file_stays_a_task_for_the_scan(files, tmp_path):
    gone = ScanTask("parquet", "t/x", str(tmp_path / "x"), 50, 9, files[0].columns, "v")
    assert Draw([gone], spread_points(), Budget(max_rows=5)).take() == [gone]


def test_task_reads_its_row_groups_without_deleted_rows(files):
    task = ScanTask(
        "parquet",
        "t/2",
        files[2].location,
        67,
        1,
        files[2].columns,
        "v",
        {},
        pa.array([0, 25, 61]),
        arguments={"row_groups": [2, 6]},
    )
    reader = tasks.open_task(task)
    (found,) = reader.columns(task.columns)
    assert found.values.to_pylist() == [200 + i for i in (*range(20, 30), *range(60, 70)) if i not in (25, 61)]
    assert (reader.rows, reader.row_groups) == (18, 2)
    reader.close()


# Sampled captures, of 16 files of 5 row groups each in two partitions.

FILES, GROUPS, GROUP_ROWS = 16, 5, 20
ROWS = FILES * GROUPS * GROUP_ROWS


@pytest.fixture
def lake(tmp_path) -> Path:
    """`v` ascends over the files, whose names do not; a tenth of `w` is null."""
    for number in range(FILES):
        ids = range(number * 100, number * 100 + 100)
        rows = pa.table({"v": pa.array(ids, pa.int64()), "w": [None if i % 10 == 0 else f"w{i % 40}" for i in ids]})
        place = tmp_path / "t" / f"side={'left' if number % 2 else 'right'}" / f"{number * 7 % FILES:02}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, place, row_group_size=GROUP_ROWS)
    return tmp_path


@pytest.fixture
def table(lake):
    connector = open_connector(ConnectorConfig("c", "parquet", str(lake), {}))
    yield handle(connector)
    connector.close()


def handle(connector: Any, name: str = "t") -> TableHandle:
    schema = connector.describe("default", name).schema
    snapshot = connector.enumerate_snapshots("default", name).current_snapshot_id
    ids = {column.name: at for at, column in enumerate(schema.columns, 1)}
    return TableHandle("c", "default", name, "id", snapshot, schema, ids, connector)


def capture(table: TableHandle, method: Sampling, budget: Budget | None = None, targets: tuple[Target, ...] = ()):
    """The result of the first target (by default columns v and w) and the sink."""
    sink = MemorySink()
    targets = targets or (Target.column(1), Target.column(2))
    requests = [CaptureRequest.of(table, target, sampling=method, budget=budget) for target in targets]
    results, _ = Registry([ComputeEngine(inline_max_cells=10**9)]).capture_batch(requests, sink)
    return results[0], sink


def column(sink: MemorySink, name: str) -> dict[str, Any]:
    (row,) = [row for row in sink.rows("stats.columns") if row["column_name"] == name]
    return row


@pytest.mark.parametrize("method", METHODS)
def test_record_of_a_sample_is_labelled(table, method):
    result, sink = capture(table, method, Budget(max_rows=330))
    assert result.outcome is Outcome.CAPTURED
    assert result.attributes["sample"] == {"method": method, "rows_total": ROWS, "ended_by": "rows"}
    assert (result.attributes["rows_read"], result.attributes["files"]) == (320, FILES)
    row = column(sink, "w")
    expected = {
        "completeness": "PARTIAL",
        "rows_scanned": 320,
        "row_groups_sampled": 16,
        "row_count": ROWS,
        "null_count": 160,
        "confidence_level": 0.95,
        "ndv_exact": False,
        "min": "w1",
        "max": "w9",
        "min_is_exact": True,
        "max_is_exact": True,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["files_scanned"] == result.attributes["files_read"] <= FILES
    assert row["ndv_lower"] <= 36 <= row["ndv_upper"]
    assert row["bytes_scanned"] > 0
    assert sink.rows("stats.file_columns") == []
    params = [json.loads(s["params"]) for s in sink.rows("stats.sketches")]
    assert params and all((p["rows"], p["rows_seen"]) == (ROWS, 320) and "files" not in p for p in params)
    assert {p["completeness"] for p in params} == {"PARTIAL"}


@pytest.mark.parametrize("method", METHODS)
def test_bounds_of_a_sample_come_from_metadata(table, method):
    """Files have the values 0 … 1599, a sample of 100 rows only some of them; footers have the bounds of all."""
    _, sink = capture(table, method, Budget(max_rows=100))
    row = column(sink, "v")
    assert (row["min"], row["max"], row["min_is_exact"], row["max_is_exact"]) == ("0", "1599", True, True)
    # unique among the rows read, and so estimated to be unique among all
    assert (row["ndv"], row["ndv_lower"], row["ndv_upper"]) == (1600, 100, 1600)


@pytest.mark.parametrize("method", METHODS)
def test_bounds_of_a_sample_are_unknown_without_metadata(table, monkeypatch, method):
    def refuse(*_: Any) -> None:
        raise UpstreamError("the manifest is gone")

    monkeypatch.setattr(table.connector, "capture_snapshot_target_stats", refuse)
    _, sink = capture(table, method, Budget(max_rows=100))
    row = column(sink, "v")
    assert [row[name] for name in ("min", "max", "min_is_exact", "max_is_exact")] == [None] * 4


def test_ndv_estimate_is_at_most_its_upper_limit():
    """Nulls among the rows read leave fewer values than rows."""
    part = kernels.summarise(pa.chunked_array([pa.array([1, 2, 3, None])]), logical_types.parse("INT"))
    row = scalars(part, logical_types.parse("INT"), Coverage(10, 1, 1, row_groups=1, known={"null_count": 0}))
    assert row["ndv_lower"] <= row["ndv"] <= row["ndv_upper"] <= 9


@pytest.mark.parametrize(
    ("seen", "rows_seen", "rows", "expected"),
    [
        (0, 0, 0, 0),
        (1, 100, 1000, 1),
        (10, 1000, 100_000, 10),
        (100, 100, 2000, 2000),
        (632, 1000, 10**6, 1000),
    ],
)
def test_distinct_values_of_a_sample_are_scaled(seen, rows_seen, rows, expected):
    assert _scaled(seen, rows_seen, rows) == pytest.approx(expected, rel=0.01)


def test_guided_sample_is_spread_over_partitions_and_bounds(table):
    """File names have another order than bounds: an order by name would not spread sixteen row groups."""
    result, sink = capture(table, GUIDED, Budget(max_rows=16 * GROUP_ROWS), (Target.column(1), Target.column(3)))
    assert result.detail == ""
    (mcv,) = [s["data"] for s in sink.rows("stats.sketches") if (s["role"], s["column_id"]) == ("MCV", 3)]
    sides = {item.value: item.count // GROUP_ROWS for item in sketches.frequent_items(mcv)}
    assert sides.keys() == {"left", "right"} and min(sides.values()) >= 7
    (kll,) = [s["data"] for s in sink.rows("stats.sketches") if s["role"] == "QUANTILES"]
    quartiles = sketches.quantiles(kll, [0.25, 0.5, 0.75])
    assert [abs(q / ROWS - share) < 0.125 for q, share in zip(quartiles, (0.25, 0.5, 0.75), strict=True)] == [True] * 3


def test_guided_sample_without_metadata_follows_file_names(table, monkeypatch):
    def refuse(*_: Any) -> None:
        raise UpstreamError("the manifest is gone")

    monkeypatch.setattr(table.connector, "capture_snapshot_target_stats", refuse)
    result, _ = capture(table, GUIDED, Budget(max_rows=100))
    assert result.outcome is Outcome.CAPTURED
    notes = ["without bounds from metadata: the manifest is gone", "sampled in the order of file names"]
    assert result.detail == "; ".join(notes)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_files_give_the_same_sample(table, method):
    first, second = (capture(table, method, Budget(max_rows=100))[1] for _ in range(2))
    assert [s["data"] for s in first.rows("stats.sketches")] == [s["data"] for s in second.rows("stats.sketches")]


@pytest.mark.parametrize("method", METHODS)
def test_default_sample_is_a_tenth(table, method):
    result, _ = capture(table, method)
    assert result.attributes["rows_read"] == ROWS / 10


@pytest.mark.parametrize(
    ("method", "budget"),
    [
        (RANDOM, Budget(max_rows=ROWS)),
        (GUIDED, Budget(max_bytes=1 << 30)),
        (RANDOM, Budget(max_seconds=600.0)),
    ],
)
def test_sample_of_all_rows_equals_a_full_capture(table, method, budget):
    result, sink = capture(table, method, budget)
    assert result.attributes["sample"]["ended_by"] is None
    _, whole = capture(table, Sampling.NONE)
    times = ("captured_at", "refreshed_at")
    for name in ("v", "w"):
        both = [{k: v for k, v in column(s, name).items() if k not in times} for s in (sink, whole)]
        assert both[0] == both[1]
    # the unions that a later capture reuses, identified by the listing of their files
    unions = [
        [
            (r["column_id"], r["data"], r["params"])
            for r in s.rows("stats.sketches")
            if (r["role"], r["target_kind"]) == ("NDV", "COLUMN")
        ]
        for s in (sink, whole)
    ]
    assert unions[0] == unions[1] != []


@pytest.mark.parametrize("method", METHODS)
def test_sample_ended_by_time_keeps_the_rows_read(table, method):
    result, sink = capture(table, method, Budget(max_seconds=1e-6))
    assert (result.outcome, result.attributes["sample"]["ended_by"]) == (Outcome.CAPTURED, "seconds")
    row = column(sink, "w")
    assert (row["rows_scanned"], row["row_groups_sampled"], row["files_scanned"]) == (GROUP_ROWS, 1, 1)
    assert (row["completeness"], row["row_count"]) == ("PARTIAL", ROWS)


def test_sample_ends_at_the_first_limit_reached(table):
    for budget, ended_by in (
        (Budget(100, 1, None), "bytes"),
        (Budget(100, 10**9, 600.0), "rows"),
        (Budget(100, 10**9, 1e-6), "seconds"),
    ):
        result, _ = capture(table, RANDOM, budget)
        assert result.attributes["sample"]["ended_by"] == ended_by


def test_column_group_is_sampled_and_an_expression_is_uncapturable(table):
    result, sink = capture(table, GUIDED, Budget(max_rows=100), (Target.column_group([1, 2]),))
    (row,) = sink.rows("stats.column_groups")
    assert (row["rows_scanned"], row["completeness"], row["row_count"]) == (100, "PARTIAL", ROWS)
    assert "dependencies" not in result.attributes
    result, _ = capture(table, GUIDED, None, (Target.expression("spark", b"v + 1"),))
    assert (result.outcome, "unsupported for expressions" in result.detail) == (Outcome.UNCAPTURABLE, True)


@pytest.mark.parametrize("method", METHODS)
def test_sample_names_its_damaged_files(table, lake, method):
    files = sorted((lake / "t").rglob("*.parquet"))
    for file in files[::2]:
        stamp = file.stat()
        file.write_bytes(b"x" * stamp.st_size)
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # the time in the listing
    result, sink = capture(table, method, Budget(max_rows=1200))
    failed = result.attributes["files_failed"]
    assert (result.outcome, 0 < failed <= 8) == (Outcome.CAPTURED, True)
    assert result.detail.startswith('file "')
    row = column(sink, "w")
    assert (row["completeness"], row["rows_scanned"], row["row_count"]) == (
        "PARTIAL",
        result.attributes["rows_read"],
        ROWS,
    )
    assert row["rows_scanned"] < 1200


@pytest.mark.parametrize("method", METHODS)
def test_files_are_sampled_if_the_format_has_no_row_groups(tmp_path, method):
    lance = pytest.importorskip("lance")
    lance.write_dataset(pa.table({"v": range(1000)}), tmp_path / "t.lance", max_rows_per_file=100)
    connector = open_connector(ConnectorConfig("c", "lance", str(tmp_path), {}))
    (name,) = connector.list_tables("default")
    result, sink = capture(handle(connector, name), method, Budget(max_rows=350), (Target.column(1),))
    row = column(sink, "v")
    assert (result.attributes["sample"]["ended_by"], row["completeness"]) == ("rows", "PARTIAL")
    assert (row["rows_scanned"], row["row_groups_sampled"], row["files_scanned"], row["row_count"]) == (300, 3, 3, 1000)
    connector.close()


def test_sample_of_a_table_without_rows_is_complete(tmp_path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"v": pa.array([], pa.int64())}), tmp_path / "t/0.parquet")
    connector = open_connector(ConnectorConfig("c", "parquet", str(tmp_path), {}))
    _, sink = capture(handle(connector), GUIDED, Budget(max_rows=1), (Target.column(1),))
    assert (column(sink, "v")["row_count"], column(sink, "v")["completeness"]) == (0, "COMPLETE")
    connector.close()


def test_budget_is_a_mismatch_for_an_engine_without_budgets(table):
    able = Capabilities({TargetKind.COLUMN: frozenset()}, sampling=frozenset(Sampling))
    request = CaptureRequest.of(table, Target.column(1), sampling=RANDOM, budget=Budget(max_rows=1))
    assert able.mismatch(request) == "budget of a sample unsupported"
    assert able.mismatch(replace(request, spec=replace(request.spec, budget=None))) == ""
