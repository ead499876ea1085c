"""A pass over a table's data at one snapshot, for homes whose sketches cannot be derived from stored statistics."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

import pyarrow as pa

from capture.compute.readers.base import materialised
from capture.compute.readers.tasks import open_task
from capture.connectors.progress import report
from capture.connectors.spi import Connector, ScanTask
from store.model.errors import UpstreamError

Partial = TypeVar("Partial")

AT_ONCE: Final = max(2, (os.cpu_count() or 2))  # files read concurrently
AHEAD: Final = 4 * AT_ONCE  # files queued or being read


def scan(
    connector: Connector, namespace: str, name: str, snapshot_id: int, ids: Mapping[str, int],
    read: Callable[[str, pa.ChunkedArray], Partial], merge: Callable[[str, Partial], None],
) -> None:  # fmt: skip
    """Reads the live rows of some columns: several files concurrently, each column by column.

    Args:
        connector: The opened lake.
        namespace: Namespace of the table.
        name: Name of the table.
        snapshot_id: Id of the snapshot.
        ids: Column name → column id, for the columns to read.
        read: Computes a partial result from a column's values in one file; called in several threads.
        merge: Called with a column name and each of its partial results, in this thread.

    Raises:
        UpstreamError: A file or one of the columns cannot be read.
        Cancelled: The caller no longer needs the result.
    """

    def of_file(task: ScanTask) -> list[tuple[str, Partial]]:
        return [(column, read(column, values)) for column, values in _columns(task, ids)]

    pending: deque[Future[list[tuple[str, Partial]]]] = deque()
    done = 0
    pool = ThreadPoolExecutor(AT_ONCE, "publish-scan")
    try:
        tasks = iter(connector.plan_files(namespace, name, snapshot_id, ids, frozenset(ids)))
        while True:
            pending.extend(pool.submit(of_file, task) for task in islice(tasks, AHEAD - len(pending)))
            if not pending:
                return
            for column, partial in pending.popleft().result():
                merge(column, partial)
            done += 1
            report(f"{done} files read")
    finally:
        pool.shutdown(cancel_futures=True)


def _columns(task: ScanTask, names: Container[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
    reader = open_task(task)
    try:
        for column in reader.columns([c for c in task.columns if c.name in names]):
            if column.values is None:
                raise UpstreamError(f'file "{task.file_path}", column "{column.column.name}": {column.error}')
            yield column.column.name, materialised(column)
    finally:
        reader.close()
