"""The leases of a queue: which job a worker has, until when, and how it ended. The lock of the queue guards them."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from store.queue.jobs import Job

MAX_NAME: Final = 1000  # characters kept of a file's name
_REMEMBERED: Final = 4096  # tokens of ended leases


class Leases:
    """Leased jobs by token.

    Args:
        seconds: Time without a renewal after which a lease is lost.
        clock: Seconds, monotonic.

    Attributes:
        suspects: By id, the waiting durable jobs over which workers were lost.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]):
        self.seconds, self._clock = seconds, clock
        self.suspects: dict[str, Job] = {}
        self._leased: dict[str, Job] = {}
        self._gone: OrderedDict[str, bool] = OrderedDict()  # token of an ended lease → whether its worker ended it

    def __len__(self) -> int:
        return len(self._leased)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._leased.values())

    def __contains__(self, token: str) -> bool:
        return token in self._leased

    def get(self, token: str) -> Job | None:
        """The job that a token leases."""
        return self._leased.get(token)

    def of_worker(self, worker_id: str) -> list[Job]:
        """The jobs of a worker that it has not begun to end."""
        return [job for job in self if job.worker_id == worker_id and not job.is_ending]

    def late(self) -> list[Job]:
        """The jobs whose lease has run out, except those that are ending."""
        now = self._clock()
        return [job for job in self if job.lease_until < now and not job.is_ending]

    def has_suspect(self, worker_id: str) -> bool:
        """True while a worker has a job over which another was lost."""
        return any(job.lost for job in self if job.worker_id == worker_id)

    def tables(self, *, with_suspects: bool) -> list[int]:
        """Keys of the tables of leased jobs, and of suspects if a worker must not get another of these."""
        jobs = [*self, *(self.suspects.values() if with_suspects else ())]
        return [job.table.table_key for job in jobs if job.table is not None]

    def begin(self, worker_id: str, jobs: Sequence[Job]) -> None:
        """Leases jobs to a worker, each with a token of its own."""
        for job in jobs:
            if before := self.suspects.get(job.id):
                job.lost = before.lost
            job.worker_id, job.reading, job.token = worker_id, "", uuid.uuid4().hex
            job.leased_at = job.touched_at = self._clock()
            job.lease_until = job.leased_at + self.seconds
            self._leased[job.token] = job

    def renew(self, job: Job, progress: float | None, message: str | None, reading: str | None) -> None:
        """Extends the lease of a job, and notes what its worker says of it."""
        now = self._clock()
        job.lease_until = now + self.seconds
        if reading is not None:
            job.reading, job.touched_at = reading[:MAX_NAME], now
        if (progress, message) not in ((None, None), (job.progress, job.message)):
            job.touched_at = now
            job.progress, job.message = progress, message or ""

    def take_back(self, job: Job) -> None:
        """Ends the lease of a job that its worker has not begun; its token is unknown from now on."""
        del self._leased[job.token]

    def end(self, job: Job, *, by_worker: bool) -> None:
        """Ends the lease of a job; its token is remembered for a while."""
        self._leased.pop(job.token, None)
        self._gone[job.token] = by_worker
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)

    def ended_by_worker(self, token: str) -> bool | None:
        """Whether its worker ended a lease; None if no lease with this token is remembered."""
        return self._gone.get(token)
