"""Jobs of lost workers: they wait again, or have failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Final

from flight_server.core.control.lease_drafts import LeaseDrafts
from flight_server.core.control.leases import Leases
from store.model.errors import UpstreamError
from store.queue.job_store import JobStore
from store.queue.jobs import Job

log = logging.getLogger("statflight.server")

MAX_LOST: Final = 2  # workers ended by signals over a job, after which it has failed
MAX_TRIES: Final = 3  # leases after which a job in memory fails, if its worker is lost or another changed its listing


class LostJobs:
    """Ends the leases of lost workers, and gives their jobs back.

    Args:
        lock: Guards the leases and the drafts, and what is here.
        requeue: Puts jobs in memory back at the head of their lanes.
    """

    def __init__(
        self,
        lock: RLock,
        leases: Leases,
        drafts: LeaseDrafts,
        store: JobStore,
        requeue: Callable[[Sequence[Job]], None],
    ):
        self._lock, self._leases, self._drafts, self._store = lock, leases, drafts, store
        self._requeue = requeue
        self._waiting: list[Job] = []  # durable ones, until the store has them back

    def add(self, jobs: Sequence[Job]) -> None:
        """Takes durable jobs whose leases have ended, and which the store does not have back yet."""
        with self._lock:
            self._waiting += jobs

    def lose(self, jobs: Sequence[Job], suspects: Sequence[Job], how: str, most: int | None = None) -> None:
        """Ends the leases of lost workers, under the lock; `take_back` does the rest without it.

        Args:
            suspects: Those of the jobs that may have ended the worker; no attempt is counted for the others.
            how: Says how the worker was lost.
            most: Number of lost workers after which a job has failed; None: by the number of its leases.
        """
        for job in jobs:
            self._leases.end(job, by_worker=False)
            if job not in suspects:
                job.attempts -= 1
                continue
            job.lost += 1
            may_go_on = (job.is_durable or job.attempts < MAX_TRIES) if most is None else job.lost < most
            if may_go_on:
                continue
            job.error = UpstreamError(job.fate(how), code="WORKER_LOST")
            job.error.retryable = most is None
            log.error("%s %s has failed: %s", job.kind, job.id, job.error)
            if not job.is_durable:
                job.cancelled = True
                job.done.set()
        durable = [job for job in jobs if job.is_durable]
        self._leases.suspects |= {job.id: job for job in durable if job.lost and job.error is None}
        self._waiting += durable
        self._requeue([job for job in jobs if not job.is_durable])

    def take_back(self) -> None:
        """Drops the drafts of lost workers, and gives the durable jobs among theirs back to the store."""
        with self._lock:
            dropped = self._drafts.take_lost()
            lost = self._waiting.copy()
        for draft in dropped:
            draft.close()
        failed = {job.id: str(job.error) for job in lost if job.error is not None}
        if failed:
            self._store.fail(failed)
        for was_lost in (True, False):
            job_ids = [job.id for job in lost if job.id not in failed and bool(job.lost) is was_lost]
            if job_ids:
                self._store.give_back(job_ids, lost=was_lost)
        with self._lock:
            self._waiting = [job for job in self._waiting if job not in lost]
            for job_id in failed:
                self._leases.suspects.pop(job_id, None)
