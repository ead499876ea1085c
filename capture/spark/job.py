"""Runs the scan of a table's files: here when it is small, on Spark when it is not, in waves of bounded size."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from capture.connectors.spi import ScanTask
from capture.spark.scan import PARTIAL_SCHEMA, Answer, Work, from_batch, scan, to_batch
from capture.spark.session import Spark

_WAVE_ANSWERS: Final = 4096  # each may carry 45 kB of sketches, which meet in this process
_TASKS_PER_CORE: Final = 2  # between two tasks a worker waits for Spark, 25 ms on a busy machine
_FILE_BYTES: Final = 1 << 20  # what opening a file is worth when tasks are balanced

Numbered = tuple[int, ScanTask]


def inline(tasks: Sequence[Numbered], work: Work, poll: Callable[[], None]) -> Iterator[list[Answer]]:
    """The answers of each task in turn, computed in this process."""
    for number, task in tasks:
        poll()
        yield scan(number, task, work)


def distributed(
    spark: Spark, tasks: Sequence[Numbered], work: Work, poll: Callable[[], None]
) -> Iterator[list[Answer]]:
    """The answers of each wave of tasks, in the order of the tasks, computed on Spark's executors.

    Raises:
        UpstreamError: Spark cannot be started, or failed.
    """
    per_task = max(len(work.column_ids) + len(work.groups), 1)
    wave = max(_WAVE_ANSWERS // per_task, spark.cores)
    for start in range(0, len(tasks), wave):
        part = tasks[start : start + wave]
        poll()
        groups = balanced(part, _TASKS_PER_CORE * spark.cores)
        payloads = [pickle.dumps((group, work)) for group in groups]
        yield sorted(from_batch(spark.run(compute, payloads, PARTIAL_SCHEMA, poll)), key=lambda answer: answer.task)


def balanced(tasks: Sequence[Numbered], count: int) -> list[list[Numbered]]:
    """At most `count` groups of about equal bytes, the largest first; files keep their order within a group."""
    groups: list[list[Numbered]] = [[] for _ in range(min(count, len(tasks)))]
    loads = [0] * len(groups)
    for task in sorted(tasks, key=lambda pair: (-pair[1].size_bytes, pair[0])):
        lightest = loads.index(min(loads))
        groups[lightest].append(task)
        loads[lightest] += task[1].size_bytes + _FILE_BYTES
    order = sorted(range(len(groups)), key=lambda i: -loads[i])
    return [sorted(groups[i], key=lambda pair: pair[0]) for i in order]


_frozen = False


def compute(payload: bytes) -> pa.RecordBatch:
    """What an executor does: the tasks of a payload, as one batch."""
    global _frozen
    if not _frozen:
        # Spark collects garbage after every task, and a worker full of modules takes long over it.
        gc.collect()
        gc.freeze()
        _frozen = True
    tasks, work = pickle.loads(payload)  # noqa: S301  our own, from the driver
    return to_batch([answer for number, task in tasks for answer in scan(number, task, work)])
