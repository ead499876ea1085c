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


def test_tasks_of_a_block_stay_together():
    sizes = [9, 1, 1, 9, 2, 2, 2, 2, 5]
    numbered = [(i + 2, ScanTask("parquet", str(i), "", 1, size << 20, (), "")) for i, size in enumerate(sizes)]
    groups = job.balanced(numbered, 3, together=4)
    blocks = [sorted({number // 4 for number, _ in group}) for group in groups]
    assert sorted(number for group in groups for number, _ in group) == list(range(2, 11))
    assert sorted(block for group in blocks for block in group) == [0, 1, 2]


def test_wave_ends_with_a_block_even_if_files_are_known():
    numbers = [*range(10), *range(70, 100), 300]
    numbered = [(i, ScanTask("parquet", str(i), "", 1, 1, (), "")) for i in numbers]
    ends = {end: job._end_of_block(numbered, end) for end in (3, 10, 11, 39, 40, 41, 50)}
    assert ends == {3: 10, 10: 10, 11: 40, 39: 40, 40: 40, 41: 41, 50: 50}
