"""The jobs of a queue that wait in memory, in lanes. The lock of the queue guards them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from flight_server.core.control.workers import LANES, lanes_of
from store.queue.jobs import Job

MAX_LEASES: Final = 64  # of one call


class Lanes:
    """Waiting jobs, those of each lane in their order."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Job]] = {lane: deque() for lane in LANES}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Job]:
        return (job for waiting in self._waiting.values() for job in waiting)

    def add(self, jobs: Iterable[Job]) -> None:
        """Adds jobs at the end of their lanes."""
        for job in jobs:
            self._waiting[job.lane].append(job)

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Puts jobs back at the head of their lanes, in their order, except cancelled ones."""
        for job in reversed(jobs):
            job.token = ""
            if not job.cancelled:
                self._waiting[job.lane].appendleft(job)

    def drop(self, job: Job) -> None:
        """Removes a job, if it waits."""
        if job in self._waiting[job.lane]:
            self._waiting[job.lane].remove(job)

    def has_any(self, lanes: Iterable[str]) -> bool:
        """True while a job waits in one of these lanes."""
        return any(self._waiting[lane] for lane in lanes)

    def depths(self) -> dict[str, int]:
        """Numbers of waiting jobs by lane."""
        return {lane: len(jobs) for lane, jobs in self._waiting.items()}

    def take(self, kinds: Sequence[str], most: int, *, has_suspect: bool) -> list[Job]:
        """Removes the next jobs for a worker that asks for leases of these kinds, most wanted first.

        Several only when one request queued them together, and at most a quarter of those waiting, so that other
        workers get their share. A job whose worker was lost is leased alone, and a worker has one such job at a time:
        it may be what kills them.

        Args:
            most: Maximum number of jobs.
            has_suspect: The worker has a job whose worker was lost.
        """
        for lane in lanes_of(kinds):
            if taken := _taken(self._waiting[lane], most, has_suspect=has_suspect):
                return taken
        return []


def _taken(waiting: deque[Job], most: int, *, has_suspect: bool) -> list[Job]:
    first = next((job for job in waiting if not (job.lost and has_suspect)), None)
    if first is None:
        return []
    most = min(most, MAX_LEASES, 1 + len(waiting) // 4)
    waiting.remove(first)
    taken = [first]
    while len(taken) < most and _is_first_try(first) and _is_first_try(waiting[0]):
        taken.append(waiting.popleft())
    return taken


def _is_first_try(job: Job) -> bool:
    """True for a job that was queued together with others and that no worker has had."""
    return job.bundled and not job.attempts
