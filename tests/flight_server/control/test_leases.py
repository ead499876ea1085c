"""Jobs that workers lease: drafts, outcomes, lost leases, retries."""

from __future__ import annotations

from typing import Any

import pytest

from flight_server.control.task_queue import Task
from store.errors import (
    Conflict,
    NotFound,
    UpstreamError,
    to_json,
)
from store.jobs import MAX_ATTEMPTS
from store.stats_store import PutMode
from store.targets import Target
from tests.flight_server.control.work import LEASE, House, outcome, requests

# Drafts.


def test_a_draft_is_seen_once_it_is_published(house):
    job_id = house.queue()
    lease = house.lease()
    house.work.add_to_draft(lease["lease_token"], house.rows(7), False)
    assert house.row_count() == 1
    assert house.finish(lease, outcome()) == "SUCCEEDED"
    assert house.row_count() == 7
    assert house.jobs.get(job_id)["stats_processed"] == 1


def test_a_draft_is_published_whole_or_not_at_all(house):
    job_id = house.queue()
    lease = house.lease()
    house.work.add_to_draft(lease["lease_token"], house.rows(7), False)
    house.work.add_to_draft(lease["lease_token"], house.rows(8), False)  # two rows of one target: refused
    assert house.finish(lease, outcome()) == "FAILED"
    assert house.row_count() == 1
    assert "two different rows" in house.jobs.get(job_id)["message"]


def test_what_was_asked_for_comes_before_what_was_found(house):
    house.queue()
    lease = house.lease()
    house.work.add_to_draft(lease["lease_token"], house.rows(9, PutMode.FILL), False)
    house.work.add_to_draft(lease["lease_token"], house.rows(7), False)
    house.finish(lease, outcome())
    assert house.row_count() == 7


def test_a_draft_needs_a_lease(house):
    with pytest.raises(Conflict) as refused:
        house.work.add_to_draft("no token", house.rows(7), False)
    assert refused.value.code == "LEASE_LOST"


def test_a_failed_job_publishes_nothing(house):
    house.queue()
    lease = house.lease()
    house.work.add_to_draft(lease["lease_token"], house.rows(7), False)
    assert house.finish(lease, outcome("DEGRADED", "gone")) == "WAITING"
    assert house.row_count() == 1


# Leases.


def test_a_lost_lease_takes_its_draft_along(house):
    job_id = house.queue()
    lost = house.lease()
    house.work.add_to_draft(lost["lease_token"], house.rows(7), False)
    house.seconds += LEASE + 1
    house.work.sweep()
    assert house.jobs.get(job_id)["state"] == "QUEUED"
    for late in (lambda: house.work.add_to_draft(lost["lease_token"], house.rows(7), False),
                 lambda: house.finish(lost, outcome())):  # fmt: skip
        with pytest.raises(Conflict):
            late()
    again = house.lease()
    house.work.add_to_draft(again["lease_token"], house.rows(8), False)
    assert house.finish(again, outcome()) == "SUCCEEDED"
    assert house.row_count() == 8
    assert house.publication.counters.lease_expiries == 1


def test_a_renewed_lease_stays(house):
    job_id = house.queue()
    lease = house.lease()
    for _ in range(4):
        house.seconds += LEASE / 2
        assert house.work.renew(job_id, lease["lease_token"], 0.1, None)
        house.work.sweep()
    assert house.finish(lease, outcome()) == "SUCCEEDED"


@pytest.mark.parametrize("kind", ["job", "sync"])
def test_a_renewal_that_meets_the_end_of_its_work_is_no_refusal(house, kind):
    """The keeper of a lease renews it until the server has answered its end."""
    job_id = house.queued(kind)
    lease, told = house.lease(kind), []
    store = house.store.database.write

    def write(run: Any, *more: Any, **named: Any) -> Any:
        found = store(run, *more, **named)
        if len(told) == 0:  # committed, and not yet forgotten
            told.append(None)
            told[0] = house.work.renew(job_id, lease["lease_token"], None, None)
        return found

    house.database.write = write
    assert house.finish(lease, outcome()) == "SUCCEEDED"
    del house.database.write
    assert told in ([True], [False])
    assert house.work.renew(job_id, lease["lease_token"], 1.0, "done") is False


@pytest.mark.parametrize("kind", ["job", "sync"])
def test_a_renewal_of_a_lost_lease_says_so(house, kind):
    job_id = house.queued(kind)
    lease = house.lease(kind)
    house.seconds += LEASE + 1
    house.work.sweep()
    with pytest.raises(Conflict, match="lost"):
        house.work.renew(job_id, lease["lease_token"], None, None)
    with pytest.raises(NotFound):
        house.work.renew("another", "token", None, None)


def test_a_token_is_for_its_own_job(house):
    house.queue()
    lease = house.lease()
    with pytest.raises(Conflict):
        house.work.finish("another", lease["lease_token"], {"outcomes": [outcome()]})
    assert house.finish(lease, outcome()) == "SUCCEEDED"


def test_a_job_that_cannot_begin_is_not_stuck(house):
    job_id = house.queue()

    def gone(_: Any) -> Any:
        raise NotFound('no connector "c"')

    house.work.payload_of_job = gone
    assert house.lease() is None
    assert house.jobs.get(job_id)["state"] == "FAILED"
    assert "connector" in house.jobs.get(job_id)["message"]


def test_a_bug_in_the_payload_is_not_a_stuck_job(house):
    job_id = house.queue()
    house.work.payload_of_job = lambda lease: 1 / 0
    assert house.lease() is None
    assert house.jobs.get(job_id)["state"] == "FAILED"


def test_a_follow_up_with_nothing_left_to_do_is_done(house):
    job_id = house.queue()
    house.work.payload_of_job = lambda lease: {"requests": [], "held": [1]}
    assert house.lease() is None
    job = house.jobs.get(job_id)
    assert (job["state"], job["degraded"], job["stats_processed"]) == ("SUCCEEDED", False, 1)


def test_a_cancelled_job_publishes_nothing(house):
    job_id = house.queue()
    lease = house.lease()
    house.work.add_to_draft(lease["lease_token"], house.rows(7), False)
    house.jobs.cancel(job_id)
    assert house.work.renew(job_id, lease["lease_token"], None, None) is False
    assert house.finish(lease, outcome()) == "CANCELLED"
    assert house.row_count() == 1


# Partial outcomes.


def test_the_rest_goes_on_as_a_job_of_its_own(house):
    job_id = house.queue(0, 1, 2)
    lease = house.lease()
    house.work.add_to_draft(lease["lease_token"], house.rows(7), False)
    gone = outcome("DEGRADED", "no such column", retryable=False)
    assert house.finish(lease, outcome(), outcome("DEGRADED", "a slow lake"), gone) == "SUCCEEDED"
    assert house.row_count() == 7
    job = house.jobs.get(job_id)
    assert job["degraded"] and "a slow lake; no such column; 1 of 3 go on as job " in job["message"]
    rest = house.jobs.get(job["message"].rpartition(" ")[2])
    assert (rest["state"], rest["attempts"], rest["targets"]) == ("WAITING", 1, [Target.column(1).storage_id])


def test_the_rest_is_not_tried_for_ever(house):
    job_id = house.queue(0, 1)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        house.database.write(lambda c: c.execute("UPDATE jobs SET not_before = NULL"))
        lease = house.lease()
        assert lease is not None
        job_id = lease["job_id"]
        requests = lease["payload"]["requests"]
        outcomes = [outcome("DEGRADED", "slow") for _ in requests]
        house.finish(lease, *([outcome(), *outcomes[1:]] if attempt == 1 else outcomes))
    assert house.jobs.get(job_id)["state"] == "FAILED"
    assert house.jobs.get(job_id)["attempts"] == MAX_ATTEMPTS
    assert set(house.jobs.counts()) == {"SUCCEEDED", "FAILED"}


def lacking(files_read: int, **attributes: Any) -> dict[str, Any]:
    return outcome("CAPTURED", 'file "f2" is damaged', files=3, files_failed=1, files_read=files_read, **attributes)


def due(house: House) -> dict[str, Any]:
    """The lease of what waits for its next try."""
    house.database.write(lambda c: c.execute("UPDATE jobs SET not_before = NULL"))
    lease = house.lease()
    assert lease is not None
    return lease


def test_files_that_failed_are_tried_again(house):
    job_id = house.queue(1, 2)
    lease = house.lease()
    house.work.add_to_draft(lease["lease_token"], house.rows(7), False)
    assert house.finish(lease, outcome(), lacking(2)) == "SUCCEEDED"
    assert house.row_count() == 7
    job = house.jobs.get(job_id)
    assert job["degraded"] and job["message"].startswith('file "f2" is damaged; 1 of 2 go on as job ')
    again = due(house)
    assert [r["target"] for r in again["payload"]["requests"]] == [Target.column(2).to_json()]
    assert house.finish(again, outcome(files_read=1)) == "SUCCEEDED"
    done = house.jobs.get(again["job_id"])
    assert (done["attempts"], done["degraded"]) == (2, False)
    assert house.jobs.counts() == {"SUCCEEDED": 2}


def test_a_file_that_stays_damaged_fails_its_retry_and_not_the_first_job(house):
    house.queue(1)
    assert house.finish(house.lease(), lacking(2)) == "SUCCEEDED"
    states = []
    for _ in range(MAX_ATTEMPTS - 1):
        again = due(house)
        house.work.add_to_draft(again["lease_token"], house.rows(9), False)
        states.append(house.finish(again, lacking(0)))
    assert states == ["WAITING"] * (MAX_ATTEMPTS - 2) + ["FAILED"]
    assert "damaged" in house.jobs.get(again["job_id"])["message"]
    assert house.row_count() == 1  # nothing new was published
    assert house.jobs.counts() == {"SUCCEEDED": 1, "FAILED": 1}


def test_a_retry_that_reads_some_of_the_files_publishes_them(house):
    house.queue(1)
    house.finish(house.lease(), lacking(1))
    again = due(house)
    house.work.add_to_draft(again["lease_token"], house.rows(9), False)
    assert house.finish(again, lacking(1)) == "SUCCEEDED"
    assert house.row_count() == 9
    assert due(house)["job_id"] != again["job_id"]


def test_files_that_no_retry_helps_are_not_tried_again(house):
    job_id = house.queue(1)
    assert house.finish(house.lease(), lacking(2, retryable=False)) == "SUCCEEDED"
    assert house.jobs.get(job_id)["degraded"] and house.lease() is None


def test_nothing_retryable_is_not_retried(house):
    job_id = house.queue(0, 1)
    lease = house.lease()
    wrong = [outcome("UNCAPTURABLE", "target unsupported"), outcome("DEGRADED", "no file", retryable=False)]
    assert house.finish(lease, *wrong) == "FAILED"
    assert house.jobs.get(job_id)["attempts"] == 1


@pytest.mark.parametrize(("retryable", "state"), [(True, "WAITING"), (False, "FAILED")])
def test_a_workers_error_says_whether_another_try_helps(house, retryable, state):
    house.queue()
    error = to_json(UpstreamError("away")) | {"retryable": retryable}
    assert house.finish(house.lease(), error=error, message="away") == state


# Lanes.


def test_a_thread_for_light_jobs_leaves_scans_alone(house):
    house.queue()
    assert house.lease("light") is None
    light = house.jobs.enqueue(house.table, "2", "ASYNC", {"requests": [{"target": {"kind": "TABLE"}}]}, ["table"], 0)
    assert house.lease("light")["job_id"] == light


def test_what_metadata_answers_is_waited_for_by_no_scan(house):
    scan, light = (
        house.tasks.submit(Task("sync", requests(), house.table.table_key, light=told)) for told in (False, True)
    )
    found = house.lease("light")
    assert (found["job_id"], found["kind"]) == (light.id, "sync")
    assert house.lease("light") is None
    assert house.lease("sync")["job_id"] == scan.id


def test_a_thread_for_scans_takes_light_ones_first(house):
    scan, light = (house.tasks.submit(Task("sync", requests(), light=told)) for told in (False, True))
    assert [house.lease("sync")["job_id"] for _ in range(2)] == [light.id, scan.id]


# Failures that cannot pass.


def test_a_failure_that_cannot_pass_is_not_tried_again(house):
    job_id = house.queue()
    assert house.finish(house.lease(), outcome("DEGRADED", "unknown column", retryable=False)) == "FAILED"
    assert (house.jobs.get(job_id)["state"], house.jobs.get(job_id)["attempts"]) == ("FAILED", 1)
    trouble = UpstreamError('the Python module "psycopg" is not installed')
    trouble.retryable = False
    house.queue()
    assert house.finish(house.lease(), error=to_json(trouble)) == "FAILED"
    task = house.tasks.submit(Task("control", {}))
    house.finish(house.lease("control"), error=to_json(trouble))
    with pytest.raises(UpstreamError) as told:
        house.tasks.wait(task, 1.0)
    assert told.value.retryable is False
