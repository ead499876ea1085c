"""Shared parts of the readers of scan tasks: their protocol, the values of a column, leaves of structs.

One task is one file or fragment, read column by column: only live rows, never more than a block of columns at a time.
A column that cannot be read says why and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from capture.connectors.spi import ScanColumn, ScanTask
from capture.connectors.storage.places import reason
from store.names import column_parts, dotted_name

TROUBLE: Final = (OSError, pa.ArrowException, ValueError, KeyError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The live values of one column of a task.

    Attributes:
        values: In the type of the file; of a constant column a single one. None when they could not be read.
        times: How many rows each value stands for, 1 unless the column is constant.
        size_bytes: Bytes of the file that hold the column.
        error: Why there are no values.
    """

    column: ScanColumn
    values: pa.ChunkedArray | None
    times: int = 1
    size_bytes: int = 0
    error: str = ""


class TaskReader(Protocol):
    """An opened task. `rows` are live ones among the row groups read, of which `row_groups` counts a sample's."""

    rows: int
    row_groups: int

    def columns(self, wanted: Sequence[ScanColumn]) -> Iterator[ColumnValues]:
        """The values of columns.

        Args:
            wanted: Columns of the task.

        Yields:
            Each column once, not always in the order asked for; one that cannot be read has an `error`.
        """

    def close(self) -> None:
        """Closes the file."""


def materialised(column: ColumnValues) -> pa.ChunkedArray:
    """The values of a column row by row, a constant repeated.

    Args:
        column: As a reader gave it.

    Returns:
        As many values as rows.
    """
    if column.values is None or column.times == 1 or not len(column.values):
        return column.values
    return column.values.take(pa.array(np.zeros(column.times, np.int64)))


def constant(column: ScanColumn, rows: int) -> ColumnValues:
    """The values of a column that is not in the file: one, which stands for all rows.

    Args:
        column: Without a path.
        rows: Live rows of the file.

    Returns:
        One value, or none where there are no rows.
    """
    array = column.constant if column.constant is not None else pa.nulls(1)
    return ColumnValues(column, pa.chunked_array([array[: min(rows, 1)]]), max(rows, 1))


def why(trouble: BaseException, task: ScanTask) -> str:
    """A short reason without a path or a secret.

    Args:
        trouble: What was raised.
        task: The file it was raised for, whose storage options are not shown.

    Returns:
        The reason, without a full stop.
    """
    if isinstance(trouble, FileNotFoundError):
        return "no such file"
    if isinstance(trouble, PermissionError):
        return "permission denied"
    if isinstance(trouble, ModuleNotFoundError):
        return f"needs the package {trouble.name}"
    return reason(trouble, task.storage, task.location).removesuffix(".")


def leaf(table: pa.Table, path: str) -> pa.ChunkedArray:
    """A column or struct leaf by the key of its path; a leaf is null where a struct above it is.

    A dotted path that is not a key means whatever column is written so.

    Args:
        table: As the file has it.
        path: The key of a column.

    Returns:
        One value per row.

    Raises:
        KeyError: The table has no such column.
    """
    column = _below(dict(zip(table.column_names, table.columns, strict=True)), column_parts(path))
    if column is None:
        raise KeyError(f'the file has no column "{dotted_name(path)}"')
    return column


def _below(columns: Mapping[str, pa.ChunkedArray], parts: tuple[str, ...]) -> pa.ChunkedArray | None:
    """The column at a path; a name may take several parts of a path that was written with dots."""
    for count in range(1, len(parts) + 1):
        column = columns.get(".".join(parts[:count]))
        if column is None:
            continue
        if count == len(parts):
            return column
        if pa.types.is_struct(column.type):
            names = [column.type.field(i).name for i in range(column.type.num_fields)]
            inside = _below(dict(zip(names, column.flatten(), strict=True)), parts[count:])
            if inside is not None:
                return inside
    return None
