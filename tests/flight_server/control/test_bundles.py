"""Captures of many tables by one request: leased several at once, ended in one transaction, each with its own fate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flight_server.control.task_queue import MAX_BUNDLE, Task
from store.errors import StatflightError, UpstreamError, to_json
from store.jobs import NewJob
from store.targets import Target
from tests.flight_server.control.work import LEASE, House, outcome, requests


class Bundles(House):
    """A house with tables c.s.t0, c.s.t1, …"""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[str] = []
        self.publication.on_published = lambda table: self.published.append(table.table_name)

    def submit(self, count: int, bundled: bool = True) -> list[Task]:
        names = {("c", "s", f"t{n}"): None for n in range(count)}
        entries = self.database.write(lambda c: self.catalog.register_all(c, names, "delta"))
        tasks = [Task("sync", requests(), entry.table_key, "call", bundled=bundled) for entry in entries.values()]
        self.tasks.submit_all(tasks)
        return tasks

    def take(self, most: int) -> list[dict[str, Any]]:
        return self.work.lease("w", ["sync"], 0.0, [], lambda: False, most)

    def counts(self) -> dict[str, int]:
        found = {t.table_name: self.store.get(t, 1, Target.table()) for t in self.catalog.tables()}
        return {name: record["row_count"] for name, record in found.items() if name != "t" and record is not None}


@pytest.fixture
def house() -> Iterator[Bundles]:
    house = Bundles()
    yield house
    house.tasks.close()
    house.database.close()


def ends(leases: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    names = ("job_id", "lease_token")
    return [{name: lease[name] for name in names} | {"outcomes": [outcome()]} | more for lease in leases]


def fill(house: Bundles, tasks: list[Task]) -> None:
    for number, task in enumerate(tasks):
        if task.token:
            put = house.rows(100 + number, table_name=f"t{number}")
            house.work.add_to_draft(task.token, put, False, few=True)


def test_a_quarter_of_what_waits_is_leased_at_once(house):
    house.submit(40)
    assert [len(house.take(64)) for _ in range(4)] == [11, 8, 6, 4]
    assert len(house.take(2)) == 2


def test_a_lease_call_takes_no_more_than_a_bundle(house):
    house.submit(MAX_BUNDLE * 8)
    assert len(house.take(10_000)) == MAX_BUNDLE


def test_requests_of_their_own_are_leased_one_by_one(house):
    house.submit(20, bundled=False)
    assert len(house.take(64)) == 1


def test_a_bundle_is_published_in_one_transaction(house):
    tasks = house.submit(8)
    leases = house.take(64) + house.take(64)
    fill(house, tasks)
    commits: list[int] = []
    house.database.on_commit.append(lambda: commits.append(1))
    assert house.work.finish_all(ends(leases)) == ["SUCCEEDED"] * len(leases)
    assert len(commits) == 1
    assert house.counts() == {f"t{n}": 100 + n for n in range(len(leases))}
    assert house.published == [f"t{n}" for n in range(len(leases))]
    assert all(task.done.is_set() and task.error is None for task in tasks[: len(leases)])


def test_of_a_bundle_each_capture_has_its_own_fate(house):
    tasks = house.submit(16)
    leases = house.take(64)
    assert len(leases) == 5
    fill(house, tasks[:2])
    fill(house, [*[Task("sync", requests())] * 4, tasks[4]])
    house.work.add_to_draft(tasks[1].token, house.rows(7, table_name="t1"), False)  # two rows of one target
    finishes = ends(leases)
    finishes[2] |= {"error": {"message": "the lake is away", "code": "UPSTREAM"}, "outcomes": []}
    finishes[3]["lease_token"] = "unknown"
    answers = house.work.finish_all(finishes)
    assert [answers[at] for at in (0, 2, 4)] == ["SUCCEEDED"] * 3
    assert isinstance(answers[1], StatflightError) and "two different rows" in str(answers[1])
    assert isinstance(answers[3], StatflightError) and answers[3].code == "LEASE_LOST"
    assert house.counts() == {"t0": 100, "t4": 104}
    assert "two different rows" in str(tasks[1].error)
    assert isinstance(tasks[2].error, UpstreamError)
    assert not tasks[3].done.is_set()


def test_a_wrong_number_of_outcomes_refuses_one_capture(house):
    tasks = house.submit(8)
    finishes = ends(house.take(64))
    finishes[1]["outcomes"] = []
    first, second, *_ = house.work.finish_all(finishes)
    assert first == "SUCCEEDED" and isinstance(second, StatflightError)
    assert tasks[0].done.is_set() and not tasks[1].done.is_set()


def test_jobs_end_along_with_tasks(house):
    tasks = house.submit(1)
    job_id = house.queue()
    leases = [*house.take(1), house.lease("job")]
    assert house.work.finish_all(ends(leases)) == ["SUCCEEDED"] * 2
    assert tasks[0].done.is_set()
    assert house.jobs.get(job_id)["state"] == "SUCCEEDED"


def test_decisions_are_kept_for_each_table(house):
    house.submit(8)
    decision = {"snapshot_id": 1, "target_kind": "TABLE", "storage_id": "table", "outcome": "CAPTURED",
                "engine_id": "e", "detail": "", "elapsed_ms": 1.0}  # fmt: skip
    leases = house.take(64)
    house.work.finish_all(ends(leases, decisions=[decision]))
    kept = house.database.rows("SELECT table_name, correlation_id FROM capture_decisions ORDER BY 1")
    assert kept == [(f"t{n}", "call") for n in range(len(leases))]


def test_what_has_not_begun_goes_back_first_and_in_order(house):
    tasks = house.submit(16)
    leases = house.take(64)
    begun, *rest = leases
    assert house.work.give_back([lease["lease_token"] for lease in rest]) == 4
    assert house.work.give_back([rest[0]["lease_token"]]) == 0
    assert [lease["job_id"] for lease in house.take(64)] == [task.id for task in tasks[1:5]]
    assert house.work.finish_all(ends([begun])) == ["SUCCEEDED"]


def test_a_capture_that_has_begun_to_put_is_not_given_back(house):
    tasks = house.submit(4)
    (lease, _) = house.take(64)
    house.work.add_to_draft(lease["lease_token"], house.rows(7, table_name="t0"), False)
    assert house.work.give_back([lease["lease_token"]]) == 0
    assert tasks[0].token == lease["lease_token"]


def test_a_cancelled_capture_is_not_queued_again(house):
    tasks = house.submit(8)
    leases = house.take(64)
    house.tasks.cancel(tasks[1].id)
    house.work.give_back([lease["lease_token"] for lease in leases])
    assert [lease["job_id"] for lease in house.take(64)] == [tasks[0].id, tasks[2].id]


def test_after_the_loss_of_a_worker_its_captures_go_one_by_one(house):
    """So that the one that kills workers takes no other along."""
    tasks = house.submit(16)
    lost = house.take(64)
    house.seconds += LEASE + 1
    house.work.sweep()
    for task in reversed(tasks[: len(lost)]):
        (lease,) = house.take(64)
        assert lease["job_id"] in {t.id for t in tasks[: len(lost)]}
        assert task.error is None
    assert len(house.take(64)) > 1
    late = house.work.finish_all(ends(lost))
    assert [isinstance(answer, StatflightError) and answer.code for answer in late] == ["LEASE_LOST"] * len(lost)


def queue(house: Bundles, count: int) -> None:
    """Durable jobs of tables t0, t1, …"""
    names = {("c", "s", f"t{n}"): None for n in range(count)}
    entries = house.database.write(lambda c: house.catalog.register_all(c, names, "delta"))
    request = {"requests": [{"target": {"kind": "TABLE"}, "snapshot_id": 1}]}
    house.jobs.enqueue_all([NewJob(entry, "1", "ASYNC", request, ["table"]) for entry in entries.values()])


def test_durable_jobs_are_leased_together_and_each_has_its_own_fate(house):
    queue(house, 12)
    leases = house.work.lease("w", ["job"], 0.0, [], lambda: False, 64)
    assert len(leases) == 4 and {lease["kind"] for lease in leases} == {"job"}
    given, *mine = leases
    assert house.work.give_back([given["lease_token"]]) == 1
    assert house.jobs.get(given["job_id"])["state"] == "QUEUED"
    for lease in mine:
        name = house.jobs.get(lease["job_id"])["table_name"]
        house.work.add_to_draft(lease["lease_token"], house.rows(7, table_name=name), False, few=True)
    lost = {"job_id": given["job_id"], "lease_token": given["lease_token"], "outcomes": [outcome()]}
    bodies = [*ends(mine[:2]), lost, *ends(mine[2:], outcomes=[], error=to_json(UpstreamError("away")))]
    *good, refused, failed = house.work.finish_all(bodies)
    assert good == ["SUCCEEDED", "SUCCEEDED"] and failed == "WAITING"
    assert isinstance(refused, StatflightError) and refused.code == "LEASE_LOST"
    assert sorted(house.counts().values()) == [7, 7]
