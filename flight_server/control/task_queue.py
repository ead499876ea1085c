"""Tasks: work for a worker that a caller waits for, in lanes, so that short tasks do not wait for long ones.

Tasks live in memory: after a restart of the server, callers ask again. `control.leases` hands tasks to workers.
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

from store.catalog.catalog import Catalog
from store.model.errors import Cancelled, ResourceExhausted, ShuttingDown, StatflightError, UpstreamError
from store.model.targets import Target

LANES: Final = {
    "control": ("control",), "sync": ("light", "sync"), "light": ("light",), "watch": ("watch",),
    "publish": ("publish",),
}  # fmt: skip
"""Kind of lease → the lanes of tasks it serves, in this order. What metadata answers waits for no scan."""
LOOKS: Final = ("control", "watch")  # kinds of tasks that inspect a lake: for a caller, or for the watch
_DURABLE: Final = frozenset(("job", "light"))  # kinds of leases that durable jobs are handed out for
MAX_TASKS: Final = 10_000
MAX_LOST: Final = 3  # lost workers after which a task fails
CANCELLED_KEPT: Final = 100  # cancelled captures that stay in the job list
MAX_BUNDLE: Final = 64  # tasks of one lease call
_TICK_SECONDS: Final = 0.05  # between checks whether the caller has left


@dataclass
class Task:
    """Work that a caller or the watch waits for.

    Attributes:
        kind: Kind of its lease: `control`, `watch`, `sync` or `publish`.
        payload: The worker's input.
        table_key: The table captured; None for other tasks.
        light: It needs metadata only.
        listed: It is in the job list until it ends.
        bundled: One request queued it along with others: a worker may lease several of them at once.
        lost: Number of its leases that expired.
        catalog: The lake inspected.
        touched_at: Time of its last progress report, by the queue's clock.
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
    def ends_cancelled(self) -> bool:
        """True for a cancelled capture: nothing of it is published, whatever its worker still does."""
        return self.cancelled and self.kind == "sync"

    @property
    def lane(self) -> str:
        """The queue it waits in."""
        return "light" if self.light else self.kind


def lanes_of(kinds: Iterable[str]) -> list[str]:
    """The lanes that these kinds of leases serve, in order."""
    return [lane for kind in kinds for lane in LANES.get(kind, ())]


class TaskQueue:
    """Waiting and leased tasks.

    Attributes:
        lock: Guards all state of the queue.
        leased: Leased tasks by token.
        check_writes: Raises where this server takes no writes, and so has no use for results.
        has_worker: True when a worker serves a lane; set by `control.leases`.

    Args:
        catalog: For the names of tables in the job list.
        clock: Seconds, monotonic.
    """

    def __init__(self, catalog: Catalog, clock: Callable[[], float] = time.monotonic):
        self._catalog, self.clock = catalog, clock
        self.lock = threading.RLock()
        self._pollers: dict[threading.Condition, Sequence[str]] = {}  # waiting ones → kinds of leases
        self._waiting: dict[str, deque[Task]] = {lane: deque() for lane in LANES}
        self.leased: dict[str, Task] = {}
        self._cancelled: deque[Task] = deque(maxlen=CANCELLED_KEPT)
        self.has_worker: Callable[[str], bool] = lambda _: True
        self.check_writes: Callable[[], None] = lambda: None
        self._closing = False

    # For callers.

    def submit(self, task: Task) -> Task:
        """Queues a task, as `submit_all` does."""
        self.submit_all([task])
        return task

    def submit_all(self, tasks: Sequence[Task]) -> None:
        """Queues tasks, all or none.

        Raises:
            ShuttingDown: The server ends.
            ResourceExhausted: Too many tasks wait already.
            ReadOnly: This server takes no writes.
        """
        self.check_writes()
        with self.lock:
            if self._closing:
                raise ShuttingDown("the server is shutting down")
            waiting = sum(map(len, self._waiting.values()))
            if waiting and waiting + len(tasks) > MAX_TASKS:
                raise ResourceExhausted(f"{waiting} tasks wait already", hint="try again later")
            for task in tasks:
                task.touched_at = self.clock()
                self._waiting[task.lane].append(task)
            self._wake(tasks)

    def wait(
        self, task: Task, timeout: float | None = None, is_cancelled: Callable[[], bool] = lambda: False
    ) -> Mapping[str, Any] | None:
        """Waits for a task.

        Args:
            task: The task.
            timeout: Seconds; None waits without limit.
            is_cancelled: True once the caller has left; the task is abandoned then.

        Returns:
            The task's result; None after the timeout.

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
                raise Cancelled("the caller has disconnected")
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
        """Drops a task that no caller waits for: it is not begun, or stopped if it runs."""
        with self.lock:
            if task.done.is_set() or task.cancelled:
                return
            task.cancelled = True
            if task.kind == "sync":
                self._cancelled.append(task)
            if task in self._waiting[task.lane]:
                self._waiting[task.lane].remove(task)

    def cancel(self, job_id: str) -> None:
        """Cancels a task; its caller gets the error at once."""
        task = next((task for task in self._all() if task.id == job_id), None)
        if task is not None:
            self.abandon(task)
            task.error = Cancelled("the job was cancelled")
            task.done.set()

    def notify(self) -> None:
        """Wakes the workers that wait for durable jobs: one may be ready."""
        with self.lock:
            for poller, kinds in self._pollers.items():
                if not _DURABLE.isdisjoint(kinds):
                    poller.notify()

    def close(self) -> None:
        """Refuses new tasks, and ends all waiting with ShuttingDown."""
        with self.lock:
            self._closing = True
            for poller in self._pollers:
                poller.notify()

    @property
    def closing(self) -> bool:
        """True once the server shuts down and refuses new tasks."""
        return self._closing

    # For leases; the caller holds `lock`.

    def wait_for_work(self, kinds: Sequence[str], seconds: float) -> None:
        """Waits until there may be work for these kinds of leases.

        Each poller has its own condition, so that a task wakes one worker's thread, not all of them.
        """
        poller = threading.Condition(self.lock)
        self._pollers[poller] = kinds
        try:
            poller.wait(seconds)
        finally:
            self._pollers.pop(poller, None)

    def _wake(self, tasks: Iterable[Task]) -> None:
        """Wakes a poller for each task, the one that waits longest."""
        for task in tasks:
            poller = next((each for each, kinds in self._pollers.items() if task.lane in lanes_of(kinds)), None)
            if poller is not None:
                del self._pollers[poller]
                poller.notify()

    def take(self, kinds: Sequence[str], lease_seconds: float, most: int = 1) -> list[Task]:
        """Leases the next tasks of these kinds, each with its own token.

        Several only when one request queued them together, and at most a quarter of those waiting, so that other
        workers get their share. A task whose worker was lost is leased alone: it may be what kills workers.
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
        """Puts tasks that their worker has not begun back at the head of the queue; returns how many."""
        given = [task for token in tokens if (task := self.leased.pop(token, None)) is not None]
        for task in reversed(given):
            task.token, task.started_at = "", None
            if not task.cancelled:
                self._waiting[task.lane].appendleft(task)
        self._wake(given)
        return len(given)

    def has_work(self, kinds: Sequence[str]) -> bool:
        """True when a task of these kinds of leases waits."""
        return any(self._waiting[lane] for lane in lanes_of(kinds))

    def take_back(self) -> int:
        """Puts tasks whose lease expired back at the head of the queue; fails those that lost MAX_LOST workers.

        Returns:
            Number of expired leases.
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
        self._wake(late)
        return len(late)

    def depths(self) -> dict[str, int]:
        """Numbers of waiting tasks by lane."""
        return {lane: len(tasks) for lane, tasks in self._waiting.items()}

    # The job list.

    def _all(self) -> list[Task]:
        with self.lock:
            active = [task for waiting in self._waiting.values() for task in waiting] + list(self.leased.values())
            return [task for task in active if not task.ends_cancelled] + list(self._cancelled)

    def live_job(self, job_id: str) -> dict[str, Any] | None:
        """The job of `live_jobs` with this id."""
        return next((row for row in self.live_jobs() if row["job_id"] == job_id), None)

    def live_jobs(self) -> list[dict[str, Any]]:
        """Rows of `sys.capture_jobs` for the tasks that callers wait for, each with its `table_key`."""
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
            "state": "CANCELLED" if task.ends_cancelled else "CANCELLING" if task.cancelled
            else "RUNNING" if task.token else "QUEUED",
            "targets": json.dumps(targets), "attempts": task.lost + bool(task.token), "queued_at": task.queued_at,
            "started_at": task.started_at, "progress": task.progress or 0.0, "degraded": False, "stats_processed": 0,
            "message": task.message or None,
        }  # fmt: skip
