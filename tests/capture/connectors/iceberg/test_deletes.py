"""Row-level deletes: positions, equality, vectors; rows, bounds and counts after them."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DoubleType,
    LongType,
    NestedField,
    StringType,
)

from capture.connectors.iceberg.io import LakeIO
from capture.connectors.rows.column_values import matching
from capture.connectors.rows.roaring import positions, unframed
from capture.connectors.storage.places import Unreadable
from store.model.errors import Unimplemented, UpstreamError
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import current, directory, file_columns, home, live, stats


def expected(*gone: int) -> list[int]:
    return [i for i in range(150) if i not in gone]


def check_live(table, ids: list[int]) -> None:
    connector = directory(home(table))
    native = stats(connector)
    assert sorted(row["id"] for row in live(connector)) == ids
    assert native.row_count == len(ids)
    assert native.row_deletes
    data = native.files.filter(pa.array([c == "DATA" for c in native.files["file_content"].to_pylist()]))
    assert sum(data["row_count"].to_pylist()) == len(ids)
    assert native.data_file_count == data.num_rows
    assert native.total_size_bytes == sum(data["size_bytes"].to_pylist())


def paths(table) -> dict[int, str]:
    """Path by the first id in the file."""
    return {rows: path for path, _ in built.data_paths(table) for rows in [_first(path)]}


def _first(path: str) -> int:
    import pyarrow.parquet as pq

    return pq.read_table(path.removeprefix("file://"))["id"][0].as_py()


def test_position_deletes_count_once(table):
    first, second = paths(table)[0], paths(table)[100]
    both = built.position_deletes(table, [(first, 3), (first, 3), (first, 99), (second, 0), ("elsewhere", 5)])
    again = built.position_deletes(table, [(first, 3)])
    built.commit_deletes(table, both, again)
    check_live(table, expected(3, 99, 100))


def test_plans_of_a_moved_table_refuse_deletes_by_position(tmp_path, table):
    """A reader would look for the file where the metadata says, and for its deletes by that path."""
    keys = built.commit_deletes(table, built.equality_deletes(table, {"id": [5]}))
    both = built.commit_deletes(table, built.position_deletes(table, [(paths(table)[0], 3)]))
    shutil.move(home(table), tmp_path / "moved" / "t")
    moved = directory(tmp_path / "moved", path_rewrite=f"{home(table)}={tmp_path / 'moved' / 't'}")
    assert len(moved.row_deletes("default", "t", keys)["delete_files"]) == 1
    with pytest.raises(Unimplemented, match="before the table was moved"):
        moved.row_deletes("default", "t", both)


def test_delete_file_is_listed_with_its_row_count(table):
    built.commit_deletes(table, built.position_deletes(table, [(paths(table)[0], 3)]))
    files = stats(directory(home(table))).files.to_pylist()
    assert Counter(file["file_content"] for file in files) == {"DATA": 2, "POSITION_DELETES": 1}
    assert [file["row_count"] for file in files if file["file_content"] != "DATA"] == [1]
    assert sorted(file["sequence_number"] for file in files) == [1, 2, 3]


def test_equality_deletes_are_null_safe(table):
    built.commit_deletes(table, built.equality_deletes(table, {"name": ["n001", None]}))
    gone = [1, *range(0, 150, 5)]
    check_live(table, expected(*gone))


def test_equality_deletes_of_two_columns_match_pairs(table):
    keys = {"id": [1, 2, 7, 10], "name": ["n001", "n003", "n007", None]}
    built.commit_deletes(table, built.equality_deletes(table, keys), built.equality_deletes(table, {"id": [120]}))
    check_live(table, expected(1, 7, 10, 120))


def test_equality_and_position_deletes_of_one_row_count_once(table):
    first = paths(table)[0]
    built.commit_deletes(table, built.position_deletes(table, [(first, 1), (first, 2)]))
    built.commit_deletes(table, built.equality_deletes(table, {"id": [2, 3]}))
    check_live(table, expected(1, 2, 3))


def test_a_deletion_vector_replaces_position_deletes(table):
    first = paths(table)[0]
    built.commit_deletes(table, built.position_deletes(table, [(first, 1)]))
    built.commit_deletes(table, built.deletion_vector(table, first, [1, 5, 70]), format_version=3)
    check_live(table, expected(1, 5, 70))


def test_vectors_of_one_puffin_file_are_listed_once_and_applied_to_each(table):
    first, second = paths(table)[0], paths(table)[100]
    vectors = {first: list(range(10)), second: list(range(10, 20))}
    built.commit_deletes(table, *built.deletion_vectors(table, vectors), format_version=3)
    check_live(table, expected(*range(10), *range(110, 120)))
    files = stats(directory(home(table))).files.to_pylist()
    (puffin,) = (file for file in files if file["file_content"] == "POSITION_DELETES")
    assert (puffin["row_count"], puffin["file_format"], puffin["delete_files"]) == (20, "PUFFIN", None)
    applied = [vector for file in files if file["file_content"] == "DATA" for vector in file["delete_files"]]
    assert {vector["file_path"] for vector in applied} == {puffin["file_path"]}
    assert {vector["file_content"] for vector in applied} == {"DELETION_VECTOR"}
    content = Path(puffin["file_path"]).read_bytes()
    cut = [content[v["content_offset"] :][: v["content_size"]] for v in applied]
    assert sorted(positions(unframed(blob)).tolist() for blob in cut) == [list(range(10)), list(range(10, 20))]


def applied(native) -> dict[str, list[str]]:
    """Names of the delete files that apply to each data file, by its path."""
    rows = [row for row in native.files.to_pylist() if row["file_content"] == "DATA"]
    return {row["file_path"]: sorted(Path(d["file_path"]).name for d in row["delete_files"]) for row in rows}


def test_delete_files_apply_by_sequence_number(table):
    first, second = (paths(table)[i].removeprefix("file://") for i in (0, 100))
    assert applied(stats(directory(home(table)))) == {first: [], second: []}
    equal = built.equality_deletes(table, {"id": [1], "name": ["n001"]})
    gone = built.position_deletes(table, [(paths(table)[0], 3), (paths(table)[100], 3)])
    built.commit_deletes(table, equal, gone)
    native = stats(directory(home(table)))
    both = sorted(Path(file.file_path).name for file in (equal, gone))
    assert applied(native) == {first: both, second: both}
    ids = {row["file_content"]: row["equality_field_ids"] for row in native.files.to_pylist()}
    assert ids == {"DATA": None, "POSITION_DELETES": None, "EQUALITY_DELETES": [1, 2]}
    (later,) = built.deletion_vectors(table, {paths(table)[0]: [3, 4]})
    built.commit_deletes(table, later, format_version=3)
    newest = stats(directory(home(table)))
    assert applied(newest) == {first: sorted(Path(f.file_path).name for f in (equal, later)), second: both}
    assert len({part.key for part in newest.parts} & {part.key for part in native.parts}) == 1  # that of `second`


def test_damaged_deletion_vector_is_an_error_with_the_reason(table):
    blob = bytearray(built.vector_blob([1]))
    blob[-1] ^= 1
    built.commit_deletes(table, built.deletion_vector(table, paths(table)[0], [1], bytes(blob)), format_version=3)
    with pytest.raises(UpstreamError, match=r'table "default.t" cannot be read: .* checksum') as refused:
        stats(directory(home(table)))
    assert not refused.value.retryable


@pytest.mark.parametrize("rows", [[], [0], [5, 1, 2**31, 2**32 + 7, 2**40]])
def test_deletion_vectors_are_parsed(rows):
    assert positions(unframed(built.vector_blob(rows))).tolist() == sorted(rows)


def test_deletes_apply_within_their_partition(tmp_path):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    data = pa.table({"id": [1, 2, 1, 2], "part": ["a", "a", "b", "b"]})
    table = built.simple_table(tmp_path, schema, data, partition_spec=spec)
    by_part = {partition[0]: (path, partition) for path, partition in built.data_paths(table)}
    built.commit_deletes(
        table,
        built.equality_deletes(table, {"id": [1]}, by_part["a"][1]),
        built.position_deletes(table, [(by_part["b"][0], 1), (by_part["a"][0], 1)], by_part["b"][1]),
    )
    connector = directory(home(table))
    assert stats(connector).row_count == 2
    assert sorted((row["id"], row["part"]) for row in live(connector)) == [(1, "b"), (2, "a")]
    files = stats(connector).files.to_pylist()
    assert {json.loads(file["partition_data_json"])["part"] for file in files} == {"a", "b"}
    kinds = {
        json.loads(file["partition_data_json"])["part"]: [d["file_content"] for d in file["delete_files"]]
        for file in files
        if file["file_content"] == "DATA"
    }
    assert kinds == {"a": ["EQUALITY_DELETES"], "b": ["POSITION_DELETES"]}


def test_equality_deletes_of_a_spec_whose_fields_are_void_apply_everywhere(tmp_path):
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    data = pa.table({"id": [1, 2, 1], "part": ["a", "a", "b"]})
    v1 = {"format-version": "1"}
    table = built.simple_table(tmp_path, schema, data, partition_spec=spec, properties=v1)
    with table.update_spec() as update:
        update.remove_field("part")
    table.append(data)
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    assert [str(field.transform) for field in table.spec().fields] == ["void"]
    built.commit_deletes(table, built.equality_deletes(table, {"id": [1]}, Record(None)))
    assert [row["id"] for row in live(directory(home(table)))] == [2, 2]


def test_deleted_rows_make_bounds_inexact_and_null_counts_unknown(table):
    first, second = paths(table)[0], paths(table)[100]
    gone = [(first, i) for i in range(50)] + [(second, i) for i in range(50)]
    built.commit_deletes(table, built.position_deletes(table, gone))
    connector = directory(home(table))
    native = stats(connector)
    place = native.files["file_path"].to_pylist().index(first.removeprefix("file://"))
    found = file_columns(native)
    score, name = found[place, "score"], found[place, "name"]
    assert (score["row_count"], score["null_count"], score["min"], score["max"]) == (50, 0, "0", "24.75")
    assert (score["min_is_exact"], score["max_is_exact"], name["null_count"]) == (False, False, None)
    empty = found[1 - place, "name"]
    assert (empty["row_count"], empty["null_count"], empty["min"], empty["max"]) == (0, 0, None, None)


def test_bounds_of_a_number_beside_nan_are_inexact_after_deletes(tmp_path):
    schema = Schema(NestedField(1, "x", DoubleType()), NestedField(2, "y", LongType()))
    table = built.simple_table(tmp_path, schema, pa.table({"x": [5.0, math.nan], "y": [5, 5]}))
    built.commit_deletes(table, built.position_deletes(table, [(built.data_paths(table)[0][0], 0)]))
    found = file_columns(stats(directory(home(table))))
    labels = [[found[0, name][side] for side in ("min_is_exact", "max_is_exact")] for name in "xy"]
    assert labels == [[False, False], [True, True]]  # what is left of x is NaN


def test_fingerprint_changes_with_the_deletes(table):
    def fingerprints():
        connector = directory(home(table))
        return {t.file_path: t.fingerprint for t in connector.plan_files("default", "t", current(connector), {})}

    before = fingerprints()
    built.commit_deletes(table, built.position_deletes(table, [(paths(table)[0], 1)]))
    after = fingerprints()
    assert [path for path in before if before[path] != after[path]] == [paths(table)[0].removeprefix("file://")]


def test_second_capture_opens_no_manifest_no_deletes_and_no_data(table, monkeypatch):
    opened = []
    real = LakeIO.new_input_here

    def counting(self, place):
        opened.append(Path(place).name)
        return real(self, place)

    monkeypatch.setattr(LakeIO, "new_input_here", counting)
    data = [path for path, _ in built.data_paths(table)]
    positions = built.position_deletes(table, [(data[0], 3), (data[1], 7)])
    built.commit_deletes(table, positions, built.equality_deletes(table, {"id": [9]}))

    def inspect():
        """Live rows, number of opened files by suffix for the statistics, data files opened for the plan."""
        opened.clear()
        connector = directory(home(table))
        native = stats(connector)
        assert sum(rows.num_rows for rows in native.file_columns()) == 6
        kinds = Counter(Path(name).suffix for name in opened if not name.startswith("snap-"))
        opened.clear()
        assert len(list(connector.plan_files("default", "t", current(connector), {}))) == 2
        return native.row_count, kinds, {Path(path).name for path in data} & set(opened)

    rows_before, kinds, _ = inspect()
    assert (rows_before, kinds[".avro"]) == (147, 3) and kinds[".parquet"]
    rows_after, kinds, data_opened = inspect()
    assert (rows_after, set(kinds), data_opened) == (147, {".json"}, set())


def test_matching_treats_null_and_nan_as_values():
    keys = [pa.array([1.0, math.nan, None, 2.0]), pa.array(["a", "b", "c", None])]
    assert matching(keys, [pa.array([math.nan, None, 2.0, 1.0]), pa.array(["b", "c", None, "z"])]).tolist() == [
        False,
        True,
        True,
        True,
    ]
    signed = pa.array([0.0, -0.0, 1.0])
    assert matching([signed], [pa.array([-0.0])]).tolist() == [False, True, False]
    assert matching([signed], [pa.array([0.0])]).tolist() == [True, False, False]
    assert matching([pa.array([1, 2])], [pa.array([], pa.int64())]).tolist() == [False, False]


def as_orc(path: Path, deleted: list[tuple[str, int]]) -> None:
    orc.write_table(pa.table(list(zip(*deleted, strict=True)), ["file_path", "pos"]), path)


def as_avro(path: Path, deleted: list[tuple[str, int]]) -> None:
    """With the deleted rows beside their positions, as writers may leave them."""
    named = ((built.POSITION_SCHEMA.field(0), StringType()), (built.POSITION_SCHEMA.field(1), LongType()))
    fields = [NestedField(int(f.metadata[b"PARQUET:field_id"]), f.name, type, required=True) for f, type in named]
    schema = Schema(*fields, NestedField(2147483544, "row", LongType(), required=True))
    output = PyArrowFileIO().new_output(str(path))
    with AvroOutputFile(output, schema, "delete") as records:
        records.write_block([Record(name, position, 7) for name, position in deleted])


@pytest.mark.parametrize("write", [as_orc, as_avro])
def test_position_deletes_in_other_formats_than_parquet(table, write):
    first, second = paths(table)[0], paths(table)[100]
    gone = built.position_deletes(table, [(first, 3)])
    name = write.__name__.removeprefix("as_")
    path = home(table) / "data" / f"deletes.{name}"
    write(path, [(second, 0), (first, 3), (second, 49)])
    gone[1], gone[2], gone[5] = str(path), built.FileFormat[name.upper()], path.stat().st_size
    built.commit_deletes(table, gone)
    check_live(table, expected(3, 100, 149))


def test_error_names_the_format_of_files_that_are_not_parquet(table):
    gone = built.equality_deletes(table, {"id": [1]})
    gone[1] = str(gone.file_path)
    gone[2] = built.FileFormat.AVRO
    built.commit_deletes(table, gone)
    with pytest.raises(Unreadable, match="AVRO"):
        stats(directory(home(table)))


def by_number(root: Path, *values: float):
    """A table partitioned by a number, with ids 1 to 3 in the file of each value, which has no other column."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "x", DoubleType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "x"))
    table = built.simple_table(root, schema, partition_spec=spec)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for value in values:
            path, written = root / f"{value}.parquet", pa.table({"id": [1, 2, 3]}, schema.select("id").as_arrow())
            pq.write_table(written, path, write_statistics=False)
            file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"file://{path}",
                file_format=FileFormat.PARQUET,
                partition=Record(value),
                record_count=3,
                file_size_in_bytes=path.stat().st_size,
            )
            file.spec_id = table.spec().spec_id
            update.append_data_file(file)
    return table


def test_partition_by_nan_counts_its_nans_and_its_deletes_apply(tmp_path):
    """NaN equals no value, not even itself."""
    table = by_number(tmp_path, math.nan)
    deletes = built.position_deletes(table, [(f"file://{tmp_path / 'nan.parquet'}", 1)], Record(math.nan))
    built.commit_deletes(table, deletes)
    native = stats(directory(home(table)))
    row = file_columns(native)[0, "x"]
    assert native.row_count == 2
    assert [row[name] for name in ("row_count", "null_count", "nan_count", "min", "max")] == [2, 0, 2, None, None]


def test_partitions_of_both_zeros_are_two(tmp_path):
    table = by_number(tmp_path, 0.0, -0.0)
    built.commit_deletes(table, built.equality_deletes(table, {"id": [1]}, Record(-0.0)))
    data = stats(directory(home(table))).files.filter(pc.field("file_content") == "DATA").to_pylist()
    assert {Path(row["file_path"]).stem: row["row_count"] for row in data} == {"0.0": 3, "-0.0": 2}
