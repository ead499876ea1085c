"""The schedule of lake inspections, by a clock set by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import pytest

from flight_server.core.control.capture_commit import CaptureCommit
from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.watch import BATCH, PATIENCE_SECONDS, START_SECONDS, Pace, Watch
from flight_server.core.control.watched import TableName, Watched
from store.catalog.catalog import Catalog
from store.model.errors import NotFound, UpstreamError
from store.queue.job_store import JobStore
from store.queue.jobs import Job
from store.stats_store import DuckDBStatsStore
from tests.store.empty_store import empty_database

NAMES: Final = {"names": [], "namespaces": [], "errors": [], "lake_mark": None}
LOOKED: Final = {"tables": [], "unchanged": [], "errors": []}


class FakeLakes:
    """Records the inspections; the test finishes them by hand."""

    def __init__(self, queue: JobQueue):
        self.queue = queue
        self.started: list[str] = []
        self.stored: list[str] = []
        self.noted: list[tuple[str, str]] = []
        self.dropped: set[str] = set()
        self.looks: list[list[str]] = []
        self.found: list[tuple[str, list[str]]] = []
        self.tables: dict[str, list[Watched]] = {}
        self.seconds: dict[int, float | None] = {}

    def watched(self, catalog: str) -> list[Watched]:
        return self.tables.get(catalog, [])

    def set_intervals(self, seconds: dict[int, float | None]) -> None:
        self.seconds |= seconds

    def names_job(self, catalog: str) -> tuple[dict[str, Any], Job]:
        if catalog in self.dropped:
            raise NotFound("gone")
        self.started.append(catalog)
        return self._job(catalog)

    def look_job(self, catalog: str, only: Sequence[Sequence[str]]) -> tuple[dict[str, Any], Job]:
        self.looks.append([name for _, name in only])
        return self._job(catalog, looks=True)

    def _job(self, catalog: str, **payload: Any) -> tuple[dict[str, Any], Job]:
        job = Job("watch", payload, catalog=catalog)
        self.queue.submit([job])
        return {"catalog": catalog}, job

    def store_names(self, catalog: str, config: dict[str, Any], found: Any) -> None:
        assert config["catalog"] == catalog
        self.stored.append(catalog)
        self.tables[catalog] = [Watched(at, tuple(name)) for at, name in enumerate(found["names"])]

    def store(
        self, catalog: str, config: dict[str, Any], found: Any, *, whole: bool, present: Collection[TableName] = ()
    ) -> None:
        assert not whole and config["catalog"] == catalog
        self.found.append((catalog, sorted(name for _, name in present)))

    def note(self, catalog: str, only: Sequence[Sequence[str]] | None, reason: str) -> None:
        self.noted.append((catalog, reason))


class WatchEnv:
    def __init__(self, **intervals: float | None):
        self.database = empty_database()
        catalog = Catalog(self.database)
        jobs = JobStore(self.database, catalog.by_key)
        self.now, self.intervals = 0.0, dict(intervals)
        commit = CaptureCommit(jobs, DuckDBStatsStore(self.database, catalog, queue=jobs), catalog)
        self.queue = JobQueue(jobs, commit, clock=lambda: self.now)
        self.lakes = FakeLakes(self.queue)
        self.budget: int | None = None
        self.watch = Watch(
            self.lakes,
            self.lakes,
            self.queue,
            lambda: list(self.intervals),
            self._pace,
            lambda: self.now,
            lambda: self.now,
        )

    def _pace(self, catalog: str) -> Pace | None:
        seconds = self.intervals[catalog]
        return None if seconds is None else Pace(seconds, seconds, self.budget)

    def step_at(self, seconds: float) -> None:
        self.now = seconds
        self.watch.step()

    def lease(self) -> dict[str, Any] | None:
        return next(iter(self.queue.lease("w", ["watch"], 0.0, [], lambda: False)), None)

    def finish(self, lease: dict[str, Any], **body: Any) -> None:
        ids = {name: lease[name] for name in ("job_id", "lease_token")}
        self.queue.finish([ids | (body or {"result": NAMES})])


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
        catalog = next(t.catalog for t in env.queue._leases if t.token == lease["lease_token"])
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
    (job,) = env.queue._leases
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
    env.watch = Watch(env.lakes, env.lakes, env.queue, lambda: ["a"], lambda _: None, lambda: env.now)
    for seconds in range(0, 1000, 100):
        env.step_at(seconds)
    assert env.lakes.started == []


def test_failed_submit_does_not_stop_the_schedule(env, monkeypatch):
    def fail(catalog: str) -> Any:
        raise UpstreamError("no")

    monkeypatch.setattr(env.lakes, "names_job", fail)
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


def answer(env: WatchEnv, **found: Any) -> None:
    """Finishes the next job with findings."""
    env.finish(env.lease(), result=found)


def first_round(env: WatchEnv, *names: str) -> None:
    env.step_at(0.0)
    env.step_at(START_SECONDS)
    answer(env, **NAMES | {"names": [["s", name] for name in names]})
    env.step_at(2.5)


def test_new_tables_are_looked_at_before_the_names_are_stored(env):
    first_round(env, "t", "u")
    assert env.lakes.looks == [["t", "u"]] and env.lakes.stored == []
    answer(env, **LOOKED)
    env.step_at(3.0)
    assert env.lakes.found == [("a", ["t", "u"])], "a table with another name is known by the names of all"
    assert env.lakes.stored == ["a"]


def test_known_tables_and_names_are_looked_at_together(env):
    first_round(env)
    env.lakes.tables["a"] = [Watched(1, ("s", "t"), 0.0)]
    env.step_at(70.0)
    assert env.lakes.started == ["a", "a"] and env.lakes.looks == [["t"]]
    answer(env)
    answer(env, **LOOKED)
    env.step_at(71.0)
    assert env.lakes.found == [("a", [])] and env.lakes.stored == ["a"], "nothing is stored of names as they were"


def test_end_of_trouble_is_told_once_a_whole_round_was_without(env, caplog):
    caplog.set_level("INFO")

    def round_at(seconds: float, **names: Any) -> None:
        env.step_at(seconds)
        env.finish(env.lease(), **names)
        answer(env, **LOOKED)
        env.step_at(seconds + 1.0)

    first_round(env)
    env.lakes.tables["a"] = [Watched(1, ("s", "t"), 0.0)]
    gone = {"error": {"message": "there is no such directory", "code": "UPSTREAM", "status": "UNAVAILABLE"}}
    round_at(70.0, **gone)
    round_at(140.0, **gone)
    cannot = "watch: the lake a cannot be read: there is no such directory"
    assert [record.message for record in caplog.records] == [cannot]
    env.lakes.tables["a"] = [Watched(1, ("s", "t"), 0.0)]
    round_at(210.0, result=NAMES)
    assert [record.message for record in caplog.records] == [cannot, "watch: the lake a can be read again"]


def test_what_was_used_lately_comes_first_and_in_batches(env):
    first_round(env)
    env.lakes.tables["a"] = [Watched(at, ("s", f"t{at}"), 0.0, float(at)) for at in range(BATCH + 1)]
    env.step_at(70.0)
    assert [len(looks) for looks in env.lakes.looks] == [BATCH, 1]
    assert env.lakes.looks[0][0] == f"t{BATCH}" and env.lakes.looks[1] == ["t0"]


def test_intervals_are_those_of_the_watch_without_a_budget(env):
    first_round(env)
    env.lakes.tables["a"] = [Watched(1, ("s", "t")), Watched(2, ("s", "u"))]
    env.step_at(70.0)
    assert env.lakes.seconds == {1: 60.0, 2: 60.0}


def test_a_budget_makes_looks_rare_and_those_at_used_tables_less_so(env):
    env.budget, env.now = 100, 1e6
    env.lakes.tables["a"] = [Watched(1, ("s", "t"), 1e6, 1e6), Watched(2, ("s", "u"), 1e6)]
    env.step_at(1e6)
    env.step_at(1e6 + START_SECONDS)
    assert env.lakes.looks == [] and env.lakes.started == ["a"], "both were looked at lately"
    used, other = env.lakes.seconds[1], env.lakes.seconds[2]
    assert 60.0 < used < other
    answer(env)
    env.step_at(1e6 + 3.0)
    env.step_at(1e6 + used)
    assert env.lakes.looks == [["t"]]
    answer(env, **LOOKED)
    env.step_at(1e6 + used + 1.0)
    env.lakes.tables["a"][0] = Watched(1, ("s", "t"), 1e6 + used, 1e6)
    env.step_at(1e6 + other)
    assert "u" in env.lakes.looks[-1]


def test_tables_of_a_lake_that_is_not_watched_have_no_interval(env):
    first_round(env)
    env.lakes.tables["a"] = [Watched(1, ("s", "t"))]
    env.lakes.seconds = {1: 60.0}
    env.intervals["a"] = None
    env.step_at(10.0)
    assert env.lakes.seconds == {1: None}
