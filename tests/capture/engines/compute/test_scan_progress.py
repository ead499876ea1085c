"""Progress of a scan: files, bytes and rate."""

from __future__ import annotations

from capture.connectors.spi import ScanTask
from capture.engines.compute.table_scan import ScanProgress

MIB = 1 << 20


def task(size_bytes: int) -> ScanTask:
    return ScanTask("parquet", "f", "f", 1, size_bytes, (), "")


class Recorder:
    def __init__(self):
        self.reports: list[tuple[float, str]] = []
        self.now = 0.0
        self.progress = ScanProgress(
            lambda share, words: self.reports.append((round(share, 3), words)), lambda: self.now
        )

    def after(self, seconds: float, *places: int) -> tuple[float, str]:
        self.now += seconds
        self.progress.done(places)
        self.progress.report()
        return self.reports[-1]


def test_progress_has_files_bytes_and_rate():
    recorder = Recorder()
    recorder.progress.start([task(MIB), task(2 * MIB), task(5 * MIB)])
    assert recorder.after(0) == (0, "0 of 3 files, 0 B of 8.0 MiB")
    assert recorder.after(2, 1) == (0.225, "1 of 3 files, 2.0 MiB of 8.0 MiB, 1.0 MiB/s")
    assert recorder.after(2, 1) == (0.225, "1 of 3 files, 2.0 MiB of 8.0 MiB, 512.0 KiB/s")  # counted once
    assert recorder.after(0, 0, 2) == (0.9, "3 of 3 files, 8.0 MiB of 8.0 MiB, 2.0 MiB/s")


def test_known_files_count_as_done_and_not_in_the_rate():
    recorder = Recorder()
    recorder.progress.start([task(6 * MIB), task(2 * MIB)], known=[0])
    assert recorder.after(1) == (0.675, "1 of 2 files, 6.0 MiB of 8.0 MiB")
    assert recorder.after(1, 1) == (0.9, "2 of 2 files, 8.0 MiB of 8.0 MiB, 1.0 MiB/s")


def test_files_of_unknown_size_are_weighted_by_number():
    recorder = Recorder()
    recorder.progress.start([task(0)] * 4)
    assert recorder.after(1, 0) == (0.225, "1 of 4 files")


def test_progress_follows_a_growing_list_of_files():
    recorder, tasks = Recorder(), [task(MIB)]
    recorder.progress.start(tasks)
    assert recorder.after(1, 0) == (0.9, "1 of 1 file, 1.0 MiB of 1.0 MiB, 1.0 MiB/s")
    tasks.append(task(MIB))
    assert recorder.after(1) == (0.45, "1 of 2 files, 1.0 MiB of 2.0 MiB, 512.0 KiB/s")
