"""Leases: work handed to workers over Flight.

A worker asks for a lease of some kinds (`control`, `watch`: inspect a lake; `publish`: publish statistics; `sync`: a
capture that a caller waits for; `light`: a capture from metadata only, waited for or durable; `job`: any durable
capture) and gets a token. Rows put under the token form a draft that no reader sees; finishing commits the draft in
one transaction. When a lease expires, its draft is dropped.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from flight_server.control.capture_commit import CaptureCommit, HeldJob
from flight_server.control.task_queue import LOOKS, Task, TaskQueue, lanes_of
from flight_server.writes.drafts import Draft
from store.duckdb.database import Database
from store.history.file_listings import Listing, can_continue
from store.model.errors import (
    Conflict,
    InvalidArgument,
    InvalidField,
    NotFound,
    ShuttingDown,
    StatflightError,
    from_json,
)
from store.queue.job_store import JobStore
from store.queue.jobs import LIGHT, Lease
from store.stats_store import Put

log = logging.getLogger("statflight.server")

GRACE_SECONDS: Final = (
    15.0  # for a worker to connect (again), counted from the server's start or the worker's last poll
)
FORGET_SECONDS: Final = 60.0  # after its last poll a worker is forgotten
PRUNE_SECONDS: Final = 3600.0
_POLL_SECONDS: Final = 0.25
_ENDED_AT_ONCE: Final = 32  # durable jobs that finish concurrently
_REMEMBERED: Final = 4096  # tokens of ended leases


@dataclass
class _Worker:
    kinds: frozenset[str]
    last_seen: float
    polling: int = 0
    engines: Sequence[Mapping[str, Any]] = ()


class Leases:
    """Hands out tasks and durable jobs, and ends them.

    Attributes:
        payloads_of_jobs: Makes the payloads of durable jobs, or returns the error of one that cannot be begun; its
            `requests` are empty when nothing is left to do.
        has_own_worker: True while a process that the server has started for a lane lives, connected or not.

    Args:
        tasks: Work that a caller waits for.
        jobs: The durable queue.
        database: The store: its directory takes large drafts, and it has the listings that drafts continue.
        commit: Ends captures.
    """

    def __init__(self, tasks: TaskQueue, jobs: JobStore, database: Database, commit: CaptureCommit):
        self._tasks, self._jobs, self._database, self._commit = tasks, jobs, database, commit
        self.payloads_of_jobs: Callable[[Sequence[Lease]], Sequence[Mapping[str, Any] | StatflightError]] = (
            lambda leases: [lease.request for lease in leases]
        )
        self.has_own_worker: Callable[[str], bool] = lambda _lane: False
        self._lock, self._clock = tasks.lock, tasks.clock
        self._held: dict[str, HeldJob] = {}  # durable jobs by token
        self._drafts: dict[str, Draft] = {}  # by token
        self._workers: dict[str, _Worker] = {}
        self._gone: OrderedDict[str, bool] = OrderedDict()  # token of an ended lease → whether its worker ended it
        self._ending = ThreadPoolExecutor(_ENDED_AT_ONCE, "end-jobs")
        self._started = self._pruned = self._clock()
        tasks.has_worker = self._has_worker

    # Workers.

    def _has_worker(self, lane: str) -> bool:
        """True when a worker serves a lane, or may still be starting: the server is young, or its own worker lives."""
        grace = self._clock() - GRACE_SECONDS
        with self._lock:
            if self._started > grace or any(
                lane in lanes_of(w.kinds) and (w.polling or w.last_seen > grace) for w in self._workers.values()
            ):
                return True
        return self.has_own_worker(lane)

    def engines(self) -> list[Mapping[str, Any]]:
        """Rows of `sys.engines` of the connected workers, each engine once."""
        with self._lock:
            return list({e["engine_id"]: e for w in self._workers.values() for e in w.engines}.values())

    # Leases.

    def lease(
        self, worker_id: str, kinds: Sequence[str], timeout: float, engines: Sequence[Mapping[str, Any]],
        is_cancelled: Callable[[], bool], most: int = 1,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Waits for the next piece of work.

        Args:
            worker_id: The worker's id.
            kinds: Kinds of leases, most wanted first.
            timeout: Seconds to wait.
            engines: The worker's rows of `sys.engines`; empty keeps those of its earlier calls.
            is_cancelled: True once the worker has left.
            most: Maximum number of leases; several only of captures that one request queued together.

        Returns:
            The leases as `lease_job` answers them; none when there was no work within the timeout.

        Raises:
            ShuttingDown: The server ends.
            ReadOnly: Another server writes; names it.
        """
        self._tasks.check_writes()
        deadline = self._clock() + timeout
        with self._lock:
            worker = self._workers.setdefault(worker_id, _Worker(frozenset(), 0.0))
            worker.kinds |= frozenset(kinds)
            worker.engines = engines or worker.engines
            worker.polling += 1
        try:
            while not self._tasks.closing:
                if payloads := self._next(kinds, most):
                    return payloads
                with self._lock:
                    worker.last_seen = now = self._clock()
                    if now >= deadline or is_cancelled():
                        return []
                    if not self._tasks.has_work(kinds):
                        self._tasks.wait_for_work(kinds, min(_POLL_SECONDS, deadline - now))
            raise ShuttingDown("the server is shutting down")
        finally:
            with self._lock:
                worker.polling -= 1
                worker.last_seen = self._clock()

    def _next(self, kinds: Sequence[str], most: int) -> list[dict[str, Any]]:
        with self._lock:
            if tasks := self._tasks.take(kinds, self._jobs.lease_seconds, most):
                return [{"job_id": task.id, "lease_token": task.token, "kind": task.kind,
                         "lease_seconds": self._jobs.lease_seconds, "payload": task.payload}
                        for task in tasks]  # fmt: skip
            busy = [task.table_key for task in self._tasks.leased.values() if task.table_key is not None]
        if "job" in kinds:
            leases = self._jobs.lease_some(most, busy)
        elif "light" in kinds:
            leases = self._jobs.lease_some(most, busy, up_to=LIGHT)
        else:
            return []
        return self._begin_jobs(leases) if leases else []

    def give_back(self, tokens: Sequence[str]) -> int:
        """Queues captures again that their worker has not begun; returns how many."""
        with self._lock:
            unbegun = [token for token in tokens if token not in self._drafts]
            given = self._tasks.give_back(unbegun)
            jobs = [token for token in unbegun if self._held.pop(token, None) is not None]
        if jobs:
            given += self._jobs.give_back(jobs)
        self._tasks.notify()
        return given

    def _begin_jobs(self, leases: Sequence[Lease]) -> list[dict[str, Any]]:
        """The leases of durable jobs as `lease_job` answers them, without those that end at once."""
        with self._lock:
            self._held |= {lease.token: HeldJob(lease, since=self._clock()) for lease in leases}
        try:
            payloads = self.payloads_of_jobs(leases)
        except Exception:  # a job must not stay leased to no worker
            if len(leases) > 1:
                return [begun for lease in leases for begun in self._begin_jobs([lease])]
            log.exception("job %s cannot be begun", leases[0].job_id)
            self._end_job(HeldJob(leases[0], since=self._clock()), [], "the job cannot be begun", retry=False)
            return []
        begun = []
        for lease, payload in zip(leases, payloads, strict=True):
            if isinstance(payload, StatflightError):  # its table or connector is gone
                self._end_job(HeldJob(lease, since=self._clock()), [], str(payload), retry=payload.retryable)
                continue
            if not payload["requests"]:  # everything was captured since it was queued
                earlier = [{"outcome": "CAPTURED", "snapshot_id": i, "detail": ""} for i in payload.get("held", ())]
                self._end_job(HeldJob(lease, since=self._clock()), earlier, "", retry=False)
                continue
            with self._lock:
                self._held[lease.token] = HeldJob(lease, payload["requests"], self._clock())
            begun.append({"job_id": lease.job_id, "lease_token": lease.token, "kind": "job",
                          "lease_seconds": self._jobs.lease_seconds, "payload": payload})  # fmt: skip
        return begun

    def renew(self, job_id: str, token: str, progress: float | None, message: str | None) -> bool:
        """Extends a lease.

        Args:
            job_id: The task or job.
            token: The lease's token.
            progress: 0 to 1; None when unknown.
            message: A short description of the progress.

        Returns:
            True while the work is wanted; False when it was cancelled, or its worker has ended it meanwhile.

        Raises:
            Conflict: The lease is lost.
        """
        with self._lock:
            task = self._tasks.leased.get(token)
            if task is None and (by_worker := self._gone.get(token)) is not None:
                if by_worker:  # the renewal was sent before the lease ended
                    return False
                raise _lost()
            if task is not None:
                task.lease_until = self._clock() + self._jobs.lease_seconds
                if (progress, message) not in ((None, None), (task.progress, task.message)):
                    task.touched_at = self._clock()
                    task.progress, task.message = progress, message or ""
                return not task.cancelled
        try:
            return self._jobs.renew(job_id, token, progress, message)
        except (Conflict, NotFound):
            with self._lock:
                if token in self._held or self._gone.get(token):  # it is ending, or has just ended
                    return False
            raise

    def add_to_draft(self, token: str, put: Put, whole: bool, *, few: bool = False) -> None:
        """Adds rows to the draft of a lease.

        Args:
            token: The lease's token.
            put: The rows.
            whole: The rows are complete for their snapshot.
            few: Keeps the rows in memory.

        Raises:
            Conflict: The lease is lost.
            InvalidArgument: A lease of this kind takes no rows.
        """
        with self._lock:
            if token not in self._held:
                self._wanted(token)
            if token in self._tasks.leased and self._tasks.leased[token].table_key is None:
                raise InvalidArgument("this lease is for a look at a lake: no rows are put under it")
            draft = self._drafts.setdefault(token, Draft(self._database.directory))
        draft.add(put, whole, few=few)

    def declare_listing(self, token: str, listing: Listing) -> bool:
        """Announces the listing of a snapshot's files; False when the store does not have the base it continues."""
        with self._lock:
            task, job = self._tasks.leased.get(token), self._held.get(token)
            if job is None:
                self._wanted(token)
            table_key = task.table_key if task is not None else job.lease.table_key if job is not None else None
            if table_key is None:
                raise InvalidArgument("this lease is for a look at a lake: no rows are put under it")
        if listing.base_snapshot_id is not None:
            with self._database.reading() as cursor:
                if not can_continue(cursor, table_key, listing):
                    return False
        with self._lock:
            if token not in self._held:
                self._wanted(token)
            self._drafts.setdefault(token, Draft(self._database.directory)).declare(listing)
        return True

    def finish(self, job_id: str, token: str, body: Mapping[str, Any]) -> str:
        """Commits the draft of a lease with the outcome of the work, all in one transaction, and ends the lease.

        Args:
            job_id: The task or job.
            token: The lease's token.
            body: `outcomes`, `decisions`, `result`, `error`, `message`, `final`, as `finish_job` has checked them.

        Returns:
            The state of the job after it.

        Raises:
            Conflict: The lease is lost.
            InvalidField: There are not as many outcomes as requests.
            StatflightError: The store refuses the rows.
        """
        (answer,) = self.finish_all([{**body, "job_id": job_id, "lease_token": token}])
        if isinstance(answer, StatflightError):
            raise answer
        return answer

    def finish_all(self, finishes: Sequence[Mapping[str, Any]]) -> list[str | StatflightError]:
        """Ends leases as `finish` does: captures that callers wait for in one transaction, durable jobs in another.

        Args:
            finishes: Bodies as `finish` takes them, each with its `job_id` and `lease_token`.

        Returns:
            The state of each job after it, or the error that refused it.
        """
        answers: list[str | StatflightError] = ["SUCCEEDED"] * len(finishes)
        tasks: dict[int, tuple[Task, Draft, Mapping[str, Any]]] = {}
        jobs: dict[int, Future[str]] = {}  # the writer joins them into one transaction
        for at, body in enumerate(finishes):
            try:
                task, job, draft = self._take(body["job_id"], body["lease_token"], body)
            except StatflightError as error:
                answers[at] = error
                continue
            if task is None:
                assert job is not None
                jobs[at] = self._ending.submit(self._end, job, draft, body)
                continue
            if task.kind not in (*LOOKS, "publish"):
                self._commit.counters.ended(task.kind, self._clock() - task.leased_at, body.get("outcomes", []))
            task.error = from_json(body["error"]) if body.get("error") else None
            tasks[at] = task, draft, body
        captures = {at: ended for at, ended in tasks.items() if ended[0].table_key is not None}
        try:
            for at, refusal in zip(captures, self._commit.end_tasks(list(captures.values())), strict=True):
                captures[at][0].error = refusal or captures[at][0].error
                answers[at] = refusal or "SUCCEEDED"
        finally:
            for task, _, body in tasks.values():
                task.result = body
            self._forget([task for task, _, _ in tasks.values()])
        for at, ending in jobs.items():
            try:
                answers[at] = ending.result()
            except StatflightError as error:
                answers[at] = error
        return answers

    def _end(self, job: HeldJob, draft: Draft, body: Mapping[str, Any]) -> str:
        outcomes = body.get("outcomes", [])
        self._commit.counters.ended("job", self._clock() - job.since, outcomes)
        retry = not body.get("final", False) and (body.get("error") or {}).get("retryable", True)
        return self._end_job(job, outcomes, body.get("message") or "", draft=draft,
                             decisions=body.get("decisions", []), retry=retry)  # fmt: skip

    def _take(
        self, job_id: str, token: str, body: Mapping[str, Any]
    ) -> tuple[Task | None, HeldJob | None, Draft]:  # fmt: skip
        """Removes a lease; returns its task or job, and its draft."""
        with self._lock:
            task, job = self._tasks.leased.get(token), self._held.get(token)
            requests = len(task.payload["requests"]) if task is not None and task.kind == "sync" else None
            if requests not in (None, len(body.get("outcomes", []))) and not body.get("error"):
                raise InvalidField("outcomes", "are not as many as the requests", expected=requests,
                                   actual=len(body.get("outcomes", [])))  # fmt: skip
            if task is not None and task.ends_cancelled:
                self._forget([task])
                raise _lost()
            holds = task.id if task is not None else job.lease.job_id if job is not None else None
            if holds != job_id:
                raise _lost()
            return task, job, self._drafts.pop(token, Draft())

    def _wanted(self, token: str) -> None:
        """Refuses rows for a task that is not leased any more, or cancelled."""
        task = self._tasks.leased.get(token)
        if task is None or task.ends_cancelled:
            self._drafts.pop(token, None)
            raise _lost()

    def _forget(self, tasks: Sequence[Task]) -> None:
        """Marks tasks as done, which wakes their callers."""
        with self._lock:
            for task in tasks:
                self._tasks.leased.pop(task.token, None)
                self._remember(task.token, by_worker=True)
                task.done.set()
            self._tasks.notify()

    def _end_job(self, job: HeldJob, outcomes: Sequence[Mapping[str, Any]], message: str, **more: Any) -> str:
        try:
            return self._commit.end_job(job, outcomes, message, **more)
        finally:
            with self._lock:
                self._held.pop(job.lease.token, None)
                self._remember(job.lease.token, by_worker=True)
                self._tasks.notify()

    def _remember(self, token: str, *, by_worker: bool) -> None:
        self._gone[token] = by_worker
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    # Housekeeping.

    def sweep(self) -> None:
        """Takes back expired leases; called periodically."""
        now = self._clock()
        with self._lock:
            leased = set(self._tasks.leased)
            lost = self._tasks.take_back()
            for token in leased - self._tasks.leased.keys():
                self._remember(token, by_worker=False)
            jobs = list(self._held.items())
            tokens = self._tasks.leased.keys() | self._held.keys()
            self._drafts = {token: draft for token, draft in self._drafts.items() if token in tokens}
            self._workers = {i: w for i, w in self._workers.items() if w.polling or w.last_seen > now - FORGET_SECONDS}
            self._tasks.notify()
        if self._jobs.expired():
            lost += self._jobs.reclaim()
            for token, job in jobs:
                if self._jobs.holder(job.lease.job_id) != token:
                    with self._lock:
                        self._held.pop(token, None)
                        self._drafts.pop(token, None)
        self._commit.counters.lost(lost)
        if now - self._pruned > PRUNE_SECONDS:
            self._pruned = now
            self._jobs.prune()

    def depths(self) -> tuple[dict[str, int], int]:
        """Numbers of waiting tasks by lane, and of held leases."""
        with self._lock:
            return self._tasks.depths(), len(self._tasks.leased) + len(self._held)


def _lost() -> Conflict:
    return Conflict("the lease is lost", code="LEASE_LOST", hint="discard the captured rows and lease again")
