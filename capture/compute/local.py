"""Computes scan tasks in this process, on all its cores.

Threads share the work, because NumPy and Arrow release the GIL while they sort, count and decode. If there are few
files, a file is split by columns.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from typing import Final

from capture.compute.file_scan import Answer, Numbered, Work
from capture.compute.pieces import scan
from capture.connectors.progress import one_at_a_time
from capture.connectors.spi import ScanTask
from capture.connectors.storage.places import open_place
from capture.connectors.storage.requests import carried
from capture.connectors.task_readers import footer
from store.model.names import dotted_name

CORES: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_DIVIDED_CELLS: Final = 400_000  # cells of a file from which repeated reads of its footer are negligible
_PARTS: Final = 3  # of a file for each thread: whoever is done takes the next
_POLL_SECONDS: Final = 0.2


def computed(
    tasks: Iterable[Numbered], work: Work, poll: Callable[[], None], threads: int = CORES, few: bool = False
) -> Iterator[list[Answer]]:
    """Computes tasks and yields their answers in order.

    Args:
        tasks: The tasks; consumed lazily, at most `threads` ahead of the results.
        poll: Called between tasks and several times a second; an exception cancels the work.
        threads: Number of tasks, or parts of a task, computed concurrently.
        few: Whether there are too few tasks for the threads; large files are then split by columns.

    Yields:
        The answers of one task.
    """
    if threads < 2 or one_at_a_time():
        for number, task in tasks:
            poll()
            yield scan(number, task, work)
    else:
        yield from _in_threads(tasks, work, poll, threads, few)


def _in_threads(
    tasks: Iterable[Numbered], work: Work, poll: Callable[[], None], threads: int, few: bool
) -> Iterator[list[Answer]]:
    """`computed`, by a pool of threads."""
    queue, counted = iter(tasks), carried(scan)
    running: deque[list[Future[list[Answer]]]] = deque()
    with ThreadPoolExecutor(threads, "kernels") as pool:
        try:
            while True:
                for number, task in itertools.islice(queue, max(0, 2 * threads - len(running))):
                    parts = _parts(task, work, threads, few)
                    running.append([pool.submit(counted, number, task, part) for part in parts])
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


def _by_size(sizes: Mapping[int, int], count: int) -> list[list[int]]:
    """Columns in about `count` groups of equal size: large ones first and alone, small ones together."""
    groups: list[list[int]] = [[]]
    enough, size = sum(sizes.values()) / count, 0
    for column_id in sorted(sizes, key=lambda i: -sizes[i]):
        if groups[-1] and size >= enough:
            groups.append([])
            size = 0
        groups[-1].append(column_id)
        size += sizes[column_id]
    return groups


def _parts(task: ScanTask, work: Work, count: int, few: bool) -> list[Work]:
    """The work on a file, divided by columns where that pays: large ones first and alone, small ones together, so that
    no thread is left with a large one at the end."""
    columns = work.column_ids
    whole = not few or task.reader != "parquet" or bool(task.equality_deletes) or len(columns) < 2
    if whole or task.row_count * len(columns) < _DIVIDED_CELLS:
        return [work]
    if sizes := _sizes(task):
        chosen = _by_size({column_id: sizes.get(column_id, 0) for column_id in columns}, _PARTS * count)
    else:
        chosen = [list(columns[at::count]) for at in range(min(count, len(columns)))]
    parts = [replace(work, column_ids=tuple(ids), groups=()) for ids in chosen]
    return parts if not work.groups else [replace(parts[0], groups=work.groups), *parts[1:]]


def _sizes(task: ScanTask) -> dict[int, int]:
    """Bytes of each column in the first row group of a local file; nothing of others, whose footers take a while."""
    of_file = footer(task) if open_place(task.location, task.storage).is_local else None
    if of_file is None or not of_file.metadata.num_row_groups:
        return {}
    chunks = of_file.chunks(0, range(of_file.metadata.num_columns))
    by_path = {chunk.path_in_schema: chunk.total_uncompressed_size for chunk in chunks}
    return {c.column_id: by_path.get(dotted_name(c.path), 0) for c in task.columns if c.path is not None}
