"""Progress of a scan: files and bytes completed, as a share and in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from capture.connectors.spi import ScanTask
from store.model.units import bytes_text

_SCAN_SHARE: Final = 0.9  # the scan's share of a capture; the rest is writing results


class ScanProgress:
    """Counts the completed files of a scan.

    Args:
        report: Called with the completed share of the capture, 0 to 1, and a message.
    """

    def __init__(self, report: Callable[[float, str], None], clock: Callable[[], float] = time.monotonic):
        self._report, self._clock = report, clock
        self._begun = clock()
        self._tasks: Sequence[ScanTask] = ()
        self._done: set[int] = set()
        self._done_bytes = self._total_bytes = self._read_bytes = self._counted = 0

    def start(self, tasks: Sequence[ScanTask], known: Iterable[int] = ()) -> None:
        """Starts counting `tasks`, to which the scan may add; `known` are the indexes of those with stored results."""
        self._tasks, self._begun = tasks, self._clock()
        self.done(known)
        self._read_bytes = 0

    def done(self, places: Iterable[int]) -> None:
        """Marks tasks as completed; `places` are their indexes."""
        for place in places:
            if place not in self._done:
                self._done.add(place)
                self._done_bytes += self._tasks[place].size_bytes
                self._read_bytes += self._tasks[place].size_bytes

    def report(self) -> None:
        """Reports the progress; an exception of the callback ends the scan."""
        self._total_bytes += sum(task.size_bytes for task in self._tasks[self._counted :])
        self._counted = len(self._tasks)
        files = len(self._tasks)
        share = self._done_bytes / self._total_bytes if self._total_bytes else len(self._done) / max(files, 1)
        words = f"{len(self._done)} of {files} {'file' if files == 1 else 'files'}"
        if self._total_bytes:
            words += f", {bytes_text(self._done_bytes)} of {bytes_text(self._total_bytes)}"
        seconds = self._clock() - self._begun
        if self._read_bytes and seconds > 0:
            words += f", {bytes_text(self._read_bytes / seconds)}/s"
        self._report(_SCAN_SHARE * min(share, 1.0), words)
