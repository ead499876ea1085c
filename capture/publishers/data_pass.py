"""A pass over a table's values at one snapshot, for homes whose sketches no stored statistic can give."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import pyarrow as pa

from capture.compute.readers.base import materialised
from capture.compute.readers.tasks import open_task
from capture.connectors.spi import Connector, ScanTask
from store.errors import UpstreamError

Partial = TypeVar("Partial")

AT_ONCE: Final = max(2, (os.cpu_count() or 2))  # files


def scan(
    connector: Connector, namespace: str, name: str, snapshot_id: int, ids: Mapping[str, int],
    read: Callable[[Mapping[str, pa.ChunkedArray]], Partial], merge: Callable[[Partial], None],
) -> None:  # fmt: skip
    """Reads the live rows of some columns, file by file.

    Args:
        ids: Column name → column id, of the columns to read.
        read: Makes a partial result of one file's columns; runs in several threads.
        merge: Takes each partial result, in the order of the files.

    Raises:
        UpstreamError: A file or one of the columns cannot be read.
    """
    wanted = frozenset(ids)
    tasks = connector.plan_files(namespace, name, snapshot_id, ids, wanted)
    with ThreadPoolExecutor(AT_ONCE, "publish-scan") as pool:
        for partial in pool.map(lambda task: read(_columns(task, sorted(wanted))), tasks):
            merge(partial)


def _columns(task: ScanTask, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    reader = open_task(task)
    try:
        found: dict[str, pa.ChunkedArray] = {}
        for column in reader.columns([c for c in task.columns if c.name in names]):
            if column.values is None:
                raise UpstreamError(f'file "{task.file_path}", column "{column.column.name}": {column.error}')
            found[column.column.name] = materialised(column)
        return found
    finally:
        reader.close()
