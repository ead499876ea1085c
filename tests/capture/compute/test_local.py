"""Kernels on all cores of this process: equal results in the order of tasks, however the work is divided."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute import local
from capture.compute.file_scan import Work, scan
from capture.connectors.spi import ScanColumn, ScanTask
from store.model.errors import Cancelled

COLUMNS = tuple(ScanColumn(i, f"c{i}", "INT", f"c{i}") for i in range(1, 6))
WORK = Work(tuple(range(1, 6)), groups=((1, 2),))


@pytest.fixture
def tasks(tmp_path):
    found = []
    for number in range(5):
        rows = pa.table({f"c{i}": [n * i % (7 + number) for n in range(200)] for i in range(1, 6)})
        pq.write_table(rows, path := tmp_path / f"{number}.parquet")
        found.append((number, ScanTask("parquet", str(number), str(path), 200, 1, COLUMNS, "v")))
    return found


def content(answers):
    return sorted(map(repr, answers))


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
@pytest.mark.parametrize("few", [True, False])
def test_results_are_equal_and_in_order_for_any_number_of_threads(tasks, monkeypatch, threads, few):
    monkeypatch.setattr(local, "_DIVIDED_CELLS", 1)
    found = list(local.computed(tasks, WORK, lambda: None, threads, few))
    assert [{answer.task for answer in answers} for answers in found] == [{number} for number, _ in tasks]
    for (number, task), answers in zip(tasks, found, strict=True):
        assert content(answers) == content(scan(number, task, WORK))


def test_large_file_is_divided_by_its_columns(tasks, monkeypatch):
    monkeypatch.setattr(local, "_DIVIDED_CELLS", 1000)
    parts = local._parts(tasks[0][1], WORK, 2, few=True)
    assert sorted(i for part in parts for i in part.column_ids) == [1, 2, 3, 4, 5]
    assert [part.groups for part in parts] == [((1, 2),), *([()] * (len(parts) - 1))]
    assert len(parts) > 1
    assert local._parts(tasks[0][1], WORK, 2, few=False) == [WORK]
    monkeypatch.setattr(local, "_DIVIDED_CELLS", 1001)
    assert local._parts(tasks[0][1], WORK, 2, few=True) == [WORK]


def test_largest_columns_come_first_and_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_DIVIDED_CELLS", 1)
    rows = {f"c{i}": pa.array([n % 2 for n in range(200)]) for i in (1, 2, 4)}
    rows |= {"c3": [f"{n:040}" for n in range(200)], "c5": [float(n) for n in range(200)]}
    pq.write_table(pa.table(rows), path := tmp_path / "skewed.parquet")
    task = ScanTask("parquet", "skewed", str(path), 200, 1, COLUMNS, "v")
    parts = local._parts(task, Work((1, 2, 3, 4, 5)), 2, few=True)
    first, second, *rest = (part.column_ids for part in parts)
    assert first == (3,)
    assert second[0] == 5
    assert sorted([*second, *(i for ids in rest for i in ids)]) == [1, 2, 4, 5]


def test_columns_of_unknown_size_are_distributed_evenly(tasks, monkeypatch):
    monkeypatch.setattr(local, "_DIVIDED_CELLS", 1)
    missing = ScanTask("parquet", "gone", "/does/not/exist.parquet", 200, 1, COLUMNS, "v")
    assert [part.column_ids for part in local._parts(missing, WORK, 2, few=True)] == [(1, 3, 5), (2, 4)]


def test_tasks_are_pulled_only_as_threads_become_free(tasks):
    pulled = []

    def queue():
        for task in tasks:
            pulled.append(task)
            yield task

    found = local.computed(queue(), WORK, lambda: None, threads=2)
    next(found)
    assert len(pulled) == 4
    assert len(list(found)) == 4


def test_slow_task_does_not_block_the_other_thread(tasks, monkeypatch):
    later_one_done = threading.Event()

    def slow_first(number, task, work):
        if number == 0:
            assert later_one_done.wait(60)
        elif number == 2:
            later_one_done.set()
        return scan(number, task, work)

    monkeypatch.setattr(local, "scan", slow_first)
    assert len(list(local.computed(tasks, WORK, lambda: None, threads=2))) == 5


@pytest.mark.parametrize("threads", [1, 3])
def test_cancelled_job_ends_its_threads(tasks, threads):
    before = threading.active_count()

    def poll():
        raise Cancelled("cancelled")

    with pytest.raises(Cancelled):
        list(local.computed(tasks, WORK, poll, threads))
    for thread in threading.enumerate():
        if thread.name.startswith("kernels"):
            thread.join(60)
    assert threading.active_count() <= before
