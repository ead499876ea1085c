"""Answers of `resolve` from the store: only a record that holds each kind asked for is one."""

from __future__ import annotations

import numpy as np
import pytest

from capture.spec import CaptureSpec
from store import sketches
from store.schemas import FREQUENT_ITEMS, KLL
from store.target_ids import of_column
from store.targets import Target
from tests.flight_server.serving import app_in, put, rows

SKETCHES = {"QUANTILES": (KLL, sketches.kll(np.array([1.0]))), "MCV": (FREQUENT_ITEMS, sketches.frequent([], [], 0, 0))}
SAMPLE = '{"completeness": "PARTIAL"}'


@pytest.fixture
def app(tmp_path):
    with app_in(tmp_path) as made:
        yield made


def is_hit(app, *kinds: str, column: int = 1) -> bool:
    spec = CaptureSpec(Target.column(column), kinds=frozenset(kinds))
    (held,) = app.captures.known([(app.catalog.get("lake.s.t").table_key, 1, spec)])
    return held is not None


def put_record(app, producer: str, **more) -> None:
    known = {"logical_type": "DOUBLE", "min": "0.5", "max": "2.5", "producer": producer, "completeness": "COMPLETE"}
    put(app, rows("t", 1, [1], **(known | more)))


def put_sketch(app, role: str, params: str | None = None) -> None:
    type, data = SKETCHES[role]
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
    sketch = {"target_kind": "COLUMN", "storage_id": of_column(1), "column_id": 1, "role": role, "sketch_type": type}
    put(app, [key | sketch | {"data": data, "params": params}], "stats.sketches")


@pytest.mark.parametrize(("kind", "role"), [("HISTOGRAM", "QUANTILES"), ("MCV", "MCV")])
@pytest.mark.parametrize("producer", ["SOURCE_NATIVE", "ENGINE_COMPUTED"])
def test_a_sketch_is_held_once_it_is_there_whole(app, producer, kind, role):
    put_record(app, producer)
    assert is_hit(app, "MIN_MAX") and is_hit(app) and not is_hit(app, kind) and not is_hit(app, "MIN_MAX", kind)
    put_sketch(app, role, SAMPLE)
    assert not is_hit(app, kind)
    put_sketch(app, role)
    assert is_hit(app, kind) and is_hit(app, "MIN_MAX", kind) and not is_hit(app, "HISTOGRAM", "MCV")


def test_metadata_holds_no_moments(app):
    put_record(app, "SOURCE_NATIVE")
    assert not is_hit(app, "MOMENTS")
    put_record(app, "SOURCE_NATIVE", mean=1.5)
    assert is_hit(app, "MOMENTS")


def test_a_computed_column_of_nulls_is_not_computed_again(app):
    put_record(app, "ENGINE_COMPUTED", min=None, max=None, mean=None)
    assert is_hit(app, "MOMENTS", "MIN_MAX", "NDV")


def test_a_type_without_common_values_asks_for_none(app):
    put_record(app, "ENGINE_COMPUTED", logical_type="INTERVAL", min=None, max=None)
    assert is_hit(app, "MCV")
