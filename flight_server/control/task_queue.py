"""Work for workers: durable jobs and tasks that somebody waits for, leased over Flight, results in draft generations.

A worker asks for a lease of some kinds (`control`, `watch`: a look at a lake; `sync`: a capture somebody waits for;
`light`: one that metadata answers, waited for or durable; `job`: any durable one) and gets a token. Rows it puts under
the token are a draft that nobody sees; finishing publishes the draft in one transaction. A lease that runs out takes
its draft along.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from flight_server.control.capture_counters import Tally
from flight_server.writes.drafts import Draft
from store.catalog_store import Catalog, TableEntry
from store.database import Connection
from store.errors import (
    Cancelled,
    Conflict,
    InvalidArgument,
    InvalidField,
    ResourceExhausted,
    ShuttingDown,
    StatflightError,
    UpstreamError,
    from_json,
)
from store.file_listings import Listing, can_continue
from store.job_store import LIGHT, MAX_ATTEMPTS, JobStore, Lease
from store.stats_store import DuckDBStatsStore, Put
from store.targets import Target

log = logging.getLogger("statflight.server")

LANES: Final = {
    "control": ("control",), "sync": ("light", "sync"), "light": ("light",), "watch": ("watch",),
    "publish": ("publish",),
}  # fmt: skip
"""Kind of lease → the queues of tasks it serves, in this order. What metadata answers waits for no scan."""
LOOKS: Final = ("control", "watch")  # kinds of tasks that look at a lake: somebody waits for it, or nobody
MAX_TASKS: Final = 10_000
MAX_LOST: Final = 3  # workers that may be lost over one task
_TICK: Final = 0.05  # seconds between looks at whether a caller is still there


@dataclass
class Task:
    """Something a caller waits for. Gone with the server: whoever waits asks again."""

    kind: str
    payload: Mapping[str, Any]
    table_key: int | None = None
    correlation_id: str = ""
    light: bool = False  # metadata answers it
    listed: bool = True  # in the job list while it is under way
    id: str = ""
    token: str = ""
    leased_at: float = 0.0
    lease_until: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    result: Mapping[str, Any] | None = None
    error: StatflightError | None = None
    cancelled: bool = False
    lost: int = 0  # leases of it that ran out
    queued_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    started_at: datetime | None = None
    catalog: str = ""  # of a look at a lake
    touched_at: float = field(default_factory=time.monotonic)  # when its worker last had progress to report
    progress: float | None = None
    message: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            self.id = f"{'look' if self.table_key is None else 'task'}-{uuid.uuid4()}"

    @property
    def lane(self) -> str:
        """The queue it waits in."""
        return "light" if self.light else self.kind


@dataclass(frozen=True, slots=True)
class _Held:
    """A durable job in a worker's hands, and the requests that its worker was told."""

    lease: Lease
    requests: Sequence[Mapping[str, Any]] = ()
    since: float = field(default_factory=time.monotonic)


@dataclass
class _Worker:
    kinds: frozenset[str]
    last_seen: float
    polling: int = 0
    engines: Sequence[Mapping[str, Any]] = ()


class Dispatcher:
    def __init__(self, jobs: JobStore, store: DuckDBStatsStore, catalog: Catalog):
        self.jobs, self.store, self.catalog = jobs, store, catalog
        self.payload_of_job: Callable[[Lease], Mapping[str, Any]] = lambda lease: lease.request
        self.on_published: Callable[[TableEntry], None] = lambda _: None
        self._ready = threading.Condition()
        self._waiting: dict[str, deque[Task]] = {lane: deque() for lane in LANES}
        self._leased: dict[str, Task] = {}  # by token
        self._held: dict[str, _Held] = {}  # durable jobs by token
        self._started = self._pruned = time.monotonic()
        self._drafts: dict[str, Draft] = {}
        self._workers: dict[str, _Worker] = {}
        self._closing = False
        self.tally = Tally()

    # For those who want work done.

    def submit(self, task: Task) -> Task:
        with self._ready:
            if self._closing:
                raise ShuttingDown("the server is shutting down")
            if sum(map(len, self._waiting.values())) >= MAX_TASKS:
                raise ResourceExhausted(f"{MAX_TASKS} tasks wait already", hint="try again later")
            self._waiting[task.lane].append(task)
            self._ready.notify_all()
        return task

    def wait(
        self, task: Task, timeout: float | None = None, is_cancelled: Callable[[], bool] = lambda: False
    ) -> Mapping[str, Any] | None:
        """The task's result; None when the time is spent first. Raises its error, or Cancelled."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not task.done.wait(_TICK if deadline is None else max(0.0, min(_TICK, deadline - time.monotonic()))):
            if self._closing:
                raise ShuttingDown("the server is shutting down")
            if is_cancelled():
                self.abandon(task)
                raise Cancelled("the caller went away")
            if deadline is not None and time.monotonic() >= deadline:
                return None
            if not self._served(task):
                self.abandon(task)
                raise UpstreamError(
                    f"no {task.kind} worker is connected",
                    code="NO_WORKER", hint="start one: statflight worker --server …, or serve with --workers 1",
                )  # fmt: skip
        if task.error is not None:
            raise task.error
        return task.result

    def abandon(self, task: Task) -> None:
        """Nobody waits any more: what has not begun never does, what runs is told to stop."""
        with self._ready:
            task.cancelled = True
            if task in self._waiting[task.lane]:
                self._waiting[task.lane].remove(task)

    def notify(self) -> None:
        """A durable job may be ready."""
        with self._ready:
            self._ready.notify_all()

    def _served(self, task: Task) -> bool:
        """Whether a worker is there for a task that waits; a young server's own worker is given time to start."""
        if task.token:
            return True
        grace = time.monotonic() - 15
        with self._ready:
            return self._started > grace or any(
                task.lane in _lanes(w.kinds) and (w.polling or w.last_seen > grace) for w in self._workers.values()
            )

    def engines(self) -> list[Mapping[str, Any]]:
        """What the connected workers say they can capture with, each engine once."""
        with self._ready:
            return list({e["engine_id"]: e for w in self._workers.values() for e in w.engines}.values())

    def live_job(self, job_id: str) -> dict[str, Any] | None:
        """The job of `live_jobs` with this id."""
        return next((row for row in self.live_jobs() if row["job_id"] == job_id), None)

    def cancel_task(self, job_id: str) -> None:
        """Cancels work that somebody waits for: what waits never begins, the worker of what runs is told to stop, and
        whoever waits hears of it at once."""
        with self._ready:
            held = [t for waiting in self._waiting.values() for t in waiting] + list(self._leased.values())
            task = next((t for t in held if t.id == job_id), None)
        if task is not None:
            self.abandon(task)
            task.error = Cancelled("the job was cancelled")
            task.done.set()

    def live_jobs(self) -> list[dict[str, Any]]:
        """Rows of `sys.capture_jobs` for the tasks that somebody waits for, with the `table_key` of each."""
        with self._ready:
            tasks = [task for waiting in self._waiting.values() for task in waiting] + list(self._leased.values())
        return [self._row(task) for task in tasks if task.kind != "watch" and task.listed]

    def _row(self, task: Task) -> dict[str, Any]:
        names = dict.fromkeys(("table_catalog", "table_schema", "table_name"))
        if task.table_key is not None:
            names = dict(zip(names, self.catalog.by_key(task.table_key).name, strict=True))
            requests = task.payload["requests"]
            mode, targets = "SYNC", [Target.parse(request["target"]).storage_id for request in requests]
            snapshots = {str(request["snapshot_id"]) for request in requests}
            snapshot = snapshots.pop() if len(snapshots) == 1 else "all"
        else:
            names["table_catalog"] = task.catalog
            mode, targets, snapshot = "LOOK", [task.payload.get("operation", task.kind)], None
        return names | {
            "job_id": task.id, "table_key": task.table_key, "snapshot": snapshot, "mode": mode,
            "state": "CANCELLING" if task.cancelled else "RUNNING" if task.token else "QUEUED",
            "targets": json.dumps(targets), "attempts": task.lost + bool(task.token), "queued_at": task.queued_at,
            "started_at": task.started_at, "progress": task.progress or 0.0, "degraded": False, "stats_processed": 0,
            "message": task.message or None,
        }  # fmt: skip

    # For workers.

    def lease(
        self, worker_id: str, kinds: Sequence[str], timeout: float, engines: Sequence[Mapping[str, Any]],
        is_cancelled: Callable[[], bool],
    ) -> dict[str, Any] | None:  # fmt: skip
        """The next piece of work of these kinds, or None when there was none within the timeout (seconds)."""
        deadline = time.monotonic() + timeout
        with self._ready:
            worker = self._workers.setdefault(worker_id, _Worker(frozenset(), 0.0))
            worker.kinds |= frozenset(kinds)
            worker.engines = engines or worker.engines
            worker.polling += 1
        try:
            while not self._closing:
                if (found := self._next(kinds)) is not None:
                    return found
                with self._ready:
                    worker.last_seen = now = time.monotonic()
                    if now >= deadline or is_cancelled():
                        return None
                    if not any(self._waiting[lane] for lane in _lanes(kinds)):
                        self._ready.wait(min(0.25, deadline - now))
            raise ShuttingDown("the server is shutting down")
        finally:
            with self._ready:
                worker.polling -= 1
                worker.last_seen = time.monotonic()

    def _next(self, kinds: Sequence[str]) -> dict[str, Any] | None:
        with self._ready:
            for lane in _lanes(kinds):
                if self._waiting[lane]:
                    task = self._waiting[lane].popleft()
                    task.token = uuid.uuid4().hex
                    task.leased_at = task.touched_at = time.monotonic()
                    task.started_at = task.started_at or datetime.now(UTC)
                    task.lease_until = task.leased_at + self.jobs.lease_seconds
                    self._leased[task.token] = task
                    return {"job_id": task.id, "lease_token": task.token, "kind": task.kind,
                            "lease_seconds": self.jobs.lease_seconds, "payload": task.payload}  # fmt: skip
            busy = [task.table_key for task in self._leased.values() if task.table_key is not None]
        if "job" in kinds:
            lease = self.jobs.lease(busy)
        elif "light" in kinds:
            lease = self.jobs.lease(busy, up_to=LIGHT)
        else:
            return None
        return None if lease is None else self._begin_job(lease)

    def _begin_job(self, lease: Lease) -> dict[str, Any] | None:
        with self._ready:
            self._held[lease.token] = _Held(lease)
        try:
            payload = self.payload_of_job(lease)
        except StatflightError as trouble:  # its table or connector is gone
            self._end_job(_Held(lease), [], str(trouble), retry=trouble.retryable)
            return None
        except Exception:  # never a job that nobody holds
            log.exception("job %s cannot be begun", lease.job_id)
            self._end_job(_Held(lease), [], "the job cannot be begun", retry=False)
            return None
        if not payload["requests"]:  # somebody else captured all of it since it was queued
            held = [{"outcome": "CAPTURED", "snapshot_id": i, "detail": ""} for i in payload.get("held", ())]
            self._end_job(_Held(lease), held, "", retry=False)
            return None
        with self._ready:
            self._held[lease.token] = _Held(lease, payload["requests"])
        return {"job_id": lease.job_id, "lease_token": lease.token, "kind": "job",
                "lease_seconds": self.jobs.lease_seconds, "payload": payload}  # fmt: skip

    def renew(self, job_id: str, token: str, progress: float | None, message: str | None) -> bool:
        """True while the work is wanted. Conflict where the lease is lost."""
        with self._ready:
            task = self._leased.get(token)
            if task is not None:
                now = time.monotonic()
                task.lease_until = now + self.jobs.lease_seconds
                if (progress, message) != (None, None) and (progress, message) != (task.progress, task.message):
                    task.touched_at = now
                    task.progress, task.message = progress, message or ""
                return not task.cancelled
        return self.jobs.renew(job_id, token, progress, message)

    def add_to_draft(self, token: str, put: Put, whole: bool) -> None:
        with self._ready:
            if token not in self._leased and token not in self._held:
                raise _lost()
            if token in self._leased and self._leased[token].table_key is None:
                raise InvalidArgument("this lease is for a look at a lake: no rows are put under it")
            draft = self._drafts.setdefault(token, Draft(self.store.database.directory))
        draft.add(put, whole)

    def declare_listing(self, token: str, listing: Listing) -> bool:
        """Takes how the files of a snapshot are going to be put; False when they cannot continue that base."""
        with self._ready:
            task, held = self._leased.get(token), self._held.get(token)
            if task is None and held is None:
                raise _lost()
            table_key = task.table_key if task is not None else held.lease.table_key if held is not None else None
            if table_key is None:
                raise InvalidArgument("this lease is for a look at a lake: no rows are put under it")
        if listing.base_snapshot_id is not None:
            with self.store.database.reading() as cursor:
                if not can_continue(cursor, table_key, listing):
                    return False
        with self._ready:
            if token not in self._leased and token not in self._held:
                raise _lost()
            self._drafts.setdefault(token, Draft(self.store.database.directory)).declare(listing)
        return True

    def finish(self, job_id: str, token: str, body: Mapping[str, Any]) -> str:
        """Publishes the draft with the outcome of the work, all in one transaction; the state of the job after it."""
        with self._ready:
            task, held = self._leased.get(token), self._held.get(token)
            asked = len(task.payload["requests"]) if task is not None and task.kind == "sync" else None
            if asked not in (None, len(body.get("outcomes", []))) and not body.get("error"):
                raise InvalidField("outcomes", "are not as many as the requests", expected=asked,
                                   actual=len(body.get("outcomes", [])))  # fmt: skip
            holds = task.id if task is not None else held.lease.job_id if held is not None else None
            if holds != job_id:
                raise _lost()
            draft = self._drafts.pop(token, Draft())
        outcomes = body.get("outcomes", [])
        if task is not None:
            if task.kind not in (*LOOKS, "publish"):
                self.tally.ended(task.kind, time.monotonic() - task.leased_at, outcomes)
            return self._end_task(task, draft, body)
        assert held is not None
        self.tally.ended("job", time.monotonic() - held.since, outcomes)
        retry = not body.get("final", False) and (body.get("error") or {}).get("retryable", True)
        return self._end_job(held, outcomes, body.get("message") or "", draft=draft,
                             decisions=body.get("decisions", []), retry=retry)  # fmt: skip

    def _end_task(self, task: Task, draft: Draft, body: Mapping[str, Any]) -> str:
        try:
            if body.get("error"):
                task.error = from_json(body["error"])
            if task.table_key is not None:
                self._publish_task(task, self.catalog.by_key(task.table_key), draft, body)
            task.result = body
        except StatflightError as trouble:
            task.error = trouble
            raise
        except Exception:
            task.error = UpstreamError("what was captured could not be stored", code="INTERNAL")
            raise
        finally:
            with self._ready:
                self._leased.pop(task.token, None)
                task.done.set()
                self._ready.notify_all()
        return "SUCCEEDED"

    def _publish_task(self, task: Task, table: TableEntry, draft: Draft, body: Mapping[str, Any]) -> None:
        """Publishes what was captured, with its decisions."""

        def publish(connection: Connection) -> None:
            draft.publish(connection, self.store, table)
            self.jobs.record_decisions(connection, table, task.correlation_id, body.get("decisions", []))

        self.store.database.write(publish)
        if draft:
            self.tally.published(draft.merged())
        self.on_published(table)

    def _end_job(
        self, held: _Held, outcomes: Sequence[Mapping[str, Any]], message: str, *, retry: bool,
        draft: Draft | None = None, decisions: Sequence[Mapping[str, Any]] = (),
    ) -> str:  # fmt: skip
        """Ends a try. Of one that captured some, what may still be captured goes on as a job of its own: targets that
        failed, and those that lack files. An engine takes the files it has from the store, and reads the others."""
        lease = held.lease
        table = self.catalog.by_key(lease.table_key)
        captured = [o for o in outcomes if o["outcome"] == "CAPTURED"]
        if lease.request.get("retry_of"):  # a retry that could read none of the files has failed
            captured = [o for o in captured if not _lacks(o) or o["attributes"].get("files_read")]
        failed = [o for o in outcomes if o["outcome"] != "CAPTURED" or _lacks(o)]
        told = message or "; ".join(dict.fromkeys(o["detail"] for o in failed if o["detail"]))[:2000]
        correlation_id = str(lease.request.get("correlation_id", ""))
        again = retry and (not outcomes or any(map(_retryable, failed)))

        def publish(connection: Connection) -> str:
            rest = self._retry_rest(connection, held, table, outcomes) if captured and again else ""
            state = self.jobs.finish_in(
                connection, lease.job_id, lease.token, captured=len(captured), failed=len(failed), retry=again,
                message="; ".join(filter(None, (told, rest))),
                stats_processed=len({o["snapshot_id"] for o in captured}),
            )  # fmt: skip
            if state == "SUCCEEDED" and draft is not None:
                draft.publish(connection, self.store, table)
            self.jobs.record_decisions(connection, table, correlation_id, decisions)
            return state

        try:
            state = self._publish_job(lease, publish)
        finally:
            with self._ready:
                self._held.pop(lease.token, None)
                self._ready.notify_all()
        if state == "SUCCEEDED":
            self.tally.published(draft.merged() if draft is not None else ())
            self.on_published(table)
        return state

    def _publish_job(self, lease: Lease, publish: Callable[[Connection], str]) -> str:
        """Runs the publication; rows that the store refuses end the job, so that it is not tried for ever."""
        try:
            return self.store.database.write(publish)
        except Conflict:  # the lease is lost
            raise
        except Exception as trouble:
            reason, again = "what was captured could not be stored", False
            if isinstance(trouble, StatflightError):
                reason, again = str(trouble), trouble.retryable
                log.warning("what job %s captured is not stored: %s", lease.job_id, reason)
            else:
                log.exception("what job %s captured cannot be stored", lease.job_id)

            def give_up(connection: Connection) -> str:
                return self.jobs.finish_in(
                    connection, lease.job_id, lease.token, captured=0, failed=1, retry=again, message=reason,
                    stats_processed=0,
                )  # fmt: skip

            return self.store.database.write(give_up)

    def _retry_rest(
        self, connection: Connection, held: _Held, table: TableEntry, outcomes: Sequence[Mapping[str, Any]]
    ) -> str:
        """Queues what of a job was not captured and may be later, with its attempts; says so, or nothing."""
        lease = held.lease
        if lease.attempts >= MAX_ATTEMPTS or len(held.requests) != len(outcomes):
            return ""
        if self.jobs.check(connection, lease.job_id, lease.token) != "RUNNING":
            return ""
        rest = [r for r, o in zip(held.requests, outcomes, strict=True) if _retryable(o)]
        if not rest:
            return ""
        request = {"requests": rest, "correlation_id": lease.request.get("correlation_id", ""),
                   "retry_of": lease.job_id}  # fmt: skip
        targets = [Target.parse(body["target"]).storage_id for body in rest]
        job_id = self.jobs.enqueue_in(
            connection, table, lease.snapshot, lease.mode, request, targets, attempts=lease.attempts
        )
        return f"{len(rest)} of {len(outcomes)} go on as job {job_id}"

    # Upkeep.

    def sweep(self) -> None:
        """Takes back leases that ran out; called now and then."""
        now = time.monotonic()
        with self._ready:
            for token, task in list(self._leased.items()):
                if task.lease_until < now:
                    del self._leased[token]
                    self._drafts.pop(token, None)
                    task.token = ""
                    task.lost += 1
                    self.tally.lost(1)
                    if task.lost >= MAX_LOST:  # it may be what kills them
                        task.error = UpstreamError(f"{task.lost} workers were lost over it", code="WORKER_LOST")
                        task.done.set()
                    elif not task.cancelled:
                        self._waiting[task.lane].appendleft(task)
            self._workers = {i: w for i, w in self._workers.items() if w.polling or w.last_seen > now - 60}
            self._ready.notify_all()
        if self.jobs.expired():
            self.tally.lost(self.jobs.reclaim())
            with self._ready:
                held = list(self._held.items())
            for token, job in held:
                if self.jobs.holder(job.lease.job_id) != token:
                    with self._ready:
                        self._held.pop(token, None)
                        self._drafts.pop(token, None)
        if now - self._pruned > 3600:
            self._pruned = now
            self.jobs.prune()

    def depths(self) -> tuple[dict[str, int], int]:
        """How much waits, by queue, durable jobs apart; and how many leases are held."""
        with self._ready:
            waiting = {lane: len(tasks) for lane, tasks in self._waiting.items()}
            return waiting, len(self._leased) + len(self._held)

    def close(self) -> None:
        with self._ready:
            self._closing = True
            self._ready.notify_all()

    @property
    def closing(self) -> bool:
        return self._closing


def _lacks(outcome: Mapping[str, Any]) -> bool:
    """Whether a target was captured without some of its files."""
    return outcome["outcome"] == "CAPTURED" and bool(outcome.get("attributes", {}).get("files_failed"))


def _lanes(kinds: Iterable[str]) -> list[str]:
    return [lane for kind in kinds for lane in LANES.get(kind, ())]


def _retryable(outcome: Mapping[str, Any]) -> bool:
    may = outcome["outcome"] == "DEGRADED" or _lacks(outcome)
    return may and outcome.get("attributes", {}).get("retryable") is not False


def _lost() -> Conflict:
    return Conflict("the lease is lost", code="LEASE_LOST", hint="drop what was captured and lease anew")
