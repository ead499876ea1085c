"""Reader of Lance fragments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from capture.compute.readers.base import ColumnValues, TaskReader, constant, values_read
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
            else:
                yield values_read(column, self._task, lambda path: self._fragment.to_table(columns=[path]))

    def close(self) -> None:
        self._fragment = None
