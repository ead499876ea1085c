"""The schedule of lake inspections, by a clock set by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flight_server.core.control.capture_commit import CaptureCommit
from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.watch import PATIENCE_SECONDS, START_SECONDS, Watch
from store.catalog.catalog import Catalog
from store.model.errors import NotFound, UpstreamError
from store.queue.job_store import JobStore
from store.queue.jobs import Job
from store.stats_store import DuckDBStatsStore
from tests.store.empty_store import empty_database


class FakeLakes:
    """Records the inspections; the test finishes them by hand."""

    def __init__(self, queue: JobQueue):
        self.queue = queue
        self.started: list[str] = []
        self.stored: list[str] = []
        self.noted: list[tuple[str, str]] = []
        self.dropped: set[str] = set()

    def watch_job(self, catalog: str) -> tuple[dict[str, Any], Job]:
        if catalog in self.dropped:
            raise NotFound("gone")
        self.started.append(catalog)
        job = Job("watch", {}, catalog=catalog)
        self.queue.submit([job])
        return {"catalog": catalog}, job

    def store(self, catalog: str, config: dict[str, Any], found: Any, *, whole: bool) -> None:
        assert whole and config["catalog"] == catalog
        self.stored.append(catalog)

    def note(self, catalog: str, only: None, reason: str) -> None:
        self.noted.append((catalog, reason))


class WatchEnv:
    def __init__(self, **intervals: float | None):
        self.database = empty_database()
        catalog = Catalog(self.database)
        jobs = JobStore(self.database, catalog.by_key)
        self.now, self.intervals = 0.0, dict(intervals)
        commit = CaptureCommit(jobs, DuckDBStatsStore(self.database, catalog), catalog)
        self.queue = JobQueue(jobs, commit, clock=lambda: self.now)
        self.lakes = FakeLakes(self.queue)
        self.watch = Watch(self.lakes, self.queue, lambda: list(self.intervals), self.intervals.get, lambda: self.now)

    def step_at(self, seconds: float) -> None:
        self.now = seconds
        self.watch.step()

    def lease(self) -> dict[str, Any] | None:
        return next(iter(self.queue.lease("w", ["watch"], 0.0, [], lambda: False)), None)

    def finish(self, lease: dict[str, Any], **body: Any) -> None:
        ids = {name: lease[name] for name in ("job_id", "lease_token")}
        self.queue.finish([ids | (body or {"result": {}})])


@pytest.fixture
def env() -> Iterator[WatchEnv]:
    env = WatchEnv(a=60.0)
    yield env
    env.database.close()


def test_lake_is_inspected_once_per_interval(env):
    env.step_at(0.0)
    env.step_at(START_SECONDS)
    assert env.lakes.started == ["a"]
    env.finish(env.lease())
    env.step_at(3.0)
    assert env.lakes.stored == ["a"]
    env.step_at(50.0)
    assert env.lakes.started == ["a"]
    env.step_at(START_SECONDS + 60.0)  # jitter only shortens the interval
    assert env.lakes.started == ["a", "a"]


def test_no_second_inspection_while_one_is_running(env):
    env.step_at(0.0)
    env.step_at(START_SECONDS)
    for seconds in range(10, 200, 10):
        env.step_at(seconds)
    assert env.lakes.started == ["a"] and not env.lakes.noted


def test_hanging_or_failing_lake_does_not_delay_others(env):
    env.intervals |= {"hangs": 60.0, "fails": 60.0}
    env.step_at(0.0)
    env.step_at(START_SECONDS)
    assert sorted(env.lakes.started) == ["a", "fails", "hangs"]
    for _ in range(3):
        lease = env.lease()
        catalog = next(t.catalog for t in env.queue.leased.values() if t.token == lease["lease_token"])
        if catalog == "a":
            env.finish(lease)
        elif catalog == "fails":
            env.finish(lease, error={"message": "no such bucket", "code": "UPSTREAM", "status": "UNAVAILABLE"})
    env.step_at(5.0)
    assert env.lakes.stored == ["a"] and env.lakes.noted == [("fails", "no such bucket")]
    env.step_at(100.0)
    assert env.lakes.started.count("a") == 2 == env.lakes.started.count("fails")
    assert env.lakes.started.count("hangs") == 1


def test_inspection_without_progress_is_cancelled_and_noted_once(env):
    env.step_at(0.0)
    env.step_at(START_SECONDS)
    env.lease()
    (job,) = env.queue.leased.values()
    for seconds in (10.0, PATIENCE_SECONDS + 10.0, PATIENCE_SECONDS + 20.0):
        env.step_at(seconds)
    assert job.cancelled
    assert [catalog for catalog, _ in env.lakes.noted] == ["a"] and "no progress" in env.lakes.noted[0][1]


def test_added_lakes_are_inspected_and_removed_ones_are_not(env):
    env.step_at(0.0)
    env.intervals["b"] = 60.0
    env.step_at(START_SECONDS + 1.0)
    del env.intervals["a"]
    env.step_at(2 * START_SECONDS + 3.0)
    env.lakes.dropped.add("b")
    env.step_at(200.0)  # dropped between the listing and the inspection
    assert env.lakes.started == ["a", "b"]


def test_lake_without_an_interval_is_never_inspected(env):
    env.intervals = {"a": None}
    env.watch = Watch(env.lakes, env.queue, lambda: ["a"], lambda _: None, lambda: env.now)
    for seconds in range(0, 1000, 100):
        env.step_at(seconds)
    assert env.lakes.started == []


def test_failed_submit_does_not_stop_the_schedule(env, monkeypatch):
    def fail(catalog: str) -> Any:
        raise UpstreamError("no")

    monkeypatch.setattr(env.lakes, "watch_job", fail)
    env.step_at(0.0)
    env.step_at(START_SECONDS)
    monkeypatch.undo()
    env.step_at(70.0)
    assert env.lakes.started == ["a"]


def test_shutdown_is_not_recorded_as_a_lake_error(env, caplog):
    env.queue.close()
    env.step_at(0.0)
    env.step_at(START_SECONDS)
    assert env.lakes.noted == [] and not caplog.records
