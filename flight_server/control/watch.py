"""The watch: a look at each connected lake every so many seconds, so that EXACT is never older than that.

One thread schedules, workers look. Each lake has its own schedule, spread by jitter, and at most one look under way;
a look that hangs or fails delays no other. The schedule holds no state that a restart would miss: at the start every
lake is due.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from flight_server.control.task_queue import Task, TaskQueue
from store.errors import Conflict, NotFound, ShuttingDown, StatflightError

log = logging.getLogger("statflight.server")

JITTER: Final = 0.1  # share of the interval by which a look may come early
START_SECONDS: Final = 2.0  # over which the first looks are spread
PATIENCE_SECONDS: Final = 300.0  # without progress, until a look is given up
LISTED_SECONDS: Final = 2.0  # that the list of lakes and their intervals is good
_TICK_SECONDS: Final = 0.25


class LakeInspector(Protocol):
    """The part of `control.lakes.Lakes` that the watch needs."""

    def watch_task(self, catalog: str) -> tuple[dict[str, Any], Task]:
        """Begins a look: the connector's configuration and the task to wait for.

        Raises:
            NotFound: The connector was dropped.
        """

    def store(self, catalog: str, config: dict[str, Any], found: Any, *, whole: bool) -> Any:
        """Stores what a look found, if the configuration is still the same; `whole` drops tables that it did not find.

        Raises:
            Conflict: The connector was replaced meanwhile.
        """

    def note(self, catalog: str, only: None, reason: str) -> None:
        """Records why a look failed; `sys.connectors` shows it."""


@dataclass
class _Lake:
    due_at: float  # by the clock
    started_at: float = 0.0
    config: dict[str, Any] | None = None
    task: Task | None = None
    trouble: str = ""  # of the last look


class Watch:
    """Schedules looks.

    Args:
        lakes: Starts inspections and stores their results.
        tasks: Runs the looks.
        catalogs: Names of the connected lakes.
        interval_of: Seconds between two looks at a lake, None where it is never looked at.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, lakes: LakeInspector, tasks: TaskQueue, catalogs: Callable[[], list[str]],
        interval_of: Callable[[str], float | None], clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self._inspector, self._tasks, self._catalogs = lakes, tasks, catalogs
        self._interval_of, self._clock = interval_of, clock
        self._lakes: dict[str, _Lake] = {}
        self._intervals: dict[str, float | None] = {}
        self._listed_until = float("-inf")
        self._stop = threading.Event()

    def start(self) -> None:
        """Begins to watch, in a thread of its own."""
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Begins no further look."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            try:
                self.step()
            except Exception:
                log.exception("the watch failed; it is tried again")
                self._stop.wait(5.0)

    def step(self) -> None:
        """Stores what looks have found and begins those that are due."""
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
                if lake.task is not None:
                    self._follow(catalog, lake, now)
                if lake.task is None and now >= lake.due_at:
                    self._begin(catalog, lake, now, interval)
            except (NotFound, Conflict):  # dropped or replaced meanwhile
                lake.task = None
            except ShuttingDown:
                return
            except StatflightError as error:
                lake.task = None
                self._tell(catalog, lake, str(error))

    def _begin(self, catalog: str, lake: _Lake, now: float, interval: float) -> None:
        lake.started_at = now
        lake.due_at = now + interval * (1.0 - random.uniform(0.0, JITTER))  # noqa: S311  spreads load, no secret
        lake.config, lake.task = self._inspector.watch_task(catalog)

    def _follow(self, catalog: str, lake: _Lake, now: float) -> None:
        """Ends a look that is done, and gives up one that hangs."""
        task = lake.task
        assert task is not None
        if task.done.is_set():
            lake.task = None
            if task.error is not None:
                self._inspector.note(catalog, None, str(task.error))
                self._tell(catalog, lake, str(task.error))
            elif lake.config is not None:
                self._inspector.store(catalog, lake.config, (task.result or {}).get("result") or {}, whole=True)
                self._tell(catalog, lake, "")
        elif task.token and now - max(task.touched_at, lake.started_at) > PATIENCE_SECONDS and not task.cancelled:
            self._tasks.abandon(task)  # and waited for: one hanging look at a lake is enough
            reason = f"a look made no progress for {PATIENCE_SECONDS:.0f} s"
            self._inspector.note(catalog, None, reason)
            self._tell(catalog, lake, reason)

    def _abandon(self, lake: _Lake) -> None:
        if lake.task is not None:
            self._tasks.abandon(lake.task)

    def _tell(self, catalog: str, lake: _Lake, error: str) -> None:
        """Logs a trouble once, and its end."""
        if error and error != lake.trouble:
            log.warning("watch: the lake %s cannot be read: %s", catalog, error)
        elif lake.trouble and not error:
            log.info("watch: the lake %s can be read again", catalog)
        lake.trouble = error
