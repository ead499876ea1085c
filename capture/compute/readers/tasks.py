"""Opens the file of a scan task with the reader that the task names (`capture.connectors.READERS`).

If a file cannot be opened, `UpstreamError` names it by its path in the lake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from capture.connectors import READERS
from capture.connectors.progress import reading
from capture.connectors.spi import ScanColumn, ScanTask
from capture.connectors.task_readers import READ_ERRORS, TaskReader, error_text, materialised
from store.model.errors import StatflightError, UpstreamError


def open_task(task: ScanTask) -> TaskReader:
    """Opens the file of a task; the caller closes the reader.

    Raises:
        UpstreamError: The file does not exist or is damaged, or its reader is not installed.
    """
    reading(task.file_path)
    try:
        reader: type[TaskReader] = READERS.load(task.reader)
        return reader(task)
    except READ_ERRORS as error:
        raise UpstreamError(f'file "{task.file_path}": {error_text(error, task)}') from None
    except StatflightError as error:
        raise UpstreamError(f'file "{task.file_path}": {error}') from None


def read(task: ScanTask, columns: Sequence[ScanColumn]) -> Iterator[tuple[ScanColumn, pa.ChunkedArray]]:
    """Reads all live rows of some columns, with constants repeated.

    Yields:
        Each column with its values.

    Raises:
        UpstreamError: The file or one of the columns cannot be read.
    """
    reader = open_task(task)
    try:
        for read_column in reader.columns(columns):
            if read_column.values is None:
                raise UpstreamError(f'file "{task.file_path}", column "{read_column.column.name}": {read_column.error}')
            yield read_column.column, materialised(read_column)
    finally:
        reader.close()
