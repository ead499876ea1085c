"""Tasks: work for a worker that somebody waits for, in lanes, so that short work waits for no long one.

A task is gone with the server: whoever waits asks again. `control.leases` hands tasks to workers.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from store.catalog_store import Catalog
from store.errors import Cancelled, ResourceExhausted, ShuttingDown, StatflightError, UpstreamError
from store.targets import Target

LANES: Final = {
    "control": ("control",), "sync": ("light", "sync"), "light": ("light",), "watch": ("watch",),
    "publish": ("publish",),
}  # fmt: skip
"""Kind of lease → the lanes of tasks it serves, in this order. What metadata answers waits for no scan."""
LOOKS: Final = ("control", "watch")  # kinds of tasks that look at a lake: somebody waits for it, or nobody
MAX_TASKS: Final = 10_000
MAX_LOST: Final = 3  # workers that may be lost over one task
MAX_BUNDLE: Final = 64  # tasks of one lease call
_TICK_SECONDS: Final = 0.05  # between looks at whether a caller is still there


@dataclass
class Task:
    """Work that a caller waits for, or the watch.

    Attributes:
        kind: Kind of lease that serves it: `control`, `watch`, `sync` or `publish`.
        payload: What the worker gets.
        table_key: The table whose statistics are put under its lease; None where none are.
        light: Metadata answers it.
        listed: It is in the job list while it is under way.
        bundled: One request queued it along with others: a worker may lease several of them at once.
        lost: Leases of it that ran out.
        catalog: The lake that is looked at.
        touched_at: When its worker last had progress to report; by the queue's clock.
    """

    kind: str
    payload: Mapping[str, Any]
    table_key: int | None = None
    correlation_id: str = ""
    light: bool = False
    listed: bool = True
    bundled: bool = False
    id: str = ""
    token: str = ""
    leased_at: float = 0.0
    lease_until: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    result: Mapping[str, Any] | None = None
    error: StatflightError | None = None
    cancelled: bool = False
    lost: int = 0
    queued_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    started_at: datetime | None = None
    catalog: str = ""
    touched_at: float = 0.0
    progress: float | None = None
    message: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            self.id = f"{'look' if self.table_key is None else 'task'}-{uuid.uuid4()}"

    @property
    def lane(self) -> str:
        """The queue it waits in."""
        return "light" if self.light else self.kind


def lanes_of(kinds: Iterable[str]) -> list[str]:
    """The lanes that leases of these kinds serve, in order."""
    return [lane for kind in kinds for lane in LANES.get(kind, ())]


class TaskQueue:
    """Tasks that wait, and those in the hands of workers.

    Attributes:
        changed: Notified when there may be work, or work has ended; guards all state of the queue.
        leased: Tasks in a worker's hands, by the token of the lease.
        has_worker: Whether a worker serves a lane; given by `control.leases`.

    Args:
        catalog: For the names of tables in the job list.
        clock: Seconds, monotonic.
    """

    def __init__(self, catalog: Catalog, clock: Callable[[], float] = time.monotonic):
        self._catalog, self.clock = catalog, clock
        self.changed = threading.Condition()
        self._waiting: dict[str, deque[Task]] = {lane: deque() for lane in LANES}
        self.leased: dict[str, Task] = {}
        self.has_worker: Callable[[str], bool] = lambda _: True
        self._closing = False

    # For those who want work done.

    def submit(self, task: Task) -> Task:
        """Queues a task, as `submit_all` does."""
        self.submit_all([task])
        return task

    def submit_all(self, tasks: Sequence[Task]) -> None:
        """Queues tasks, all or none.

        Raises:
            ShuttingDown: The server ends.
            ResourceExhausted: Too many tasks wait already.
        """
        with self.changed:
            if self._closing:
                raise ShuttingDown("the server is shutting down")
            waiting = sum(map(len, self._waiting.values()))
            if waiting and waiting + len(tasks) > MAX_TASKS:
                raise ResourceExhausted(f"{waiting} tasks wait already", hint="try again later")
            for task in tasks:
                task.touched_at = self.clock()
                self._waiting[task.lane].append(task)
            self.changed.notify_all()

    def wait(
        self, task: Task, timeout: float | None = None, is_cancelled: Callable[[], bool] = lambda: False
    ) -> Mapping[str, Any] | None:
        """Waits for a task.

        Args:
            task: The task.
            timeout: Seconds; None waits as long as it takes.
            is_cancelled: Whether the caller has gone away; the task is abandoned then.

        Returns:
            The task's result; None when the time is spent first.

        Raises:
            StatflightError: The task's own error; Cancelled, ShuttingDown, or UpstreamError without a worker.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not task.done.wait(
            _TICK_SECONDS if deadline is None else max(0.0, min(_TICK_SECONDS, deadline - time.monotonic()))
        ):
            if self._closing:
                raise ShuttingDown("the server is shutting down")
            if is_cancelled():
                self.abandon(task)
                raise Cancelled("the caller went away")
            if deadline is not None and time.monotonic() >= deadline:
                return None
            if not task.token and not self.has_worker(task.lane):
                self.abandon(task)
                raise UpstreamError(
                    f"no {task.kind} worker is connected",
                    code="NO_WORKER", hint="start one: statflight worker --server …, or serve with --workers 1",
                )  # fmt: skip
        if task.error is not None:
            raise task.error
        return task.result

    def abandon(self, task: Task) -> None:
        """Nobody waits any more: what has not begun never does, what runs is stopped."""
        with self.changed:
            task.cancelled = True
            if task in self._waiting[task.lane]:
                self._waiting[task.lane].remove(task)

    def cancel(self, job_id: str) -> None:
        """Cancels a task that somebody waits for, who hears of it at once."""
        task = next((task for task in self._all() if task.id == job_id), None)
        if task is not None:
            self.abandon(task)
            task.error = Cancelled("the job was cancelled")
            task.done.set()

    def notify(self) -> None:
        """Wakes whoever waits for work: a durable job may be ready."""
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        """Takes no more work, and sends away whoever waits."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()

    @property
    def closing(self) -> bool:
        """True once the server shuts down: nothing new is taken."""
        return self._closing

    # For leases; the caller holds `changed`.

    def take(self, kinds: Sequence[str], lease_seconds: float, most: int = 1) -> list[Task]:
        """The next tasks that leases of these kinds serve, each with a token of its own.

        More than one only of those that one request queued together, and at most a quarter of what waits, so that
        other workers get theirs. A task that a worker was lost over goes alone: it may be what kills workers.
        """
        for lane in lanes_of(kinds):
            if waiting := self._waiting[lane]:
                most = min(most, MAX_BUNDLE, 1 + len(waiting) // 4)
                taken = [waiting.popleft()]
                while len(taken) < most and all(t.bundled and not t.lost for t in (taken[0], waiting[0])):
                    taken.append(waiting.popleft())
                for task in taken:
                    task.token = uuid.uuid4().hex
                    task.leased_at = task.touched_at = self.clock()
                    task.started_at = task.started_at or datetime.now(UTC)
                    task.lease_until = task.leased_at + lease_seconds
                    self.leased[task.token] = task
                return taken
        return []

    def give_back(self, tokens: Iterable[str]) -> int:
        """Queues tasks again, first, whose worker has not begun them; how many those were."""
        given = [task for token in tokens if (task := self.leased.pop(token, None)) is not None]
        for task in reversed(given):
            task.token, task.started_at = "", None
            if not task.cancelled:
                self._waiting[task.lane].appendleft(task)
        return len(given)

    def has_work(self, kinds: Sequence[str]) -> bool:
        """True when a task waits that leases of these kinds serve."""
        return any(self._waiting[lane] for lane in lanes_of(kinds))

    def take_back(self) -> int:
        """Queues tasks again whose lease ran out, first; gives up those that may be what kills workers.

        Returns:
            How many leases ran out.
        """
        late = [task for task in self.leased.values() if task.lease_until < self.clock()]
        for task in late:
            del self.leased[task.token]
            task.token = ""
            task.lost += 1
            if task.lost >= MAX_LOST:
                task.error = UpstreamError(f"{task.lost} workers were lost over it", code="WORKER_LOST")
                task.done.set()
            elif not task.cancelled:
                self._waiting[task.lane].appendleft(task)
        return len(late)

    def depths(self) -> dict[str, int]:
        """Numbers of waiting tasks by lane."""
        return {lane: len(tasks) for lane, tasks in self._waiting.items()}

    # The job list.

    def _all(self) -> list[Task]:
        with self.changed:
            return [task for waiting in self._waiting.values() for task in waiting] + list(self.leased.values())

    def live_job(self, job_id: str) -> dict[str, Any] | None:
        """The job of `live_jobs` with this id."""
        return next((row for row in self.live_jobs() if row["job_id"] == job_id), None)

    def live_jobs(self) -> list[dict[str, Any]]:
        """Rows of `sys.capture_jobs` for the tasks that somebody waits for, with the `table_key` of each."""
        return [self._row(task) for task in self._all() if task.kind != "watch" and task.listed]

    def _row(self, task: Task) -> dict[str, Any]:
        names = dict.fromkeys(("table_catalog", "table_schema", "table_name"))
        if task.table_key is not None:
            names = dict(zip(names, self._catalog.by_key(task.table_key).name, strict=True))
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
