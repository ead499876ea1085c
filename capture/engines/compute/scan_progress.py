"""Progress of a scan: files and bytes done, as a share and in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from capture.connectors.spi import ScanTask
from store.units import bytes_text

_SCAN_SHARE: Final = 0.9  # of a capture; the rest is writing what was found


class ScanProgress:
    """Counts the files of a scan as they are done.

    Args:
        report: Receives the share of the capture that is done, 0 to 1, and a message.
        clock: Seconds, for the rate.
    """

    def __init__(self, report: Callable[[float, str], None], clock: Callable[[], float] = time.monotonic):
        self._report, self._clock = report, clock
        self._begun = clock()
        self._tasks: Sequence[ScanTask] = ()
        self._done: set[int] = set()
        self._done_bytes = self._total_bytes = self._read_bytes = self._counted = 0

    def start(self, tasks: Sequence[ScanTask], known: Iterable[int] = ()) -> None:
        """Begins to count.

        Args:
            tasks: The files; a list may grow while it is scanned.
            known: Places of those whose answers are stored already.
        """
        self._tasks, self._begun = tasks, self._clock()
        self.done(known)
        self._read_bytes = 0

    def done(self, places: Iterable[int]) -> None:
        """Counts files that are done, each once."""
        for place in places:
            if place not in self._done:
                self._done.add(place)
                self._done_bytes += self._tasks[place].size_bytes
                self._read_bytes += self._tasks[place].size_bytes

    def tell(self) -> None:
        """Reports how far the scan is; what the report raises ends the scan."""
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
