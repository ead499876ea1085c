"""Captures that somebody waits for: workers that die, callers that leave, and the list of jobs they are in."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flight_server.control.leases import GRACE_SECONDS
from flight_server.control.task_queue import MAX_LOST, Task
from store.errors import (
    Cancelled,
    InvalidField,
    NotFound,
    ShuttingDown,
    UpstreamError,
    to_json,
)
from store.targets import Target
from tests.flight_server.control.work import LEASE, outcome, requests


def test_a_task_is_waited_for(house):
    task = house.tasks.submit(Task("control", {"operation": "validate"}))
    lease = house.lease("control", timeout=1.0)
    assert lease["payload"] == {"operation": "validate"}
    house.finish(lease, result={"namespaces": ["a"]})
    assert house.tasks.wait(task, 1.0)["result"] == {"namespaces": ["a"]}


def test_a_tasks_error_is_raised_to_who_waits(house):
    task = house.tasks.submit(Task("control", {}))
    house.finish(house.lease("control"), error=to_json(NotFound("no lake")))
    with pytest.raises(NotFound, match="no lake"):
        house.tasks.wait(task, 1.0)


def test_a_task_wants_as_many_outcomes_as_requests(house):
    house.tasks.submit(Task("sync", requests(1, 2), house.table.table_key))
    with pytest.raises(InvalidField):
        house.finish(house.lease("sync"), outcome())


def test_a_task_goes_to_another_worker_and_in_the_end_to_none(house):
    task = house.tasks.submit(Task("sync", requests(), house.table.table_key))
    for _ in range(MAX_LOST):
        lease = house.lease("sync")
        house.work.add_to_draft(lease["lease_token"], house.rows(7), False)
        house.seconds += LEASE + 1
        house.work.sweep()
    assert house.lease("sync") is None
    with pytest.raises(UpstreamError) as lost:
        house.tasks.wait(task, 1.0)
    assert lost.value.code == "WORKER_LOST"
    assert house.row_count() == 1


def test_a_caller_that_leaves_takes_its_task_along(house):
    task = house.tasks.submit(Task("control", {}))
    with pytest.raises(Cancelled):
        house.tasks.wait(task, 5.0, lambda: True)
    assert house.lease("control") is None


def test_a_caller_that_leaves_stops_the_worker(house):
    task = house.tasks.submit(Task("control", {}))
    lease = house.lease("control")
    house.tasks.abandon(task)
    assert house.work.renew(task.id, lease["lease_token"], None, None) is False


def test_a_table_in_work_is_left_alone_by_jobs(house):
    house.queue()
    house.tasks.submit(Task("sync", requests(), house.table.table_key))
    sync = house.lease("sync")
    assert house.lease("job") is None
    house.finish(sync, outcome())
    assert house.lease("job") is not None


def test_work_wakes_who_waits(house):
    """The clock stands still: nothing but the new task ends the wait."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(house.lease("control", timeout=5.0)))
    thread.start()
    house.tasks.submit(Task("control", {}))
    thread.join(60)
    assert found and found[0]["kind"] == "control"


def test_a_task_that_no_worker_serves_is_refused_after_a_while(house):
    task = house.tasks.submit(Task("control", {}))
    house.seconds += GRACE_SECONDS + 1
    with pytest.raises(UpstreamError) as refused:
        house.tasks.wait(task, 5.0)
    assert refused.value.code == "NO_WORKER"
    assert house.lease("control") is None


def test_the_end_is_told_to_all(house):
    task = house.tasks.submit(Task("control", {}))
    house.tasks.close()
    for act in (lambda: house.lease("job"), lambda: house.tasks.submit(Task("control", {})),
                lambda: house.tasks.wait(task, 1.0)):  # fmt: skip
        with pytest.raises(ShuttingDown):
            act()


# Captures that somebody waits for, in the job list.


def jobs_of(house) -> list[dict[str, Any]]:
    rows = house.database.rows("SELECT job_id, state, mode, targets, progress, message FROM jobs")
    return [dict(zip(("job_id", "state", "mode", "targets", "progress", "message"), row, strict=True)) for row in rows]


def test_a_waited_capture_is_in_the_job_list_with_its_progress(house):
    task = house.tasks.submit(Task("sync", requests(3), house.table.table_key))
    assert house.tasks.live_job(task.id)["state"] == "QUEUED" and jobs_of(house) == []
    lease = house.lease("sync")
    house.work.renew(task.id, lease["lease_token"], 0.4, "12 of 30 files")
    live = house.tasks.live_job(task.id)
    assert (live["state"], live["mode"], live["progress"], live["message"]) == (
        "RUNNING",
        "SYNC",
        0.4,
        "12 of 30 files",
    )
    assert (live["table_name"], live["targets"], live["snapshot"]) == ("t", f'["{Target.column(3).storage_id}"]', "1")
    house.finish(lease, outcome())
    assert house.tasks.live_job(task.id) is None
    assert jobs_of(house) == [] and house.lease("job") is None


def test_the_capture_behind_a_resolve_is_not_listed(house):
    task = house.tasks.submit(Task("sync", requests(3), house.table.table_key, listed=False))
    assert house.tasks.live_job(task.id) is None


def test_a_waited_capture_can_be_cancelled(house):
    task = house.tasks.submit(Task("sync", requests(), house.table.table_key))
    lease = house.lease("sync")
    house.tasks.cancel(task.id)
    with pytest.raises(Cancelled):
        house.tasks.wait(task, 5.0)
    assert house.tasks.live_job(task.id)["state"] == "CANCELLING"
    assert house.work.renew(task.id, lease["lease_token"], None, None) is False
    house.finish(lease, error=to_json(UpstreamError("stopped")))
    assert house.tasks.live_jobs() == []
