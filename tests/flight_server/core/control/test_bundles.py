"""Captures of many tables by one request: leased in bundles, published in one transaction, each with its own result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flight_server.core.control.lanes import MAX_LEASES
from store.model.errors import NotFound, StatflightError, UpstreamError, to_json
from store.model.targets import Target
from store.queue.jobs import Job, sync_job
from tests.flight_server.core.control.control_plane import LEASE, ControlPlane, durable_job, outcome, requests


class BundledControlPlane(ControlPlane):
    """A control plane with tables c.s.t0, c.s.t1, …"""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[str] = []
        self.commit.on_committed = lambda table: self.published.append(table.table_name)

    def submit_many(self, count: int, bundled: bool = True) -> list[Job]:
        names = {("c", "s", f"t{n}"): None for n in range(count)}
        entries = self.database.write(lambda c: self.catalog.register_all(c, names, "delta"))
        jobs = [sync_job(entry, requests(), "call", bundled=bundled) for entry in entries.values()]
        self.queue.submit(jobs)
        return jobs

    def take(self, most: int) -> list[dict[str, Any]]:
        return self.queue.lease("w", ["sync"], 0.0, [], lambda: False, most)

    def counts(self) -> dict[str, int]:
        records = {t.table_name: self.store.get(t, 1, Target.table()) for t in self.catalog.tables()}
        return {name: record["row_count"] for name, record in records.items() if name != "t" and record is not None}


@pytest.fixture
def control() -> Iterator[BundledControlPlane]:
    control = BundledControlPlane()
    yield control
    control.queue.close()
    control.database.close()


def finish_bodies(leases: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    names = ("job_id", "lease_token")
    return [{name: lease[name] for name in names} | {"outcomes": [outcome()]} | more for lease in leases]


def fill_drafts(control: BundledControlPlane, jobs: list[Job]) -> None:
    for number, job in enumerate(jobs):
        if job.token:
            put = control.rows(100 + number, table_name=f"t{number}")
            control.queue.drafts.add(job.token, put, False, few=True)


def test_lease_takes_about_a_quarter_of_the_waiting_tasks(control):
    control.submit_many(40)
    assert [len(control.take(64)) for _ in range(4)] == [11, 8, 6, 4]
    assert len(control.take(2)) == 2


def test_lease_takes_at_most_max_bundle_tasks(control):
    control.submit_many(MAX_LEASES * 8)
    assert len(control.take(10_000)) == MAX_LEASES


def test_unbundled_tasks_are_leased_one_at_a_time(control):
    control.submit_many(20, bundled=False)
    assert len(control.take(64)) == 1


def test_bundle_is_published_in_one_transaction(control):
    jobs = control.submit_many(8)
    leases = control.take(64) + control.take(64)
    fill_drafts(control, jobs)
    before = control.database.versions.epoch
    assert control.queue.finish(finish_bodies(leases)) == ["SUCCEEDED"] * len(leases)
    assert control.database.versions.epoch == before + 1
    assert control.counts() == {f"t{n}": 100 + n for n in range(len(leases))}
    assert control.published == [f"t{n}" for n in range(len(leases))]
    assert all(job.done.is_set() and job.error is None for job in jobs[: len(leases)])


def test_each_capture_of_a_bundle_succeeds_or_fails_on_its_own(control):
    jobs = control.submit_many(16)
    leases = control.take(64)
    assert len(leases) == 5
    fill_drafts(control, jobs[:2])
    fill_drafts(control, [*[sync_job(control.table, requests())] * 4, jobs[4]])
    control.queue.drafts.add(jobs[1].token, control.rows(7, table_name="t1"), False)  # two rows of one target
    finishes = finish_bodies(leases)
    finishes[2] |= {"error": {"message": "the lake is away", "code": "UPSTREAM"}, "outcomes": []}
    finishes[3]["lease_token"] = "unknown"
    results = control.queue.finish(finishes)
    assert [results[at] for at in (0, 2, 4)] == ["SUCCEEDED"] * 3
    assert isinstance(results[1], StatflightError) and "two different rows" in str(results[1])
    assert isinstance(results[3], StatflightError) and results[3].code == "LEASE_LOST"
    assert control.counts() == {"t0": 100, "t4": 104}
    assert "two different rows" in str(jobs[1].error)
    assert isinstance(jobs[2].error, UpstreamError)
    assert not jobs[3].done.is_set()


def test_wrong_number_of_outcomes_rejects_only_that_capture(control):
    jobs = control.submit_many(8)
    finishes = finish_bodies(control.take(64))
    finishes[1]["outcomes"] = []
    first, second, *_ = control.queue.finish(finishes)
    assert first == "SUCCEEDED" and isinstance(second, StatflightError)
    assert jobs[0].done.is_set() and not jobs[1].done.is_set()


def test_finish_all_ends_tasks_and_durable_jobs_together(control):
    jobs = control.submit_many(1)
    job_id = control.durable()
    leases = [*control.take(1), control.lease("job")]
    assert control.queue.finish(finish_bodies(leases)) == ["SUCCEEDED"] * 2
    assert jobs[0].done.is_set()
    assert control.jobs.get(job_id)["state"] == "SUCCEEDED"


def test_capture_decisions_are_stored_for_each_table(control):
    control.submit_many(8)
    decision = {
        "snapshot_id": 1,
        "target_kind": "TABLE",
        "storage_id": "table",
        "outcome": "CAPTURED",
        "engine_id": "e",
        "detail": "",
        "elapsed_ms": 1.0,
    }
    leases = control.take(64)
    control.queue.finish(finish_bodies(leases, decisions=[decision]))
    stored = control.database.rows("SELECT table_name, correlation_id FROM capture_decisions ORDER BY 1")
    assert stored == [(f"t{n}", "call") for n in range(len(leases))]


def test_returned_leases_go_to_the_front_of_the_queue_in_order(control):
    jobs = control.submit_many(16)
    leases = control.take(64)
    running, *rest = leases
    assert control.queue.give_back([lease["lease_token"] for lease in rest]) == 4
    assert control.queue.give_back([rest[0]["lease_token"]]) == 0
    assert [lease["job_id"] for lease in control.take(64)] == [job.id for job in jobs[1:5]]
    assert control.queue.finish(finish_bodies([running])) == ["SUCCEEDED"]


def test_capture_with_draft_rows_is_not_returned_to_the_queue(control):
    jobs = control.submit_many(4)
    (lease, _) = control.take(64)
    control.queue.drafts.add(lease["lease_token"], control.rows(7, table_name="t0"), False)
    assert control.queue.give_back([lease["lease_token"]]) == 0
    assert jobs[0].token == lease["lease_token"]


def test_cancelled_capture_is_not_queued_again(control):
    jobs = control.submit_many(8)
    leases = control.take(64)
    control.queue.cancel(jobs[1].id)
    control.queue.give_back([lease["lease_token"] for lease in leases])
    assert [lease["job_id"] for lease in control.take(64)] == [jobs[0].id, jobs[2].id]


def test_captures_of_a_lost_worker_are_leased_one_at_a_time_to_a_worker(control):
    """A capture that kills its worker cannot take others down with it."""
    jobs = control.submit_many(16)
    lost = control.take(64)
    control.seconds += LEASE + 1
    control.queue.sweep()
    for job in reversed(jobs[: len(lost)]):
        (lease,) = control.take(64)
        assert lease["job_id"] in {t.id for t in jobs[: len(lost)]}
        assert job.error is None
        control.queue.finish(finish_bodies([lease]))
    assert len(control.take(64)) > 1
    late = control.queue.finish(finish_bodies(lost))
    assert [isinstance(result, StatflightError) and result.code for result in late] == ["LEASE_LOST"] * len(lost)


def queue_jobs(control: BundledControlPlane, count: int) -> None:
    """Enqueues durable jobs of tables t0, t1, …"""
    names = {("c", "s", f"t{n}"): None for n in range(count)}
    entries = control.database.write(lambda c: control.catalog.register_all(c, names, "delta"))
    request = {"requests": [{"target": {"kind": "TABLE"}, "snapshot_id": 1}]}
    control.jobs.enqueue([durable_job(entry, request) for entry in entries.values()])


def test_durable_jobs_are_bundled_and_each_ends_on_its_own(control):
    queue_jobs(control, 12)
    leases = control.queue.lease("w", ["job"], 0.0, [], lambda: False, 64)
    assert len(leases) == 4 and {lease["kind"] for lease in leases} == {"job"}
    returned, *kept = leases
    assert control.queue.give_back([returned["lease_token"]]) == 1
    assert control.jobs.get(returned["job_id"])["state"] == "QUEUED"
    for lease in kept:
        name = control.jobs.get(lease["job_id"])["table_name"]
        control.queue.drafts.add(lease["lease_token"], control.rows(7, table_name=name), False, few=True)
    lost = {"job_id": returned["job_id"], "lease_token": returned["lease_token"], "outcomes": [outcome()]}
    bodies = [
        *finish_bodies(kept[:2]),
        lost,
        *finish_bodies(kept[2:], outcomes=[], error=to_json(UpstreamError("away"))),
    ]
    *succeeded, rejected, failed = control.queue.finish(bodies)
    assert succeeded == ["SUCCEEDED", "SUCCEEDED"] and failed == "WAITING"
    assert isinstance(rejected, StatflightError) and rejected.code == "LEASE_LOST"
    assert sorted(control.counts().values()) == [7, 7]


@pytest.mark.parametrize("together", [True, False])
def test_durable_job_that_cannot_be_begun_leaves_the_others_of_its_bundle(control, together):
    queue_jobs(control, 20)
    bad: list[int] = []

    def payloads(jobs):
        bad.append(jobs[1 % len(jobs)].table.table_key)
        if not together and len(jobs) > 1:
            raise RuntimeError("one of them is broken")
        return [NotFound("no connector") if job.table.table_key == bad[0] else job.request for job in jobs]

    control.queue.payloads_of = payloads
    leases = control.queue.lease("w", ["job"], 0.0, [], lambda: False, 64)
    states = control.database.rows("SELECT state, count(*) FROM jobs GROUP BY ALL ORDER BY ALL")
    assert states == [("FAILED", 1), ("QUEUED", 14), ("RUNNING", 5)] and len(leases) == 5
