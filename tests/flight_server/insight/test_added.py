"""Rules about the rows that were added: what their files' records tell, and what they do not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.views import added
from flight_server.insight import rules
from flight_server.insight.evaluate import check
from flight_server.insight.results import State
from store.model.columns import THETA
from store.model.errors import InvalidArgument
from store.model.sketches import theta
from store.model.sketches.murmur3 import hash_longs
from store.model.target_ids import of_files
from tests.flight_server.serving import app_in, put

NAME = "lake.s.t"
KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "completeness": "COMPLETE"}
PASSED, UNKNOWN, FAILED = State.PASSED, State.UNKNOWN, State.FAILED
FILES = {"a": (1, 100, 0), "b": (2, 10, 9), "c": (2, 30, 0), "gone": (1, 50, 50)}  # since when, rows, nulls
LISTED = {1: ["a", "gone"], 2: ["a", "b", "c"]}


def column_of(path: str, rows: int, nulls: int, **more):
    low = ord(path[0]) * 1000
    at = {"file_path": path, "column_id": 1, "column_name": "id", "logical_type": "INT", "row_count": rows}
    bounds = {"min": str(low), "max": str(low + rows - 1), "min_is_exact": True, "max_is_exact": True}
    values = {"mean": float(low), "stddev": 1.0, "ndv": float(rows - nulls), "ndv_exact": True}
    return at | {"null_count": nulls} | bounds | values | {"producer": "ENGINE_COMPUTED"} | more


@pytest.fixture
def app():
    with app_in() as app:
        yield app


def put_all(app, live=None, **of_b):
    for snapshot, paths in LISTED.items():
        key = KEY | {"snapshot_id": snapshot}
        counts = {path: (live or {}).get(path, FILES[path][1]) for path in paths}
        files = [key | {"file_path": p, "file_content": "DATA", "row_count": counts[p], "size_bytes": 7} for p in paths]
        put(app, files, "stats.files")
        total = sum(counts.values())
        put(app, [key | {"row_count": total, "data_file_count": len(paths), "total_size_bytes": 7}], "stats.tables")
        whole = {"column_id": 1, "column_name": "id", "logical_type": "INT", "row_count": total, "null_count": 9}
        put(app, [key | whole])
        rows = [key | column_of(p, *FILES[p][1:], **(of_b if p == "b" else {})) for p in paths]
        put(app, rows, "stats.file_columns")
        sketches = [
            {name: key[name] for name in (*list(KEY)[:3], "snapshot_id")}
            | {"target_kind": "FILE", "storage_id": of_files(pa.array([p]))[0].as_py(), "column_id": 1, "file_path": p}
            | {"role": "NDV", "sketch_type": THETA, "data": theta(hash_longs(np.arange(FILES[p][1] - FILES[p][2])))}
            for p in paths
        ]
        put(app, sketches, "stats.sketches")
    return LocalReader(app.scanner, ANONYMOUS)


def judged(reader, *texts, against="previous"):
    given = [rules.parse(text) for text in texts]
    return check(reader, NAME, [rule.about_added(rule.text) for rule in given], against)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("row_count = 40", 40),
        ("file_count = 2", 2),
        ("size_bytes = 14 B", 14),
        ("id: null_fraction = 0.225", 0.225),
        ("id: min = 98000", 98000),
        ("id: max = 99029", 99029),
        ("id: ndv = 30", 30),  # the value of `b` is among those of `c`
        ("id: distinct_fraction < 1", pytest.approx(30 / 31)),
        ("id: mean > 98900", pytest.approx((98000 + 30 * 99000) / 31)),
    ],
)
def test_measures_are_those_of_the_files_that_came(app, text, value):
    (result,) = judged(put_all(app), text)
    assert (result.state, result.value, result.snapshot_id) == (PASSED, value, 2)


def test_all_rows_are_added_where_nothing_was_before(app):
    assert added.files(put_all(app), NAME, 1, None)["file_path"].to_pylist() == ["a", "gone"]


def test_limits_may_be_other_measures_of_the_load(app):
    assert [one.state for one in judged(put_all(app), "id: null_count < row_count", "id: ndv = row_count")] == [
        PASSED,
        FAILED,
    ]


def test_what_a_file_does_not_tell_is_unknown(app):
    reader = put_all(app, null_count=None, min=None, mean=None, stddev=None)
    texts = ("id: null_fraction <= 1", "id: min >= 0", "id: mean >= 0", "id: max <= 99029")
    assert [one.state for one in judged(reader, *texts)] == [UNKNOWN, UNKNOWN, UNKNOWN, PASSED]


def test_a_sample_decides_nothing(app):
    (result,) = judged(put_all(app, completeness="PARTIAL"), "id: mean >= 0")
    assert result.state == UNKNOWN


def test_rows_deleted_from_an_added_file_leave_its_counts_unknown(app):
    reader = put_all(app, live={"b": 4})
    texts = ("row_count = 34", "id: null_fraction <= 1", "id: ndv >= 1", "id: min >= 98000", "id: min >= 98001")
    assert [one.state for one in judged(reader, *texts)] == [PASSED, UNKNOWN, UNKNOWN, PASSED, UNKNOWN]


def test_files_that_are_not_captured_are_unknown(app):
    put(app, [KEY | {"snapshot_id": 1, "row_count": 5, "data_file_count": 1}], "stats.tables")
    (result,) = judged(LocalReader(app.scanner, ANONYMOUS), "row_count > 0")
    assert result.state == UNKNOWN and "not captured" in result.detail and result.pending


@pytest.mark.parametrize(
    "text", ["drift <= 0.1", "change of row_count >= 0", "unique", "age_seconds < 1h", "row_count >= 80% of previous"]
)
def test_measures_without_an_answer_for_added_rows_are_refused(text):
    with pytest.raises(InvalidArgument, match=r"added|earlier"):
        rules.parse(text).about_added(text)


def test_rules_files_name_the_rows(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('[[rule]]\nof = "added"\nexpect = "row_count > 0"\nagainst = "first"\n')
    (rule,) = rules.load(path).rules
    assert rule.of_added and rule.against == "first" and rule.text == "row_count > 0 of added against first"
    path.write_text('[[rule]]\nof = "removed"\nexpect = "row_count > 0"\n')
    with pytest.raises(InvalidArgument, match="added"):
        rules.load(path)
