"""Spark jobs: distribution of files to tasks."""

from capture.connectors.spi import ScanTask
from capture.spark import job


def test_tasks_are_balanced_by_bytes():
    sizes = [10, 900, 20, 30, 800, 5, 700]
    numbered = [(i, ScanTask("parquet", str(i), "", 1, size << 20, (), "")) for i, size in enumerate(sizes)]
    groups = job.balanced(numbered, 3)
    assert sorted(number for group in groups for number, _ in group) == list(range(7))
    assert all([n for n, _ in group] == sorted(n for n, _ in group) for group in groups)
    loads = [sum(task.size_bytes >> 20 for _, task in group) for group in groups]
    assert max(loads) <= 900
    assert len(job.balanced(numbered, 100)) == 7
