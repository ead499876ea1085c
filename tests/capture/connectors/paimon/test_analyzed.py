"""The statistics file of Paimon's ANALYZE: what is read of it, and when it is ignored."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

pytest.importorskip("pypaimon")

from capture.connectors.metadata.analyzed import canonical
from capture.connectors.paimon.analyzed import parse_analyzed
from tests.capture.connectors.paimon.warehouse import analyze, atomic, commit_as, connect, rows, stats

pytestmark = pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # of the library's writer

JAVA = {
    "snapshotId": 2,
    "schemaId": 0,
    "mergedRecordCount": 150,
    "mergedRecordSize": 4000,
    "news": {"of": "later"},
    "colStats": {
        "id": {"colId": 0, "distinctCount": 149, "min": "0", "max": "149", "nullCount": 0, "avgLen": 8, "maxLen": 8},
        "label": {"colId": 1, "distinctCount": 120, "min": None, "max": None, "nullCount": 30, "avgLen": 4},
    },
}
PIP = {
    "snapshotId": "2",
    "mergedRecordCount": 150,
    "mergedRecordSize": 4000,
    "colStats": {"id": {"distinctCount": 149, "min": "0", "max": "149", "nullCount": 0, "avgLen": 8, "maxLen": 8}},
}


@pytest.mark.parametrize("form", [JAVA, PIP], ids=["java", "pip"])
def test_statistics_file_of_analyze_is_read(keyed, warehouse, form):
    analyze(keyed, form)
    native = stats(connect(warehouse.path), "users", 3)
    assert (native.row_count, native.merged_size_bytes) == (150, 4000)
    found = {row["column_name"]: row for row in native.columns.to_pylist()}
    id = found["id"]
    assert (id["ndv"], id["ndv_exact"], id["min"], id["max"], id["null_count"]) == (149.0, False, "0", "149", 0)
    assert (id["min_is_exact"], id["avg_width_bytes"], id["max_width_bytes"], id["column_id"]) == (True, 8.0, 8, 1)
    if form is JAVA:
        assert (found["label"]["null_count"], found["label"]["min"], found["label"]["max_width_bytes"]) == (
            30,
            None,
            None,
        )
    analyzed = stats(connect(warehouse.path), "users", 2)  # the analyzed snapshot
    assert analyzed.columns.equals(native.columns) and analyzed.merged_size_bytes == 4000
    older = stats(connect(warehouse.path), "users", 1)
    assert older.columns is None and older.earlier == []  # not those of a newer snapshot


def _merged(warehouse, live: int) -> int:
    """What Paimon's ANALYZE writes as mergedRecordSize of the newest snapshot."""
    folder = warehouse.path / "sales.db/users/snapshot"
    newest = max(folder.glob("snapshot-*"), key=lambda file: int(file.name.rpartition("-")[2]))
    total = json.loads(newest.read_text())["totalRecordCount"]
    size = stats(connect(warehouse.path), "users", int(newest.name.rpartition("-")[2])).total_size_bytes
    assert total > live and size > 0
    return int(size * (live / total))


def test_inherited_statistics_belong_to_the_analyzed_snapshot(keyed, warehouse):
    analyze(keyed, JAVA)
    warehouse.write("users", rows(150, 160))
    native = stats(connect(warehouse.path), "users", 4)
    assert (native.row_count, native.merged_size_bytes, native.columns) == (160, _merged(warehouse, 160), None)
    (earlier,) = native.earlier
    snapshots = connect(warehouse.path).enumerate_snapshots("sales", "users").snapshots
    assert (earlier.snapshot_id, earlier.schema_hash) == (2, snapshots[1].schema.hash)
    id = earlier.columns.to_pylist()[0]
    assert (id["row_count"], id["ndv"], id["min"], id["max"], id["null_count"]) == (150, 149.0, "0", "149", 0)


@pytest.mark.parametrize(
    ("commit", "snapshot_id"), [("ANALYZE", None), ("COMPACT", 2), ("APPEND", 2), ("OVERWRITE", 2)]
)
def test_statistics_are_current_only_after_analyze_commits(keyed, warehouse, commit, snapshot_id):
    analyze(keyed, JAVA)
    name = json.loads((keyed / "snapshot" / "snapshot-3").read_text())["statistics"]
    commit_as(keyed, commit, statistics=name)
    native = stats(connect(warehouse.path), "users", 4)
    assert [e.snapshot_id for e in native.earlier] == ([snapshot_id] if snapshot_id else [])
    assert (native.columns is None) is (snapshot_id is not None)


def test_statistics_of_a_missing_snapshot_are_ignored(keyed, warehouse):
    analyze(keyed, JAVA)
    warehouse.write("users", rows(150, 160))
    (keyed / "snapshot" / "snapshot-2").unlink()
    native = stats(connect(warehouse.path), "users", 4)
    assert native.columns is None and native.earlier == []


def test_statistics_that_contradict_their_snapshot_are_ignored(keyed, warehouse):
    analyze(keyed, JAVA | {"mergedRecordCount": 201})  # of 200 rows before they are merged
    warehouse.write("users", rows(150, 160))
    assert stats(connect(warehouse.path), "users", 4).earlier == []


@pytest.mark.parametrize("labelled", [{"snapshotId": 7}, {"snapshotId": None}])
def test_statistics_that_name_no_earlier_snapshot_are_ignored(keyed, warehouse, labelled):
    analyze(keyed, JAVA | labelled)
    native = stats(connect(warehouse.path), "users", 3)
    assert native.columns is None and native.earlier == []


def test_statistics_of_another_schema_are_ignored(keyed, warehouse):
    from pypaimon.schema.schema_change import SchemaChange

    analyze(keyed, JAVA)
    warehouse.catalog.alter_table("sales.users", [SchemaChange.add_column("later", atomic("INT"))])
    more = rows(150, 160).append_column("later", pa.nulls(10, pa.int32()))
    warehouse.write("users", more)
    native = stats(connect(warehouse.path), "users", 4)
    assert native.columns is None and native.earlier == []


@pytest.mark.parametrize(
    "broken", ["", "[]", "{", '{"colStats": 3}', '{"mergedRecordCount": -1, "colStats": {"id": 7}}']
)
def test_malformed_statistics_file_is_ignored(append, warehouse, broken):
    analyze(append, {})
    (append / "statistics" / "stat-87effd5d-0").write_text(broken)
    native = stats(connect(warehouse.path), "events", 3)
    assert native.row_count == 200 and native.columns is None


def test_statistics_that_contradict_the_table_are_ignored(append, warehouse):
    analyze(append, JAVA)
    native = stats(connect(warehouse.path), "events", 3)
    assert (native.row_count, native.columns, native.merged_size_bytes, native.earlier) == (
        200,
        None,
        native.total_size_bytes,
        [],
    )


@pytest.mark.parametrize(
    ("text", "type", "expected"),
    [
        ("19000", "DATE", "2022-01-08"),
        ("2022-01-08", "DATE", "2022-01-08"),
        ("1.50", "DECIMAL(5,2)", "1.5"),
        ("2024-02-29 01:02:03.100000", "TIMESTAMP", "2024-02-29T01:02:03.1"),
        ("true", "BOOLEAN", "true"),
        (True, "BOOLEAN", "true"),
        ("2024-02-29 01:02:03", "TIMESTAMPTZ", None),
        ("x", "INT", None),
        (None, "INT", None),
        ("AQ==", "BINARY", None),
    ],
)
def test_bounds_of_a_statistics_file_become_canonical(text, type, expected):
    assert canonical(text, type) == expected


def test_statistics_file_may_be_empty_but_must_be_an_object():
    assert parse_analyzed("{}").columns == {}
    with pytest.raises(ValueError):
        parse_analyzed("7")
