"""Computes scan tasks in this process, on all of its cores.

NumPy and Arrow leave Python's lock alone while they sort, count and decode, so threads share the work. A file that is
one of few is divided by its columns.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from typing import Final, TypeAlias

from capture.compute.file_scan import Answer, Work, scan
from capture.connectors.spi import ScanTask

Numbered: TypeAlias = tuple[int, ScanTask]
"""A task and its number in the job."""

CORES: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_DIVIDED_CELLS: Final = 400_000  # of a file, from which reading its footer more than once is nothing
_POLL_SECONDS: Final = 0.2


def computed(
    tasks: Iterable[Numbered], work: Work, poll: Callable[[], None], threads: int = CORES, few: bool = False
) -> Iterator[list[Answer]]:
    """The answers of each task, in the order of the tasks.

    Args:
        tasks: Asked for one after the other, at most `threads` ahead of what is yielded.
        work: What to compute of each.
        poll: Called between tasks and a few times a second; what it raises ends the work.
        threads: How many tasks, or parts of one, are computed at once.
        few: There are not enough tasks for all threads: large ones are divided by columns.

    Yields:
        The answers of one task.
    """
    if threads < 2:
        for number, task in tasks:
            poll()
            yield scan(number, task, work)
        return
    queue = iter(tasks)
    running: deque[list[Future[list[Answer]]]] = deque()
    with ThreadPoolExecutor(threads, "kernels") as pool:
        try:
            while True:
                for number, task in itertools.islice(queue, max(0, threads - len(running))):
                    running.append([pool.submit(scan, number, task, part) for part in _parts(task, work, threads, few)])
                if not running:
                    return
                poll()
                yield [answer for part in running.popleft() for answer in _awaited(part, poll)]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _awaited(part: Future[list[Answer]], poll: Callable[[], None]) -> list[Answer]:
    while True:
        try:
            return part.result(_POLL_SECONDS)
        except NotYet:
            if part.done():
                raise
        poll()


def _parts(task: ScanTask, work: Work, count: int, few: bool) -> list[Work]:
    """The work on a file, divided by columns where that pays."""
    columns = work.column_ids
    whole = not few or task.reader != "parquet" or bool(task.equality_deletes) or len(columns) < 2
    if whole or task.row_count * len(columns) < _DIVIDED_CELLS:
        return [work]
    parts = [replace(work, column_ids=columns[at::count], groups=()) for at in range(min(count, len(columns)))]
    return parts if not work.groups else [replace(parts[0], groups=work.groups), *parts[1:]]
