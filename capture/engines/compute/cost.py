"""Choice between this process and Spark for a scan, by the measured cost of both."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Final

_LEARNED: Final = 0.3  # weight of a new measurement


@dataclass(slots=True)
class Cost:
    """Seconds that a scan takes, estimated from its cells (rows times columns). Thread-safe.

    Attributes:
        local_rate: Cells a second in this process, with all its threads.
        spark_rate: Cells a second on a warm session, apart from `spark_seconds`.
        spark_seconds: What a job on a warm session takes however small it is.
        start_seconds: From a cold session to a warm one, while the kernels here go on.
    """

    local_rate: float = 15e6 * min(os.cpu_count() or 2, 4)
    spark_rate: float = 30e6 * (os.cpu_count() or 2)
    spark_seconds: float = 0.5
    start_seconds: float = 8.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def local(self, cells: int) -> float:
        """Seconds in this process."""
        return cells / self.local_rate

    def spark(self, cells: int) -> float:
        """Seconds on a warm session."""
        return self.spark_seconds + cells / self.spark_rate

    def prefers_spark(self, cells: int, is_warm: bool) -> bool:
        """True if Spark finishes sooner; a cold session has to be worth its start.

        What is computed here while the session starts is not lost, so only the rest counts.
        """
        if is_warm:
            return self.spark(cells) < self.local(cells)
        rest = cells - int(self.start_seconds * self.local_rate)
        return rest > 0 and self.spark(rest) < self.local(rest)

    def learn_local(self, cells: int, seconds: float) -> None:
        """Takes in a measured scan in this process."""
        if seconds > 0.2:  # below, the fixed cost of a capture is what was measured
            with self._lock:
                self.local_rate += _LEARNED * (cells / seconds - self.local_rate)

    def learn_spark(self, cells: int, seconds: float) -> None:
        """Takes in a measured job on a warm session."""
        if seconds > 2 * self.spark_seconds:
            with self._lock:
                self.spark_rate += _LEARNED * (cells / (seconds - self.spark_seconds) - self.spark_rate)
