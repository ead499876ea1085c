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
        """The columns, not always in the order asked for."""

    def close(self) -> None: ...


def materialised(found: ColumnValues) -> pa.ChunkedArray:
    """The values row by row, a constant repeated."""
    if found.values is None or found.times == 1 or not len(found.values):
        return found.values
    return found.values.take(pa.array(np.zeros(found.times, np.int64)))


def constant(column: ScanColumn, rows: int) -> ColumnValues:
    """The values of a column that is not in the file: one, which stands for all rows."""
    array = column.constant if column.constant is not None else pa.nulls(1)
    return ColumnValues(column, pa.chunked_array([array[: min(rows, 1)]]), max(rows, 1))


def why(trouble: BaseException, task: ScanTask) -> str:
    """A short reason without a path or a secret."""
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

    Raises:
        KeyError: The table has no such column.
    """
    found = _below(dict(zip(table.column_names, table.columns, strict=True)), column_parts(path))
    if found is None:
        raise KeyError(f'the file has no column "{dotted_name(path)}"')
    return found


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
            if (found := _below(dict(zip(names, column.flatten(), strict=True)), parts[count:])) is not None:
                return found
    return None
