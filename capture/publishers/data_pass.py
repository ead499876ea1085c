"""A pass over a table's data at one snapshot, for homes whose sketches cannot be derived from stored statistics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import pyarrow as pa

from capture.compute.readers.tasks import read as values_of
from capture.connectors.progress import report
from capture.connectors.spi import Connector, ScanTask
from capture.connectors.storage.requests import carried

Partial = TypeVar("Partial")

AT_ONCE: Final = max(2, (os.cpu_count() or 2))  # files read concurrently


def scan(
    connector: Connector,
    namespace: str,
    name: str,
    snapshot_id: int,
    ids: Mapping[str, int],
    read: Callable[[str, pa.ChunkedArray], Partial],
) -> Iterator[tuple[str, Partial]]:
    """Reads the live rows of some columns: several files concurrently, each column by column.

    Args:
        ids: Column name → column id, for the columns to read.
        read: Computes a partial result from a column's values in one file; called in several threads.

    Yields:
        A column name and a partial result, for each column of each file.

    Raises:
        UpstreamError: A file or one of the columns cannot be read.
        Cancelled: The caller no longer needs the result.
    """

    def of_file(task: ScanTask) -> list[tuple[str, Partial]]:
        wanted = [column for column in task.columns if column.name in ids]
        return [(column.name, read(column.name, values)) for column, values in values_of(task, wanted)]

    tasks = connector.plan_files(namespace, name, snapshot_id, ids, frozenset(ids))
    pool = ThreadPoolExecutor(AT_ONCE, "publish-scan")
    try:
        for done, parts in enumerate(pool.map(carried(of_file), tasks), 1):
            yield from parts
            report(f"{done} files read")
    finally:
        pool.shutdown(cancel_futures=True)
