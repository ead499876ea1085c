"""The queue of work for workers: jobs wait (`lanes`), are leased (`leases`), and end, or are lost (`lost_jobs`).

A worker asks for a lease of some kinds (`control`, `watch`: inspect a lake; `publish`: publish statistics; `sync`: a
capture that a caller waits for; `light`: a capture from metadata only, waited for or durable; `job`: any durable
capture) and gets a token. Rows put under the token form a draft that no reader sees; finishing commits the draft. When
a lease expires, its draft is dropped and its job waits again. Durable jobs wait in the store, all others here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from flight_server.core.control.capture_commit import CaptureCommit, End
from flight_server.core.control.lanes import Lanes
from flight_server.core.control.lease_drafts import LeaseDrafts, lease_lost
from flight_server.core.control.leases import Leases
from flight_server.core.control.lost_jobs import MAX_LOST, MAX_TRIES, LostJobs
from flight_server.core.control.workers import LANES, Workers, lanes_of
from flight_server.core.writes.drafts import Draft
from store.history.file_listings import ListingChanged
from store.model.errors import (
    Cancelled,
    InvalidArgument,
    InvalidField,
    ResourceExhausted,
    ShuttingDown,
    StatflightError,
    UpstreamError,
    from_json,
    to_json,
)
from store.queue.job_store import JobStore
from store.queue.jobs import LIGHT, Job, as_json

log = logging.getLogger("statflight.server")

_DURABLE: Final = {"job": None, "light": LIGHT}  # kind of lease → greatest priority of durable jobs it serves
NO_WORKER: Final = "NO_WORKER"  # code of an error
MAX_WAITING: Final = 10_000  # jobs in memory
CANCELLED_KEPT: Final = 100  # cancelled captures that stay in the job list
PRUNE_SECONDS: Final = 3600.0
_POLL_SECONDS: Final = 0.25
_TICK_SECONDS: Final = 0.05  # between checks whether the caller has left

PayloadsOf: TypeAlias = Callable[[Sequence[Job]], Sequence[Mapping[str, Any] | StatflightError]]


def _own_payloads(jobs: Sequence[Job]) -> Sequence[Mapping[str, Any] | StatflightError]:
    """The requests of the jobs as they were stored."""
    return [job.request or {} for job in jobs]


class JobQueue:
    """Waiting and leased jobs.

    Attributes:
        lock: Guards all state of the queue.
        drafts: What workers have put under their leases.

    Args:
        clock: Seconds, monotonic.
        payloads_of: Makes the payloads of durable jobs, or returns the error of one that cannot be begun; its
            `requests` are empty when nothing is left to do.
        check_writes: Raises where this server takes no writes, and so has no use for results.
        has_own: True while a worker lives that the server has started for a lane.
    """

    def __init__(
        self,
        store: JobStore,
        commit: CaptureCommit,
        lease_seconds: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        payloads_of: PayloadsOf = _own_payloads,
        check_writes: Callable[[], None] = lambda: None,
        has_own: Callable[[str], bool] = lambda _lane: False,
    ):
        self._store, self._commit, self.lease_seconds, self.clock = store, commit, lease_seconds, clock
        self.payloads_of, self.check_writes = payloads_of, check_writes
        self.lock = threading.RLock()
        self.workers = Workers(self.lock, clock, has_own)
        self._lanes, self._leases = Lanes(), Leases(lease_seconds, clock)
        self.drafts = LeaseDrafts(self.lock, self._leases, commit, store.database)
        self._lost = LostJobs(self.lock, self._leases, self.drafts, store, self._requeue)
        self._cancelled: deque[Job] = deque(maxlen=CANCELLED_KEPT)
        self._pruned = clock()
        self.closing = False  # True once the server shuts down and refuses new jobs

    # For callers.

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues jobs in memory, all or none.

        Raises:
            ShuttingDown: The server ends.
            ResourceExhausted: Too many jobs wait already.
            ReadOnly: This server takes no writes.
        """
        self.check_writes()
        with self.lock:
            if self.closing:
                raise ShuttingDown("the server is shutting down")
            waiting = len(self._lanes)
            if waiting and waiting + len(jobs) > MAX_WAITING:
                raise ResourceExhausted(f"{waiting} jobs wait already", hint="try again later")
            for job in jobs:
                job.touched_at = self.clock()
            self._lanes.add(jobs)
            self.workers.wake(job.lane for job in jobs)

    def wait(
        self, job: Job, timeout: float | None = None, is_cancelled: Callable[[], bool] = lambda: False
    ) -> Mapping[str, Any] | None:
        """Waits for a job in memory.

        Args:
            timeout: Seconds; None waits without limit.
            is_cancelled: True once the caller has left; the job is abandoned then.

        Returns:
            The job's result; None after the timeout.

        Raises:
            StatflightError: The job's own error; Cancelled, ShuttingDown, or UpstreamError without a worker.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not job.done.wait(
            _TICK_SECONDS if deadline is None else max(0.0, min(_TICK_SECONDS, deadline - time.monotonic()))
        ):
            if self.closing:
                raise ShuttingDown("the server is shutting down")
            if is_cancelled():
                self.abandon([job])
                raise Cancelled("the call was cancelled")
            if deadline is not None and time.monotonic() >= deadline:
                return None
            if not job.token and not self.workers.serve(job.lane):
                self.abandon([job])
                raise no_worker(job)
        if job.error is not None:
            raise job.error
        return job.result

    def abandon(self, jobs: Iterable[Job]) -> None:
        """Drops jobs that no caller waits for: they are not begun, or stopped if they run."""
        with self.lock:
            for job in jobs:
                if job.done.is_set() or job.cancelled:
                    continue
                job.cancelled = True
                if job.is_discarded:
                    self._cancelled.append(job)
                self._lanes.drop(job)

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancels a job; a caller who waits for it gets the error at once. An ended one stays as it is.

        Returns:
            The job afterwards, as `get` returns it.

        Raises:
            NotFound: The job does not exist.
        """
        job = self._find(job_id)
        if job is None or job.is_durable:
            if job is not None:
                job.cancelled = True  # a commit that goes on is interrupted
            cancelled = self._store.cancel(job_id)
            self.notify()
            return cancelled
        self.abandon([job])
        job.error = Cancelled("the job was cancelled")
        job.done.set()
        return as_json(job.row())

    def get(self, job_id: str) -> dict[str, Any]:
        """A job as a row of `sys.capture_jobs`, as JSON; NotFound (UNKNOWN_JOB) if it does not exist."""
        job = self._find(job_id)
        return self._store.get(job_id) if job is None else as_json(job.row())

    def rows(self) -> list[dict[str, Any]]:
        """Rows of `sys.capture_jobs` for the jobs in memory and the leased ones, each with its `table_key`."""
        return [job.row() for job in self._listed()]

    def _listed(self) -> list[Job]:
        with self.lock:
            active = [job for job in (*self._lanes, *self._leases) if not job.is_discarded] + list(self._cancelled)
        return [job for job in active if job.kind != "watch" and job.listed]

    def _find(self, job_id: str) -> Job | None:
        return next((job for job in self._listed() if job.id == job_id), None)

    def notify(self) -> None:
        """Wakes the workers that wait for durable jobs: one may be ready."""
        with self.lock:
            self.workers.wake_all(_DURABLE)

    def close(self) -> None:
        """Refuses new jobs, and ends all waiting with ShuttingDown."""
        with self.lock:
            self.closing = True
            self.workers.wake_all((*LANES, *_DURABLE))

    # Leases.

    def lease(
        self,
        worker_id: str,
        kinds: Sequence[str],
        timeout: float,
        engines: Sequence[Mapping[str, Any]],
        is_cancelled: Callable[[], bool],
        most: int = 1,
    ) -> list[dict[str, Any]]:
        """Waits for the next piece of work.

        Args:
            kinds: Kinds of leases, most wanted first.
            timeout: Seconds to wait.
            engines: The worker's rows of `sys.engines`; empty keeps those of its earlier calls.
            most: Maximum number of leases; several only of durable jobs, or captures that one request queued together.

        Returns:
            The leases as `lease_job` answers them; none when there was no work within the timeout.

        Raises:
            ShuttingDown: The server ends.
            ReadOnly: Another server writes; names it.
        """
        self.check_writes()
        deadline = self.clock() + timeout
        with self.workers.polling(worker_id, kinds, engines):
            while not self.closing:
                if jobs := self._next(worker_id, kinds, most):
                    return [
                        {
                            "job_id": job.id,
                            "lease_token": job.token,
                            "kind": job.kind,
                            "lease_seconds": self.lease_seconds,
                            "lost": job.lost,
                            "payload": job.payload,
                        }
                        for job in jobs
                    ]
                with self.lock:
                    if (now := self.clock()) >= deadline or is_cancelled():
                        return []
                    if not self._lanes.has_any(lanes_of(kinds)):
                        self.workers.wait(kinds, min(_POLL_SECONDS, deadline - now))
            raise ShuttingDown("the server is shutting down")

    def _next(self, worker_id: str, kinds: Sequence[str], most: int) -> list[Job]:
        """Leases the next jobs of these kinds, each with its own token: those in memory first."""
        with self.lock:
            has_suspect = self._leases.has_suspect(worker_id)
            if taken := self._lanes.take(kinds, most, has_suspect=has_suspect):
                for job in taken:
                    job.attempts += 1
                    job.started_at = job.started_at or datetime.now(UTC)
                return self._hold(worker_id, taken)
            busy = self._leases.tables(with_suspects=has_suspect)
        durable = "job" if "job" in kinds else "light"
        return self._begin(worker_id, self._store.take(most, busy, _DURABLE[durable])) if durable in kinds else []

    def _hold(self, worker_id: str, jobs: list[Job]) -> list[Job]:
        self._commit.begin(jobs)
        with self.lock:
            self._leases.begin(worker_id, jobs)
        return jobs

    def _begin(self, worker_id: str, jobs: list[Job]) -> list[Job]:
        """Leases durable jobs, and makes their payloads; those that end at once are left out."""
        if not jobs:
            return []
        payloads = self._payloads(self._hold(worker_id, jobs))
        begun, ended = [], []
        for job, payload in zip(jobs, payloads, strict=True):
            if isinstance(payload, StatflightError):  # its table or connector is gone
                ended.append(End(job, Draft(), {"error": to_json(payload), "message": str(payload)}))
            elif payload["requests"]:
                job.payload = payload
                begun.append(job)
            else:  # everything was captured since it was queued
                held = [{"outcome": "CAPTURED", "snapshot_id": i, "detail": ""} for i in payload.get("held", ())]
                ended.append(End(job, Draft(), {"outcomes": held}))
        if ended:
            self._end(ended)
        return begun

    def _payloads(self, jobs: Sequence[Job]) -> Sequence[Mapping[str, Any] | StatflightError]:
        try:
            return self.payloads_of(jobs)
        except Exception as error:  # a job must not stay leased to no worker
            if len(jobs) > 1:
                return [payload for job in jobs for payload in self._payloads([job])]
            if isinstance(error, StatflightError):
                return [error]
            log.exception("job %s cannot be begun", jobs[0].id)
            return [InvalidArgument("the job cannot be begun")]

    def give_back(self, tokens: Sequence[str]) -> int:
        """Queues captures again that their worker has not begun, the first ones at the head; returns how many."""
        with self.lock:
            named = [self._leases.get(token) for token in dict.fromkeys(tokens) if not self.drafts.has(token)]
            jobs = [job for job in named if job is not None and not job.is_ending]
            for job in jobs:
                self._leases.take_back(job)
            in_memory = [job for job in jobs if not job.is_durable]
            for job in in_memory:
                job.attempts, job.started_at = job.attempts - 1, None
            self._requeue(in_memory)
        if durable := [job for job in jobs if job.is_durable]:
            try:
                self._store.give_back([job.id for job in durable], lost=False)
            except BaseException:
                self._lost.add(durable)  # `sweep` tries it again
                raise
        self.notify()
        return len(jobs)

    def _requeue(self, jobs: Sequence[Job]) -> None:
        """Puts jobs back at the head of their lanes, except cancelled ones."""
        self._lanes.put_back(jobs)
        self.workers.wake(job.lane for job in jobs)

    def renew(
        self, job_id: str, token: str, progress: float | None, message: str | None, reading: str | None = None
    ) -> bool:
        """Extends a lease.

        Args:
            progress: 0 to 1; None when unknown.
            reading: A file that the worker is about to open.

        Returns:
            True while the work is wanted; False when it was cancelled, or its worker has ended it meanwhile.

        Raises:
            Conflict: The lease is lost.
            NotFound: The job does not exist.
        """
        with self.lock:
            job = self._leases.get(token)
            if job is not None:
                self._leases.renew(job, progress, message, reading)
                return not job.cancelled
            ended_by_worker = self._leases.ended_by_worker(token)
        if ended_by_worker:  # the renewal was sent before the lease ended
            return False
        if ended_by_worker is None:
            self._store.get(job_id)
        raise lease_lost()

    # Drafts and ends.

    def finish(self, bodies: Sequence[Mapping[str, Any]]) -> list[str | StatflightError]:
        """Ends leases: commits their drafts with the outcomes of the work, all in one transaction.

        Args:
            bodies: `job_id`, `lease_token`, `outcomes`, `decisions`, `result`, `error`, `message` and `final` of each,
                as `finish_jobs` has checked them.

        Returns:
            The state of each job after it, or the error that refused it.
        """
        answers: dict[int, str | StatflightError] = {}
        ends: dict[int, End] = {}
        for at, body in enumerate(bodies):
            try:
                ends[at] = self._take(body)
            except StatflightError as error:
                answers[at] = error
        for job, _, body in ends.values():
            if job.table is not None:
                self._commit.counters.ended(job.kind, self.clock() - job.leased_at, body.get("outcomes", []))
        answers |= zip(ends, self._end(list(ends.values())), strict=True)
        return [answers[at] for at in range(len(bodies))]

    def _take(self, body: Mapping[str, Any]) -> End:
        """Begins the end of a lease, which takes no more rows."""
        token, outcomes = body["lease_token"], body.get("outcomes", [])
        with self.lock:
            job = self._leases.get(token)
            if job is None or job.is_ending or job.id != body["job_id"]:
                raise lease_lost()
            requests = len(job.payload["requests"]) if job.kind == "sync" else None
            if requests not in (None, len(outcomes)) and not body.get("error"):
                raise InvalidField(
                    "outcomes", "are not as many as the requests", expected=requests, actual=len(outcomes)
                )
            if job.is_discarded:
                self._release([job])
                raise lease_lost()
            job.is_ending = True
            return End(job, self.drafts.take(token), body)

    def _end(self, ends: Sequence[End]) -> list[str | StatflightError]:
        """Commits captures, and ends leases; one whose end cannot be stored now runs out, and is tried again."""
        captures = [end for end in ends if end.job.table is not None]
        try:
            states = iter(self._commit.end(captures))
        except BaseException:
            for end in ends:
                end.job.is_ending = False
            raise
        finally:
            for end in ends:
                end.draft.close()
        answers = ["SUCCEEDED" if end.job.table is None else next(states) for end in ends]
        with self.lock:
            told = [self._ended(end.job, end.body, answer) for end, answer in zip(ends, answers, strict=True)]
            self.notify()
        return told

    def _ended(self, job: Job, body: Mapping[str, Any], answer: str | StatflightError) -> str | StatflightError:
        """Ends the lease of a capture by the answer to its end, or queues it again; returns the worker's answer."""
        job.is_ending = False
        if isinstance(answer, StatflightError) and job.is_durable:
            return answer
        if isinstance(answer, ListingChanged) and job.attempts < MAX_TRIES:  # it is captured once more
            self._leases.end(job, by_worker=True)
            self._requeue([job])
            return "WAITING"
        reported = from_json(body["error"]) if body.get("error") else None
        job.error = answer if isinstance(answer, StatflightError) else reported
        job.result = body
        self._release([job])
        return answer

    def _release(self, jobs: Iterable[Job]) -> None:
        """Ends leases of jobs that are done, which wakes their callers."""
        for job in jobs:
            self._leases.end(job, by_worker=True)
            self._leases.suspects.pop(job.id, None)
            job.done.set()

    # Housekeeping.

    def sweep(self) -> None:
        """Takes back expired leases; called periodically.

        A durable job of a lost worker waits again, or fails, as the store says; another waits again at the head of its
        lane, or fails after MAX_TRIES leases.
        """
        now = self.clock()
        with self.lock:
            late = self._leases.late()
            self._lost.lose(late, late, "nothing was heard of it")
        self.workers.forget()
        self._take_back()
        self._commit.counters.lost(len(late))
        if now - self._pruned > PRUNE_SECONDS:
            self._pruned = now
            self._store.prune()

    def died(self, worker_id: str, signal: str) -> None:
        """Takes back the leases of a worker whose process has ended. A job that loses its second worker to a signal
        has failed.

        Args:
            signal: Name of the signal that ended it; empty if it exited.
        """
        with self.lock:
            its = self._leases.of_worker(worker_id)
            suspects = [job for job in its if job.lost] or its
            self._lost.lose(its, suspects, signal or "its process ended", MAX_LOST if signal else None)
        if its:
            log.error("a worker of %d jobs was lost (%s)", len(its), signal or "its process ended")
        self._take_back()

    def _take_back(self) -> None:
        self._lost.take_back()
        self.notify()

    def is_waiting(self, lanes: Iterable[str]) -> bool:
        """True while a job in memory waits in one of these lanes."""
        return self._lanes.has_any(lanes)

    def depths(self) -> tuple[dict[str, int], int]:
        """Numbers of waiting jobs in memory by lane, and of leases."""
        with self.lock:
            return self._lanes.depths(), len(self._leases)


def no_worker(job: Job) -> UpstreamError:
    """The error of a job that no connected worker serves."""
    return UpstreamError(
        f"no {job.kind} worker is connected",
        code=NO_WORKER,
        hint="start one: statflight worker --server …, or serve with --workers 1",
    )
