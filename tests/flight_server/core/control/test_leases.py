"""Jobs that workers lease: drafts, outcomes, lost leases, retries."""

from __future__ import annotations

from typing import Any

import pytest

from store.catalog.discovery import Discovery
from store.model.errors import (
    Conflict,
    NotFound,
    UpstreamError,
    to_json,
)
from store.model.targets import Target
from store.queue.jobs import LIGHT, MAX_ATTEMPTS, SCAN, Job, sync_job
from store.stats_store import PutMode
from tests.flight_server.core.control.control_plane import LEASE, ControlPlane, durable_job, outcome, requests

# Drafts.


def test_draft_rows_become_visible_when_the_job_finishes(control):
    job_id = control.durable()
    lease = control.lease()
    control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
    assert control.row_count() == 1
    assert control.finish(lease, outcome()) == "SUCCEEDED"
    assert control.row_count() == 7
    assert control.jobs.get(job_id)["stats_processed"] == 1


def test_draft_with_conflicting_rows_publishes_nothing_and_fails_the_job(control):
    job_id = control.durable()
    lease = control.lease()
    control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
    control.queue.drafts.add(lease["lease_token"], control.rows(8), False)  # two rows of one target: rejected
    assert control.finish(lease, outcome()) == "FAILED"
    assert control.row_count() == 1
    assert "two different rows" in control.jobs.get(job_id)["message"]


def test_upserted_rows_win_over_filled_rows_of_the_same_draft(control):
    control.durable()
    lease = control.lease()
    control.queue.drafts.add(lease["lease_token"], control.rows(9, PutMode.FILL), False)
    control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
    control.finish(lease, outcome())
    assert control.row_count() == 7


@pytest.mark.parametrize("kind", ["job", "sync"])
def test_what_was_read_of_another_table_is_read_again(control, kind):
    """The table is created again under its name, with the same snapshot id, while it is captured."""
    snapshot = dict.fromkeys(("parent_snapshot_id", "sequence_number", "committed_at", "operation"))
    found = {
        "schema": "s",
        "name": "t",
        "table_id": None,
        "schema_hash": "h",
        "schemas": {"h": [["x", "INT", True, 1]]},
        "snapshots": [snapshot | {"snapshot_id": 1, "ordinal": 1, "schema_hash": "h"}],
        "live_snapshot_ids": [1],
        "current_snapshot_id": 1,
    }

    def discover(identity: str) -> None:
        item = found | {"identities": [[1, identity]]}
        control.database.write(lambda c: Discovery(control.catalog).store(c, "c", "lance", [item], {("s", "t")}))

    discover("old")
    control.enqueue(kind)
    lease = control.lease(kind)
    control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
    discover("new")
    assert control.finish(lease, outcome()) == "WAITING"
    assert control.row_count() is None
    control.seconds += LEASE
    again = control.lease(kind)
    control.queue.drafts.add(again["lease_token"], control.rows(8), False)
    assert control.finish(again, outcome()) == "SUCCEEDED"
    assert control.row_count() == 8


@pytest.mark.parametrize("kind", ["job", "sync"])
def test_what_was_read_of_a_dropped_table_makes_no_other(control, kind):
    job_id = control.enqueue(kind)
    lease = control.lease(kind)
    control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
    control.database.write(lambda c: control.catalog.change(c, {control.table.table_key: {"dropped": True}}))
    if kind == "job":
        assert control.finish(lease, outcome()) == "FAILED"
        assert "was dropped or replaced while it was captured" in control.jobs.get(job_id)["message"]
    else:
        with pytest.raises(NotFound, match="was dropped or replaced while it was captured"):
            control.finish(lease, outcome())
    assert control.catalog.tables() == []


def test_job_whose_connector_is_gone_says_so(control):
    def payloads_of(jobs):
        raise NotFound('no connector "c"', code="UNKNOWN_CONNECTOR")

    control.queue.payloads_of = payloads_of
    job_id = control.durable()
    assert control.lease() is None
    job = control.jobs.get(job_id)
    assert (job["state"], job["message"]) == ("FAILED", 'no connector "c"')


def test_draft_rows_with_an_unknown_token_are_lease_lost(control):
    with pytest.raises(Conflict) as raised:
        control.queue.drafts.add("no token", control.rows(7), False)
    assert raised.value.code == "LEASE_LOST"


def test_failed_job_publishes_nothing(control):
    control.durable()
    lease = control.lease()
    control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
    assert control.finish(lease, outcome("DEGRADED", "gone")) == "WAITING"
    assert control.row_count() == 1


# Leases.


def test_expired_lease_discards_its_draft_and_requeues_the_job(control):
    job_id = control.durable()
    lost = control.lease()
    control.queue.drafts.add(lost["lease_token"], control.rows(7), False)
    control.seconds += LEASE + 1
    control.queue.sweep()
    assert control.jobs.get(job_id)["state"] == "QUEUED"
    for late in (
        lambda: control.queue.drafts.add(lost["lease_token"], control.rows(7), False),
        lambda: control.finish(lost, outcome()),
    ):
        with pytest.raises(Conflict):
            late()
    again = control.lease()
    control.queue.drafts.add(again["lease_token"], control.rows(8), False)
    assert control.finish(again, outcome()) == "SUCCEEDED"
    assert control.row_count() == 8
    assert control.commit.counters.lease_expiries == 1


def test_renewed_lease_does_not_expire(control):
    job_id = control.durable()
    lease = control.lease()
    for _ in range(4):
        control.seconds += LEASE / 2
        assert control.queue.renew(job_id, lease["lease_token"], 0.1, None)
        control.queue.sweep()
    assert control.finish(lease, outcome()) == "SUCCEEDED"


@pytest.mark.parametrize("kind", ["job", "sync"])
def test_renewal_during_finish_is_not_rejected(control, kind):
    """The lease keeper renews until `finish` returns."""
    job_id = control.enqueue(kind)
    lease, renewals = control.lease(kind), []
    unpatched_write = control.store.database.write

    def write(run: Any, *more: Any, **named: Any) -> Any:
        found = unpatched_write(run, *more, **named)
        if len(renewals) == 0:  # committed, but not yet removed
            renewals.append(None)
            renewals[0] = control.queue.renew(job_id, lease["lease_token"], None, None)
        return found

    control.database.write = write
    assert control.finish(lease, outcome()) == "SUCCEEDED"
    del control.database.write
    assert renewals in ([True], [False])
    assert control.queue.renew(job_id, lease["lease_token"], 1.0, "done") is False


@pytest.mark.parametrize("kind", ["job", "sync"])
def test_renewal_of_an_expired_lease_is_a_conflict(control, kind):
    job_id = control.enqueue(kind)
    lease = control.lease(kind)
    control.seconds += LEASE + 1
    control.queue.sweep()
    with pytest.raises(Conflict, match="lost"):
        control.queue.renew(job_id, lease["lease_token"], None, None)
    with pytest.raises(NotFound):
        control.queue.renew("another", "token", None, None)


def test_lease_token_is_valid_for_its_own_job_only(control):
    control.durable()
    lease = control.lease()
    with pytest.raises(Conflict):
        control.finish(lease | {"job_id": "another"}, outcome())
    assert control.finish(lease, outcome()) == "SUCCEEDED"


def test_missing_connector_fails_the_job_at_lease_time(control):
    job_id = control.durable()

    control.queue.payloads_of = lambda jobs: [NotFound('no connector "c"') for _ in jobs]
    assert control.lease() is None
    assert control.jobs.get(job_id)["state"] == "FAILED"
    assert "connector" in control.jobs.get(job_id)["message"]


def test_unexpected_error_in_the_payload_fails_the_job(control):
    job_id = control.durable()
    control.queue.payloads_of = lambda jobs: 1 / 0
    assert control.lease() is None
    assert control.jobs.get(job_id)["state"] == "FAILED"


def test_follow_up_job_without_requests_succeeds_without_a_lease(control):
    job_id = control.durable()
    control.queue.payloads_of = lambda jobs: [{"requests": [], "held": [1]} for _ in jobs]
    assert control.lease() is None
    job = control.jobs.get(job_id)
    assert (job["state"], job["degraded"], job["stats_processed"]) == ("SUCCEEDED", False, 1)


def test_cancelled_job_publishes_nothing(control):
    job_id = control.durable()
    lease = control.lease()
    control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
    control.queue.cancel(job_id)
    assert control.queue.renew(job_id, lease["lease_token"], None, None) is False
    assert control.finish(lease, outcome()) == "CANCELLED"
    assert control.row_count() == 1


# Partial outcomes.


def test_retryable_outcomes_continue_as_a_follow_up_job(control):
    job_id = control.durable(0, 1, 2)
    lease = control.lease()
    control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
    permanent = outcome("DEGRADED", "no such column", retryable=False)
    assert control.finish(lease, outcome(), outcome("DEGRADED", "a slow lake"), permanent) == "SUCCEEDED"
    assert control.row_count() == 7
    job = control.jobs.get(job_id)
    assert job["degraded"] and "a slow lake; no such column; 1 of 3 go on as job " in job["message"]
    rest = control.jobs.get(job["message"].rpartition(" ")[2])
    assert (rest["state"], rest["attempts"], rest["targets"]) == ("WAITING", 1, [Target.column(1).storage_id])


def test_follow_up_job_fails_after_max_attempts(control):
    job_id = control.durable(0, 1)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        control.database.write(lambda c: c.execute("UPDATE jobs SET not_before = NULL"))
        lease = control.lease()
        assert lease is not None
        job_id = lease["job_id"]
        requests = lease["payload"]["requests"]
        outcomes = [outcome("DEGRADED", "slow") for _ in requests]
        control.finish(lease, *([outcome(), *outcomes[1:]] if attempt == 1 else outcomes))
    assert control.jobs.get(job_id)["state"] == "FAILED"
    assert control.jobs.get(job_id)["attempts"] == MAX_ATTEMPTS
    assert set(control.jobs.counts()) == {"SUCCEEDED", "FAILED"}


def partly_read(files_read: int, **attributes: Any) -> dict[str, Any]:
    return outcome("CAPTURED", 'file "f2" is damaged', files=3, files_failed=1, files_read=files_read, **attributes)


def lease_retry(control: ControlPlane) -> dict[str, Any]:
    """Lease of the job that waits for its next attempt."""
    control.database.write(lambda c: c.execute("UPDATE jobs SET not_before = NULL"))
    lease = control.lease()
    assert lease is not None
    return lease


def test_failed_files_are_retried_by_a_follow_up_job(control):
    job_id = control.durable(1, 2)
    lease = control.lease()
    control.queue.drafts.add(lease["lease_token"], control.rows(7), False)
    assert control.finish(lease, outcome(), partly_read(2)) == "SUCCEEDED"
    assert control.row_count() == 7
    job = control.jobs.get(job_id)
    assert job["degraded"] and job["message"].startswith('file "f2" is damaged; 1 of 2 go on as job ')
    again = lease_retry(control)
    assert [r["target"] for r in again["payload"]["requests"]] == [Target.column(2).to_json()]
    assert control.finish(again, outcome(files_read=1)) == "SUCCEEDED"
    done = control.jobs.get(again["job_id"])
    assert (done["attempts"], done["degraded"]) == (2, False)
    assert control.jobs.counts() == {"SUCCEEDED": 2}


def test_permanently_damaged_file_fails_the_retry_not_the_first_job(control):
    control.durable(1)
    assert control.finish(control.lease(), partly_read(2)) == "SUCCEEDED"
    states = []
    for _ in range(MAX_ATTEMPTS - 1):
        again = lease_retry(control)
        control.queue.drafts.add(again["lease_token"], control.rows(9), False)
        states.append(control.finish(again, partly_read(0)))
    assert states == ["WAITING"] * (MAX_ATTEMPTS - 2) + ["FAILED"]
    assert "damaged" in control.jobs.get(again["job_id"])["message"]
    assert control.row_count() == 1  # nothing new was published
    assert control.jobs.counts() == {"SUCCEEDED": 1, "FAILED": 1}


def test_retry_that_reads_some_of_the_files_publishes_them(control):
    control.durable(1)
    control.finish(control.lease(), partly_read(1))
    again = lease_retry(control)
    control.queue.drafts.add(again["lease_token"], control.rows(9), False)
    assert control.finish(again, partly_read(1)) == "SUCCEEDED"
    assert control.row_count() == 9
    assert lease_retry(control)["job_id"] != again["job_id"]


def test_non_retryable_file_failures_create_no_follow_up_job(control):
    job_id = control.durable(1)
    assert control.finish(control.lease(), partly_read(2, retryable=False)) == "SUCCEEDED"
    assert control.jobs.get(job_id)["degraded"] and control.lease() is None


def test_job_with_only_non_retryable_outcomes_fails_at_once(control):
    job_id = control.durable(0, 1)
    lease = control.lease()
    wrong = [outcome("UNCAPTURABLE", "target unsupported"), outcome("DEGRADED", "no file", retryable=False)]
    assert control.finish(lease, *wrong) == "FAILED"
    assert control.jobs.get(job_id)["attempts"] == 1


@pytest.mark.parametrize(("retryable", "state"), [(True, "WAITING"), (False, "FAILED")])
def test_retryable_flag_of_a_worker_error_decides_the_job_state(control, retryable, state):
    control.durable()
    error = to_json(UpstreamError("away")) | {"retryable": retryable}
    assert control.finish(control.lease(), error=error, message="away") == state


# Lanes.


def test_light_lease_skips_scan_jobs(control):
    control.durable()
    assert control.lease("light") is None
    request = {"requests": [{"target": {"kind": "TABLE"}}]}
    (light,) = control.jobs.enqueue([durable_job(control.table, request, "2", priority=LIGHT)])
    assert control.lease("light")["job_id"] == light


def test_light_lease_takes_light_sync_tasks_only(control):
    scan, light = (control.submit(sync_job(control.table, requests(), priority=each)) for each in (SCAN, LIGHT))
    found = control.lease("light")
    assert (found["job_id"], found["kind"]) == (light.id, "sync")
    assert control.lease("light") is None
    assert control.lease("sync")["job_id"] == scan.id


def test_sync_lease_takes_light_tasks_first(control):
    scan, light = (control.submit(sync_job(control.table, requests(), priority=each)) for each in (SCAN, LIGHT))
    assert [control.lease("sync")["job_id"] for _ in range(2)] == [light.id, scan.id]


# Permanent failures.


def test_permanent_failure_is_not_retried(control):
    job_id = control.durable()
    assert control.finish(control.lease(), outcome("DEGRADED", "unknown column", retryable=False)) == "FAILED"
    assert (control.jobs.get(job_id)["state"], control.jobs.get(job_id)["attempts"]) == ("FAILED", 1)
    permanent = UpstreamError('the Python module "psycopg" is not installed')
    permanent.retryable = False
    control.durable()
    assert control.finish(control.lease(), error=to_json(permanent)) == "FAILED"
    job = control.submit(Job("control", {}))
    control.finish(control.lease("control"), error=to_json(permanent))
    with pytest.raises(UpstreamError) as raised:
        control.queue.wait(job, 1.0)
    assert raised.value.retryable is False
