"""Job store: states, deduplication, fencing, backoff, eight attempts, reclaim, cancel, order."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from store.duckdb.commit import Commit
from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry
from store.model.errors import NotFound
from store.queue.job_store import JobStore, Tried
from store.queue.jobs import LIGHT, MAX_ATTEMPTS, SCAN, Job, backoff
from tests.store.empty_store import empty_database, empty_store


@pytest.fixture
def database():
    database = empty_database()
    yield database
    database.close()


@pytest.fixture
def jobs(database) -> JobStore:
    return opened(database)


def opened(database: Database) -> JobStore:
    jobs = JobStore(database, entry)
    database.phases = Commit(queue=jobs)
    return jobs


def entry(key: int = 1) -> TableEntry:
    return TableEntry(key, "c", "s", f"t{key}", f"id{key}", "delta")


def durable(table: int | TableEntry = 1, snapshot: str = "current", priority: int = SCAN, **more) -> Job:
    request = {"requests": [{"target": {"kind": "TABLE"}}], "correlation_id": "x"} | more
    of = table if isinstance(table, TableEntry) else entry(table)
    return Job("job", table=of, snapshot=snapshot, targets=["table"], request=request, priority=priority)


def queue(jobs: JobStore, table: int | TableEntry = 1, snapshot: str = "current", **more) -> str:
    return jobs.enqueue([durable(table, snapshot, **more)])[0]


def take(jobs: JobStore, **more) -> Job | None:
    """The next job."""
    return next(iter(jobs.take(**more)), None)


def item(column: int, **more) -> dict:
    return {"target": {"kind": "COLUMN", "column_id": column}} | more


def finish(jobs: JobStore, job: Job | None, captured: int = 1, failed: int = 0, retry: bool = True) -> str:
    assert job is not None
    tried = Tried(job, captured, failed, retry, "why", captured)
    jobs.database.write(lambda connection: jobs.finish([tried], connection))
    assert jobs.get(job.id)["state"] == tried.state()
    return tried.state()


def advance_past_backoff(jobs: JobStore) -> None:
    """Moves the clock of the store a minute ahead, past every backoff."""
    later = jobs.now() + timedelta(minutes=1)
    jobs.now = lambda: later


def test_job_goes_from_queued_to_succeeded(jobs):
    job_id = queue(jobs)
    assert jobs.get(job_id)["state"] == "QUEUED"
    job = take(jobs)
    assert job is not None and job.id == job_id and job.attempts == 1
    running = jobs.get(job_id)
    assert (running["state"], running["attempts"], running["targets"]) == ("RUNNING", 1, ["table"])
    job.token = "leased"
    assert job.row() | {"targets": ["table"]} == job.row() | running | {
        name: job.row()[name] for name in ("queued_at", "started_at", "table_key")
    }
    assert finish(jobs, job) == "SUCCEEDED"
    ended = jobs.get(job_id)
    assert (ended["progress"], ended["degraded"], ended["stats_processed"]) == (1.0, False, 1)
    assert ended["queued_at"] <= ended["started_at"] <= ended["finished_at"]
    assert take(jobs) is None


def test_equal_active_jobs_are_deduplicated(jobs):
    first = queue(jobs)
    assert queue(jobs, correlation_id="y") == first  # the correlation id is not compared
    assert queue(jobs, snapshot="1") != first
    assert queue(jobs, table=2) != first
    lease = take(jobs)
    assert lease is not None and queue(jobs) == first
    finish(jobs, lease)
    assert queue(jobs) != first


def test_requests_for_the_same_statistics_share_one_job(jobs):
    first = queue(jobs, requests=[item(1, latency_budget_ms=5), item(2, kinds=["NDV", "MIN_MAX"])])
    assert queue(jobs, requests=[item(2, kinds=["MIN_MAX", "NDV"]), item(1)]) == first
    assert (
        queue(jobs, snapshot="all", requests=[item(1, snapshot_id=7), item(2, kinds=["NDV"], snapshot_id=7)]) != first
    )
    assert queue(jobs, requests=[item(1)]) != first
    assert queue(jobs, requests=[item(1, sampling="RANDOM_ROW_GROUP"), item(2)]) != first


def test_current_snapshot_by_word_and_by_id_share_one_job(jobs):
    table = replace(entry(), current_snapshot_id=7)
    by_word, by_id, in_item = (
        queue(jobs, table, snapshot, requests=[request])
        for snapshot, request in (("current", item(1)), ("7", item(1)), ("all", item(1, snapshot_id=7)))
    )
    assert by_word == by_id == in_item


def test_full_request_widens_a_queued_missing_only_job(jobs):
    first = queue(jobs, missing_only=True)
    assert queue(jobs) == first
    assert "missing_only" not in take(jobs).request
    assert queue(jobs, missing_only=True) == first


def test_equal_jobs_of_concurrent_callers_are_deduplicated(jobs):
    found = []
    threads = [threading.Thread(target=lambda: found.append(queue(jobs))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1


def test_partly_failed_job_succeeds_as_degraded(jobs):
    job_id = queue(jobs)
    assert finish(jobs, take(jobs), captured=2, failed=1) == "SUCCEEDED"
    assert jobs.get(job_id)["degraded"] is True and jobs.get(job_id)["message"] == "why"


def test_failed_job_waits_between_eight_attempts(jobs):
    job_id = queue(jobs)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        lease = take(jobs)
        assert lease is not None and lease.attempts == attempt
        state = finish(jobs, lease, captured=0, failed=1)
        assert state == ("WAITING" if attempt < MAX_ATTEMPTS else "FAILED")
        assert take(jobs) is None  # the backoff is not over
        advance_past_backoff(jobs)
    assert jobs.get(job_id)["attempts"] == MAX_ATTEMPTS
    assert take(jobs) is None


def test_job_that_must_not_be_retried_fails_at_once(jobs):
    queue(jobs)
    assert finish(jobs, take(jobs), captured=0, failed=1, retry=False) == "FAILED"


def test_backoff_doubles_up_to_30_seconds():
    assert [backoff(n).total_seconds() for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_job_fails_after_eight_lost_workers(jobs):
    job_id = queue(jobs)
    for _ in range(MAX_ATTEMPTS):
        lost = take(jobs)
        assert lost is not None and lost.id == job_id
        jobs.give_back([job_id], lost=True)
    job = jobs.get(job_id)
    assert (job["state"], job["message"]) == ("FAILED", "the worker was lost")
    assert job["finished_at"]


def test_start_gives_back_all_that_ran(jobs):
    job_id = queue(jobs)
    take(jobs)
    assert jobs.give_back([], lost=True) == 0
    assert jobs.give_back(lost=True) == 1
    assert (jobs.get(job_id)["state"], jobs.get(job_id)["message"]) == ("QUEUED", "the worker was lost")


def test_one_job_of_a_table_is_leased_at_a_time(jobs):
    queue(jobs, 1, "1")
    second = queue(jobs, 1, "2")
    other = queue(jobs, 2)
    first = take(jobs)
    assert take(jobs).id == other
    assert take(jobs) is None
    finish(jobs, first)
    assert take(jobs, busy_tables=[1]) is None
    assert take(jobs).id == second


def test_light_jobs_overtake_scans_but_not_old_ones(jobs):
    scan = queue(jobs, 1)
    light = queue(jobs, 2, priority=LIGHT)
    old = queue(jobs, 3)
    sql = "UPDATE jobs SET queued_at = queued_at - to_seconds(60) WHERE job_id = ?"
    jobs.database.write(lambda c: c.execute(sql, [old]))
    assert take(jobs).table.table_key == 3
    assert take(jobs).id == light
    assert take(jobs, up_to=LIGHT) is None  # this worker takes no scans
    assert take(jobs).id == scan


def test_requeued_job_keeps_its_number_of_attempts(jobs):
    (job_id,) = jobs.enqueue([replace(durable(), attempts=7)])
    assert jobs.get(job_id)["state"] == "WAITING" and take(jobs) is None
    advance_past_backoff(jobs)
    lease = take(jobs)
    assert lease.attempts == MAX_ATTEMPTS
    assert finish(jobs, lease, captured=0, failed=1) == "FAILED"


@pytest.mark.parametrize("state", ["QUEUED", "WAITING"])
def test_queued_or_waiting_job_is_cancelled_at_once(jobs, state):
    job_id = queue(jobs)
    if state == "WAITING":
        finish(jobs, take(jobs), captured=0, failed=1)
    assert jobs.get(job_id)["state"] == state
    for _ in range(2):
        assert jobs.cancel(job_id)["state"] == "CANCELLED"
    advance_past_backoff(jobs)
    assert take(jobs) is None


def test_running_job_is_cancelling_until_it_finishes(jobs):
    job_id = queue(jobs)
    lease = take(jobs)
    assert jobs.cancel(job_id)["state"] == "CANCELLING"
    assert jobs.database.write(lambda c: jobs.cancelling([job_id, "another"], c)) == {job_id}
    lease.cancelled = True
    assert finish(jobs, lease) == "CANCELLED"
    assert jobs.cancel(job_id)["state"] == "CANCELLED"


def test_cancelling_job_of_a_lost_worker_is_cancelled(jobs):
    job_id = queue(jobs)
    take(jobs)
    jobs.cancel(job_id)
    assert jobs.give_back([job_id], lost=True) == 0
    assert jobs.get(job_id)["state"] == "CANCELLED"


def test_cancel_of_an_ended_job_changes_nothing(jobs):
    job_id = queue(jobs)
    finish(jobs, take(jobs))
    assert jobs.cancel(job_id)["state"] == "SUCCEEDED"


@pytest.mark.parametrize("act", ["get", "cancel"])
def test_an_unknown_job_is_not_found(jobs, act):
    with pytest.raises(NotFound) as refused:
        getattr(jobs, act)("nope")
    assert refused.value.code == "UNKNOWN_JOB"


def test_queued_job_survives_reopening_the_database(tmp_path):
    database = Database(empty_store(tmp_path / "jobs.duckdb"))
    job_id = queue(opened(database))
    database.close()
    database = Database(tmp_path / "jobs.duckdb")
    assert opened(database).take()[0].id == job_id
    database.close()


def test_decisions_and_ended_jobs_are_pruned(database, jobs):
    decision = {
        "snapshot_id": 1,
        "target_kind": "TABLE",
        "storage_id": "table",
        "outcome": "CAPTURED",
        "engine_id": "native",
        "detail": "",
        "elapsed_ms": 1.5,
    }
    database.write(lambda c: jobs.record_decisions([(entry(), "corr", [decision, decision])], c))
    database.write(lambda c: jobs.record_decisions([(entry(), "corr", [])], c))
    assert database.rows("SELECT count(*), any_value(correlation_id) FROM capture_decisions") == [(2, "corr")]
    finish_id = queue(jobs)
    finish(jobs, take(jobs))
    waiting = queue(jobs, 2)
    jobs.prune(days=-1)
    assert database.rows("SELECT count(*) FROM capture_decisions") == [(0,)]
    assert jobs.get(waiting)["state"] == "QUEUED"
    with pytest.raises(NotFound):
        jobs.get(finish_id)


def test_counts_are_grouped_by_state(jobs):
    queue(jobs)
    queue(jobs, 2)
    take(jobs)
    assert jobs.counts() == {"RUNNING": 1, "QUEUED": 1}


def test_enqueue_all_deduplicates_equal_jobs(jobs):
    queued = queue(jobs, table=2)
    first, second, third, again = jobs.enqueue([durable(1), durable(2), durable(3, missing_only=True), durable(3)])
    assert second == queued and third == again and len({first, second, third}) == 3
    assert jobs.counts() == {"QUEUED": 3}
    ((request,),) = jobs.database.rows("SELECT request FROM jobs WHERE job_id = ?", third)
    assert "missing_only" not in json.loads(request)  # the merged job captures everything
    assert jobs.enqueue([]) == []


def test_enqueue_all_accepts_a_thousand_jobs(jobs):
    ids = jobs.enqueue([durable(table) for table in range(1000)])
    assert len(set(ids)) == 1000 and jobs.counts() == {"QUEUED": 1000}
    lease = take(jobs)
    assert lease is not None and lease.id in ids and jobs.get(lease.id)["finished_at"] is None


def test_lease_some_returns_jobs_of_distinct_tables(jobs):
    jobs.enqueue([durable(table) for table in range(8)] + [durable(0, requests=[item(1)])])
    leases = jobs.take(3)
    assert len({job.table.table_key for job in leases}) == 3
    assert len(jobs.take(100)) == 2  # a quarter of six, and one: the rest is left to other workers
    assert {finish(jobs, lease) for lease in leases} == {"SUCCEEDED"}


def test_retried_job_is_leased_alone(jobs):
    ids = jobs.enqueue([durable(table) for table in range(8)])
    lease = take(jobs)
    assert lease is not None and finish(jobs, lease, captured=0, failed=1) == "WAITING"
    advance_past_backoff(jobs)
    of = {lease.id: lease for lease in jobs.take(3)}
    assert len(of) == (1 if lease.id in of else 3)
    assert {*of} <= {*ids}


def test_give_back_requeues_jobs_and_refunds_their_attempt(jobs):
    jobs.enqueue([durable(table) for table in range(8)])
    first, *rest = jobs.take(3)
    jobs.cancel(rest[0].id)
    assert jobs.give_back([lease.id for lease in rest], lost=False) == 1
    assert [jobs.get(lease.id)["state"] for lease in (first, *rest)] == ["RUNNING", "CANCELLED", "QUEUED"]
    given = jobs.get(rest[1].id)
    assert (given["attempts"], given["started_at"]) == (0, None)


def test_idle_lease_queries_again_only_after_the_queue_changed(jobs, monkeypatch):
    queries, rows = [], jobs.database.rows
    monkeypatch.setattr(jobs.database, "rows", lambda *sql: queries.append(sql) or rows(*sql))
    assert take(jobs) is None and take(jobs) is None and len(queries) == 1
    jobs.database.write(lambda c: c.execute("INSERT INTO tables (table_key) SELECT 1 WHERE false"))
    assert take(jobs) is None and len(queries) == 1  # other writes queue no job
    queue(jobs)
    lease = take(jobs)
    assert lease is not None and take(jobs) is None
    assert jobs.give_back([lease.id], lost=False) == 1
    lease = take(jobs)
    assert lease is not None and take(jobs) is None
    assert jobs.give_back([lease.id], lost=True) == 1 and take(jobs) is not None
