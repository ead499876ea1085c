"""Synchronous captures: lost workers, cancelled callers, and the live job list."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from flight_server.core.control.lost_jobs import MAX_TRIES
from flight_server.core.control.workers import GRACE_SECONDS
from store.model.errors import (
    Cancelled,
    Conflict,
    InvalidField,
    NotFound,
    ShuttingDown,
    UpstreamError,
    to_json,
)
from store.model.puts import Listing
from store.model.targets import Target
from store.queue.jobs import Job, sync_job
from tests.flight_server.core.control.control_plane import LEASE, outcome, requests


def test_wait_returns_the_result_of_a_task(control):
    job = control.submit(Job("control", {"operation": "validate"}))
    lease = control.lease("control", timeout=1.0)
    assert lease["payload"] == {"operation": "validate"}
    control.finish(lease, result={"namespaces": ["a"]})
    assert control.queue.wait(job, 1.0)["result"] == {"namespaces": ["a"]}


def test_work_wakes_one_thread_that_serves_it(control):
    queue, waiting, woken = control.queue, threading.Semaphore(0), SimpleQueue()

    def poll(kinds):
        with queue.lock:
            waiting.release()
            queue.workers.wait(kinds, 60.0)
        woken.put(kinds)

    threads = [threading.Thread(target=poll, args=(kinds,)) for kinds in (["control"], ["sync"], ["sync"], ["job"])]
    for thread in threads:
        thread.start()
        waiting.acquire()
    for _ in range(2):
        control.submit(sync_job(control.table, requests()))
        assert woken.get(timeout=60) == ["sync"]
    queue.notify()
    assert woken.get(timeout=60) == ["job"] and woken.empty()
    queue.close()
    assert woken.get(timeout=60) == ["control"]
    for thread in threads:
        thread.join()


def test_poll_that_finds_nothing_wakes_no_other(control, monkeypatch):
    woken: list[int] = []
    monkeypatch.setattr(control.queue, "notify", lambda: woken.append(1))
    assert control.lease("job") is None and control.lease("light") is None and not woken
    control.durable()
    control.finish(control.lease("job"), outcome())
    assert woken


def test_wait_raises_the_error_of_a_task(control):
    job = control.submit(Job("control", {}))
    control.finish(control.lease("control"), error=to_json(NotFound("no lake")))
    with pytest.raises(NotFound, match="no lake"):
        control.queue.wait(job, 1.0)


def test_finish_requires_one_outcome_per_request(control):
    control.submit(sync_job(control.table, requests(1, 2)))
    with pytest.raises(InvalidField):
        control.finish(control.lease("sync"), outcome())


def test_task_fails_as_worker_lost_after_max_lost_leases(control):
    job = control.submit(sync_job(control.table, requests()))
    for _ in range(MAX_TRIES):
        lease = control.lease("sync")
        control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
        control.seconds += LEASE + 1
        control.queue.sweep()
    assert control.lease("sync") is None
    with pytest.raises(UpstreamError) as lost:
        control.queue.wait(job, 1.0)
    assert lost.value.code == "WORKER_LOST"
    assert control.row_count() == 1


def test_capture_is_made_again_when_another_has_changed_the_listing_that_it_continues(control):
    def end(lease: dict[str, Any], mark: str, base: str | None = None) -> None:
        token, base_id = lease["lease_token"], None if base is None else 1
        assert control.queue.drafts.declare(token, Listing(1, mark, base_id, base or ""))
        for flight, more in (("stats.files", {}), ("stats.file_columns", {"column_id": 1, "column_name": "a"})):
            control.queue.drafts.add(token, control.rows(1, flight=flight, file_path=mark, **more), base is None)

    jobs = [control.submit(sync_job(control.table, requests())) for _ in range(3)]
    leases = [control.lease("sync") for _ in jobs]
    end(leases[0], "a")
    control.finish(leases[0], outcome())
    end(leases[1], "b", "a")
    end(leases[2], "c", "a")
    control.finish(leases[1], outcome())
    control.finish(leases[2], outcome())
    assert [job.done.is_set() for job in jobs] == [True, True, False]
    with pytest.raises(Conflict):
        control.finish(leases[2], outcome())
    again = control.lease("sync")
    end(again, "c", "b")
    control.finish(again, outcome())
    assert control.queue.wait(jobs[2], 1.0)["outcomes"] == [outcome()]
    assert control.database.rows("SELECT file_path FROM stats_files ORDER BY 1") == [("a",), ("b",), ("c",)]


def test_cancelled_caller_removes_its_queued_task(control):
    job = control.submit(Job("control", {}))
    with pytest.raises(Cancelled):
        control.queue.wait(job, 5.0, lambda: True)
    assert control.lease("control") is None


def test_renewal_of_an_abandoned_task_stops_the_worker(control):
    job = control.submit(Job("control", {}))
    lease = control.lease("control")
    control.queue.abandon([job])
    assert control.queue.renew(job.id, lease["lease_token"], None, None) is False


def test_job_is_not_leased_during_a_sync_capture_of_its_table(control):
    control.durable()
    control.submit(sync_job(control.table, requests()))
    sync = control.lease("sync")
    assert control.lease("job") is None
    control.finish(sync, outcome())
    assert control.lease("job") is not None


def test_submit_wakes_a_waiting_lease(control):
    """The clock stands still: only the new task can end the wait."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(control.lease("control", timeout=5.0)))
    thread.start()
    control.submit(Job("control", {}))
    thread.join(60)
    assert found and found[0]["kind"] == "control"


def test_task_without_a_worker_fails_after_the_grace_period(control):
    job = control.submit(Job("control", {}))
    control.seconds += GRACE_SECONDS + 1
    with pytest.raises(UpstreamError) as raised:
        control.queue.wait(job, 5.0)
    assert raised.value.code == "NO_WORKER"
    assert control.lease("control") is None


def test_task_waits_while_a_worker_of_the_server_lives(control):
    lives = iter([True, True, False])
    control.queue.workers.has_own = lambda lane: lane == "control" and next(lives)
    job = control.submit(Job("control", {}))
    control.seconds += GRACE_SECONDS + 1
    with pytest.raises(UpstreamError, match="no control worker"):
        control.queue.wait(job, 60.0)
    assert next(lives, "all asked") == "all asked"


def test_closed_queue_raises_shutting_down_to_all_callers(control):
    job = control.submit(Job("control", {}))
    control.queue.close()
    for act in (
        lambda: control.lease("job"),
        lambda: control.submit(Job("control", {})),
        lambda: control.queue.wait(job, 1.0),
    ):
        with pytest.raises(ShuttingDown):
            act()


# Synchronous captures in the job list.


def stored_jobs(control) -> list[dict[str, Any]]:
    rows = control.database.rows("SELECT job_id, state, mode, targets, progress, message FROM jobs")
    return [dict(zip(("job_id", "state", "mode", "targets", "progress", "message"), row, strict=True)) for row in rows]


def test_sync_capture_is_a_live_job_with_progress(control):
    job = control.submit(sync_job(control.table, requests(3)))
    assert control.queue.get(job.id)["state"] == "QUEUED" and stored_jobs(control) == []
    lease = control.lease("sync")
    control.queue.renew(job.id, lease["lease_token"], 0.4, "12 of 30 files")
    live = control.queue.get(job.id)
    assert (live["state"], live["mode"], live["progress"], live["message"]) == (
        "RUNNING",
        "SYNC",
        0.4,
        "12 of 30 files",
    )
    assert (live["table_name"], live["targets"], live["snapshot"]) == ("t", [Target.column(3).storage_id], "1")
    control.finish(lease, outcome())
    assert control.queue.rows() == []
    assert stored_jobs(control) == [] and control.lease("job") is None


def test_unlisted_capture_has_no_live_job(control):
    control.submit(sync_job(control.table, requests(3), listed=False))
    assert control.queue.rows() == []


def test_sync_capture_can_be_cancelled(control):
    job = control.submit(sync_job(control.table, requests()))
    lease = control.lease("sync")
    control.queue.cancel(job.id)
    with pytest.raises(Cancelled):
        control.queue.wait(job, 5.0)
    assert control.queue.get(job.id)["state"] == "CANCELLED"
    assert control.queue.renew(job.id, lease["lease_token"], None, None) is False
    with pytest.raises(Conflict, match="lost"):
        control.finish(lease, error=to_json(UpstreamError("stopped")))
    assert [job["state"] for job in control.queue.rows()] == ["CANCELLED"]


# A store that cannot be written.


def refuse_writes(control, monkeypatch) -> None:
    def refuse(*_: Any) -> None:
        raise UpstreamError("the file was moved", code="DATABASE_MOVED")

    monkeypatch.setattr(control.database, "write", refuse)


def test_durable_job_whose_end_cannot_be_stored_is_leased_again(control, monkeypatch):
    job_id = control.durable()
    lease = control.lease("job")
    with monkeypatch.context() as patch:
        refuse_writes(control, patch)
        with pytest.raises(UpstreamError, match="moved"):
            control.finish(lease, outcome())
        control.seconds += LEASE + 1
        with pytest.raises(UpstreamError, match="moved"):
            control.queue.sweep()
    assert control.jobs.get(job_id)["state"] == "RUNNING"
    control.queue.sweep()
    assert control.jobs.get(job_id)["state"] == "QUEUED"
    assert control.finish(control.lease("job"), outcome()) == "SUCCEEDED"


def test_durable_job_that_cannot_be_given_back_is_queued_by_the_next_sweep(control, monkeypatch):
    job_id = control.durable()
    lease = control.lease("job")
    with monkeypatch.context() as patch:
        refuse_writes(control, patch)
        with pytest.raises(UpstreamError, match="moved"):
            control.queue.give_back([lease["lease_token"]])
    control.queue.sweep()
    assert control.jobs.get(job_id)["state"] == "QUEUED"


def test_lease_that_is_ending_is_not_given_back(control):
    job = control.submit(sync_job(control.table, requests()))
    lease = control.lease("sync")
    job.is_ending = True
    assert control.queue.give_back([lease["lease_token"]] * 2) == 0
    job.is_ending = False
    assert control.queue.give_back([lease["lease_token"]] * 2) == 1


def test_unexpected_error_of_a_commit_keeps_the_lease(control, monkeypatch):
    control.submit(sync_job(control.table, requests()))
    lease = control.lease("sync")
    with monkeypatch.context() as patch:
        patch.setattr(control.commit, "end", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            control.finish(lease, outcome())
    assert control.finish(lease, outcome()) == "SUCCEEDED"
