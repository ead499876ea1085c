"""Reader of the fragments of Lance datasets; the library skips deleted rows."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

import lance
import pyarrow as pa

from capture.connectors.lance.io_counts import count_reads
from capture.connectors.spi import ScanColumn, ScanTask
from capture.connectors.task_readers import (
    BLOCK_BYTES,
    READ_ERRORS,
    ColumnValues,
    TaskReader,
    constant,
    error_text,
    values_read,
)
from store.model.names import column_parts

_BLOCK_COLUMNS: Final = 100  # more at once are no faster
_VALUE_BYTES: Final = 8  # at least, of columns before any is read


def _fitting(columns: int, size_bytes: int) -> int:
    """How many columns to read at once, if `columns` of them take `size_bytes`."""
    return max(1, min(_BLOCK_COLUMNS, columns * BLOCK_BYTES // max(size_bytes, 1)))


class LanceReader(TaskReader):
    """A fragment of a Lance dataset; the library skips deleted rows."""

    row_groups = 0

    def __init__(self, task: ScanTask):
        self._task = task
        arguments = task.arguments
        dataset = lance.dataset(
            task.location, version=arguments.get("version"), storage_options=dict(task.storage) or None
        )
        self._dataset = dataset
        self._fragment = dataset.get_fragment(arguments["fragment_id"])
        if self._fragment is None:
            raise FileNotFoundError(task.file_path)
        self.rows = int(self._fragment.count_rows())

    def columns(self, wanted: Sequence[ScanColumn]) -> Iterator[ColumnValues]:
        inside: list[tuple[ScanColumn, str]] = []
        for column in wanted:
            if column.constant is not None or column.path is None:
                yield constant(column, self.rows)
            else:  # Lance quotes in its own way: of a name with quotes it gets the top-level column
                inside.append((column, column_parts(column.path)[0] if '"' in column.path else column.path))
        each = max(_VALUE_BYTES * self.rows, self._task.size_bytes // max(len(self._fragment.schema), 1))
        at, count = 0, _fitting(1, each)
        while at < len(inside):
            done, count = yield from self._block(inside[at : at + count])
            at += done

    def _block(self, block: Sequence[tuple[ScanColumn, str]]) -> Generator[ColumnValues, None, tuple[int, int]]:
        """Reads columns, each with its name for Lance, at once: every read opens all columns of the fragment.

        Returns:
            The number of columns read, 0 if they are too large or one is damaged; and the number to read next.
        """
        batches, size, rows = [], 0, 0
        try:
            reader = self._fragment.scanner(columns=list({name: None for _, name in block})).to_reader()
            for batch in reader:
                batches.append(batch)
                size, rows = size + batch.nbytes, rows + batch.num_rows
                if size > BLOCK_BYTES and len(block) > 1:
                    return 0, _fitting(len(block), size * self.rows // rows)
            table = pa.Table.from_batches(batches, reader.schema)
        except READ_ERRORS as error:
            if len(block) > 1:
                return 0, len(block) // 2
            yield ColumnValues(block[0][0], None, error=error_text(error, self._task))
            return 1, 1
        for column, _ in block:
            yield values_read(column, self._task, lambda _: table)
        return len(block), _fitting(len(block), size)

    def close(self) -> None:
        count_reads(self._dataset, lists=1)
        self._fragment = None
