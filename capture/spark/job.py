"""Runs the scan of a table's files on Spark, in waves of bounded size; while a session starts, in this process."""

from __future__ import annotations

import gc
import pickle
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from capture.compute.file_scan import PARTIAL_SCHEMA, Answer, Work, from_batch, scan, to_batch
from capture.compute.local import Numbered, computed
from capture.spark.session import Spark, SparkUnavailable

_WAVE_ANSWERS: Final = 4096  # each may carry 45 kB of sketches, which meet in this process
_TASKS_PER_CORE: Final = 2  # of a cluster: between two tasks a worker waits for Spark, 25 ms on a busy machine
_GROUPS_PER_CORE: Final = 16  # which executors of one machine take as they are done with the last
_FILE_BYTES: Final = 1 << 20  # what opening a file is worth when tasks are balanced

SPARK: Final = "spark"
"""Engine id of what Spark computed."""


def distributed(
    spark: Spark, tasks: Sequence[Numbered], work: Work, poll: Callable[[], None]
) -> Iterator[list[Answer]]:
    """Computes tasks on Spark's executors, in waves of bounded size.

    Args:
        spark: Where to compute.
        tasks: The files, numbered.
        work: What to compute of each.
        poll: Called a few times a second; what it raises cancels the job.

    Yields:
        The answers of each wave, in the order of the tasks.

    Raises:
        UpstreamError: Spark cannot be started, or failed.
    """
    per_task = max(len(work.column_ids) + len(work.groups), 1)
    wave = max(_WAVE_ANSWERS // per_task, spark.cores)
    for start in range(0, len(tasks), wave):
        part = tasks[start : start + wave]
        poll()
        per_core = _GROUPS_PER_CORE if spark.is_one_try else _TASKS_PER_CORE
        groups = [pickle.dumps((group, work)) for group in balanced(part, per_core * spark.cores)]
        if spark.is_one_try:
            with tempfile.TemporaryDirectory(prefix="statflight-claims-") as claims:
                payload = pickle.dumps((groups, claims))  # one object, which is sent once however many take from it
                answers = spark.run(compute, [payload] * min(spark.cores, len(groups)), PARTIAL_SCHEMA, poll)
        else:
            payloads = [pickle.dumps(([group], None)) for group in groups]
            answers = spark.run(compute, payloads, PARTIAL_SCHEMA, poll)
        yield sorted(from_batch(answers, SPARK), key=lambda answer: answer.task)


def overlapped(
    spark: Spark, tasks: Sequence[Numbered], work: Work, poll: Callable[[], None], notes: list[str]
) -> Iterator[list[Answer]]:
    """Computes tasks in this process while a session starts, which then takes over what is left.

    Args:
        spark: The session to start.
        tasks: The files, numbered.
        work: What to compute of each.
        poll: Called between tasks and a few times a second; what it raises ends the work.
        notes: Receives the reason where the session does not start, and all is computed here.

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
    if (trouble := started.exception()) is not None:
        if not isinstance(trouble, SparkUnavailable):
            raise trouble
        notes.append(f"computed without Spark: {trouble}")
        yield from computed(rest, work, poll)
    else:
        yield from distributed(spark, list(rest), work, poll)


def balanced(tasks: Sequence[Numbered], count: int) -> list[list[Numbered]]:
    """Divides tasks into groups of about equal bytes.

    Args:
        tasks: The files, numbered.
        count: Groups at most.

    Returns:
        The groups, the largest first; files keep their order within a group.
    """
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
    """The work of an executor: the tasks of groups as one batch.

    Args:
        payload: Groups with their work, and a directory of claims: only those groups that nobody else has taken are
            computed then, each as it is come to. Without one, all.

    Returns:
        The answers, of PARTIAL_SCHEMA.
    """
    global _frozen
    if not _frozen:
        # Spark collects garbage after every task, and a worker full of modules takes long over it.
        gc.collect()
        gc.freeze()
        _frozen = True
    groups, claims = pickle.loads(payload)  # noqa: S301  our own, from the driver
    answers: list[Answer] = []
    for group in groups if claims is None else _claimed(groups, Path(claims)):
        tasks, work = pickle.loads(group)  # noqa: S301
        answers += (answer for number, task in tasks for answer in scan(number, task, work))
    return to_batch(answers)


def _claimed(groups: Sequence[bytes], claims: Path) -> Iterator[bytes]:
    for number, group in enumerate(groups):
        try:
            (claims / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield group
