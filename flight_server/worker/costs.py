"""Requests that a worker makes for its leases, reported to the server (`note_costs`)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from capture.connectors.storage.requests import Counts, Meter, counting, meter
from flight_server.client.connection import Connection
from flight_server.worker.lease_keeper import ACTION_SECONDS

log = logging.getLogger("statflight.worker")

LONG_SECONDS: Final = 30.0  # after which the requests of work that goes on are reported
_REASONS: Final = {"watch": "watch", "publish": "publish", "control": "watch"}  # by kind of lease; others capture
_OPERATIONS: Final = {"discover": "watch", "names": "watch", "validate": "watch"}  # those of others plan

Key = tuple[str, str, str]
"""Catalog, operation, reason."""


@dataclass
class _Work:
    catalog: str
    reason: str
    meter: Meter = field(default_factory=Meter)
    since: float = field(default_factory=time.monotonic)


class Costs:
    """Counts the requests of each lease, and reports those of ended ones. Thread-safe."""

    def __init__(self, server: Connection):
        self._server = server
        self._lock = threading.Lock()
        self._sums: dict[Key, list[int]] = {}  # not reported yet
        self._works: dict[int, _Work] = {}
        self._is_known = True  # False for a server that does not take them

    @contextmanager
    def counting(self, lease: Mapping[str, Any]) -> Iterator[None]:
        """Counts the requests of the block for a lease."""
        payload = lease["payload"]
        work = _Work(payload["connector"]["catalog"], _reason(lease["kind"], payload))
        with self._lock:
            self._works[id(work)] = work
        try:
            with counting(work.meter):
                yield
        finally:
            with self._lock:
                del self._works[id(work)]
            self._add(work)

    @staticmethod
    def so_far() -> int:
        """Number of requests of the lease that this thread works on."""
        current = meter()
        return 0 if current is None else current.total

    def send(self) -> None:
        """Reports what ended, and what takes long; called periodically."""
        now = time.monotonic()
        with self._lock:
            long = [work for work in self._works.values() if now - work.since > LONG_SECONDS]
        for work in long:
            work.since = now
            self._add(work)
        with self._lock:
            sums, self._sums = self._sums, {}
        if not sums or not self._is_known:
            return
        names = ("catalog", "operation", "reason", "requests", "bytes")
        costs = [dict(zip(names, (*key, *counts), strict=True)) for key, counts in sums.items()]
        try:
            self._server.act("note_costs", {"costs": costs}, ACTION_SECONDS)
        except (pa.ArrowNotImplementedError, NotImplementedError):
            self._is_known = False
        except (pa.ArrowException, OSError):  # they are told with the next ones
            with self._lock:
                for key, counts in sums.items():
                    self._sum(key, *counts)

    def _add(self, work: _Work) -> None:
        counts: Counts = work.meter.take()
        with self._lock:
            for operation, (requests, size_bytes) in counts.items():
                self._sum((work.catalog, operation, work.reason), requests, size_bytes)

    def _sum(self, key: Key, requests: int, size_bytes: int) -> None:
        found = self._sums.setdefault(key, [0, 0])
        found[0] += requests
        found[1] += size_bytes


def _reason(kind: str, payload: Mapping[str, Any]) -> str:
    """Why a lease makes requests; a payload may say it."""
    if said := payload.get("reason"):
        return str(said)
    if kind == "control":
        return _OPERATIONS.get(payload.get("operation", ""), "plan")
    return _REASONS.get(kind, "capture")
