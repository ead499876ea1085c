"""The interface of the readers of scan tasks, which come by name (`connectors.READERS`), and their common parts.

A task is one file or fragment. Readers return live rows only, and hold one block of columns in memory at a time. If a
column cannot be read, its values have an `error`; the others are still returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from capture.connectors.footers.metadata import ParquetMetadata, read_metadata
from capture.connectors.rows.column_values import leaf
from capture.connectors.spi import ScanColumn, ScanTask
from capture.connectors.storage.places import open_place, reason

READ_ERRORS: Final = (OSError, pa.ArrowException, ValueError, KeyError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The live values of one column of a task.

    Attributes:
        values: Values in the file's type, a single one for a constant column; None if they could not be read.
        times: Rows that each value stands for; 1 unless the column is constant.
        size_bytes: Bytes of the column in the file.
        error: Reason if there are no values.
    """

    column: ScanColumn
    values: pa.ChunkedArray | None
    times: int = 1
    size_bytes: int = 0
    error: str = ""


class TaskReader(Protocol):
    """An opened task. Its class is called with the task, and opens the file.

    An error of the file is one of READ_ERRORS or a StatflightError; that of a column is in its `ColumnValues`.

    Attributes:
        rows: Live rows of the row groups that are read.
        row_groups: Number of sampled row groups; 0 without sampling.
    """

    rows: int
    row_groups: int

    def __init__(self, task: ScanTask) -> None: ...

    def columns(self, wanted: Sequence[ScanColumn]) -> Iterator[ColumnValues]:
        """Reads columns.

        Yields:
            Each column once, in any order.
        """

    def close(self) -> None:
        """Closes the file."""


def materialised(column: ColumnValues) -> pa.ChunkedArray:
    """The values of a column that was read without error, one per row; constants are repeated."""
    if column.values is None or column.times == 1 or not len(column.values):
        return column.values
    return column.values.take(pa.array(np.zeros(column.times, np.int64)))


def constant(column: ScanColumn, rows: int) -> ColumnValues:
    """The value of a column that is not in the file: one value for all rows, or none if there are no rows."""
    array = column.constant if column.constant is not None else pa.nulls(1)
    return ColumnValues(column, pa.chunked_array([array[: min(rows, 1)]]), max(rows, 1))


BLOCK_BYTES: Final = 32 << 20
"""Uncompressed bytes of columns that a reader holds in memory together."""

GONE: Final = "no such file"
"""Part of the text of the errors of files that do not exist."""


def error_text(error: BaseException, task: ScanTask) -> str:
    """Short reason of an error in a task, without paths, secrets of its storage, and a trailing period."""
    if isinstance(error, FileNotFoundError):
        return GONE
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, ModuleNotFoundError):
        return f"needs the package {error.name}"
    return reason(error, task.storage, task.location).removesuffix(".")


def footer(task: ScanTask) -> ParquetMetadata | None:
    """The footer of a task's Parquet file; None if it is no Parquet file or cannot be read, which its scan reports."""
    if task.reader != "parquet":
        return None
    try:
        with open_place(task.location, task.storage).open() as source:
            return read_metadata(source)
    except READ_ERRORS:
        return None


def values_read(column: ScanColumn, task: ScanTask, read: Callable[[str], pa.Table]) -> ColumnValues:
    """The values of a column that `read` gives as a table, of which the column's path is one column or leaf."""
    assert column.path is not None
    try:
        values = leaf(read(column.path), column.path)
    except READ_ERRORS as error:
        return ColumnValues(column, None, error=error_text(error, task))
    return ColumnValues(column, values, 1, values.nbytes)
