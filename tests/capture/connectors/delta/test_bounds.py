"""Bounds of a Delta log enclose the values in the files, in the type in which readers compare."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from capture.compute.file_scan import Work, scan
from capture.compute.readers import tasks
from capture.connectors.delta.statistics import enclosing
from capture.connectors.file_columns import partition_facts
from capture.connectors.storage.places import Unreadable
from store.model.logical_types import parse
from tests.capture.connectors.delta.test_connector import captured, connector, ids_of

LAKES = Path(__file__).resolve().parents[5] / "shared/lakes"
needs_lakes = pytest.mark.skipif(not LAKES.exists(), reason="the shared lakes are elsewhere")


def bounds_of(least, greatest, kind="DOUBLE", was_float=False):
    sides = [
        enclosing(pa.array([value]), parse(kind), upwards=upwards, was_float=was_float)
        for value, upwards in ((least, False), (greatest, True))
    ]
    return [found[0].as_py() for pair in zip(*sides, strict=True) for found in pair]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bounds_from_the_text_of_a_float_enclose_the_float(value):
    text = float(np.format_float_positional(np.float32(value), unique=True))  # the text in a log of floats
    lower, upper, lower_exact, upper_exact = bounds_of(text, text, was_float=True)
    assert lower <= float(np.float32(value)) <= upper
    assert lower_exact == upper_exact == (text == float(np.float32(value)))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_bounds_enclose_doubles_and_are_exact_without_widening(value):
    lower, upper, *_ = bounds_of(value, value, was_float=True)
    assert lower <= value <= upper
    assert bounds_of(value, value) == [value, value, True, True]


def test_text_that_is_not_of_a_float_is_an_exact_bound():
    assert bounds_of(1.234567890123, 1.234567890123, was_float=True)[2:] == [True, True]
    assert bounds_of(1e300, 1e300, was_float=True) == [1e300, 1e300, True, True]
    assert bounds_of(3.4, 3.4, was_float=True) == [3.4, 3.4000000953674316, False, False]


def test_partition_of_nan_has_a_nan_count_and_no_bounds():
    facts = partition_facts(pa.array([1.5, float("nan"), None]), pa.array([2, 3, 4]))
    assert facts["nan_count"].to_pylist() == [0, 3, 0]
    assert facts["null_count"].to_pylist() == [0, 0, 4]
    assert facts["upper"].to_pylist() == [1.5, None, None]


@needs_lakes
@pytest.mark.parametrize(
    ("lake", "name", "column", "greatest"),
    [("delta", "type-widening", "float_double", 3.4000000953674316), ("written_by_spark", "delta_widened", "d", 1e300)],
)
def test_widened_floats_enclose_the_files(lake, name, column, greatest):
    rows = captured(connector(LAKES / lake), name)[1][column]
    assert max(float(row["max"]) for row in rows) >= greatest
    inexact = [row for row in rows if not (row["min_is_exact"] and row["max_is_exact"])]
    assert inexact
    assert all(row["nan_count"] is None for row in rows)


@needs_lakes
def test_widened_integer_has_the_width_of_its_new_type():
    found = connector(LAKES / "written_by_spark")
    ids = ids_of(found, "delta_widened")
    tasks = list(found.plan_files("default", "delta_widened", 7, ids))
    widths = {
        (a.partial.width_sum / a.partial.row_count, a.partial.width_max)
        for n, task in enumerate(tasks)
        for a in scan(n, task, Work((ids["a"],)))
    }
    assert widths == {(4.0, 4)}
    before = {task.fingerprint for task in found.plan_files("default", "delta_widened", 1, ids)}
    assert before.isdisjoint(task.fingerprint for task in tasks)


def write_commit(path: Path, *actions: dict) -> None:
    """Writes the next commit of a log, with these actions."""
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{len(list(log.glob('*.json'))):020}.json").write_text("\n".join(map(json.dumps, actions)))


def protocol(*features: str) -> dict:
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
    }


def metadata(schema: str | None = None, **columns: str) -> dict:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    given = {"id": "1", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [], "configuration": {}}
    text = json.dumps({"type": "struct", "fields": fields}) if schema is None else schema
    return {"metaData": given | ({"schemaString": text} if text else {})}


def add(path: str, **stats) -> dict:
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": 10,
            "modificationTime": 1,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
    }


@pytest.mark.parametrize("features", [("deletionVectors",), ()], ids=["vectors", "no vectors"])
def test_wide_bounds_enclose_and_are_never_exact(tmp_path, features):
    """They remain where the feature was dropped, or a writer never enabled it."""
    common = {"numRecords": 9, "minValues": {"a": 1, "tightBounds": 1}, "maxValues": {"a": 5, "tightBounds": 3}}
    counts = {"nullCount": {"a": 2, "tightBounds": 0}}
    write_commit(
        tmp_path / "t",
        protocol(*features),
        metadata(a="long", tightBounds="long"),
        add("wide.parquet", **common, **counts, tightBounds=False),
        add("tight.parquet", **common, **counts, tightBounds=True),
        add("untold.parquet", **common, **counts),
    )
    stats, rows = captured(connector(tmp_path / "t"), "t", 0)
    assert stats.row_count == 27
    assert not stats.row_deletes
    by_file = {Path(row["file_path"]).stem: row for row in rows["a"]}
    assert {name: (row["min"], row["max"]) for name, row in by_file.items()} == dict.fromkeys(by_file, ("1", "5"))
    exact = {name: (row["min_is_exact"], row["max_is_exact"], row["null_count"]) for name, row in by_file.items()}
    assert exact == {"wide": (False, False, None), "tight": (True, True, 2), "untold": (True, True, 2)}
    assert {row["null_count"] for row in rows["tightBounds"]} == {0}


@pytest.mark.parametrize("is_wide", [True, False])
def test_wide_bounds_in_a_checkpoint_are_never_exact(tmp_path, is_wide):
    deltalake.write_deltalake(tmp_path / "t", pa.table({"a": [1, 5]}))
    log = tmp_path / "t/_delta_log" / f"{0:020}.json"
    if is_wide:
        log.write_text(log.read_text().replace('{\\"numRecords', '{\\"tightBounds\\":false,\\"numRecords'))
    deltalake.DeltaTable(tmp_path / "t").create_checkpoint()
    log.unlink()
    (row,) = captured(connector(tmp_path), "t", 0)[1]["a"]
    assert (row["min"], row["max"], row["min_is_exact"], row["max_is_exact"]) == ("1", "5", not is_wide, not is_wide)


def test_error_of_a_negative_row_count_names_the_file(tmp_path):
    sound, broken = (
        add(f"{name}.parquet", numRecords=rows, nullCount={"a": 0}) for name, rows in (("b", 2), ("c", -5))
    )
    write_commit(tmp_path / "t", protocol(), metadata(a="long"), sound, broken)
    with pytest.raises(Unreadable) as refused:
        captured(connector(tmp_path), "t")
    message = 'table "default.t": the log has "numRecords": -5 for file "c.parquet"; must be at least 0'
    assert refused.value.message == message


def test_only_the_negative_null_count_is_unknown(tmp_path):
    stats = ({"a": -1, "b": 1}, {"a": 0, "b": 2})
    adds = [add(f"{i}.parquet", numRecords=5, nullCount=nulls) for i, nulls in enumerate(stats)]
    write_commit(tmp_path / "t", protocol(), metadata(a="long", b="long"), *adds)
    native, rows = captured(connector(tmp_path), "t")
    assert native.row_count == 10
    nulls = {name: {Path(row["file_path"]).name: row["null_count"] for row in of} for name, of in rows.items()}
    assert nulls == {"a": {"0.parquet": None, "1.parquet": 0}, "b": {"0.parquet": 1, "1.parquet": 2}}


def test_error_names_the_unsupported_feature(tmp_path):
    write_commit(tmp_path / "t", protocol("adaptiveMetadata"), metadata(a="long"))
    with pytest.raises(Unreadable, match="has the Delta feature adaptiveMetadata") as refused:
        connector(tmp_path / "t").describe("default", "t")
    assert "DROP FEATURE" in (refused.value.hint or "")


def test_version_without_a_schema_is_left_out_unless_it_is_the_newest(tmp_path):
    write_commit(tmp_path / "t", protocol(), metadata(schema=""))
    write_commit(tmp_path / "t", metadata(a="long"), add("one.parquet", numRecords=2, nullCount={"a": 0}))
    write_commit(tmp_path / "t", add("two.parquet", numRecords=3, nullCount={"a": 1}))
    found = connector(tmp_path / "t")
    listing = found.enumerate_snapshots("default", "t")
    assert [s.snapshot_id for s in listing.snapshots] == [1, 2]
    assert listing.live_snapshot_ids == {1, 2}
    assert captured(found, "t", 2)[0].row_count == 5
    write_commit(tmp_path / "t", metadata(schema=""))
    with pytest.raises(Unreadable, match="has no schema"):
        connector(tmp_path / "t").enumerate_snapshots("default", "t")


def test_dotted_names_inside_structs_are_distinguished(tmp_path):
    rows = pa.table(
        {
            "id.num": [1, 3],
            "s": pa.array([{"field": 1, "field.one": 2}, {"field": 5, "field.one": 4}]),
            "s.field": ["x", "y"],
        }
    )
    deltalake.write_deltalake(tmp_path / "t", rows)
    found = connector(tmp_path / "t")
    schema = found.describe("default", "t").schema
    ids = {column.key: number for number, column in enumerate(schema.columns, 1)}
    native = found.capture_snapshot_target_stats("default", "t", 0, ids)
    rows = {row["column_id"]: (row["min"], row["max"]) for part in native.file_columns() for row in part.to_pylist()}
    assert {key: rows[i] for key, i in ids.items() if i in rows} == {
        '"id.num"': ("1", "3"),
        "s.field": ("1", "5"),
        's."field.one"': ("2", "4"),
        '"s.field"': ("x", "y"),
    }
    (task,) = found.plan_files("default", "t", 0, ids)
    values = {column.column_id: read.to_pylist() for column, read in tasks.read(task, task.columns)}
    assert {key: values[i] for key, i in ids.items() if i in values} == {
        '"id.num"': [1, 3],
        "s.field": [1, 5],
        's."field.one"': [2, 4],
        '"s.field"': ["x", "y"],
    }


@pytest.mark.parametrize("escaped", [False, True])
def test_characters_beyond_the_basic_plane_are_enclosed(tmp_path, escaped):
    texts = ["\U00020000a", "\U0001f600", "\U00030001", "\U0010ffff", "plain"]
    for i, text in enumerate(texts):
        deltalake.write_deltalake(tmp_path / "t", pa.table({"s": [text]}), mode="append")
        log = tmp_path / "t/_delta_log" / f"{i:020}.json"
        log.write_text(
            "\n".join(json.dumps(json.loads(line), ensure_ascii=escaped) for line in log.read_text().splitlines())
        )
    rows = captured(connector(tmp_path), "t")[1]["s"]
    by_file = {Path(row["file_path"]).name: row for row in rows}
    for action, text in zip(reversed(deltalake.DeltaTable(tmp_path / "t").file_uris()), reversed(texts), strict=True):
        row = by_file[Path(action).name]
        (value,) = pq.read_table(action)["s"].to_pylist()
        assert row["min"].encode() <= value.encode() <= row["max"].encode(), text
        if row["min_is_exact"] or row["max_is_exact"]:
            assert (row["min"], row["max"]) == (value, value)
    assert sum(row["max_is_exact"] for row in rows) >= 1


@pytest.mark.parametrize("letter", ["é", "\U0002a6d6", "z"])
def test_truncated_texts_are_inexact_bounds(tmp_path, letter):
    for length in (15, 16, 17, 31, 33):
        deltalake.write_deltalake(tmp_path / "t", pa.table({"s": [letter * length]}), mode="append")
    rows = captured(connector(tmp_path), "t")[1]["s"]
    for row in rows:
        (value,) = pq.read_table(row["file_path"])["s"].to_pylist()
        assert row["min"].encode() <= value.encode() <= row["max"].encode()
        assert not row["min_is_exact"] or row["min"] == value
        assert not row["max_is_exact"] or row["max"] == value


def units(text: str, start: int = 0, end: int | None = None) -> str:
    """A part of a text in Java: of its UTF-16 units, where half a pair is written as a question mark."""
    part = text.encode("utf-16-le")[2 * start : None if end is None else 2 * end]
    return part.decode("utf-16-le", "surrogatepass").encode("utf-8", "replace").decode()


def greatest_of_earlier_versions(text: str) -> str:
    """A text that Spark cuts after 32 units, and after those that follow and are above U+FFFD, which ends it."""
    if len(units(text).encode("utf-16-le")) <= 64:
        return text
    end = 32
    while units(text, end, end + 1) >= "\ufffd":
        end += 1
    return units(text, 0, end) + "\ufffd"


def least_of_later_versions(text: str) -> str:
    """A text that Spark cuts after 32 units, or 33 rather than halve a pair."""
    is_halved = "\ud800" <= text.encode("utf-16-le")[62:64].decode("utf-16-le", "surrogatepass") <= "\udbff"
    return units(text, 0, 32 + is_halved)


@given(st.text("a\ud7ff\ufffd\uffff\U0001f600\U0010ffff", min_size=12, max_size=36))
def test_texts_that_spark_cuts_enclose_and_are_not_exact(text):
    assume(len(text.encode("utf-16-le")) >= 64)
    least, greatest = (cut(text) for cut in (least_of_later_versions, greatest_of_earlier_versions))
    lower, upper, *exact = bounds_of(least, greatest, "STRING")
    assert lower.encode() <= text.encode() and (upper is None or text.encode() <= upper.encode())
    assert exact == [False, False]


def test_a_column_without_a_type_is_null_in_every_file(tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "one.parquet")
    (tmp_path / "t").mkdir()
    (tmp_path / "one.parquet").rename(tmp_path / "t/one.parquet")
    stats = {"numRecords": 2, "minValues": {"a": 1}, "maxValues": {"a": 2}, "nullCount": {"a": 0, "nothing": 2}}
    write_commit(tmp_path / "t", protocol(), metadata(a="long", nothing="void"), add("one.parquet", **stats))
    found = connector(tmp_path / "t")
    (task,) = found.plan_files("default", "t", 0, ids_of(found, "t"))
    assert {c.name: read.to_pylist() for c, read in tasks.read(task, task.columns)} == {
        "a": [1, 2],
        "nothing": [None] * 2,
    }


def test_schema_of_a_checkpoint_is_that_of_its_version(tmp_path):
    """Readers start from the checkpoint, so a column that only the checkpoint has belongs to the table."""
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"a": [1]}))
    deltalake.write_deltalake(path, pa.table({"a": [2]}), mode="append")
    later = pa.table({"a": [2], "b": ["x"]})
    elsewhere = tmp_path / "elsewhere"
    deltalake.write_deltalake(elsewhere, pa.table({"a": [1], "b": ["x"]}))
    deltalake.write_deltalake(elsewhere, later, mode="append")
    deltalake.DeltaTable(elsewhere).create_checkpoint()
    for name in (f"{1:020}.checkpoint.parquet", "_last_checkpoint"):
        (elsewhere / "_delta_log" / name).rename(path / "_delta_log" / name)
    found = connector(path)
    listing = found.enumerate_snapshots("default", "t")
    assert [[c.name for c in s.schema.columns] for s in listing.snapshots] == [["a"], ["a", "b"]]
    assert listing.snapshots[-1].schema == found.describe("default", "t").schema
