"""Flights as `pyarrow.dataset.Dataset`s, for DuckDB, polars, DataFusion, pandas and pyarrow.

    d = client.dataset("stats.columns", snapshot="current")
    duckdb.sql("SELECT column_name, ndv FROM d WHERE table_name = 'orders'")

Engines scan a dataset by its Python methods. Each scan is one read of the server, with the scan's columns and filter; a
filter that the server does not support is applied here. Nothing is cached between scans.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.client.conditions.arrow_expressions import compared_columns, from_expression, weakened
from flight_server.client.python_dataset import PythonDataset, PythonScan, both

if TYPE_CHECKING:
    from flight_server.client.connection import Connection

_UNREADABLE: Final = "a flight is scanned by the methods of its FlightDataset; to_table() has its rows"
_BOUNDS: Final = frozenset({"min", "max"})  # the server compares them in the row's logical type
_HALF: Final = (
    "[INVALID_ARGUMENT] a condition on min or max is combined with one that the server does not support; "
    "filter by the first, then apply the other to the result"
)
_CALLERS_FAULT: Final = ("[UNKNOWN_COLUMN]", "[BAD_LITERAL]")


class FlightDataset(PythonDataset):
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
        super().__init__(client.schema(command), _UNREADABLE, filter)
        self._client, self._command = client, command

    def __repr__(self) -> str:
        return f"<FlightDataset {self._command['table']} of {self._client.uri}>"

    def _scan(self, columns: Any, filter: pc.Expression | None, batch_size: int | None) -> Scan:
        return Scan(self._client, self._command, self.schema, columns, filter, batch_size)

    def filter(self, expression: pc.Expression) -> FlightDataset:
        """The dataset of the rows that satisfy a condition, in addition to the dataset's own filter."""
        other = FlightDataset.__new__(FlightDataset)
        snapshot, stale = self._command.get("snapshot"), self._command.get("allow_stale", False)
        kept = both(self._filter, expression)
        FlightDataset.__init__(other, self._client, self._command["table"], snapshot, stale, kept)
        return other


class Scan(PythonScan):
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
        super().__init__(schema, columns, filter, batch_size)
        self._client, self._command = client, command
        self._tree: dict[str, Any] | None = None
        if filter is not None:
            with suppress(ValueError):
                self._tree = from_expression(filter)
            if self._tree is None and self._compares_bounds():
                raise pa.ArrowInvalid(_HALF)
            if self._tree is None or not _fits(self._tree, schema):
                self._none.filter(filter)  # raises Arrow's errors for unknown columns and mismatched types

    def _read(self, limit: int | None) -> pa.RecordBatchReader:
        asked = self._asked()
        if self._filter is None:
            return self._shaped(self._get(asked, None, limit))
        if self._tree is None:
            return self._kept(self._get(self.dataset_schema.names, weakened(self._filter), None))
        try:
            return self._shaped(self._get(asked, self._tree, limit))
        except pa.ArrowInvalid as refusal:
            # The filter may have too many conditions for the server; then it is applied here. Any other error
            # occurs again in the read without it.
            if str(refusal).startswith(_CALLERS_FAULT) or self._compares_bounds():
                raise
            return self._kept(self._get(self.dataset_schema.names, None, None))

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

    def _table(self, batch: pa.RecordBatch) -> pa.Table:
        """A copy with aligned buffers: those of received batches are not, and Arrow's kernels warn about each."""
        copied = pa.ipc.read_record_batch(pa.py_buffer(batch.serialize().to_pybytes()), batch.schema)
        return pa.Table.from_batches([copied])


def _kinds_of(schema: pa.Schema, at: int) -> tuple[type, ...]:
    """The Python types of literals that suit the column at a place."""
    field = schema.field(at)
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
        return int, float
    if field.name in _BOUNDS and "logical_type" in schema.names:
        return str, int, float, Decimal
    return (str,) if pa.types.is_string(field.type) else ()


def _fits(tree: dict[str, Any], schema: pa.Schema) -> bool:
    """True if every literal suits the type of its column, so that Arrow accepts it."""
    if "column" not in tree:
        (inner,) = tree.values()  # of not, and, or
        return all(_fits(each, schema) for each in (inner if isinstance(inner, list) else [inner]))
    at = schema.get_field_index(tree["column"])
    if at < 0:
        return False
    kinds = _kinds_of(schema, at)
    return all(isinstance(value, kinds) and not isinstance(value, bool) for value in tree.get("values", []))
