"""The connected workers: the kinds of leases they serve, and their threads that wait for work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

LANES: Final = {
    "control": ("control",),
    "sync": ("light", "sync"),
    "light": ("light",),
    "watch": ("watch",),
    "publish": ("publish",),
}
"""Kind of lease → the lanes it serves, in this order. What metadata answers waits for no scan."""
GRACE_SECONDS: Final = 15.0  # for a worker to connect, from the start of the server or the worker's last poll
FORGET_SECONDS: Final = 60.0  # after its last poll a worker is forgotten


@dataclass
class _Worker:
    kinds: frozenset[str] = frozenset()
    last_seen: float = 0.0
    polling: int = 0
    engines: Sequence[Mapping[str, Any]] = ()


class Workers:
    """The workers of a queue.

    Args:
        lock: The queue's; callers of `wait` and `wake` hold it.
        has_own: True while a process that the server has started for a lane lives, connected or not.
    """

    def __init__(
        self, lock: threading.RLock, clock: Callable[[], float], has_own: Callable[[str], bool] = lambda _lane: False
    ):
        self._lock, self._clock, self._started = lock, clock, clock()
        self._workers: dict[str, _Worker] = {}
        self._served: set[str] = set()  # lanes that a worker has asked for work of, since the start
        self._waiting: dict[threading.Condition, Sequence[str]] = {}  # of threads → kinds of leases
        self.has_own = has_own

    @contextmanager
    def polling(self, worker_id: str, kinds: Sequence[str], engines: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Notes that a worker asks for these kinds of leases during the block; without engines it keeps its own."""
        with self._lock:
            worker = self._workers.setdefault(worker_id, _Worker())
            worker.kinds |= frozenset(kinds)
            worker.engines = engines or worker.engines
            worker.polling += 1
            self._served.update(lanes_of(kinds))
        try:
            yield
        finally:
            with self._lock:
                worker.polling -= 1
                worker.last_seen = self._clock()

    def serve(self, lane: str) -> bool:
        """True when a worker serves a lane, or may still be starting: the server is young, or its own worker lives."""
        return self._started > self._clock() - GRACE_SECONDS or self.are_connected(lane)

    def have_served(self, lane: str) -> bool:
        """True if a worker that serves a lane has connected since the start."""
        return lane in self._served

    def are_connected(self, lane: str) -> bool:
        """True when a worker serves a lane, or the server's own one that will lives."""
        grace = self._clock() - GRACE_SECONDS
        with self._lock:
            for worker in self._workers.values():
                if lane in lanes_of(worker.kinds) and (worker.polling or worker.last_seen > grace):
                    return True
        return self.has_own(lane)

    def engines(self) -> list[Mapping[str, Any]]:
        """Rows of `sys.engines`, each engine once, of a worker that could load it if there is one."""
        with self._lock:
            rows = [row for worker in self._workers.values() for row in worker.engines]
        return list({row["engine_id"]: row for row in sorted(rows, key=lambda row: not row.get("error"))}.values())

    def forget(self) -> None:
        """Forgets workers that have not been seen for FORGET_SECONDS."""
        oldest = self._clock() - FORGET_SECONDS
        with self._lock:
            self._workers = {i: w for i, w in self._workers.items() if w.polling or w.last_seen > oldest}

    def wait(self, kinds: Sequence[str], seconds: float) -> None:
        """Waits until there may be work for these kinds of leases.

        Each thread has its own condition, so that a job wakes one of them, not all.
        """
        condition = threading.Condition(self._lock)
        self._waiting[condition] = kinds
        try:
            condition.wait(seconds)
        finally:
            self._waiting.pop(condition, None)

    def wake(self, lanes: Iterable[str]) -> None:
        """Wakes a thread for each job that waits in one of these lanes, the one that has waited longest."""
        for lane in lanes:
            condition = next((each for each, kinds in self._waiting.items() if lane in lanes_of(kinds)), None)
            if condition is not None:
                del self._waiting[condition]
                condition.notify()

    def wake_all(self, kinds: Iterable[str]) -> None:
        """Wakes all threads that wait for one of these kinds of leases."""
        for condition, waited in self._waiting.items():
            if not frozenset(kinds).isdisjoint(waited):
                condition.notify()


def lanes_of(kinds: Iterable[str]) -> list[str]:
    """The lanes that these kinds of leases serve, in order."""
    return [lane for kind in kinds for lane in LANES.get(kind, ())]
