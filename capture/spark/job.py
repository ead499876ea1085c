"""Runs scan tasks on Spark in waves of limited size, or in this process while the session starts."""

from __future__ import annotations

import gc
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from capture.cluster import SPARK
from capture.compute.file_scan import PARTIAL_SCHEMA, Answer, Numbered, Work, from_batch, to_batch
from capture.compute.fold import FAN_IN
from capture.compute.local import computed
from capture.compute.pieces import scan
from capture.compute.written_rows import scanned
from capture.spark.session import Spark, SparkUnavailable

_WAVE_ANSWERS: Final = 4096  # collected in this process, up to 45 kB of sketches each
_TASKS_PER_CORE: Final = 2  # Spark tasks on a cluster; each costs a worker 25 ms of waiting on a busy machine
_GROUPS_PER_CORE: Final = 16  # groups that the executors of one machine claim one by one
_FILE_BYTES: Final = 1 << 20  # cost of opening a file, in bytes read, for balancing


def distributed(
    spark: Spark, tasks: Sequence[Numbered], work: Work, poll: Callable[[], None]
) -> Iterator[list[Answer]]:
    """Computes tasks on Spark's executors, in waves of limited size.

    Executors that share the directory of segments with the server write the rows of files themselves (`work.writing`):
    the first wave tells whether all do. Then they merge what they find of each block of files, and far larger waves
    have as many answers.

    Args:
        poll: Called several times a second; an exception cancels the job.

    Yields:
        The answers of each wave, in the order of the tasks.

    Raises:
        UpstreamError: Spark does not start, or the job failed.
    """
    keys = max(len(work.column_ids) + len(work.groups), 1)
    per_core = _GROUPS_PER_CORE if spark.is_one_try else _TASKS_PER_CORE
    wave = max(_WAVE_ANSWERS // keys, spark.cores)
    start, blocks = 0, False
    while start < len(tasks):
        end = start + (wave * FAN_IN if blocks else wave)
        if work.writing is not None:
            end = _end_of_block(tasks, end)
        poll()
        groups = balanced(tasks[start:end], per_core * spark.cores, FAN_IN if blocks else 1)
        found = _run(spark, [pickle.dumps((group, work)) for group in groups], poll)
        yield found
        start = end
        if work.writing is not None and not all(answer.is_written for answer in found):
            work = replace(work, writing=None)  # some executors do not reach the place: nobody writes from here on
        blocks = work.writing is not None and len(tasks) - start >= FAN_IN * per_core * spark.cores


def _end_of_block(tasks: Sequence[Numbered], end: int) -> int:
    """The end of tasks with the rest of the last one's block, so that the next wave begins with a block."""
    while 0 < end < len(tasks) and tasks[end][0] // FAN_IN == tasks[end - 1][0] // FAN_IN:
        end += 1
    return end


def _run(spark: Spark, groups: Sequence[bytes], poll: Callable[[], None]) -> list[Answer]:
    """The answers of groups of tasks, each pickled with its work, in the order of the tasks."""
    if spark.is_one_try:
        with tempfile.TemporaryDirectory(prefix="statflight-claims-") as claims:
            payload = pickle.dumps((groups, claims))  # the same object for all tasks, so it is sent once
            answers = spark.run(compute, [payload] * min(spark.cores, len(groups)), PARTIAL_SCHEMA, poll)
    else:
        payloads = [pickle.dumps(([group], None)) for group in groups]
        answers = spark.run(compute, payloads, PARTIAL_SCHEMA, poll)
    return sorted(from_batch(answers, SPARK), key=lambda answer: answer.task)


def overlapped(
    spark: Spark, tasks: Sequence[Numbered], work: Work, poll: Callable[[], None], notes: list[str]
) -> Iterator[list[Answer]]:
    """Computes tasks in this process while a session starts, then the remaining ones on Spark.

    Args:
        poll: Called between tasks and several times a second; an exception cancels the work.
        notes: Receives the reason if the session does not start and this process computes everything.

    Yields:
        Answers, in the order of the tasks.
    """
    started, rest = spark.start(), deque(tasks)

    def meanwhile() -> Iterator[Numbered]:
        while rest and not started.done():
            yield rest.popleft()

    yield from computed(meanwhile(), work, poll)
    if not rest:
        return
    if (error := started.exception()) is not None:
        if not isinstance(error, SparkUnavailable):
            raise error
        notes.append(f"computed without Spark: {error}")
        yield from computed(rest, work, poll)
    else:
        yield from distributed(spark, list(rest), work, poll)


def balanced(tasks: Sequence[Numbered], count: int, together: int = 1) -> list[list[Numbered]]:
    """Divides tasks into groups of similar bytes, the largest first; tasks keep their order within a group.

    Args:
        together: Tasks of a block, by their numbers, which are in one group.
    """
    blocks: dict[int, list[Numbered]] = {}
    for task in tasks:
        blocks.setdefault(task[0] // together, []).append(task)
    sizes = {at: sum(task.size_bytes + _FILE_BYTES for _, task in block) for at, block in blocks.items()}
    groups: list[list[int]] = [[] for _ in range(min(count, len(blocks)))]
    loads = [0] * len(groups)
    for at in sorted(blocks, key=lambda at: (-sizes[at], at)):
        lightest = loads.index(min(loads))
        groups[lightest].append(at)
        loads[lightest] += sizes[at]
    order = sorted(range(len(groups)), key=lambda i: -loads[i])
    return [[task for at in sorted(groups[i]) for task in blocks[at]] for i in order]


_frozen = False


def compute(payload: bytes) -> pa.RecordBatch:
    """Computes groups of tasks as rows of PARTIAL_SCHEMA; runs on an executor.

    Args:
        payload: Pickled groups with their work, and optionally a directory of claims. With it, executors of one machine
            share the groups: each group is computed by the first that claims it. Without it, all are computed.
    """
    global _frozen
    if not _frozen:
        # Spark runs the garbage collector after every task; freezing excludes the imported modules.
        gc.collect()
        gc.freeze()
        _frozen = True
    groups, claims = pickle.loads(payload)  # noqa: S301  pickled by our driver
    answers: list[Answer] = []
    for group in groups if claims is None else _claimed(groups, Path(claims)):
        tasks, work = pickle.loads(group)  # noqa: S301
        if work.writing is not None:
            answers += scanned(tasks, work, SPARK)
        else:
            answers += (answer for number, task in tasks for answer in scan(number, task, work))
    return to_batch(answers)


def _claimed(groups: Sequence[bytes], claims: Path) -> Iterator[bytes]:
    for number, group in enumerate(groups):
        try:
            (claims / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield group
