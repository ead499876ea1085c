"""Choice between this process and Spark for a scan, by the measured cost of both."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import dataclass, field
from typing import Final

_LEARNED: Final = 0.3  # weight of a new measurement


@dataclass(slots=True)
class Cost:
    """Estimates the seconds of a scan from its cells (rows times columns). Thread-safe.

    The initial rates were measured with TPC-H tables on an idle core; each scan corrects those of its side. Until the
    other side is measured too, its rate changes by the same factor, because a busy machine slows both.

    Attributes:
        local_rate: Cells per second in this process, with all its threads.
        spark_rate: Cells per second on a warm session, without `spark_seconds`.
        spark_seconds: Fixed seconds of a job on a warm session.
        start_seconds: Seconds to start a session; this process computes meanwhile.
    """

    local_rate: float = 30e6 * min(os.cpu_count() or 2, 4)  # more threads wait for the GIL
    spark_rate: float = 30e6 * (os.cpu_count() or 2)
    spark_seconds: float = 0.5
    start_seconds: float = 8.0
    _measured: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def threshold(self, *, is_warm: bool) -> float:
        """Cells above which Spark finishes sooner; infinity if it never does.

        While a session starts this process computes, so the cells of that time do not count.

        Args:
            is_warm: Whether a session is ready.
        """
        saved = 1 / self.local_rate - 1 / self.spark_rate  # seconds per cell
        meanwhile = 0.0 if is_warm else self.start_seconds * self.local_rate
        return meanwhile + self.spark_seconds / saved if saved > 0 else math.inf

    def learn_local(self, cells: int, seconds: float) -> None:
        """Corrects the rates by a measured scan in this process.

        Args:
            cells: Rows times columns.
            seconds: From its first file to its last.
        """
        if seconds <= 0.2:  # dominated by the fixed cost of a capture
            return
        with self._lock:
            self._measured.add("local")
            factor = 1 + _LEARNED * (cells / seconds / self.local_rate - 1)
            self.local_rate *= factor
            if "spark" not in self._measured:
                self.spark_rate *= factor

    def learn_spark(self, cells: int, seconds: float) -> None:
        """Corrects the rates by a measured job on a warm session.

        Args:
            cells: Rows times columns.
            seconds: From its first file to its last.
        """
        if seconds <= 2 * self.spark_seconds:
            return
        with self._lock:
            self._measured.add("spark")
            factor = 1 + _LEARNED * (cells / (seconds - self.spark_seconds) / self.spark_rate - 1)
            self.spark_rate *= factor
            if "local" not in self._measured:
                self.local_rate *= factor
