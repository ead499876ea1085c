"""Files that scans skip by the theta sketches of their columns, and sketches that say nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from flight_server.planning import file_keys
from flight_server.planning.estimates import Estimator
from flight_server.planning.plan_request import condition_of
from store.model import sketches
from store.model.columns import THETA
from store.model.sketches import murmur3
from store.model.targets import Target
from tests.flight_server.planning.test_scan_plan import KEY, kept
from tests.flight_server.serving import app_in, put

FILES = 4
THEN, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def app():
    with app_in() as app:
        yield app


@pytest.fixture(scope="module")
def keyed():
    """An app with the files and their sketches, which no test changes."""
    with app_in() as app:
        put_keys(app)
        yield app


def ids(number: int) -> np.ndarray:
    """File i has every fourth id from i on, so that all files have nearly the same bounds."""
    return np.arange(number, 4000, FILES)


def put_keys(app, sketched: Any = ids, **more: Any) -> None:
    """Puts files with sketches of their ids; `more` changes their rows of `stats.file_columns`."""
    whole = KEY | {"completeness": "COMPLETE", "captured_at": THEN}
    files = [f"f{i}" for i in range(FILES)]
    put(app, [whole | {"file_path": f, "file_content": "DATA", "row_count": 1000} for f in files], "stats.files")
    column = {
        "column_id": 1,
        "column_name": "id",
        "logical_type": "INT",
        "row_count": 1000,
        "null_count": 0,
        "min": "0",
        "max": "3999",
        "producer": "ENGINE_COMPUTED",
    }
    put(app, [whole | {"file_path": f} | column | more for f in files], "stats.file_columns")
    put(
        app,
        [
            KEY_OF_SKETCH
            | {
                "storage_id": Target.file(f).storage_id,
                "file_path": f,
                "data": sketches.theta(murmur3.hash_longs(sketched(i))),
            }
            for i, f in enumerate(files)
        ],
        "stats.sketches",
    )


KEY_OF_SKETCH = {name: KEY[name] for name in ("table_catalog", "table_schema", "table_name", "snapshot_id")} | {
    "target_kind": "FILE",
    "column_id": 1,
    "role": "NDV",
    "sketch_type": THETA,
    "params": None,
    "captured_at": THEN,
}


def test_only_files_with_the_key_are_kept(keyed):
    app = keyed
    assert kept(app, "id = 6") == {"f2": "SOME"}
    assert kept(app, "id IN (1, 5, 3)") == {"f1": "SOME", "f3": "SOME"}
    assert set(kept(app, {"column": "id", "op": "IN", "values": [*range(8, 80, 4)]})) == {"f0"}
    assert kept(app, "id = 6 AND id > 0") == {"f2": "SOME"}
    assert kept(app, "id = 6 AND id = 7") == {}
    assert kept(app, "id = 6.0") == {"f2": "SOME"}
    assert kept(app, "NOT (id <> 6)") == {"f2": "SOME"}


@pytest.mark.parametrize("where", ["id = 6", "id IN (1, 5, 3)", "id = 6 AND id = 7", "id = 4001", "id = 6 OR id > 10"])
def test_cached_sketches_keep_the_files_that_stored_ones_keep(keyed, where, monkeypatch):
    estimator, table = Estimator(keyed.parts["planning"].planner), keyed.catalog.get("lake.s.t")
    node = condition_of(where)
    first = estimator.estimate(table, node, ["id"], "current").body
    assert first["files"] == len(kept(keyed, where))
    monkeypatch.delattr(file_keys, "having")  # reads stored sketches
    assert estimator.estimate(table, node, ["id"], "current").body == first


@pytest.mark.parametrize(
    "where", ["id > 6", "id <> 6", "NOT (id = 6)", "id = 6 OR id > 10", "id IS NOT NULL", "id NOT IN (6)"]
)
def test_other_conditions_keep_all(keyed, where):
    assert len(kept(keyed, where)) == FILES


def test_a_sketch_of_many_values_tells_of_hashes_below_its_theta(app):
    many = lambda number: np.arange(number, 400_000, FILES)  # noqa: E731
    put_keys(app, many, max="399999")
    by_hash = np.argsort(murmur3.hash_longs(np.arange(40_000)))
    found = {key: set(kept(app, f"id = {key}")) for key in (*by_hash[:20], *by_hash[::2000])}
    assert all(f"f{key % FILES}" in files for key, files in found.items())
    assert {len(files) for files in found.values()} == {1, FILES}  # below theta, and above


@pytest.mark.parametrize(
    "told",
    [
        {"logical_type": "STRING"},
        {"completeness": "PARTIAL"},
        {"captured_at": LATER},
        {"producer": "SOURCE_NATIVE"},
        {"row_groups_sampled": 1, "completeness": "PARTIAL"},
    ],
)
def test_a_sketch_without_its_row_says_nothing(app, told):
    put(app, [KEY | {"column_id": 1, "column_name": "id", "logical_type": "INT"}])
    put_keys(app, **told)
    assert len(kept(app, "id = 6")) == FILES


def test_sketches_of_samples_and_of_other_snapshots_say_nothing(app):
    put_keys(app)
    sample = {"data": sketches.theta(murmur3.hash_longs(ids(0)[:5])), "params": '{"completeness": "PARTIAL"}'}
    put(
        app,
        [KEY_OF_SKETCH | {"storage_id": Target.file("f0").storage_id, "file_path": "f0"} | sample],
        "stats.sketches",
    )
    assert set(kept(app, "id = 6")) == {"f0", "f2"}
    put(app, [KEY | {"snapshot_id": 2, "file_path": "f0", "file_content": "DATA", "row_count": 10}], "stats.files")
    put(app, [KEY | {"snapshot_id": 2, "column_id": 1, "column_name": "id", "logical_type": "INT"}])
    assert set(kept(app, "id = 6", snapshot=2)) == {"f0"}


def test_of_many_files_only_sketches_of_few_values_are_looked_up(app, monkeypatch):
    monkeypatch.setattr(file_keys, "MAX_FILES", FILES - 1)
    put_keys(app, lambda number: ids(number)[:64] if number else ids(number))
    assert set(kept(app, "id = 6")) == {"f0", "f2"}  # f0 has a larger sketch, which is not read
    assert set(kept(app, "id IN (6, 9)")) == {"f0", "f1", "f2"}
    assert set(kept(app, "id = 3998")) == {"f0"}
    many = {"column": "id", "op": "IN", "values": list(range(1000, 1100))}
    assert len(kept(app, many)) == FILES
    monkeypatch.setattr(file_keys, "MAX_FILES_OF_FEW", FILES - 1)
    assert len(kept(app, "id = 7")) == FILES


def test_a_sketch_of_another_seed_or_form_is_not_read_as_a_list(app, monkeypatch):
    monkeypatch.setattr(file_keys, "_may_have", lambda data, hashes: True)
    put_keys(app)
    assert set(kept(app, "id = 6")) == {"f2"}
    with monkeypatch.context() as patched:
        patched.setattr(file_keys, "SEED_MARK", b"xx")
        assert len(kept(app, "id = 7")) == FILES  # a condition that is not planned yet
    put_keys(app, lambda number: np.arange(number, 400_000, FILES), max="399999")  # more than it has hashes of
    assert len(kept(app, "id = 6")) == FILES


def test_a_file_without_values_has_no_key(app):
    put_keys(app, lambda number: ids(number)[:0] if number == 2 else ids(number)[:1])
    assert kept(app, "id = 2") == {}
    assert set(kept(app, "id = 1")) == {"f1"}
