"""Reader of Lance fragments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from capture.compute.readers.base import READ_ERRORS, ColumnValues, TaskReader, constant, error_text, leaf
from capture.connectors.spi import ScanColumn, ScanTask


class LanceReader(TaskReader):
    """A fragment of a Lance dataset; the library skips deleted rows."""

    row_groups = 0

    def __init__(self, task: ScanTask):
        import lance

        self._task = task
        arguments = task.arguments
        dataset = lance.dataset(
            task.location, version=arguments.get("version"), storage_options=dict(task.storage) or None
        )
        self._fragment = dataset.get_fragment(arguments["fragment_id"])
        if self._fragment is None:
            raise FileNotFoundError(task.file_path)
        self.rows = int(self._fragment.count_rows())

    def columns(self, wanted: Sequence[ScanColumn]) -> Iterator[ColumnValues]:
        for column in wanted:
            if column.constant is not None or column.path is None:
                yield constant(column, self.rows)
                continue
            try:
                values = leaf(self._fragment.to_table(columns=[column.path]), column.path)
            except READ_ERRORS as error:
                yield ColumnValues(column, None, error=error_text(error, self._task))
                continue
            yield ColumnValues(column, values, 1, values.nbytes)

    def close(self) -> None:
        self._fragment = None
