"""Flights as datasets that DuckDB scans for a statement, passing down the columns and conditions that each scan needs.

A condition arrives as an Arrow expression and becomes the condition of a scan of the server (`reads.scanner`), with the
caller's permissions and limits. What no scan can express is applied to its rows here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from flight_server.client.conditions.arrow_expressions import from_expression, weakened
from flight_server.core.auth.principal import Principal
from flight_server.core.wire.scan_request import ScanRequest
from flight_server.faces.sql.flights import NAIVE, naive
from flight_server.faces.sql.plan import Source
from store.model.errors import InvalidArgument, ResourceExhausted
from store.model.predicates import tree
from store.model.predicates.tree import Node

if TYPE_CHECKING:
    from flight_server.core.app import App

MAX_SOURCE_BYTES: Final = 256 << 20  # most bytes that a statement reads from flights


class Relation(ds.InMemoryDataset):
    """A flight in a statement; each scan of it is a read.

    Args:
        schema: The columns that the statement may use.
        read: Reads the rows of a scan with these columns and this condition.
    """

    def __init__(self, schema: pa.Schema, read: Callable[[Sequence[str], pc.Expression | None], pa.Table]):
        super().__init__(schema.empty_table())
        self._read = read

    def scanner(self, columns: Sequence[str] | None, filter: pc.Expression | None = None, **_: Any) -> _Scan:
        """Reads the rows of a scan; DuckDB calls this."""
        return _Scan(self._read(self.schema.names if columns is None else columns, filter))


class _Scan:
    """The rows of a scan, in the form that DuckDB expects."""

    def __init__(self, rows: pa.Table):
        self.projected_schema, self.to_reader = rows.schema, rows.to_reader


class Reads:
    """The reads of one run of a statement. Equal reads are executed once.

    Attributes:
        error: The error of the read that failed; DuckDB raises another in its place.
        of_all_tables: Labels of the sources of which a scan was not limited to tables by their names.
    """

    def __init__(self, app: App, caller: Principal, is_cancelled: Callable[[], bool]):
        self._app, self._caller, self._is_cancelled = app, caller, is_cancelled
        self._left = MAX_SOURCE_BYTES
        self._read: list[tuple[ScanRequest, Future[pa.Table]]] = []
        self._lock = threading.Lock()  # DuckDB scans from several threads; not held over a read
        self.error: BaseException | None = None
        self.of_all_tables: set[str] = set()

    def relation(self, source: Source) -> Relation:
        """The dataset of a source."""
        return Relation(schema_of(source), partial(self._scan, source))

    def _scan(self, source: Source, columns: Sequence[str], filter: pc.Expression | None) -> pa.Table:
        try:
            return self._rows(source, columns, filter)
        except BaseException as error:
            self.error = self.error or error
            raise

    def _rows(self, source: Source, columns: Sequence[str], filter: pc.Expression | None) -> pa.Table:
        node, exact = (None, True) if filter is None else _condition(filter)
        read = tuple(columns) if exact else source.columns
        request = ScanRequest(source.table.flight, read, node, source.table.snapshot)
        if all(names is None for names in request.plan.allowed):
            self.of_all_tables.add(source.label)
        rows = self._once(request)
        return rows if exact else rows.filter(filter).select(list(columns))

    def _once(self, request: ScanRequest) -> pa.Table:
        """The rows of a read, which the first of equal scans executes."""
        with self._lock:
            known = next((read for other, read in self._read if other == request), None)
            read, left = known or Future[pa.Table](), self._left
            if known is None:
                self._read.append((request, read))
        if known is None:
            try:
                read.set_result(self._counted(request, left))
            except BaseException as error:
                read.set_exception(error)
        return read.result()

    def _counted(self, request: ScanRequest, left: int) -> pa.Table:
        rows = self.table(request, left)
        if rows is not None:
            with self._lock:
                self._left -= rows.nbytes
                left = self._left
        if rows is None or left < 0:
            last = request.flight.name
            raise ResourceExhausted(
                f"the statement reads more than {MAX_SOURCE_BYTES >> 20} MiB, the last of it from {last}",
                hint="narrow it by WHERE, or read the flight itself",
            )
        return rows

    def table(self, request: ScanRequest, most: int) -> pa.Table | None:
        """The rows of a scan with naive timestamps; None if they have more than `most` bytes."""
        schema = naive(request.schema)
        shown, size = [], 0
        with self._app.scanner.reader(request, self._caller, self._is_cancelled) as batches:
            self._app.usage.read(request, self._caller)
            for batch in batches:
                size += batch.nbytes
                if size > most:
                    return None
                shown.append(with_schema(batch, schema))
        return pa.Table.from_batches(shown, schema)


def _condition(filter: pc.Expression) -> tuple[Node | None, bool]:
    """The condition of a scan for an expression, which selects no fewer rows; and True if it selects the same."""
    for translate, exact in ((from_expression, True), (weakened, False)):
        with suppress(ValueError, InvalidArgument):  # it has no tree, or one beyond the limits of trees
            if (found := translate(filter, naive_is_utc=True)) is not None:
                return tree.parse(found, as_text=True), exact  # bounds are VARCHAR in SQL
    return None, False


def schema_of(source: Source) -> pa.Schema:
    """The columns of a source, with naive timestamps."""
    return naive(pa.schema([source.table.flight.schema.field(name) for name in source.columns]))


def with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the names of a schema and naive timestamps."""
    columns = [column.view(NAIVE) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
