"""Runs of planned statements: by DuckDB over scans of flights, or by one scan where that is all.

Columns that a statement has read whole are kept until the next commit, for statements that are repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.core.auth.principal import Principal
from flight_server.core.reads.fair_semaphore import FairSemaphore
from flight_server.core.reads.null_slots import zeroed
from flight_server.core.reads.stream import Stream
from flight_server.core.reads.streams import MAX_QUERIES
from flight_server.core.wire.scan_request import ScanRequest
from flight_server.faces.sql import parameters, pushdown
from flight_server.faces.sql.kept_tables import KeptTable, WholeColumns
from flight_server.faces.sql.plan import Source
from flight_server.faces.sql.planner import Planned
from flight_server.faces.sql.pushdown import Slot
from flight_server.faces.sql.relations import Reads, with_schema
from store.model.errors import InvalidArgument
from store.model.predicates import tree
from store.model.predicates.arrow import to_mask

if TYPE_CHECKING:
    from flight_server.core.app import App
    from flight_server.faces.sql.sandbox import Sandbox

SMALL_ROWS: Final = 16_384  # most rows of an answer computed from whole columns

Answer: TypeAlias = pa.Table | Stream


class Runs:
    """Runs planned statements.

    Args:
        sandbox: The DuckDB instance for statements.
    """

    def __init__(self, app: App, sandbox: Sandbox):
        self._app, self._sandbox = app, sandbox
        self._whole = WholeColumns(lambda: app.versions.epoch, app.settings.cache_bytes)
        self._slots = FairSemaphore(MAX_QUERIES)  # its own, as statements wait for reads

    def close(self) -> None:
        """Drops the columns that are kept."""
        self._whole.clear()

    def run(
        self, planned: Planned, values: Sequence[Any], caller: Principal, is_cancelled: Callable[[], bool]
    ) -> Answer:
        """The rows of a statement for a caller: a table if they are few, else a stream, which is to be closed.

        Args:
            values: Values of its parameters, in order.
        """
        parsed, schema = planned.plan, planned.schema
        if parsed.direct is not None:
            return self._direct(planned, values, caller, is_cancelled)
        reads = Reads(self._app, caller, is_cancelled)
        tables = {
            source.label: self._kept_table(source, planned, reads, caller) or reads.relation(source)
            for source in parsed.sources
        }
        cursor, epoch = self._sandbox.cursor(), self._app.versions.epoch
        given = [parameters.for_duckdb(value) for value in values]
        if parsed.now:
            given.append(datetime.now(UTC).replace(tzinfo=None))

        def rows() -> Iterator[pa.RecordBatch]:
            try:
                for batch in self._sandbox.rows(cursor, parsed.sql, given, tables, schema):
                    yield batch if caller.sees_all else zeroed(batch)
            except Exception:
                if reads.error is not None:
                    raise reads.error from None
                raise
            planned.of_all_tables.update(dict.fromkeys(reads.of_all_tables, epoch))

        return self._app.streams.run(cursor, rows, schema, is_cancelled, slots=self._slots)

    def _direct(
        self, planned: Planned, values: Sequence[Any], caller: Principal, is_cancelled: Callable[[], bool]
    ) -> Answer:
        """The answer to a statement that needs no DuckDB."""
        parsed, schema = planned.plan, planned.schema
        (source,) = parsed.sources
        request = ScanRequest(
            source.table.flight,
            source.columns,
            pushdown.bind(source.node, values),
            source.table.snapshot,
            limit=None if parsed.direct is None else _limit(parsed.direct.limit, values),
        )
        if (small := self._filtered(request, planned, caller, is_cancelled)) is not None:
            return small
        epoch = self._app.versions.epoch
        answer = self._app.scanner.read(request, caller, is_cancelled)
        self._app.usage.read(request, caller)
        planned.of_all_tables[source.label] = epoch
        if isinstance(answer, pa.Table):
            return pa.Table.from_batches([with_schema(batch, schema) for batch in answer.to_batches()], schema)
        return answer.map(lambda batch: with_schema(batch, schema))

    # Whole columns of flights: kept once a plan has read them, until the next commit.

    def _may_keep(self, source: Source, planned: Planned, caller: Principal) -> bool:
        read = planned.of_all_tables.get(source.label) == self._app.versions.epoch
        return read and caller.sees_all and source.table.flight.family == "stats"

    def _kept_table(self, source: Source, planned: Planned, reads: Reads, caller: Principal) -> KeptTable | None:
        if not self._may_keep(source, planned, caller):
            return None
        request = ScanRequest(source.table.flight, source.columns, snapshot=source.table.snapshot)

        def read(most: int) -> KeptTable | None:
            rows = reads.table(request, most)
            return None if rows is None else self._sandbox.keep(rows)

        key = (self._sandbox.restarts, request.flight.name, request.snapshot, request.columns)
        kept: KeptTable | None = self._whole.get(key, read)
        return kept

    def _filtered(
        self, request: ScanRequest, planned: Planned, caller: Principal, is_cancelled: Callable[[], bool]
    ) -> pa.Table | None:
        """A small answer to a direct read, computed from kept columns, which takes a tenth of the time of a query; None
        if the condition uses other columns than numbers and booleans, or the answer is not small."""
        (source,) = planned.plan.sources
        schema = request.flight.schema
        if request.node is None or not self._may_keep(source, planned, caller):
            return None
        compared = tree.columns_of(request.node)
        types = [schema.field(name).type for name in compared]
        if not all(pa.types.is_primitive(type) and not pa.types.is_timestamp(type) for type in types):
            return None
        columns = tuple(name for name in schema.names if name in compared.union(source.columns))
        whole = ScanRequest(request.flight, columns, snapshot=request.snapshot)

        def read(most: int) -> pa.RecordBatch | None:
            rows = Reads(self._app, caller, is_cancelled).table(whole, most)
            return None if rows is None else _encoded(rows)

        batch = self._whole.get(("arrow", whole.flight.name, whole.snapshot, columns), read)
        if batch is None:
            return None
        kept = batch.filter(to_mask(request.node, schema)(batch))
        if kept.num_rows > SMALL_ROWS:
            return None
        shown = [_decoded(kept[name]) for name in source.columns]
        batch = pa.RecordBatch.from_arrays(shown, schema=planned.schema)
        return pa.Table.from_batches([batch]).slice(0, request.limit)


def _encoded(rows: pa.Table) -> pa.RecordBatch:
    """The rows as one batch, with dictionary encoding of texts that repeat."""
    columns = []
    for column in rows.columns:
        encoded = pc.dictionary_encode(column).unify_dictionaries() if pa.types.is_string(column.type) else column
        few = encoded is column or encoded.num_chunks == 0 or len(encoded.chunk(0).dictionary) <= len(column) // 4
        columns.append((encoded if few else column).combine_chunks())
    return pa.RecordBatch.from_arrays(columns, names=rows.column_names)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _limit(limit: int | Slot | None, values: Sequence[Any]) -> int | None:
    if not isinstance(limit, Slot):
        return limit
    value = values[limit.number]
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidArgument(f"parameter {limit.number + 1}: a LIMIT must be an integer ≥ 0", code="BAD_LITERAL")
    return value
