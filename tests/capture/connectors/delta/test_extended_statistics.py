"""Statistics of Trino's ANALYZE beside a Delta log: their version and their values."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from capture.connectors.delta.connector import DeltaConnector
from capture.connectors.delta.extended_statistics import FILE
from capture.connectors.spi import ConnectorConfig, NativeStats

GOLDEN = Path(__file__).parents[3] / "golden/airlift_hll.jsonl"
THOUSAND = next(v for v in map(json.loads, GOLDEN.read_text().splitlines()) if v["n"] == 1000)["dense_base64"]


@pytest.fixture
def table(tmp_path):
    """A table of two versions; the sketch belongs to the second."""
    path = tmp_path / "t"
    for start in (0, 500):
        write_deltalake(
            path, pa.table({"x": [i * 7 + 3 for i in range(start, start + 500)], "s": ["a"] * 500}), mode="append"
        )
    return path


def analyze(path: Path, **changed: object) -> Path:
    """Writes the file as Trino does for the newest version."""
    actions = pa.table(DeltaTable(path).get_add_actions())
    newest = max(actions["modification_time"].cast(pa.timestamp("ms")).to_pylist())
    document = {
        "modelVersion": 4,
        "alreadyAnalyzedModifiedTimeMax": newest.isoformat(timespec="milliseconds") + "Z",
        "columnStatistics": {"x": {"ndvSummary": THOUSAND}, "s": {"totalSizeInBytes": 1000}},
    } | changed
    file = path / FILE
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document))
    return file


def captured(path: Path, version: int) -> NativeStats:
    connector = DeltaConnector(ConnectorConfig("c", "delta", str(path.parent)))
    found = connector.capture_snapshot_target_stats("default", "t", version, {"x": 1, "s": 2})
    connector.close()
    return found


def columns(path: Path, version: int) -> list[dict]:
    found = captured(path, version).columns
    return [] if found is None else found.to_pylist()


def remarks_of(path: Path, version: int) -> list[str]:
    return list(captured(path, version).remarks)


def test_analyzed_version_has_distinct_values(table):
    analyze(table)
    (row,) = columns(table, 1)
    assert (row["column_id"], row["column_name"], row["logical_type"], row["row_count"]) == (1, "x", "INT", 1000)
    assert row["ndv"] == 991.0 and row["ndv_exact"] is False
    assert all(row[name] is None for name in ("null_count", "min", "max", "avg_width_bytes", "ndv_lower"))


def test_other_versions_have_no_distinct_values(table):
    analyze(table)
    assert columns(table, 0) == []
    DeltaTable(table).delete("x < 100")
    assert columns(table, 2) == [] and columns(table, 1) != []


def test_file_older_than_a_commit_belongs_to_the_version_before_it(table):
    file = analyze(table)
    first = (table / "_delta_log/00000000000000000000.json").stat().st_mtime_ns
    os.utime(file, ns=(first, first))
    assert columns(table, 1) == []
    assert columns(table, 0) != []


@pytest.mark.parametrize(
    "changed, reason",
    [
        ({"alreadyAnalyzedModifiedTimeMax": "2001-01-01T00:00:00.000Z"}, None),
        ({"columnStatistics": {"s": {}}}, None),
        ({"modelVersion": 5}, "Trino's statistics are refused: extended_stats.json is of model version 5"),
        ({"columnStatistics": 3}, "extended_stats.json is malformed: TypeError"),
        ({"alreadyAnalyzedModifiedTimeMax": None}, "extended_stats.json is malformed: TypeError"),
        ({"columnStatistics": {"x": {"ndvSummary": "AwwA"}}}, 'the sketch of "x" in extended_stats.json is refused'),
        ({"columnStatistics": {"x": {"ndvSummary": "!"}}}, 'the sketch of "x" in extended_stats.json is refused'),
        ({"columnStatistics": {"x": []}}, 'the sketch of "x" in extended_stats.json is refused'),
    ],
    ids=str,
)
def test_outdated_statistics_are_ignored_and_malformed_ones_named(table, changed, reason):
    analyze(table, **changed)
    assert columns(table, 1) == []
    remarks = remarks_of(table, 1)
    assert remarks == [] if reason is None else [remark for remark in remarks if reason in remark] != []


def test_damaged_file_is_named(table):
    analyze(table).write_text("{")
    assert columns(table, 1) == []
    assert remarks_of(table, 1) == ["Trino's statistics are refused: extended_stats.json is malformed: JSONDecodeError"]
