"""Reader of the splits of Paimon tables; the library merges rows by primary key."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from capture.connectors.paimon.library import quiet
from capture.connectors.spi import ScanColumn, ScanTask
from capture.connectors.task_readers import ColumnValues, TaskReader, values_read
from store.model.names import column_parts


class PaimonReader(TaskReader):
    """A split, read once with all columns, because every read has to merge by key."""

    row_groups = 0

    def __init__(self, task: ScanTask):
        self._task = task
        # The pickles were created by our own planner, like Spark's closures.
        self._table: Any = pickle.loads(task.arguments["table"])  # noqa: S301
        self._split: Any = pickle.loads(task.arguments["split"])  # noqa: S301
        self._rows: pa.Table | None = self._read([c.path for c in task.columns if c.path is not None])
        self.rows = int(self._rows.num_rows)

    def columns(self, wanted: Sequence[ScanColumn]) -> Iterator[ColumnValues]:
        for column in wanted:
            if column.path is None:
                yield ColumnValues(column, None, error=f'a split has no constant column "{column.name}"')
            else:
                yield values_read(column, self._task, lambda _: self._rows)

    def close(self) -> None:
        self._rows = None

    def _read(self, paths: Sequence[str]) -> pa.Table:
        names = self._table.field_names
        wanted = {column_parts(path)[0] for path in paths}
        roots = [name for name in names if name in wanted]
        with quiet():
            reader = self._table.new_read_builder().with_projection(roots or names[:1]).new_read()
            return reader.to_arrow([self._split])
