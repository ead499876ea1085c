"""The live rows of a scan's files as a `pyarrow.dataset.Dataset`, read by a library of the table's format."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.client.conditions.arrow_expressions import named_columns
from flight_server.client.lake_readers import CannotRead, LakeReader
from flight_server.client.python_dataset import PythonDataset, PythonScan, both


class LiveRows(PythonDataset):
    """The rows that a reader of a lake finds; each scan reads the files again.

    Args:
        table: Full name of the table.
        filter: Condition on the rows of the dataset; None for all rows.
    """

    def __init__(self, table: str, reader: LakeReader, filter: pc.Expression | None = None):
        super().__init__(reader.schema, f'"{table}" is scanned by the methods of its dataset', filter)
        self._table, self._reader = table, reader

    def __repr__(self) -> str:
        return f"<LiveRows of {self._table}>"

    def _scan(self, columns: Any, filter: pc.Expression | None, batch_size: int | None) -> PythonScan:
        return _Scan(self._table, self._reader, columns, filter, batch_size)

    def filter(self, expression: pc.Expression) -> LiveRows:
        """The dataset of the rows that satisfy a condition, in addition to the dataset's own filter."""
        other = LiveRows.__new__(LiveRows)
        LiveRows.__init__(other, self._table, self._reader, both(self._filter, expression))
        return other


class _Scan(PythonScan):
    def __init__(
        self,
        table: str,
        reader: LakeReader,
        columns: Any,
        filter: pc.Expression | None,
        batch_size: int | None,
    ):
        super().__init__(reader.schema, columns, filter, batch_size)
        self._name, self._reader = table, reader
        if filter is not None:
            self._none.filter(filter)  # raises Arrow's errors for unknown columns and mismatched types

    def _read(self, limit: int | None) -> pa.RecordBatchReader:  # noqa: ARG002  whoever has enough rows ends the read
        names = self.dataset_schema.names
        needed = set(self._asked())
        if self._filter is not None:
            named = named_columns(self._filter)
            needed = set(names) if named is None else needed | named
        return self._kept(self._batches([name for name in names if name in needed]))

    def _batches(self, columns: list[str]) -> Any:
        try:
            yield from self._reader.batches(columns, self._filter)
        except CannotRead as error:
            raise CannotRead(f'"{self._name}": {error}') from error
