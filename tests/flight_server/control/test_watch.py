"""The schedule of looks at lakes, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flight_server.control.leases import Leases
from flight_server.control.publication import Publication
from flight_server.control.task_queue import Task, TaskQueue
from flight_server.control.watch import PATIENCE_SECONDS, START_SECONDS, Watch
from store.catalog_store import Catalog
from store.database import Database
from store.errors import NotFound, UpstreamError
from store.job_store import JobStore
from store.stats_store import DuckDBStatsStore


class Lakes:
    """Looks that the test ends by hand."""

    def __init__(self, tasks: TaskQueue):
        self.tasks = tasks
        self.begun: list[str] = []
        self.stored: list[str] = []
        self.noted: list[tuple[str, str]] = []
        self.gone: set[str] = set()

    def watch_task(self, catalog: str) -> tuple[dict[str, Any], Task]:
        if catalog in self.gone:
            raise NotFound("gone")
        self.begun.append(catalog)
        return {"catalog": catalog}, self.tasks.submit(Task("watch", {}, catalog=catalog))

    def store(self, catalog: str, config: dict[str, Any], found: Any, *, whole: bool) -> None:
        assert whole and config["catalog"] == catalog
        self.stored.append(catalog)

    def note(self, catalog: str, only: None, reason: str) -> None:
        self.noted.append((catalog, reason))


class House:
    def __init__(self, **intervals: float | None):
        self.database = Database(":memory:")
        catalog = Catalog(self.database)
        jobs = JobStore(self.database)
        self.now, self.intervals = 0.0, dict(intervals)
        self.tasks = TaskQueue(catalog, lambda: self.now)
        publication = Publication(jobs, DuckDBStatsStore(self.database, catalog), catalog)
        self.leases, self.lakes = Leases(self.tasks, jobs, self.database, publication), Lakes(self.tasks)
        self.watch = Watch(self.lakes, self.tasks, lambda: list(self.intervals), self.intervals.get, lambda: self.now)

    def at(self, seconds: float) -> None:
        self.now = seconds
        self.watch.step()

    def lease(self) -> dict[str, Any] | None:
        return next(iter(self.leases.lease("w", ["watch"], 0.0, [], lambda: False)), None)

    def finish(self, lease: dict[str, Any], **body: Any) -> None:
        self.leases.finish(lease["job_id"], lease["lease_token"], body or {"result": {}})


@pytest.fixture
def house() -> Iterator[House]:
    house = House(a=60.0)
    yield house
    house.database.close()


def test_a_lake_is_looked_at_once_per_interval(house):
    house.at(0.0)
    house.at(START_SECONDS)
    assert house.lakes.begun == ["a"]
    house.finish(house.lease())
    house.at(3.0)
    assert house.lakes.stored == ["a"]
    house.at(50.0)
    assert house.lakes.begun == ["a"]
    house.at(START_SECONDS + 60.0)  # never later: jitter only takes away
    assert house.lakes.begun == ["a", "a"]


def test_no_second_look_while_one_is_under_way(house):
    house.at(0.0)
    house.at(START_SECONDS)
    for seconds in range(10, 200, 10):
        house.at(seconds)
    assert house.lakes.begun == ["a"] and not house.lakes.noted


def test_a_lake_that_hangs_or_fails_delays_no_other(house):
    house.intervals |= {"hangs": 60.0, "fails": 60.0}
    house.at(0.0)
    house.at(START_SECONDS)
    assert sorted(house.lakes.begun) == ["a", "fails", "hangs"]
    for _ in range(3):
        lease = house.lease()
        catalog = next(t.catalog for t in house.tasks.leased.values() if t.token == lease["lease_token"])
        if catalog == "a":
            house.finish(lease)
        elif catalog == "fails":
            house.finish(lease, error={"message": "no such bucket", "code": "UPSTREAM", "status": "UNAVAILABLE"})
    house.at(5.0)
    assert house.lakes.stored == ["a"] and house.lakes.noted == [("fails", "no such bucket")]
    house.at(100.0)
    assert house.lakes.begun.count("a") == 2 == house.lakes.begun.count("fails")
    assert house.lakes.begun.count("hangs") == 1


def test_a_look_without_progress_is_given_up_and_noted_once(house):
    house.at(0.0)
    house.at(START_SECONDS)
    house.lease()
    (task,) = house.tasks.leased.values()
    for seconds in (10.0, PATIENCE_SECONDS + 10.0, PATIENCE_SECONDS + 20.0):
        house.at(seconds)
    assert task.cancelled
    assert [catalog for catalog, _ in house.lakes.noted] == ["a"] and "no progress" in house.lakes.noted[0][1]


def test_lakes_come_and_go(house):
    house.at(0.0)
    house.intervals["b"] = 60.0
    house.at(START_SECONDS + 1.0)
    del house.intervals["a"]
    house.at(2 * START_SECONDS + 3.0)
    house.lakes.gone.add("b")
    house.at(200.0)  # dropped between the list and the look
    assert house.lakes.begun == ["a", "b"]


def test_never_is_never(house):
    house.intervals = {"a": None}
    house.watch = Watch(house.lakes, house.tasks, lambda: ["a"], lambda _: None, lambda: house.now)
    for seconds in range(0, 1000, 100):
        house.at(seconds)
    assert house.lakes.begun == []


def test_a_queue_that_refuses_stops_no_schedule(house, monkeypatch):
    def refuse(catalog: str) -> Any:
        raise UpstreamError("no")

    monkeypatch.setattr(house.lakes, "watch_task", refuse)
    house.at(0.0)
    house.at(START_SECONDS)
    monkeypatch.undo()
    house.at(70.0)
    assert house.lakes.begun == ["a"]


def test_the_end_of_the_server_is_no_trouble_of_a_lake(house, caplog):
    house.tasks.close()
    house.at(0.0)
    house.at(START_SECONDS)
    assert house.lakes.noted == [] and not caplog.records
