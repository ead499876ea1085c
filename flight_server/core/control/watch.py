"""The watch: looks at the tables of each connected lake at an interval, which bounds how old the label EXACT can be.

One thread schedules; workers look. A round of a lake is a look for new tables, and looks at its tables in batches,
those that were read or changed lately first. Each lake has its own schedule, spread by jitter, and at most one round at
a time; one that hangs or fails delays no other lake. With a budget of requests its tables have intervals of their own.
The schedule is not stored: after a start every lake is due, unless a budget says that its tables can wait.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from flight_server.core.control.intervals import intervals
from flight_server.core.control.job_queue import JobQueue
from flight_server.core.control.lakes import is_of_lake
from flight_server.core.control.watched import TableName, Watched
from store.model.errors import Conflict, NotFound, ShuttingDown, StatflightError
from store.queue.jobs import Job

log = logging.getLogger("statflight.server")

JITTER: Final = 0.1  # share of the interval by which a round starts early, so that it ends within the interval
START_SECONDS: Final = 2.0  # over which the first rounds are spread
PATIENCE_SECONDS: Final = 300.0  # without progress, until a look is abandoned
LISTED_SECONDS: Final = 2.0  # for which the list of lakes and paces is kept
BATCH: Final = 500  # most tables of one job
SHORT_SECONDS: Final = 10.0  # up to which an interval leaves no time to spread rounds
SHORT_EARLY: Final = 0.7  # share of such an interval after which a round starts
LATELY_SECONDS: Final = 86_400.0  # for which a table that was read or changed is looked at sooner than others
SOONER: Final = 4.0  # how much more often, where a budget makes looks rare
_TICK_SECONDS: Final = 0.25  # between looks whether running jobs are done, at most
_TICKS: Final = 20  # of them in an interval, at least


class Pace(NamedTuple):
    """How often a lake is looked at.

    Attributes:
        seconds: Between two looks, if the budget allows.
        bound: Seconds after which a table that was not looked at is not EXACT any more, if the budget allows; None for
            any time.
        budget: Requests a day; None for any number.
    """

    seconds: float
    bound: float | None = None
    budget: int | None = None


class Looks(Protocol):
    """What the watch asks of the lakes (`Lakes`)."""

    def watched(self, catalog: str) -> Sequence[Watched]:
        """The tables of a lake."""

    def set_intervals(self, seconds: Mapping[int, float | None]) -> None:
        """Stores the interval that holds for each table, by key."""

    def names_job(self, catalog: str) -> tuple[dict[str, Any], Job]:
        """Starts a look for new tables."""

    def look_job(self, catalog: str, only: Sequence[Sequence[str]]) -> tuple[dict[str, Any], Job]:
        """Starts a look at tables."""


class Findings(Protocol):
    """The store of what the looks of the watch have found (`LakeFindings`)."""

    def store_names(self, catalog: str, config: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """Stores which tables there are."""

    def store(
        self,
        catalog: str,
        config: Mapping[str, Any],
        found: Mapping[str, Any],
        *,
        whole: bool,
        present: Collection[TableName] = (),
    ) -> object:
        """Stores what was found of tables."""

    def note(self, catalog: str, only: Sequence[Sequence[str]] | None, reason: str) -> None:
        """Records that tables, or all of a lake, cannot be read."""


@dataclass
class _Look:
    """A job that is under way. `only` is None for one that looks for new tables."""

    config: dict[str, Any]
    job: Job
    started_at: float
    only: list[TableName] | None


@dataclass
class _Lake:
    due_at: float  # by the clock
    names_due_at: float = float("-inf")
    looks: list[_Look] = field(default_factory=list)
    listed: tuple[dict[str, Any], dict[str, Any]] | None = None  # configuration and findings about names, not stored
    asked: frozenset[TableName] = frozenset()  # tables of this round
    cost: float = 1.0  # requests of a look at one table, as of the last ones
    listing_cost: float = 1.0
    trouble: str = ""  # of the last round that had some, until one has none
    has_failed: bool = False  # in this round


class Watch:
    """Schedules looks.

    Args:
        pace_of: How often to look at a lake; None means never.
        clock: Seconds of a monotonic clock.
        now: Seconds since 1970.
    """

    def __init__(
        self,
        lakes: Looks,
        findings: Findings,
        queue: JobQueue,
        catalogs: Callable[[], list[str]],
        pace_of: Callable[[str], Pace | None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ):
        self._inspector, self._findings, self._queue, self._catalogs = lakes, findings, queue, catalogs
        self._pace_of, self._clock, self._now = pace_of, clock, now
        self._lakes: dict[str, _Lake] = {}
        self._paces: dict[str, Pace | None] = {}
        self._free: set[str] = set()  # lakes whose tables have no interval
        self._listed_until = float("-inf")

    def seconds_left(self) -> float:
        """Seconds until there is something to do."""
        lakes = self._lakes.values()
        shortest = min((pace.seconds for pace in self._paces.values() if pace is not None), default=_TICK_SECONDS)
        tick = min(_TICK_SECONDS, shortest / _TICKS)
        if any(lake.looks for lake in lakes):
            return tick
        return max(tick, min([self._listed_until, *(lake.due_at for lake in lakes)]) - self._clock())

    def step(self) -> None:
        """Stores the findings of finished looks and starts those that are due."""
        now = self._clock()
        if now >= self._listed_until:
            self._paces = {catalog: self._pace_of(catalog) for catalog in self._catalogs()}
            self._listed_until = now + LISTED_SECONDS
        paces = self._paces
        for catalog in [name for name in self._lakes if paces.get(name) is None]:
            self._queue.abandon([look.job for look in self._lakes.pop(catalog).looks])
        for catalog, pace in paces.items():
            if pace is None:
                self._set_free(catalog)
                continue
            self._free.discard(catalog)
            if catalog not in self._lakes:
                self._lakes[catalog] = _Lake(now + random.uniform(0.0, min(START_SECONDS, pace.seconds)))  # noqa: S311
            lake = self._lakes[catalog]
            try:
                for look in list(lake.looks):
                    self._follow(catalog, lake, look, now)
                if not lake.looks and now >= lake.due_at:
                    self._begin(catalog, lake, pace, now)
            except (NotFound, Conflict):  # dropped or replaced meanwhile
                lake.looks.clear()
            except ShuttingDown:
                return
            except StatflightError as error:
                lake.looks.clear()
                self._tell(catalog, lake, str(error))

    def _set_free(self, catalog: str) -> None:
        """Takes the intervals from the tables of a lake that is not looked at."""
        if catalog not in self._free:
            self._free.add(catalog)
            self._inspector.set_intervals({table.key: None for table in self._inspector.watched(catalog)})

    # A round.

    def _begin(self, catalog: str, lake: _Lake, pace: Pace, now: float) -> None:
        """Starts the looks that are due, and says when the next are."""
        spread = random.uniform(0.0, JITTER / 2)  # noqa: S311  no secret
        early = 1.0 - JITTER + spread if pace.seconds > SHORT_SECONDS else SHORT_EARLY
        lake.due_at, lake.listed, lake.has_failed = now + pace.seconds * early, None, False
        tables, since = sorted(self._inspector.watched(catalog), key=_last_used, reverse=True), self._now()
        recent = [since - (table.used_at or 0.0) < LATELY_SECONDS for table in tables]
        weights = [SOONER if is_recent else 1.0 for is_recent in recent]
        seconds = intervals(weights, lake.cost, lake.listing_cost, pace.seconds, pace.budget)
        self._set_intervals(pace, tables, seconds)
        if pace.budget is None:
            due = [table.name for table in tables]
        else:
            left = [each * early - (since - (t.checked_at or 0.0)) for t, each in zip(tables, seconds, strict=True)]
            due = [table.name for table, wait in zip(tables, left, strict=True) if wait <= 0.0]
            soonest = min((w if w > 0 else each * early for w, each in zip(left, seconds, strict=True)), default=0.0)
            lake.due_at = now + max(pace.seconds * early, soonest)
        lake.asked = frozenset(due)
        if now >= lake.names_due_at:
            slowest = max(seconds, default=pace.seconds)
            lake.names_due_at = now + slowest * early
            lake.looks.append(_Look(*self._inspector.names_job(catalog), now, None))
        self._look(catalog, lake, due, now)

    def _set_intervals(self, pace: Pace, tables: Sequence[Watched], seconds: Sequence[float]) -> None:
        """Stores the interval after which each table is not EXACT any more."""
        bound = pace.bound
        held = [None if bound is None else bound if each <= pace.seconds else max(bound, each) for each in seconds]
        self._inspector.set_intervals({table.key: each for table, each in zip(tables, held, strict=True)})

    def _look(self, catalog: str, lake: _Lake, names: Sequence[TableName], now: float) -> None:
        for start in range(0, len(names), BATCH):
            only = list(names[start : start + BATCH])
            lake.looks.append(_Look(*self._inspector.look_job(catalog, list(map(list, only))), now, only))

    def _follow(self, catalog: str, lake: _Lake, look: _Look, now: float) -> None:
        """Ends a look that is done, and abandons one that hangs."""
        job = look.job
        if job.done.is_set():
            lake.looks.remove(look)
            if job.error is not None:
                if is_of_lake(job.error):
                    self._findings.note(catalog, None if look.only is None else look.only, str(job.error))
                self._tell(catalog, lake, str(job.error))
            else:
                self._store(catalog, lake, look, (job.result or {}).get("result") or {}, now)
            if not lake.looks and not lake.has_failed:
                self._tell(catalog, lake, "")
        elif job.token and now - max(job.touched_at, look.started_at) > PATIENCE_SECONDS and not job.cancelled:
            self._queue.abandon([job])  # its end is awaited: a lake has one hanging round at most
            reason = f"a look made no progress for {PATIENCE_SECONDS:.0f} s"
            self._findings.note(catalog, look.only, reason)
            self._tell(catalog, lake, reason)

    def _store(self, catalog: str, lake: _Lake, look: _Look, found: dict[str, Any], now: float) -> None:
        """Stores findings. Names are stored after the new tables of the round were looked at: a table that has another
        name now keeps its statistics."""
        requests = float(found.get("requests", 0))
        if look.only is None:
            lake.listing_cost = max(1.0, requests)
            if "names" in found:
                lake.listed = look.config, found
                known = lake.asked | {table.name for table in self._inspector.watched(catalog)}
                self._look(catalog, lake, [of for of in map(_name, found["names"]) if of not in known], now)
        elif "tables" in found:
            lake.cost = max(1.0, requests / max(1, len(look.only)))
            present = [] if lake.listed is None else [_name(name) for name in lake.listed[1]["names"]]
            self._findings.store(catalog, look.config, found, whole=False, present=present)
        if lake.listed is not None and not lake.looks:
            (config, names), lake.listed = lake.listed, None
            self._findings.store_names(catalog, config, names)

    def _tell(self, catalog: str, lake: _Lake, error: str) -> None:
        """Logs an error once, and its end once."""
        if error and error != lake.trouble:
            log.warning("watch: the lake %s cannot be read: %s", catalog, error)
        elif lake.trouble and not error:
            log.info("watch: the lake %s can be read again", catalog)
        lake.trouble, lake.has_failed = error, bool(error)


def _name(listed: Sequence[str]) -> TableName:
    namespace, name = listed
    return namespace, name


def _last_used(table: Watched) -> float:
    return table.used_at or 0.0
