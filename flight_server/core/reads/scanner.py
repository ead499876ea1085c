"""Scans: determines the tables and snapshots of a request, and answers it from the cache or by a query.

A scan of one table is answered from the cache, else if it is current from its rows (`table_rows.py`); all others by a
DuckDB query (`query.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final, TypeAlias

import pyarrow as pa

from flight_server.client.conditions.one_table import NAMES
from flight_server.core.auth.principal import Principal
from flight_server.core.reads import adbc_statistics, known_snapshots
from flight_server.core.reads.generations import Generation, Generations
from flight_server.core.reads.null_slots import zeroed
from flight_server.core.reads.query import BATCH_ROWS, Queries, in_order, sort_keys
from flight_server.core.reads.scope import ReadScope
from flight_server.core.reads.slice_cache import Derived, Slice, SliceCache, one_batch
from flight_server.core.reads.stream import Stream, fits, never
from flight_server.core.reads.streams import Streams
from flight_server.core.reads.table_rows import TableRows
from flight_server.core.wire.scan_request import CURRENT, ScanRequest
from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.model.catalog_entries import TableEntry
from store.model.errors import InvalidArgument
from store.model.predicates.tree import And, Leaf, Op

SHORT_BYTES: Final = 65_536  # largest answer, with its command and the slice that it is a part of, that is kept
_OBJECTS_BYTES: Final = 10_240  # estimated size of the objects of a kept answer
SMALL_BYTES: Final = 1 << 20  # largest cached answer that does not count as a stream

# flights whose rows are not kept for tickets
_LARGE: Final = frozenset({"stats.sketches", "stats.files", "stats.file_columns", "stats.partitions"})
_KEPT_SHARE: Final = 8  # part of the cache's size that rows of tickets may take besides

Answer: TypeAlias = pa.Table | Stream


class Scanner:
    """Runs scans with the permissions of their callers."""

    def __init__(self, database: Database, catalog: Catalog, slices: SliceCache, streams: Streams):
        self.database, self.catalog, self.versions = database, catalog, database.versions
        self.streams = streams
        self.queries = Queries(database, catalog, database.versions)
        self.rows = TableRows(database, catalog, self.queries, slices)
        self.generations = Generations(database, self.rows.prepared, slices.budget // _KEPT_SHARE)

    def pin(self, request: ScanRequest, principal: Principal) -> ScanRequest:
        """The request with "current" resolved to snapshot ids, and with the generation of its table, for its ticket.

        Args:
            principal: The caller; only tables visible to it are pinned.
        """
        if request.snapshot is None or request.pins is not None:
            return request
        tables, pins, generation = self._tables(request, principal), None, None
        if request.snapshot == CURRENT:
            pins = dict(self.catalog.entries.committed.current if tables is None else _current(tables))
        if request.plan.name is not None and tables and (pin := self._pin(request, tables[0])) is not None:
            generation = self._generation(request, tables[0], pin)
        return request.changed(pins=pins, generation=generation)

    def _generation(self, request: ScanRequest, table: TableEntry, pin: int) -> Generation:
        """The generation of a table's rows at a snapshot, which are kept if they are not many."""
        flight, stale = request.flight, request.allow_stale

        def load() -> Slice | None:
            if flight.name in _LARGE:
                return None
            known = self.rows.of(flight, table, pin, stale)
            largest = self.generations.largest
            if known is None and (rows := self.rows.load(flight, table, pin, stale, largest)) is not None:
                known = Slice(rows, 0)
            return known if known is None or known.size <= largest else None

        return self.generations.pin(flight, table, pin, stale, load)

    def scope(self, request: ScanRequest, principal: Principal) -> ReadScope:
        """The tables and snapshots of a request, as far as its caller sees the tables."""
        epoch = self.versions.steady()
        tables = self._tables(request, principal)
        only = tables[0] if tables is not None and len(tables) == 1 else None
        scope = ReadScope(
            None if tables is None else [table.table_key for table in tables],
            allow_stale=request.allow_stale,
            only=only,
            any_dropped=self.catalog.entries.committed.any_dropped,
            is_limited=self.catalog.entries.committed.is_limited,
            caller=None if principal.sees_all else principal,
        )
        if request.snapshot in (None, CURRENT):
            failing, over = self.catalog.entries.committed.failing, self.catalog.deadlines.over()
            if scope.keys is not None:
                failing, over = failing.intersection(scope.keys), over.intersection(scope.keys)
            scope = replace(scope, failing=failing, overdue=over - failing)
        if request.snapshot is None:
            return scope
        pin = None if only is None else self._pin(request, only)
        if only is not None and pin is not None:
            return replace(scope, snapshot=pin, epoch=epoch if pin == only.current_snapshot_id else None)
        if request.pins is not None:
            current = self.catalog.entries.committed.current if tables is None else _current(tables)
            return replace(scope, pins=request.pins, epoch=epoch if request.pins == current else None)
        if request.snapshot == CURRENT:
            return replace(scope, current=True)
        return replace(scope, snapshot=int(request.snapshot))

    def _tables(self, request: ScanRequest, principal: Principal) -> list[TableEntry] | None:
        """The tables that the predicates allow and the caller may see; None for all."""
        if (name := request.plan.name) is not None:  # the usual case
            table = self.catalog.find(name)
            return [] if table is None or not principal.sees(*name) else [table]
        catalogs, schemas, tables = request.plan.allowed
        is_any = catalogs is None and schemas is None and tables is None
        if principal.sees_all and (is_any or "table_name" not in request.flight.schema.names):
            return None
        return [
            table
            for table in self.catalog.tables()  # the most selective part first, without a call for each table
            if (tables is None or table.table_name in tables)
            and (schemas is None or table.table_schema in schemas)
            and (catalogs is None or table.table_catalog in catalogs)
            and principal.sees(*table.name)
        ]

    def read(self, request: ScanRequest, principal: Principal, is_cancelled: Callable[[], bool] = never) -> Answer:
        """Answers a scan, with all commits acknowledged before this call.

        Raises:
            NotFound: The ticket's rows were changed since and are no longer kept (GONE); or there are no rows, and none
                of the tables has the snapshot (UNKNOWN_SNAPSHOT).
            ResourceExhausted: The answer exceeds the size limit, or too many streams are running.
        """
        request = self._fully_named(request, principal)
        kept = self._kept(request)
        answer = self._read(request, principal, kept, is_cancelled)
        try:
            if request.generation is not None:
                if kept is None:
                    self._check_generation(request, principal)  # after the query began: no write comes in between
            elif request.pins:
                self._check_pins(request, principal)
            if isinstance(answer, pa.Table) and not answer.num_rows:
                self._check_snapshot(request, principal)
        except BaseException:
            if isinstance(answer, Stream):
                answer.close()
            raise
        return answer

    def _fully_named(self, request: ScanRequest, principal: Principal) -> ScanRequest:
        """The request with its table's full name, by which rows are cached, if a part of the name says which it is."""
        if request.node is None or request.plan.name is not None:
            return request
        *_, named = request.plan.allowed
        if named is None or len(named) != 1:
            return request
        tables = self._tables(request, principal)
        if tables is None or len(tables) != 1:
            return request
        leaves = [Leaf(column, Op.EQ, (part,)) for column, part in zip(NAMES, tables[0].name, strict=True)]
        return replace(request, node=And((request.node, *leaves)))

    def _check_generation(self, request: ScanRequest, principal: Principal) -> None:
        for table in self._tables(request, principal) or ():
            if request.generation is not None and (pin := self._pin(request, table)) is not None:
                self.generations.check(request.generation, request.flight, table, pin)

    def _check_pins(self, request: ScanRequest, principal: Principal) -> None:
        """Raises NotFound if rows of a table that a ticket about several is pinned to have expired."""
        committed = self.catalog.entries.committed
        moved = {key: id for key, id in (request.pins or {}).items() if committed.current.get(key) != id}
        seen = {key: table for key in moved if (table := committed.by_key.get(key)) and principal.sees(*table.name)}
        if seen:
            known_snapshots.check_pins(self.database, self.catalog.presence, request.flight, moved, seen)

    def _check_snapshot(self, request: ScanRequest, principal: Principal) -> None:
        """Raises NotFound if no table of a request has the snapshot that it names, or none any more."""
        if request.snapshot in (None, CURRENT) or request.limit == 0 or request.part is not None:
            return
        tables = self._tables(request, principal)
        tables = self.catalog.tables() if tables is None else tables
        known_snapshots.check(self.database, tables, int(request.snapshot or 0))

    def _kept(self, request: ScanRequest) -> Slice | None:
        """The rows of the request's ticket; None if they must be read."""
        if request.generation is None or request.rows or request.part is not None or request.plan.name is None:
            return None
        table = self.catalog.find(request.plan.name)
        pin = None if table is None else self._pin(request, table)
        if table is None or pin is None:
            return None
        return self.generations.find(request.generation, request.flight, table, pin, request.allow_stale)

    def _read(
        self, request: ScanRequest, principal: Principal, kept: Slice | None, is_cancelled: Callable[[], bool]
    ) -> Answer:
        batch = self._cached(request, principal, kept)
        if batch is None:
            answer = self._from_database(request, principal, is_cancelled)
        elif batch.num_rows <= 1 or fits(batch, SMALL_BYTES):
            answer = pa.Table.from_batches([batch])
        else:
            return self.streams.serve(pa.Table.from_batches([batch]).to_batches(BATCH_ROWS), is_cancelled)
        return self.streams.admit(answer) if isinstance(answer, pa.Table) else answer

    @contextmanager
    def reader(
        self, request: ScanRequest, principal: Principal, is_cancelled: Callable[[], bool] = never
    ) -> Iterator[Iterable[pa.RecordBatch]]:
        """The batches of a scan, which are read inside of the block."""
        answer = self.read(request, principal, is_cancelled)
        if isinstance(answer, pa.Table):
            yield answer.to_batches()
        else:
            with closing(answer):
                yield answer

    def table(self, request: ScanRequest, principal: Principal) -> pa.Table:
        """All rows of a scan."""
        with self.reader(request, principal) as batches:
            return pa.Table.from_batches(batches, request.schema)

    def message(
        self,
        request: ScanRequest,
        principal: Principal,
        is_cancelled: Callable[[], bool] = never,
        command: bytes | None = None,
    ) -> pa.Buffer:
        """A small answer as one Arrow IPC stream.

        Args:
            command: The request's own bytes, by which a short answer about one table is kept until the table changes.

        Raises:
            InvalidArgument: The answer is too large for one message.
            ResourceExhausted: The answer exceeds the size limit.
        """
        table, is_whole = None, principal.sees_all and request.flight.writable and request.generation is None
        if command is not None and is_whole and request.plan.name is not None:
            kept = self.rows.slices.derived(command, self.versions.generation)
            if kept is not None and not self.catalog.deadlines.is_over(kept.table_key):
                return self.streams.admit(kept.value)
            if self.rows.slices.is_worth_loading(("message", hash(command))):
                table = self.catalog.find(request.plan.name)
        if table is not None and self.catalog.is_unsure(table):
            table = None  # what is answered now holds for this moment only
        generation = 0 if table is None else self.versions.generation(table.table_key)
        answer = self.read(request, principal, is_cancelled)
        if isinstance(answer, Stream):
            answer.close()
            raise InvalidArgument("the answer is too large for one message", hint="read it with DoGet")
        batches = (batch.serialize() for batch in answer.to_batches())
        message = pa.py_buffer(b"".join([request.head, *batches, _END]))
        if command is not None and table is not None and (size := len(command) + message.size) <= SHORT_BYTES:
            self.rows.slices.put_derived(command, Derived(table.table_key, generation, message), size + _OBJECTS_BYTES)
        return self.streams.admit(message)

    def _cached(self, request: ScanRequest, principal: Principal, kept: Slice | None) -> pa.RecordBatch | None:
        """The answer from a slice, the kept one of a ticket or another; None if the request is not about one table or
        its slice is not cached."""
        if request.rows or request.part is not None or not request.flight.name.startswith("stats."):
            return None
        plan = request.plan
        if plan.name is None:
            return None
        table = self.catalog.find(plan.name)
        if table is None or not principal.sees(*table.name):
            return _empty(request)
        snapshot = None
        if request.snapshot in (None, CURRENT) and self.catalog.is_unsure(table):
            is_answered = request.allow_stale or request.snapshot is None or not table.failing
            return None if is_answered else _empty(request)
        if request.snapshot is not None:
            snapshot = self._pin(request, table)
            if snapshot is None:
                return _empty(request)
        cached = kept or self.rows.of(request.flight, table, snapshot, request.allow_stale)
        if cached is None:
            return None
        batch = cached.select(plan, request.limit)
        batch = batch if request.columns is None else batch.select(request.names)
        return batch if principal.sees_all else zeroed(batch)

    def _pin(self, request: ScanRequest, table: TableEntry) -> int | None:
        if request.pins is not None:
            return request.pins.get(table.table_key)
        return table.current_snapshot_id if request.snapshot == CURRENT else int(request.snapshot or 0)

    def _from_database(self, request: ScanRequest, principal: Principal, is_cancelled: Callable[[], bool]) -> Answer:
        """Answers from DuckDB."""
        if request.flight.name != adbc_statistics.FLIGHT.name:
            return self._run(request, self.scope(request, principal), principal.sees_all, is_cancelled)
        return adbc_statistics.answer(request, lambda scan: self.table(scan, principal))

    def _run(self, request: ScanRequest, scope: ReadScope, sees_all: bool, is_cancelled: Callable[[], bool]) -> Answer:
        cursor = self.database.read()
        keys = sort_keys(request, scope)
        hidden = [key for key in keys if key not in request.names]
        wanted = request if not hidden else request.changed(columns=(*request.names, *hidden))

        def shape(batch: pa.RecordBatch) -> pa.RecordBatch:
            shown = batch.select(request.names) if hidden else batch
            return shown if sees_all else zeroed(shown)

        answer = self.streams.run(
            cursor, lambda: self.queries.start(cursor, wanted, scope), wanted.schema, is_cancelled, shape
        )
        if isinstance(answer, Stream):
            return answer
        answer = in_order(answer, keys)
        if not sees_all:
            return pa.Table.from_batches(map(shape, answer.to_batches()), request.schema)
        return answer.select(request.names) if hidden else answer

    # Parts of a scan.

    def parts(self, request: ScanRequest, principal: Principal) -> list[ScanRequest]:
        """Splits a scan into disjoint parts that cover all of its rows.

        Args:
            request: The scan, with the greatest number of parts in `partitions`.
            principal: The caller, whose visible tables determine the parts.

        Returns:
            One scan per part; the scan itself if it has a limit, or its flight is computed or `stats.sketches`.
        """
        if request.partitions == 1 or request.limit is not None:
            return [request]
        return self.queries.split(request, self.scope(request, principal).keys)


_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # end-of-stream marker of Arrow IPC


def _current(tables: Sequence[TableEntry]) -> dict[int, int]:
    return {t.table_key: t.current_snapshot_id for t in tables if t.current_snapshot_id is not None}


def _empty(request: ScanRequest) -> pa.RecordBatch:
    return one_batch(request.schema.empty_table())
