"""Store hits of `resolve`: a record is a hit only when it has every requested kind."""

from __future__ import annotations

import numpy as np
import pytest

from capture.spec import CaptureSpec
from flight_server.core.control import job_queue
from flight_server.core.control.capture_plane import _Running
from store.model import sketches
from store.model.columns import FREQUENT_ITEMS, KLL
from store.model.errors import UpstreamError
from store.model.target_ids import of_column
from store.model.targets import Target
from store.queue.jobs import Job
from tests.flight_server.serving import app_in, put, rows

SKETCHES = {"QUANTILES": (KLL, sketches.kll(np.array([1.0]))), "MCV": (FREQUENT_ITEMS, sketches.frequent([], [], 0, 0))}
SAMPLE = '{"completeness": "PARTIAL"}'


@pytest.fixture
def app():
    with app_in() as app:
        yield app


def is_hit(app, *kinds: str, column: int = 1) -> bool:
    spec = CaptureSpec(Target.column(column), kinds=frozenset(kinds))
    (hit,) = app.captures.known([(app.catalog.get("lake.s.t").table_key, 1, spec)])
    return hit is not None


def put_record(app, producer: str, **more) -> None:
    record = {"logical_type": "DOUBLE", "min": "0.5", "max": "2.5", "producer": producer, "completeness": "COMPLETE"}
    put(app, rows("t", 1, [1], **(record | more)))


def put_sketch(app, role: str, params: str | None = None) -> None:
    type, data = SKETCHES[role]
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
    sketch = {"target_kind": "COLUMN", "storage_id": of_column(1), "column_id": 1, "role": role, "sketch_type": type}
    put(app, [key | sketch | {"data": data, "params": params}], "stats.sketches")


@pytest.mark.parametrize(("kind", "role"), [("HISTOGRAM", "QUANTILES"), ("MCV", "MCV")])
@pytest.mark.parametrize("producer", ["SOURCE_NATIVE", "ENGINE_COMPUTED"])
def test_kind_with_a_sketch_is_a_hit_only_with_a_complete_sketch(app, producer, kind, role):
    put_record(app, producer)
    assert is_hit(app, "MIN_MAX") and is_hit(app) and not is_hit(app, kind) and not is_hit(app, "MIN_MAX", kind)
    put_sketch(app, role, SAMPLE)
    assert not is_hit(app, kind)
    put_sketch(app, role)
    assert is_hit(app, kind) and is_hit(app, "MIN_MAX", kind) and not is_hit(app, "HISTOGRAM", "MCV")


def test_source_native_record_is_a_moments_hit_only_with_a_mean(app):
    put_record(app, "SOURCE_NATIVE")
    assert not is_hit(app, "MOMENTS")
    put_record(app, "SOURCE_NATIVE", mean=1.5)
    assert is_hit(app, "MOMENTS")


def test_computed_record_of_an_all_null_column_is_a_hit(app):
    put_record(app, "ENGINE_COMPUTED", min=None, max=None, mean=None)
    assert is_hit(app, "MOMENTS", "MIN_MAX", "NDV")


def test_mcv_of_a_type_without_common_values_is_a_hit(app):
    put_record(app, "ENGINE_COMPUTED", logical_type="INTERVAL", min=None, max=None)
    assert is_hit(app, "MCV")


@pytest.mark.parametrize(("nulls", "is_known"), [(1, True), (0, False), (None, False)])
def test_record_from_metadata_has_bounds_or_no_values(app, nulls, is_known):
    put_record(app, "UPSTREAM_METADATA_DERIVED", min=None, max=None, ndv=None, row_count=1, null_count=nulls)
    assert is_hit(app, "MIN_MAX") is is_known


def test_resolve_without_a_worker_says_so(app, monkeypatch):
    monkeypatch.setattr(job_queue, "_TICK_SECONDS", 0.001)
    app.queue.workers.serve = lambda lane: False
    job = Job("sync", {}, listed=False)
    app.queue.submit([job])
    running = _Running(app.queue, job)
    assert running.wait(5.0) and running.wait(0)
    with pytest.raises(UpstreamError, match=r"^\[NO_WORKER\] no sync worker is connected; start one") as refused:
        running.outcome(None)
    assert str(refused.value).count("start one") == 1


def test_a_capture_says_whether_somebody_may_work_at_it(app):
    """A young server's workers may still connect: a caller waits for them, and is told if none has come."""
    job = Job("sync", {}, listed=False)
    app.queue.submit([job])
    running = _Running(app.queue, job)
    assert app.queue.workers.serve(job.lane) and running.unserved().startswith("[NO_WORKER] no sync worker")
    app.queue.workers.has_own = lambda lane: lane == job.lane
    assert running.unserved() == ""
    app.queue.workers.has_own = lambda _lane: False
    with app.queue.workers.polling("w", ["sync"], ()):
        assert running.unserved() == ""
