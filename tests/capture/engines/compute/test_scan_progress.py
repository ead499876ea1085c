"""Progress of a scan: what is reported when."""

from __future__ import annotations

from capture.connectors.spi import ScanTask
from capture.engines.compute.scan_progress import ScanProgress

MIB = 1 << 20


def task(size_bytes: int) -> ScanTask:
    return ScanTask("parquet", "f", "f", 1, size_bytes, (), "")


class Told:
    def __init__(self):
        self.said: list[tuple[float, str]] = []
        self.now = 0.0
        self.progress = ScanProgress(lambda share, words: self.said.append((round(share, 3), words)), lambda: self.now)

    def after(self, seconds: float, *places: int) -> tuple[float, str]:
        self.now += seconds
        self.progress.done(places)
        self.progress.report()
        return self.said[-1]


def test_files_bytes_and_rate():
    told = Told()
    told.progress.start([task(MIB), task(2 * MIB), task(5 * MIB)])
    assert told.after(0) == (0, "0 of 3 files, 0 B of 8.0 MiB")
    assert told.after(2, 1) == (0.225, "1 of 3 files, 2.0 MiB of 8.0 MiB, 1.0 MiB/s")
    assert told.after(2, 1) == (0.225, "1 of 3 files, 2.0 MiB of 8.0 MiB, 512.0 KiB/s")  # counted once
    assert told.after(0, 0, 2) == (0.9, "3 of 3 files, 8.0 MiB of 8.0 MiB, 2.0 MiB/s")


def test_known_files_are_done_and_no_part_of_the_rate():
    told = Told()
    told.progress.start([task(6 * MIB), task(2 * MIB)], known=[0])
    assert told.after(1) == (0.675, "1 of 2 files, 6.0 MiB of 8.0 MiB")
    assert told.after(1, 1) == (0.9, "2 of 2 files, 8.0 MiB of 8.0 MiB, 1.0 MiB/s")


def test_files_of_unknown_size_count_as_files():
    told = Told()
    told.progress.start([task(0)] * 4)
    assert told.after(1, 0) == (0.225, "1 of 4 files")


def test_a_list_that_grows():
    told, tasks = Told(), [task(MIB)]
    told.progress.start(tasks)
    assert told.after(1, 0) == (0.9, "1 of 1 file, 1.0 MiB of 1.0 MiB, 1.0 MiB/s")
    tasks.append(task(MIB))
    assert told.after(1) == (0.45, "1 of 2 files, 1.0 MiB of 2.0 MiB, 512.0 KiB/s")
