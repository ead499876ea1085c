"""Datasets whose rows come from Python: engines scan a `pyarrow.dataset.Dataset` by its Python methods.

pyarrow's own C++ code does not call these methods. The fragment that it would scan instead raises an error, because an
empty dataset would be a wrong result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs


class PythonDataset(ds.FileSystemDataset):
    """A dataset whose scans are made by `scanner`, of a subclass.

    Args:
        schema: Schema of its rows.
        unreadable: Says what is scanned how, for errors of code that reads fragments.
        filter: Condition on the rows of the dataset; None for all rows.
    """

    def __init__(self, schema: pa.Schema, unreadable: str, filter: pc.Expression | None = None):
        file_format = ds.IpcFileFormat()
        nowhere = file_format.make_fragment(unreadable, fs.LocalFileSystem())
        super().__init__([nowhere], schema, file_format, fs.LocalFileSystem())
        self._filter = filter

    def scanner(
        self, columns: Any = None, filter: pc.Expression | None = None, batch_size: int | None = None, **_: Any
    ) -> PythonScan:
        """Prepares a scan; other options of `pyarrow.dataset.Dataset.scanner` are for files and have no effect.

        Args:
            columns: Names of columns, or a dict of expressions by name; None for all columns.
            filter: Condition on the rows; None for all rows.
            batch_size: Most rows of a batch; None for batches of any size.

        Returns:
            The scan; nothing is read yet.
        """
        return self._scan(columns, both(self._filter, filter), batch_size)

    def _scan(self, columns: Any, filter: pc.Expression | None, batch_size: int | None) -> PythonScan:
        raise NotImplementedError

    def filter(self, expression: pc.Expression) -> Self:
        """The dataset of the rows that satisfy a condition, in addition to the dataset's own filter."""
        raise NotImplementedError

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[_Fragment]:
        """Yields one fragment with the whole dataset, for DataFusion.

        Args:
            filter: Condition on the rows; None for all rows.
        """
        yield _Fragment(self if filter is None else self.filter(filter))

    def to_batches(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Reads batches as they arrive; the arguments are those of `scanner`."""
        return self.scanner(*arguments, **options).to_batches()

    def to_table(self, *arguments: Any, **options: Any) -> pa.Table:
        """Reads all rows; the arguments are those of `scanner`."""
        return self.scanner(*arguments, **options).to_table()

    def head(self, num_rows: int, *arguments: Any, **options: Any) -> pa.Table:
        """Reads at most the first `num_rows` rows; the other arguments are those of `scanner`."""
        return self.scanner(*arguments, **options).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **_: Any) -> int:
        """Counts the rows that satisfy a filter, by reading one narrow column of them."""
        return self.scanner([], filter).count_rows()

    def take(self, indices: Any, *arguments: Any, **options: Any) -> pa.Table:
        """Takes rows by number, after reading all; the other arguments are those of `scanner`."""
        return self.to_table(*arguments, **options).take(indices)

    def sort_by(self, sorting: Any, **options: Any) -> ds.InMemoryDataset:
        """Sorts the rows in memory, as `pyarrow.dataset.Dataset.sort_by` does."""
        return ds.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """Joins the rows in memory, as `pyarrow.dataset.Dataset.join` does."""
        return ds.dataset(self.to_table()).join(*arguments, **options)

    def join_asof(self, *arguments: Any, **options: Any) -> ds.InMemoryDataset:
        """Joins the rows in memory, as `pyarrow.dataset.Dataset.join_asof` does."""
        return ds.dataset(self.to_table()).join_asof(*arguments, **options)

    def replace_schema(self, schema: pa.Schema) -> Self:  # noqa: ARG002  pyarrow's
        """Not supported.

        Raises:
            pa.ArrowNotImplementedError: Always.
        """
        raise pa.ArrowNotImplementedError(f"the schema of {self!r} cannot be replaced")

    def __reduce__(self) -> Any:
        raise pa.ArrowNotImplementedError(f"a {type(self).__name__} cannot be pickled, because it has a connection")


class _Fragment:
    """The whole dataset as a fragment, which DataFusion scans."""

    def __init__(self, dataset: PythonDataset):
        self._dataset = dataset
        self.physical_schema = dataset.schema
        self.partition_expression = pc.scalar(True)

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> PythonScan:  # noqa: ARG002  the dataset has it
        return self._dataset.scanner(**options)


class PythonScan:
    """One scan of a dataset. Nothing is read before the first method that returns rows is called.

    Args:
        schema: Schema of the dataset.
        columns: Names of columns, or a dict of expressions by name; None for all columns.
        filter: Condition on the rows; None for all rows.
        batch_size: Most rows of a batch; None for batches of any size.
    """

    def __init__(self, schema: pa.Schema, columns: Any, filter: pc.Expression | None, batch_size: int | None):
        self.dataset_schema = schema
        self._filter, self._batch_size = filter, batch_size
        self._computed: dict[str, pc.Expression] | None = columns if isinstance(columns, dict) else None
        self._names: list[str] = schema.names if columns is None or self._computed is not None else list(columns)
        self._none = pa.Table.from_batches([], schema)  # an empty_table() has no unions
        self.projected_schema: pa.Schema = (
            self._none.select(self._names).schema
            if self._computed is None
            else _project(self._none, self._computed).schema
        )

    def to_reader(self) -> pa.RecordBatchReader:
        """Starts the read and returns a reader of its batches."""
        return self._read(None)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Reads batches as they arrive."""
        return iter(self.to_reader())

    def scan_batches(self) -> Iterator[ds.TaggedRecordBatch]:
        """Reads batches in the form of `pyarrow.dataset.Scanner.scan_batches`, without a fragment."""
        for batch in self.to_reader():
            yield ds.TaggedRecordBatch(batch, None)

    def to_table(self) -> pa.Table:
        """Reads all rows."""
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """Reads at most the first `num_rows` rows."""
        return pa.Table.from_batches(_first(self._read(num_rows), num_rows), self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """Takes rows by number, after reading all."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Counts the rows as they arrive."""
        return sum(batch.num_rows for batch in self.to_reader())

    def _read(self, limit: int | None) -> pa.RecordBatchReader:
        """Starts a read whose batches have the schema of the scan.

        Args:
            limit: Rows after which the read may end; None for all.
        """
        raise NotImplementedError

    def _table(self, batch: pa.RecordBatch) -> pa.Table:
        """A batch as a table that Arrow's kernels take."""
        return pa.Table.from_batches([batch])

    def _asked(self) -> list[str]:
        """The columns to be read for those of the scan, at least one."""
        return list(dict.fromkeys(self._names)) or [_narrowest(self.dataset_schema)]

    def _kept(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        """The rows of batches that satisfy the filter, with the columns of the scan."""
        asked, filter = self._asked(), self._filter
        tables = (self._table(batch) for batch in batches)
        kept = (table if filter is None else table.filter(filter) for table in tables)
        found = (batch for table in kept for batch in table.select(asked).to_batches())
        return self._shaped(pa.RecordBatchReader.from_batches(self._none.select(asked).schema, found))

    def _shaped(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """The batches with the columns of the scan, split to at most `batch_size` rows."""
        computed, names, size = self._computed, self._names, self._batch_size
        if computed is None and size is None and reader.schema.equals(self.projected_schema):
            return reader

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                if computed is not None:
                    yield from _project(self._table(batch), computed).to_batches(max_chunksize=size)
                    continue
                rows = batch.num_rows if size is None else size
                chosen = batch.select(names)
                for start in range(0, batch.num_rows, max(rows, 1)):
                    yield chosen.slice(start, rows)

        return pa.RecordBatchReader.from_batches(self.projected_schema, batches())


def both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    """The condition that two conditions are true; None stands for all rows."""
    return other if one is None else one if other is None else one & other


def _project(table: pa.Table, columns: dict[str, pc.Expression]) -> pa.Table:
    return ds.dataset(table).to_table(columns=columns)


def _first(batches: Iterable[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if count <= 0:
            return
        yield batch.slice(0, count)
        count -= batch.num_rows


def _narrowest(schema: pa.Schema) -> str:
    """The column to read if only the number of rows is needed."""
    fixed = [field.name for field in schema if pa.types.is_boolean(field.type) or pa.types.is_integer(field.type)]
    return fixed[0] if fixed else schema.names[0]
