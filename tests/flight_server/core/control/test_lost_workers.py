"""Jobs whose workers were ended by signals: they are tried once more, alone and naming their files, and then fail."""

from __future__ import annotations

from typing import Any

import pytest

from flight_server.core.control.lost_jobs import MAX_LOST
from store.model.errors import Conflict, UpstreamError
from store.queue.jobs import Job, sync_job
from tests.flight_server.core.control.control_plane import ControlPlane, durable_job, outcome, requests


def leased(control: ControlPlane, kind: str, worker: str = "w", most: int = 1) -> list[dict[str, Any]]:
    return control.queue.lease(worker, [kind], 0.0, [], lambda: False, most)


def another_table(control: ControlPlane, name: str) -> Any:
    entries = control.database.write(lambda c: control.catalog.register_all(c, {("c", "s", name): None}, "delta"))
    return next(iter(entries.values()))


@pytest.mark.parametrize("kind", ["sync", "job"])
def test_job_fails_when_its_second_worker_is_ended_by_a_signal_and_names_the_file(control, kind):
    job = control.submit(sync_job(control.table, requests())) if kind == "sync" else None
    job_id = job.id if job else control.durable()
    for lost in range(MAX_LOST):
        (lease,) = leased(control, kind)
        assert lease["lost"] == lost
        control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
        if lost:
            assert control.queue.renew(job_id, lease["lease_token"], None, None, "lake/t/a.parquet")
        control.queue.died("w", "SIGABRT")
        with pytest.raises(Conflict, match="lease is lost"):
            control.queue.renew(job_id, lease["lease_token"], None, None)
    assert leased(control, kind) == []
    expected = '2 workers were lost over it (SIGABRT), the last one while it read "lake/t/a.parquet"'
    if job is None:
        found = control.jobs.get(job_id)
        assert (found["state"], found["message"], found["attempts"]) == ("FAILED", expected, 2)
    else:
        with pytest.raises(UpstreamError) as error:
            control.queue.wait(job, 1.0)
        assert (error.value.message, error.value.code, error.value.retryable) == (expected, "WORKER_LOST", False)
    assert control.row_count() == 1


def test_jobs_beside_a_suspect_are_not_suspected(control):
    bad = control.submit(sync_job(control.table, requests()))
    leased(control, "sync")
    control.queue.died("w", "SIGSEGV")
    fresh = control.submit(sync_job(another_table(control, "fresh"), requests()))
    assert [lease["job_id"] for _ in range(2) for lease in leased(control, "sync")] == [bad.id, fresh.id]
    control.queue.died("w", "SIGSEGV")
    assert bad.done.is_set() and not fresh.done.is_set()
    assert (fresh.lost, fresh.attempts) == (0, 0)
    (lease,) = leased(control, "sync")
    assert control.finish(lease, outcome()) == "SUCCEEDED"


@pytest.mark.parametrize("kind", ["sync", "job"])
def test_worker_has_one_suspect_at_a_time(control, kind):
    tables = [another_table(control, name) for name in ("t1", "t2")]
    if kind == "sync":
        control.queue.submit([sync_job(table, requests(), bundled=True) for table in tables])
    else:
        for table in tables:
            control.jobs.enqueue([durable_job(table, requests() | {"snapshot": 1})])
    first = leased(control, kind) + leased(control, kind)
    assert len(first) == 2
    control.queue.died("w", "SIGKILL")
    (suspect,) = leased(control, kind, most=64)
    assert leased(control, kind) == []
    (other,) = leased(control, kind, worker="another")
    assert {suspect["job_id"], other["job_id"]} == {lease["job_id"] for lease in first}
    assert (suspect["lost"], other["lost"]) == (1, 1)
    control.finish(suspect, outcome())
    control.queue.died("w", "SIGKILL")  # it has none any more
    assert control.finish(other, outcome()) == "SUCCEEDED"


def test_leases_of_other_workers_stay(control):
    control.durable()
    (lease,) = leased(control, "job", "other")
    control.queue.died("w", "SIGABRT")
    assert control.finish(lease, outcome()) == "SUCCEEDED"


def test_job_whose_workers_exited_is_tried_as_often_as_before(control):
    job = control.submit(sync_job(control.table, requests()))
    for _ in range(2):
        leased(control, "sync")
        control.queue.died("w", "")
        assert not job.done.is_set()
    leased(control, "sync")
    control.queue.died("w", "")
    assert isinstance(job.error, UpstreamError) and "3 workers were lost over it (its process ended)" in str(job.error)


def test_cancelled_job_of_an_ended_worker_is_cancelled(control):
    job_id = control.durable()
    leased(control, "job")
    control.queue.cancel(job_id)
    control.queue.died("w", "SIGABRT")
    assert control.jobs.get(job_id)["state"] == "CANCELLED"


def test_watch_that_ends_its_worker_twice_fails(control):
    watch = control.submit(Job("watch", {}, catalog="c"))
    for _ in range(MAX_LOST):
        leased(control, "watch")
        control.queue.died("w", "SIGBUS")
    assert str(watch.error) == "2 workers were lost over it (SIGBUS)"
