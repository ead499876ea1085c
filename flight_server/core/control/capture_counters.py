"""Counters of captures since the server started, for metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

READ: Final = ("rows", "bytes")  # attributes of outcomes: `rows_read`, `bytes_read`


class CaptureCounters:
    """Thread-safe counters.

    Attributes:
        read: Rows or bytes (see READ) read from the lake, by engine. A row counts once for each column.
        rows, size_bytes: Of the statistics published, by flight; bytes as Arrow holds them.
        seconds: By kind of lease, how many captures ended and how long they took together.
        lease_expiries: Leases that ran out.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.read: Counter[tuple[str, str]] = Counter()
        self.rows: Counter[str] = Counter()
        self.size_bytes: Counter[str] = Counter()
        self.seconds: dict[str, tuple[int, float]] = {}
        self.lease_expiries = 0
        self._lock = threading.Lock()

    def ended(self, kind: str, seconds: float, outcomes: Iterable[Mapping[str, Any]]) -> None:
        """Counts a lease that ended: its kind, duration and the outcomes of its requests."""
        with self._lock:
            count, total = self.seconds.get(kind, (0, 0.0))
            self.seconds[kind] = (count + 1, total + seconds)
            for outcome in outcomes:
                engine = outcome["engine_id"] or ""
                self.outcomes[engine, outcome["outcome"]] += 1
                for what in READ:
                    amount = (outcome.get("attributes") or {}).get(f"{what}_read")
                    if isinstance(amount, int) and amount > 0:  # attributes come from the worker and are not checked
                        self.read[engine, what] += amount

    def committed(self, sizes: Iterable[tuple[str, int, int]]) -> None:
        """Counts published rows: flight, number of rows and of bytes of each put."""
        with self._lock:
            for flight, rows, size_bytes in sizes:
                self.rows[flight] += rows
                self.size_bytes[flight] += size_bytes

    def lost(self, leases: int) -> None:
        """Counts leases that ran out."""
        with self._lock:
            self.lease_expiries += leases
