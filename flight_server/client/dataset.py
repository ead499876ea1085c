"""Flights as `pyarrow.dataset.Dataset`s, for DuckDB, polars, DataFusion, pandas and pyarrow.

    d = client.dataset("stats.columns", snapshot="current")
    duckdb.sql("SELECT column_name, ndv FROM d WHERE table_name = 'orders'")

Engines scan a dataset by its Python methods. Each scan is one read of the server, with the scan's columns and filter; a
filter that the server does not support is applied here. Nothing is cached between scans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs

from flight_server.client.conditions.arrow_expressions import compared_columns, from_expression, weakened

if TYPE_CHECKING:
    from flight_server.client.connection import Connection

# pyarrow's C++ code does not call these methods. The fragment it would scan instead raises an error; an empty dataset
# would be a wrong result.
_UNREADABLE: Final = "a flight is scanned by the methods of its FlightDataset; to_table() has its rows"
_BOUNDS: Final = frozenset({"min", "max"})  # the server compares them in the row's logical type
_HALF: Final = (
    "[INVALID_ARGUMENT] a condition on min or max is combined with one that the server does not support; "
    "filter by the first, then apply the other to the result"
)
_CALLERS_FAULT: Final = ("[UNKNOWN_COLUMN]", "[BAD_LITERAL]")


class FlightDataset(ds.FileSystemDataset):
    """A flight of a server; each scan reads it again.

    Args:
        client: The connection; it must stay open.
        flight: Name of the flight, such as `stats.columns`.
        snapshot: See `StatsReader.read`.
        allow_stale: See `StatsReader.read`.
        filter: Condition on the rows of the dataset; None for all rows.

    Raises:
        pa.ArrowKeyError: UNKNOWN_FLIGHT.
    """

    def __init__(
        self,
        client: Connection,
        flight: str,
        snapshot: str | int | None = None,
        allow_stale: bool = False,
        filter: pc.Expression | None = None,
    ):
        command: dict[str, Any] = {"table": flight, "strict": True}
        if snapshot is not None:
            command |= {"snapshot": snapshot, "allow_stale": allow_stale}
        file_format = ds.IpcFileFormat()
        nowhere = file_format.make_fragment(_UNREADABLE, fs.LocalFileSystem())
        super().__init__([nowhere], client.schema(command), file_format, fs.LocalFileSystem())
        self._client, self._command, self._filter = client, command, filter

    def __repr__(self) -> str:
        return f"<FlightDataset {self._command['table']} of {self._client.uri}>"

    def scanner(
        self, columns: Any = None, filter: pc.Expression | None = None, batch_size: int | None = None, **_: Any
    ) -> Scan:
        """Prepares a scan; other options of `pyarrow.dataset.Dataset.scanner` are for files and have no effect.

        Args:
            columns: Names of columns, or a dict of expressions by name; None for all columns.
            filter: Condition on the rows; None for all rows.
            batch_size: Most rows of a batch; None for batches of any size.

        Returns:
            The scan; nothing is read yet.
        """
        kept = filter if self._filter is None else self._filter if filter is None else self._filter & filter
        return Scan(self._client, self._command, self.schema, columns, kept, batch_size)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[_Fragment]:
        """Yields one fragment with the whole dataset, for DataFusion.

        Args:
            filter: Condition on the rows; None for all rows.
        """
        yield _Fragment(self if filter is None else self.filter(filter))

    def filter(self, expression: pc.Expression) -> FlightDataset:
        """The dataset of the rows that satisfy a condition, in addition to the dataset's own filter."""
        other = FlightDataset.__new__(FlightDataset)
        both = expression if self._filter is None else self._filter & expression
        snapshot, stale = self._command.get("snapshot"), self._command.get("allow_stale", False)
        FlightDataset.__init__(other, self._client, self._command["table"], snapshot, stale, both)
        return other

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

    def replace_schema(self, schema: pa.Schema) -> FlightDataset:  # noqa: ARG002  pyarrow's
        """Not supported, because the server determines the schema.

        Raises:
            pa.ArrowNotImplementedError: Always.
        """
        raise pa.ArrowNotImplementedError(f"the schema of {self._command['table']} is the server's")

    def __reduce__(self) -> Any:
        raise pa.ArrowNotImplementedError("a FlightDataset cannot be pickled, because it has a connection")


class _Fragment:
    """The whole dataset as a fragment, which DataFusion scans."""

    def __init__(self, dataset: FlightDataset):
        self._dataset = dataset
        self.physical_schema = dataset.schema
        self.partition_expression = pc.scalar(True)

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> Scan:  # noqa: ARG002  the server determines it
        return self._dataset.scanner(**options)


class Scan:
    """One scan of a flight. Nothing is read before the first method that returns rows is called.

    Args:
        command: The JSON command of the dataset.
        columns: Names of columns, or a dict of expressions by name; None for all columns.
        filter: Condition on the rows; None for all rows.
        batch_size: Most rows of a batch; None for batches of any size.
    """

    def __init__(
        self,
        client: Connection,
        command: dict[str, Any],
        schema: pa.Schema,
        columns: Any,
        filter: pc.Expression | None,
        batch_size: int | None,
    ):
        self.dataset_schema = schema
        self._client, self._batch_size, self._filter = client, batch_size, filter
        self._computed: dict[str, pc.Expression] | None = columns if isinstance(columns, dict) else None
        self._names: list[str] = schema.names if columns is None or self._computed is not None else list(columns)
        self._command = command
        none = pa.Table.from_batches([], schema)  # an empty_table() has no unions
        self._tree: dict[str, Any] | None = None
        if filter is not None:
            with suppress(ValueError):
                self._tree = from_expression(filter)
            if self._tree is None and self._compares_bounds():
                raise pa.ArrowInvalid(_HALF)
            if self._tree is None or not _fits(self._tree, schema):
                none.filter(filter)  # raises Arrow's errors for unknown columns and mismatched types
        self.projected_schema: pa.Schema = (
            none.select(self._names).schema if self._computed is None else _project(none, self._computed).schema
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
        """Reads at most the first `num_rows` rows; the server applies the limit if it applies the whole filter."""
        return pa.Table.from_batches(_first(self._read(num_rows), num_rows), self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """Takes rows by number, after reading all."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Counts the rows as they arrive."""
        return sum(batch.num_rows for batch in self.to_reader())

    def _read(self, limit: int | None) -> pa.RecordBatchReader:
        asked = list(dict.fromkeys(self._names)) or [_narrowest(self.dataset_schema)]
        if self._filter is None:
            return self._shaped(self._get(asked, None, limit))
        if self._tree is None:
            whole = self._get(self.dataset_schema.names, weakened(self._filter), None)
        else:
            try:
                return self._shaped(self._get(asked, self._tree, limit))
            except pa.ArrowInvalid as refusal:
                # The filter may have too many conditions for the server; then it is applied here. Any other error
                # occurs again in the read without it.
                if str(refusal).startswith(_CALLERS_FAULT) or self._compares_bounds():
                    raise
                whole = self._get(self.dataset_schema.names, None, None)
        kept = (_aligned(batch).filter(self._filter).select(asked) for batch in whole)
        batches = (batch for table in kept for batch in table.to_batches())
        schema = pa.Table.from_batches([], self.dataset_schema).select(asked).schema
        return self._shaped(pa.RecordBatchReader.from_batches(schema, batches))

    def _compares_bounds(self) -> bool:
        """True if the filter compares bounds, which are text in Arrow, so that it cannot be applied here."""
        bounds = _BOUNDS if "logical_type" in self.dataset_schema.names else frozenset()
        return self._filter is not None and not bounds.isdisjoint(compared_columns(self._filter))

    def _get(self, columns: list[str], tree: dict[str, Any] | None, limit: int | None) -> pa.RecordBatchReader:
        command = self._command | {"columns": columns}
        if tree is not None:
            command["filter"] = tree
        if limit is not None:
            command["limit"] = limit
        return self._client.get(command, stream=True)

    def _shaped(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """The batches with the columns of the scan, split to at most `batch_size` rows."""
        computed, names, size = self._computed, self._names, self._batch_size
        if computed is None and size is None and reader.schema.equals(self.projected_schema):
            return reader

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                if computed is not None:
                    yield from _project(_aligned(batch), computed).to_batches(max_chunksize=size)
                    continue
                rows = batch.num_rows if size is None else size
                chosen = batch.select(names)
                for start in range(0, batch.num_rows, max(rows, 1)):
                    yield chosen.slice(start, rows)

        return pa.RecordBatchReader.from_batches(self.projected_schema, batches())


def _fits(tree: dict[str, Any], schema: pa.Schema) -> bool:
    """True if every literal suits the type of its column, so that Arrow accepts it."""
    if "column" not in tree:
        (inner,) = tree.values()  # of not, and, or
        return all(_fits(each, schema) for each in (inner if isinstance(inner, list) else [inner]))
    at = schema.get_field_index(tree["column"])
    if at < 0:
        return False
    type_ = schema.field(at).type
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        kinds: tuple[type, ...] = (int, float)
    else:
        kinds = (str,) if pa.types.is_string(type_) else ()
        if tree["column"] in _BOUNDS and "logical_type" in schema.names:
            kinds = (str, int, float, Decimal)
    return all(isinstance(value, kinds) and not isinstance(value, bool) for value in tree.get("values", []))


def _project(table: pa.Table, columns: dict[str, pc.Expression]) -> pa.Table:
    return ds.dataset(table).to_table(columns=columns)


def _aligned(batch: pa.RecordBatch) -> pa.Table:
    """A copy with aligned buffers: those of received batches are not, and Arrow's kernels warn about each."""
    copied = pa.ipc.read_record_batch(pa.py_buffer(batch.serialize().to_pybytes()), batch.schema)
    return pa.Table.from_batches([copied])


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
