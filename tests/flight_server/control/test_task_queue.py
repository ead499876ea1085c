"""Synchronous captures: lost workers, cancelled callers, and the live job list."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from flight_server.control.leases import GRACE_SECONDS
from flight_server.control.task_queue import MAX_LOST, Task
from store.model.errors import (
    Cancelled,
    Conflict,
    InvalidField,
    NotFound,
    ShuttingDown,
    UpstreamError,
    to_json,
)
from store.model.targets import Target
from tests.flight_server.control.control_plane import LEASE, outcome, requests


def test_wait_returns_the_result_of_a_task(control):
    task = control.tasks.submit(Task("control", {"operation": "validate"}))
    lease = control.lease("control", timeout=1.0)
    assert lease["payload"] == {"operation": "validate"}
    control.finish(lease, result={"namespaces": ["a"]})
    assert control.tasks.wait(task, 1.0)["result"] == {"namespaces": ["a"]}


def test_work_wakes_one_thread_that_serves_it(control):
    tasks, waiting, woken = control.tasks, threading.Semaphore(0), SimpleQueue()

    def poll(kinds):
        with tasks.lock:
            waiting.release()
            tasks.wait_for_work(kinds, 60.0)
        woken.put(kinds)

    threads = [threading.Thread(target=poll, args=(kinds,)) for kinds in (["control"], ["sync"], ["sync"], ["job"])]
    for thread in threads:
        thread.start()
        waiting.acquire()
    for _ in range(2):
        tasks.submit(Task("sync", requests(), control.table.table_key))
        assert woken.get(timeout=60) == ["sync"]
    tasks.notify()
    assert woken.get(timeout=60) == ["job"] and woken.empty()
    tasks.close()
    assert woken.get(timeout=60) == ["control"]
    for thread in threads:
        thread.join()


def test_wait_raises_the_error_of_a_task(control):
    task = control.tasks.submit(Task("control", {}))
    control.finish(control.lease("control"), error=to_json(NotFound("no lake")))
    with pytest.raises(NotFound, match="no lake"):
        control.tasks.wait(task, 1.0)


def test_finish_requires_one_outcome_per_request(control):
    control.tasks.submit(Task("sync", requests(1, 2), control.table.table_key))
    with pytest.raises(InvalidField):
        control.finish(control.lease("sync"), outcome())


def test_task_fails_as_worker_lost_after_max_lost_leases(control):
    task = control.tasks.submit(Task("sync", requests(), control.table.table_key))
    for _ in range(MAX_LOST):
        lease = control.lease("sync")
        control.leases.add_to_draft(lease["lease_token"], control.rows(7), False)
        control.seconds += LEASE + 1
        control.leases.sweep()
    assert control.lease("sync") is None
    with pytest.raises(UpstreamError) as lost:
        control.tasks.wait(task, 1.0)
    assert lost.value.code == "WORKER_LOST"
    assert control.row_count() == 1


def test_cancelled_caller_removes_its_queued_task(control):
    task = control.tasks.submit(Task("control", {}))
    with pytest.raises(Cancelled):
        control.tasks.wait(task, 5.0, lambda: True)
    assert control.lease("control") is None


def test_renewal_of_an_abandoned_task_stops_the_worker(control):
    task = control.tasks.submit(Task("control", {}))
    lease = control.lease("control")
    control.tasks.abandon(task)
    assert control.leases.renew(task.id, lease["lease_token"], None, None) is False


def test_job_is_not_leased_during_a_sync_capture_of_its_table(control):
    control.queue()
    control.tasks.submit(Task("sync", requests(), control.table.table_key))
    sync = control.lease("sync")
    assert control.lease("job") is None
    control.finish(sync, outcome())
    assert control.lease("job") is not None


def test_submit_wakes_a_waiting_lease(control):
    """The clock stands still: only the new task can end the wait."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(control.lease("control", timeout=5.0)))
    thread.start()
    control.tasks.submit(Task("control", {}))
    thread.join(60)
    assert found and found[0]["kind"] == "control"


def test_task_without_a_worker_fails_after_the_grace_period(control):
    task = control.tasks.submit(Task("control", {}))
    control.seconds += GRACE_SECONDS + 1
    with pytest.raises(UpstreamError) as raised:
        control.tasks.wait(task, 5.0)
    assert raised.value.code == "NO_WORKER"
    assert control.lease("control") is None


def test_task_waits_while_a_worker_of_the_server_lives(control):
    lives = iter([True, True, False])
    control.leases.has_own_worker = lambda lane: lane == "control" and next(lives)
    task = control.tasks.submit(Task("control", {}))
    control.seconds += GRACE_SECONDS + 1
    with pytest.raises(UpstreamError, match="no control worker"):
        control.tasks.wait(task, 60.0)
    assert next(lives, "all asked") == "all asked"


def test_closed_queue_raises_shutting_down_to_all_callers(control):
    task = control.tasks.submit(Task("control", {}))
    control.tasks.close()
    for act in (lambda: control.lease("job"), lambda: control.tasks.submit(Task("control", {})),
                lambda: control.tasks.wait(task, 1.0)):  # fmt: skip
        with pytest.raises(ShuttingDown):
            act()


# Synchronous captures in the job list.


def stored_jobs(control) -> list[dict[str, Any]]:
    rows = control.database.rows("SELECT job_id, state, mode, targets, progress, message FROM jobs")
    return [dict(zip(("job_id", "state", "mode", "targets", "progress", "message"), row, strict=True)) for row in rows]


def test_sync_capture_is_a_live_job_with_progress(control):
    task = control.tasks.submit(Task("sync", requests(3), control.table.table_key))
    assert control.tasks.live_job(task.id)["state"] == "QUEUED" and stored_jobs(control) == []
    lease = control.lease("sync")
    control.leases.renew(task.id, lease["lease_token"], 0.4, "12 of 30 files")
    live = control.tasks.live_job(task.id)
    assert (live["state"], live["mode"], live["progress"], live["message"]) == (
        "RUNNING",
        "SYNC",
        0.4,
        "12 of 30 files",
    )
    assert (live["table_name"], live["targets"], live["snapshot"]) == ("t", f'["{Target.column(3).storage_id}"]', "1")
    control.finish(lease, outcome())
    assert control.tasks.live_job(task.id) is None
    assert stored_jobs(control) == [] and control.lease("job") is None


def test_unlisted_capture_has_no_live_job(control):
    task = control.tasks.submit(Task("sync", requests(3), control.table.table_key, listed=False))
    assert control.tasks.live_job(task.id) is None


def test_sync_capture_can_be_cancelled(control):
    task = control.tasks.submit(Task("sync", requests(), control.table.table_key))
    lease = control.lease("sync")
    control.tasks.cancel(task.id)
    with pytest.raises(Cancelled):
        control.tasks.wait(task, 5.0)
    assert control.tasks.live_job(task.id)["state"] == "CANCELLED"
    assert control.leases.renew(task.id, lease["lease_token"], None, None) is False
    with pytest.raises(Conflict, match="lost"):
        control.finish(lease, error=to_json(UpstreamError("stopped")))
    assert [job["state"] for job in control.tasks.live_jobs()] == ["CANCELLED"]
