"""The log of a table: in slices and whole it gives the same, and what deltalake gives."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from capture.connectors.delta import log_files, table_log
from capture.connectors.delta.log import parse_schema
from capture.connectors.delta.log_statistics import row_counts, statistics, typed
from capture.connectors.storage import immutable_cache
from capture.connectors.storage.places import open_place
from store.model import bounds
from store.model.errors import UpstreamError
from store.model.logical_types import parse, to_arrow
from tests.capture.connectors.delta.lakes import LAKES, captured, connector, ids_of, needs_lakes
from tests.capture.connectors.delta.test_bounds import add, metadata, protocol, write_commit

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def in_slices(monkeypatch):
    """Turns on slices of four files; the returned list has an entry for each source read."""
    read = []
    real = table_log.adds_of

    def slices(source, paths, engines):
        read.append(source.place.stem)
        return real(source, paths, engines)

    def turn_on():
        immutable_cache.FILES.clear()
        monkeypatch.setattr(table_log, "adds_of", slices)
        monkeypatch.setattr(log_files, "SLICE", 4)
        monkeypatch.setattr(table_log, "SLICE", 4)
        monkeypatch.setattr(log_files, "_ROWS", 4)
        return read

    yield turn_on
    immutable_cache.FILES.clear()


def content(path, name: str, version: int):
    """Counts, files, columns, tasks and parts of one version."""
    found = connector(path)
    ids = ids_of(found, name)
    native = found.capture_snapshot_target_stats("default", name, version, ids)
    rows = [row for part in native.file_columns() for row in part.to_pylist()]
    tasks = found.plan_files("default", name, version, ids)
    facts = (native.row_count, native.data_file_count, native.total_size_bytes, native.row_deletes)
    return facts, in_order(native.files.to_pylist()), in_order(rows), in_order(map(_facts, tasks)), native.parts


def _facts(task):
    gone = None if task.deleted_rows is None else task.deleted_rows.to_pylist()
    columns = [(c.column_id, c.path, c.constant and c.constant.to_pylist()) for c in task.columns]
    return {
        "file_path": task.file_path,
        "rows": task.row_count,
        "fingerprint": task.fingerprint,
        "gone": gone,
        "columns": columns,
        "size": task.size_bytes,
    }


def in_order(rows):
    return sorted(rows, key=lambda row: (row["file_path"], row.get("column_name", "")))


WITHOUT_STATISTICS = (
    "delta-0.8-empty",
    "delta-0.8.0-null-partition",
    "delta-0.8.0-partitioned",
    "simple_table",
    "simple_table_with_checkpoint",
    "table_with_column_mapping",
)
TABLES = sorted(p.name for p in LAKES.glob("*") if (p / "_delta_log").is_dir())


@needs_lakes
@pytest.mark.parametrize("name", TABLES)
def test_logs_of_other_writers_are_the_same_in_slices(name, in_slices):
    versions = sorted(connector(LAKES).enumerate_snapshots("default", name).live_snapshot_ids)[-3:]
    seen = 3 if name == "COVID-19_NYT" or "type-widening" in name else 4  # tables without some of their files
    whole = [content(LAKES, name, version)[:seen] for version in versions]
    in_slices()
    sliced = [content(LAKES, name, version) for version in versions]
    assert [facts[:seen] for facts in sliced] == whole
    assert sliced[-1][4] or name == "delta-0.8-empty"


@needs_lakes
@pytest.mark.parametrize("name", TABLES)
def test_files_and_statistics_are_those_of_deltalake(name):
    found = connector(LAKES)
    schema = found.describe("default", name).schema
    version = found.enumerate_snapshots("default", name).current_snapshot_id
    table = deltalake.DeltaTable(str(LAKES / name))
    adds = {row["path"].rpartition("/")[2]: row for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()}
    native, rows = captured(found, name, version)
    assert sorted(path.rpartition("/")[2] for path in native.files["file_path"].to_pylist()) == sorted(adds)
    if native.row_deletes:
        return
    compared = 0
    for column in schema.columns:
        if parse(column.logical_type).kind not in ("INT", "STRING", "DATE"):
            continue
        for row in rows.get(column.name, ()):
            theirs = adds[row["file_path"].rpartition("/")[2]]
            for ours, side in ((row["null_count"], "null_count"), (row["min"], "min"), (row["max"], "max")):
                value = theirs.get(f"{side}.{column.name}")
                if value is not None and row["row_count"]:
                    typed = value if side == "null_count" else text(value, column.logical_type)
                    assert ours == typed, (name, column.name, side)
                    compared += 1
    assert compared or name in WITHOUT_STATISTICS


def text(value, logical_type):
    kind = parse(logical_type)
    return bounds.encode_array(pa.array([value], to_arrow(kind)), kind)[0].as_py()


@pytest.fixture
def log(tmp_path):
    """Twelve files in a checkpoint, one of which is deleted after it, and one more file."""
    path = tmp_path / "t"
    for i in range(12):
        rows = pa.table({"id": [i, i + 1], "part": [f"p {i % 2}"] * 2, "s": ["x" * 40, None]})
        deltalake.write_deltalake(path, rows, mode="append", partition_by=["part"])
    deltalake.DeltaTable(path).create_checkpoint()
    deltalake.DeltaTable(path).delete("id = 3")
    deltalake.write_deltalake(path, pa.table({"id": [99], "part": ["p9"], "s": ["z"]}), mode="append")
    return path


def test_log_is_the_same_in_slices(log, in_slices):
    whole = content(log, "t", 13)
    assert whole[0][0] == 23
    read = in_slices()
    sliced = content(log, "t", 13)
    assert sliced[:4] == whole[:4]
    assert read[0] == f"{13:020}.json" and len(sliced[4]) >= 4  # two commits, slices of a checkpoint


def test_new_version_reads_only_its_commit(log, in_slices):
    read = in_slices()
    before = content(log, "t", 13)
    deltalake.write_deltalake(log, pa.table({"id": [100], "part": ["p9"], "s": ["z"]}), mode="append")
    deltalake.DeltaTable(log).create_checkpoint()  # must not be read
    read.clear()
    found = connector(log)
    after = found.capture_snapshot_target_stats("default", "t", 14, ids_of(found, "t"))
    assert read == [f"{14:020}.json"]
    assert after.row_count == before[0][0] + 1
    kept = {part.key for part in before[4]} & {part.key for part in after.parts}
    assert len(kept) == len(before[4]) - 1  # the slices of the checkpoint, not that of the commits
    again = found.capture_snapshot_target_stats("default", "t", 14, ids_of(found, "t"))
    assert [part.key for part in again.parts] == [part.key for part in after.parts]
    assert read == [f"{14:020}.json"]


def test_slice_with_a_removed_file_is_a_new_part(log, in_slices):
    in_slices()
    before = content(log, "t", 13)[4]
    deltalake.DeltaTable(log).delete("id = 99")
    after = content(log, "t", 14)[4]
    assert len({part.key for part in before} - {part.key for part in after}) == 1
    assert sum(part.files.num_rows for part in after) == sum(part.files.num_rows for part in before) - 1


def test_partition_values_that_json_or_python_cannot_represent_have_a_text(tmp_path):
    columns = metadata(v="long", p="double", d="date", b="binary")
    columns["metaData"]["partitionColumns"] = ["p", "d", "b"]
    adds = [add(f"{number}.parquet", numRecords=1) for number in range(3)]
    values = (("NaN", "0000-01-01", "a"), ("-Infinity", "9999-12-31", "b"), ("1.5", "1970-01-01", None))
    for item, (p, d, b) in zip(adds, values, strict=True):
        item["add"]["partitionValues"] = {"p": p, "d": d, "b": b}
    write_commit(tmp_path / "t", protocol(), columns, *adds)
    stats = connector(tmp_path).capture_snapshot_target_stats("default", "t", 0, {"v": 1}, frozenset())
    assert [json.loads(text) for text in stats.files["partition_data_json"].to_pylist()] == [
        {"p": "NaN", "d": "0000-01-01", "b": "YQ=="},
        {"p": "-Infinity", "d": "9999-12-31", "b": "Yg=="},
        {"p": 1.5, "d": "1970-01-01", "b": None},
    ]


def test_a_null_partition_value_is_not_that_of_the_column_which_had_the_name_before(tmp_path):
    """`a` and `b` were renamed to `b` and `c`; the log has their physical names."""
    fields = [
        {
            "name": name,
            "type": "string",
            "nullable": True,
            "metadata": {"delta.columnMapping.id": id, "delta.columnMapping.physicalName": physical},
        }
        for id, (name, physical) in enumerate((("b", "a"), ("c", "b"), ("v", "v")), 1)
    ]
    columns = metadata(json.dumps({"type": "struct", "fields": fields}))
    columns["metaData"] |= {"partitionColumns": ["b", "c"], "configuration": {"delta.columnMapping.mode": "name"}}
    file = add("0.parquet", numRecords=1)
    file["add"]["partitionValues"] = {"a": None, "b": "x"}
    write_commit(tmp_path / "t", protocol("columnMapping"), columns, file)
    stats, rows = captured(connector(tmp_path), "t", 0)
    assert json.loads(stats.files["partition_data_json"][0].as_py()) == {"b": None, "c": "x"}
    assert (rows["b"][0]["null_count"], rows["b"][0]["max"], rows["c"][0]["max"]) == (1, None, "x")


def test_only_live_files_need_partition_values_of_the_type(tmp_path):
    """As where the column was DOUBLE in between, and the table was restored."""
    columns = metadata(v="long", p="integer", d="decimal(5,2)")
    columns["metaData"]["partitionColumns"] = ["p", "d"]
    files = [add(f"{number}.parquet", numRecords=1) for number in range(2)]
    for file, p in zip(files, ("2", "2.25"), strict=True):
        file["add"]["partitionValues"] = {"p": p, "d": "1.5"}
    write_commit(tmp_path / "t", protocol(), columns, *files)
    with pytest.raises(UpstreamError, match=r'partition value of the file "1\.parquet" is not'):
        connector(tmp_path).capture_snapshot_target_stats("default", "t", 0, {"v": 1}, frozenset())
    write_commit(tmp_path / "t", {"remove": {"path": "1.parquet", "dataChange": True}})
    stats = connector(tmp_path).capture_snapshot_target_stats("default", "t", 1, {"v": 1}, frozenset())
    assert [json.loads(text) for text in stats.files["partition_data_json"].to_pylist()] == [{"p": 2, "d": "1.50"}]


def test_a_partitioned_table_without_files(tmp_path):
    columns = metadata(v="long", p="string")
    columns["metaData"]["partitionColumns"] = ["p"]
    write_commit(tmp_path / "t", protocol(), columns)
    stats = connector(tmp_path).capture_snapshot_target_stats("default", "t", 0, {"v": 1}, frozenset())
    assert (stats.row_count, stats.data_file_count, stats.files["partition_data_json"].to_pylist()) == (0, 0, [])


def test_a_log_with_the_line_ends_of_windows_is_read(tmp_path):
    deltalake.write_deltalake(tmp_path / "t", pa.table({"v": [1, 2]}))
    commit = tmp_path / f"t/_delta_log/{0:020}.json"
    commit.write_bytes(commit.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    assert captured(connector(tmp_path), "t")[0].row_count == 2


@pytest.mark.parametrize("text", ["null", "[]", "7", '""', " "])
def test_statistics_that_are_no_object_are_unknown(text):
    schema = parse_schema(metadata(a="long")["metaData"]["schemaString"], {})
    adds = pa.table({"stats": [text, '{"numRecords": 2, "minValues": {"a": 1}}', None]})
    assert row_counts(adds).to_pylist() == [None, 2, None]
    assert statistics(adds, schema, ())["min"].to_pylist() == [None, {"a": 1}, None]


def test_statistics_of_unknown_form_are_unknown(tmp_path):
    """A text that is not JSON, a value of another type, a column named as a count, names that differ in case."""
    sound = {"numRecords": 3, "nullCount": {"a": 1, "numRecords": 0}, "minValues": {"a": 1, "numRecords": 7}}
    wrong = {"minValues": {"numRecords": 9, "a": "x"}, "nullCount": {"a": 0}, "numRecords": 4}
    broken = add("broken.parquet")
    broken["add"]["stats"] = '{"numRecords": "5", "nullCount": {"a": 0}'
    columns = metadata(a="long", numRecords="long", A="long")
    write_commit(tmp_path / "t", columns, add("sound.parquet", **sound), add("wrong.parquet", **wrong), broken)
    place = open_place(str(tmp_path / "t/_delta_log" / f"{0:020}.json"), {})
    (adds,) = log_files.adds_of(log_files.LogFile(place, 0, None, True, ""), [], [])
    assert row_counts(adds).to_pylist() == [3, 4, None]
    parsed = statistics(adds, parse_schema(columns["metaData"]["schemaString"], {}), ()).to_pylist()
    assert [row["min"] for row in parsed] == [{"a": 1, "numRecords": 7}, {"a": None, "numRecords": 9}, None]
    assert [row["tight_bounds"] for row in parsed] == [True, True, None]


@pytest.mark.parametrize(
    ("kind", "good", "value", "bad"),
    [
        ("DECIMAL(5,2)", "1.5", "1.50", "123456.00"),
        ("INT", "7", "7", "x"),
        ("DATE", "2020-01-02", "2020-01-02", "soon"),
        ("TIMESTAMP", "2020-01-02 03:04:05.123456", "2020-01-02 03:04:05.123456", "soon"),
        ("TIMESTAMPTZ", "2020-01-02T03:04:05+01:00", "2020-01-02 02:04:05+00:00", "soon"),
        ("TIMESTAMPTZ", "2020-01-02 03:04:05", "2020-01-02 03:04:05+00:00", "2020-13-01 00:00:00"),
    ],
)
def test_texts_become_values_of_their_type(kind, good, value, bad):
    assert str(typed(pa.array([good]), parse(kind))[0].as_py()) == value
    assert typed(pa.array([good, bad, None]), parse(kind)).is_null().to_pylist() == [False, True, True]
