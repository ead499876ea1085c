"""Parquet reader: columns with equal dotted names, missing columns, file access."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute.file_scan import Work, scan
from capture.compute.readers import tasks
from capture.connectors.spi import Column, ScanColumn, ScanTask, container
from store.model.names import column_key, column_parts

ROWS = pa.table(
    {
        "st.x": pa.array([1, 2, 3]),
        "st": pa.array([{"x": 10, "x.y": 20, "deep": {"z.z": 30}}, None, {"x": 11, "x.y": 21, "deep": None}]),
        "many": pa.array([[{"x": 1}], [], None]),
        "pairs": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "st.x.y": pa.array(["a", "b", "c"]).dictionary_encode(),
    }
)
VALUES = {
    ("st.x",): [1, 2, 3],
    ("st", "x"): [10, None, 11],
    ("st", "x.y"): [20, None, 21],
    ("st", "deep", "z.z"): [30, None, None],
    ("st.x.y",): ["a", "b", "c"],
}


@pytest.mark.parametrize("alone", [True, False])
def test_columns_with_equal_dotted_names_are_distinguished(tmp_path, alone):
    pq.write_table(ROWS, tmp_path / "f.parquet")
    columns = [ScanColumn(i, ".".join(parts), "INT", column_key(parts)) for i, parts in enumerate(VALUES, 1)]
    task = ScanTask("parquet", "f", str(tmp_path / "f.parquet"), 3, 1, tuple(columns), "v")
    found = {}
    for requested in [[column] for column in columns] if alone else [columns]:
        found |= {column_parts(column.path): values.to_pylist() for column, values in tasks.read(task, requested)}
    assert found == VALUES


def test_error_names_the_column_missing_in_the_file(tmp_path):
    pq.write_table(ROWS, tmp_path / "f.parquet")
    column = ScanColumn(1, "st.y", "INT", "st.y")
    reader = tasks.open_task(ScanTask("parquet", "f", str(tmp_path / "f.parquet"), 3, 1, (column,), "v"))
    (found,) = reader.columns([column])
    reader.close()
    assert (found.values, found.error) == (None, 'the file has no column "st.y"')


NESTED = pa.table(
    {
        "tags": pa.array([None, [], [None], ["a"]], pa.list_(pa.string())),
        "attributes": pa.array([[], None, None, [("k", None)]], pa.map_(pa.string(), pa.int64())),
        "place": pa.array([{"names": None}, None, {"names": []}, None], pa.struct([("names", pa.list_(pa.string()))])),
    }
)


@pytest.mark.parametrize(("deleted", "nulls"), [(None, [1, 2, 2, 3, 4]), ([0, 3], [0, 2, 1, 1, 2])])
def test_nulls_of_lists_maps_and_structs_are_told_from_empty_ones(tmp_path, deleted, nulls):
    pq.write_table(NESTED, tmp_path / "f.parquet")
    kinds = {"tags": "ARRAY", "attributes": "MAP", "place": "STRUCT", "place.names": "ARRAY", "added": "ARRAY"}
    columns = tuple(container(i, Column(name, kind), name) for i, (name, kind) in enumerate(kinds.items(), 1))
    gone = None if deleted is None else pa.array(deleted, pa.int64())
    task = ScanTask("parquet", "f", str(tmp_path / "f.parquet"), 4, 1, columns, "v", deleted_rows=gone)
    answers = {answer.column_id: answer for answer in scan(0, task, Work(tuple(range(1, 6))))}
    assert [answers[i].error for i in range(1, 6)] == [""] * 5
    assert [answers[i].partial.null_count for i in range(1, 6)] == nulls
    assert {answer.partial.row_count for answer in answers.values()} == {4 - len(deleted or [])}
    assert {answer.partial.theta for answer in answers.values()} == {None}


def test_nulls_of_a_map_are_told_by_its_smaller_leaf(tmp_path):
    """The pages of the other are gone."""
    path = tmp_path / "f.parquet"
    pairs = pa.array([[("k" * 1000, 1)], [], None], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"pairs": pairs}), path, compression="none")
    texts, content = pq.read_metadata(path).row_group(0).column(0), bytearray(path.read_bytes())
    content[4 : 4 + texts.total_compressed_size] = bytes(texts.total_compressed_size)
    path.write_bytes(content)
    task = ScanTask("parquet", "f", str(path), 3, 1, (container(1, Column("pairs", "MAP"), "pairs"),), "v")
    (answer,) = scan(0, task, Work((1,)))
    assert (answer.error, answer.partial.row_count, answer.partial.null_count) == ("", 3, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_local_file_is_not_memory_mapped(tmp_path):
    pq.write_table(ROWS, tmp_path / "f.parquet")
    column = ScanColumn(1, "st.x", "INT", column_key(("st.x",)))
    reader = tasks.open_task(ScanTask("parquet", "f", str(tmp_path / "f.parquet"), 3, 1, (column,), "v"))
    (found,) = reader.columns([column])
    assert found.values.to_pylist() == [1, 2, 3]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    reader.close()
