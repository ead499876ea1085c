"""Work for workers, without Flight and by a clock of its own: drafts, outcomes, lost leases, workers that die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from flight_server.control.leases import GRACE_SECONDS, Leases
from flight_server.control.publication import Publication
from flight_server.control.task_queue import MAX_LOST, Task, TaskQueue
from store import records
from store.catalog_store import Catalog, TableEntry
from store.database import Database
from store.errors import (
    Cancelled,
    Conflict,
    InvalidField,
    NotFound,
    ShuttingDown,
    UpstreamError,
    to_json,
)
from store.job_store import JobStore
from store.jobs import MAX_ATTEMPTS
from store.schemas import FLIGHTS
from store.stats_store import DuckDBStatsStore, Put, PutMode
from store.targets import Target

LEASE = 60.0  # seconds
START = datetime(2024, 1, 1, tzinfo=UTC)


class House:
    def __init__(self) -> None:
        self.database = Database(":memory:")
        self.catalog = Catalog(self.database)
        self.store = DuckDBStatsStore(self.database, self.catalog)
        self.seconds = 0.0  # of the clock
        self.jobs = JobStore(self.database, LEASE, now=lambda: START + timedelta(seconds=self.seconds))
        self.tasks = TaskQueue(self.catalog, clock=lambda: self.seconds)
        self.publication = Publication(self.jobs, self.store, self.catalog)
        self.work = Leases(self.tasks, self.jobs, self.database, self.publication)
        self.table: TableEntry = self.database.write(lambda c: self.catalog.register(c, ("c", "s", "t"), "id", "delta"))
        self.put(PutMode.UPSERT, 1)

    def put(self, mode: PutMode = PutMode.UPSERT, rows: int = 5, **told: Any) -> Put:
        """Rows of stats.tables, stored unless told otherwise."""
        put = self.rows(rows, mode)
        self.store.put([put])
        return put

    def rows(self, rows: int, mode: PutMode = PutMode.UPSERT, flight: str = "stats.tables", **more: Any) -> Put:
        row = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "row_count": rows} | more
        return Put(flight, records.prepare(FLIGHTS[flight], pa.Table.from_pylist([row])), mode)

    def queue(self, *ids: int) -> str:
        bodies = [
            {"target": Target.column(i).to_json() if i else {"kind": "TABLE"}, "snapshot_id": 1} for i in ids or (0,)
        ]
        return self.jobs.enqueue(self.table, "1", "ASYNC", {"requests": bodies}, ["table"])

    def queued(self, kind: str) -> str:
        """The id of a durable job, or of a capture that somebody waits for."""
        return self.queue() if kind == "job" else self.tasks.submit(Task("sync", requests(), self.table.table_key)).id

    def lease(self, *kinds: str, timeout: float = 0.0) -> dict[str, Any] | None:
        return next(iter(self.work.lease("w", kinds or ("job",), timeout, [], lambda: False)), None)

    def finish(self, lease: dict[str, Any], *outcomes: dict[str, Any], **body: Any) -> str:
        return self.work.finish(lease["job_id"], lease["lease_token"], {"outcomes": list(outcomes)} | body)

    def row_count(self) -> int | None:
        record = self.store.get(self.table, 1, Target.table())
        return record and record["row_count"]


def requests(*ids: int) -> dict[str, Any]:
    """A task's payload: these columns, or the table."""
    targets = [Target.column(i) for i in ids] or [Target.table()]
    return {"requests": [{"target": target.to_json(), "snapshot_id": 1} for target in targets]}


def outcome(word: str = "CAPTURED", detail: str = "", **attributes: Any) -> dict[str, Any]:
    return {"outcome": word, "engine_id": "e", "detail": detail, "attributes": attributes, "snapshot_id": 1,
            "storage_id": "table"}  # fmt: skip


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.tasks.close()
    house.database.close()


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


# Tasks.


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
