"""The watch: inspects each connected lake at an interval, which bounds how old the label EXACT can be.

One thread schedules; workers inspect. Each lake has its own schedule, spread by jitter, and at most one inspection at a
time; one that hangs or fails delays no other lake. The schedule is not stored: after a start every lake is due.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.lakes import Lakes, is_of_lake
from store.model.errors import Conflict, NotFound, ShuttingDown, StatflightError
from store.queue.jobs import Job

log = logging.getLogger("statflight.server")

JITTER: Final = 0.1  # share of the interval by which an inspection may start early
START_SECONDS: Final = 2.0  # over which the first inspections are spread
PATIENCE_SECONDS: Final = 300.0  # without progress, until an inspection is abandoned
LISTED_SECONDS: Final = 2.0  # for which the list of lakes and intervals is kept
_TICK_SECONDS: Final = 0.25  # between looks whether running inspections are done, at least between any two


@dataclass
class _Lake:
    due_at: float  # by the clock
    started_at: float = 0.0
    config: dict[str, Any] | None = None
    job: Job | None = None
    trouble: str = ""  # of the last look


class Watch:
    """Schedules inspections.

    Args:
        interval_of: Seconds between two inspections of a lake; None means never.
    """

    def __init__(
        self,
        lakes: Lakes,
        queue: JobQueue,
        catalogs: Callable[[], list[str]],
        interval_of: Callable[[str], float | None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._inspector, self._queue, self._catalogs = lakes, queue, catalogs
        self._interval_of, self._clock = interval_of, clock
        self._lakes: dict[str, _Lake] = {}
        self._intervals: dict[str, float | None] = {}
        self._listed_until = float("-inf")

    def seconds_left(self) -> float:
        """Seconds until there is something to do."""
        lakes = self._lakes.values()
        if any(lake.job is not None for lake in lakes):
            return _TICK_SECONDS
        return max(_TICK_SECONDS, min([self._listed_until, *(lake.due_at for lake in lakes)]) - self._clock())

    def step(self) -> None:
        """Stores the findings of finished inspections and starts those that are due."""
        now = self._clock()
        if now >= self._listed_until:
            self._intervals = {catalog: self._interval_of(catalog) for catalog in self._catalogs()}
            self._listed_until = now + LISTED_SECONDS
        intervals = self._intervals
        for catalog in [name for name in self._lakes if intervals.get(name) is None]:
            self._abandon(self._lakes.pop(catalog))
        for catalog, interval in intervals.items():
            if interval is None:
                continue
            if catalog not in self._lakes:
                self._lakes[catalog] = _Lake(now + random.uniform(0.0, min(START_SECONDS, interval)))  # noqa: S311
            lake = self._lakes[catalog]
            try:
                if lake.job is not None:
                    self._follow(catalog, lake, now)
                if lake.job is None and now >= lake.due_at:
                    self._begin(catalog, lake, now, interval)
            except (NotFound, Conflict):  # dropped or replaced meanwhile
                lake.job = None
            except ShuttingDown:
                return
            except StatflightError as error:
                lake.job = None
                self._tell(catalog, lake, str(error))

    def _begin(self, catalog: str, lake: _Lake, now: float, interval: float) -> None:
        lake.started_at = now
        lake.due_at = now + interval * (1.0 - random.uniform(0.0, JITTER))  # noqa: S311  spreads load, no secret
        lake.config, lake.job = self._inspector.watch_job(catalog)

    def _follow(self, catalog: str, lake: _Lake, now: float) -> None:
        """Ends an inspection that is done, and abandons one that hangs."""
        job = lake.job
        assert job is not None
        if job.done.is_set():
            lake.job = None
            if job.error is not None:
                if is_of_lake(job.error):
                    self._inspector.note(catalog, None, str(job.error))
                self._tell(catalog, lake, str(job.error))
            elif lake.config is not None:
                self._inspector.store(catalog, lake.config, (job.result or {}).get("result") or {}, whole=True)
                self._tell(catalog, lake, "")
        elif job.token and now - max(job.touched_at, lake.started_at) > PATIENCE_SECONDS and not job.cancelled:
            self._queue.abandon([job])  # its end is awaited: a lake has one hanging inspection at most
            reason = f"a look made no progress for {PATIENCE_SECONDS:.0f} s"
            self._inspector.note(catalog, None, reason)
            self._tell(catalog, lake, reason)

    def _abandon(self, lake: _Lake) -> None:
        if lake.job is not None:
            self._queue.abandon([lake.job])

    def _tell(self, catalog: str, lake: _Lake, error: str) -> None:
        """Logs an error once, and its end once."""
        if error and error != lake.trouble:
            log.warning("watch: the lake %s cannot be read: %s", catalog, error)
        elif lake.trouble and not error:
            log.info("watch: the lake %s can be read again", catalog)
        lake.trouble = error
