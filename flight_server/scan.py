"""ScanRequest → RecordBatchReader, all inside DuckDB and Arrow: projection, predicates and limit are one SQL query."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flight_server import known
from flight_server.auth import ANONYMOUS, Principal
from flight_server.cache import NAMES, Slice, SliceCache, mark_of, one_batch
from flight_server.descriptors import CURRENT, Part, ScanRequest
from flight_server.hot import HotFlights
from flight_server.lone import FLIGHTS as LONE_FLIGHTS
from flight_server.lone import LoneSnapshots
from flight_server.streams import Stream, Streams, fits, never
from flight_server.tables import SOURCES, Scope, Source, stats_source
from store import predicate
from store.catalog_store import Catalog, TableEntry
from store.changes import Changes
from store.database import STORED, Connection, Database
from store.errors import InvalidArgument
from store.packed import Packed
from store.schemas import FLIGHTS, Flight
from store.stats_store import IDENTITY

BATCH_ROWS: Final = 4096  # ~1 MiB of statistics; fewer where single values are large
_LARGE: Final = {"stats.sketches": 64}
ORDERED_UP_TO: Final = 100_000  # rows; a larger unscoped read comes as it is stored, clustered by table
MEMO_ROWS: Final = 4  # of an answer that is kept as it is
MEMO_BYTES: Final = 8192
SMALL_BYTES: Final = 1 << 20  # a cached answer that is sent without taking a stream's place

PACKED: Final = (FLIGHTS["stats.tables"], FLIGHTS["stats.columns"])  # what planners ask for
_SKETCHES: Final = "stats.sketches"  # a union: its order is no list of columns

_MARKS: Final = {flight.name: mark_of(flight.schema) for flight in PACKED}

ArrowSource: TypeAlias = Callable[[Scope], pa.Table]
Answer: TypeAlias = pa.Table | Stream


class Scanner:
    """Runs scans for callers. `arrow_sources` give the flights that are not in DuckDB, by name."""

    def __init__(self, database: Database, catalog: Catalog, changes: Changes, slices: SliceCache, streams: Streams):
        self.database, self.catalog, self.changes = database, catalog, changes
        self.slices, self.streams = slices, streams
        self.packed = Packed(database)
        self.arrow_sources: dict[str, ArrowSource] = {}
        self.hot: HotFlights | None = None
        self.lone = LoneSnapshots(database, changes)

    def pin(self, request: ScanRequest, principal: Principal) -> ScanRequest:
        """The request with "current" fixed to today's snapshot ids, for its ticket."""
        if request.snapshot != CURRENT or request.pins is not None:
            return request
        return replace(request, pins=dict(self.scope(request, principal).pins or {}))

    def scope(self, request: ScanRequest, principal: Principal) -> Scope:
        tables = self._tables(request, principal)
        keys = None if tables is None else [table.table_key for table in tables]
        only = tables[0] if tables is not None and len(tables) == 1 else None
        if request.snapshot is None:
            return Scope(keys, only=only)
        if request.pins is not None:
            return Scope(keys, request.pins, request.allow_stale, only)
        among = self.catalog.tables() if tables is None else tables
        if request.snapshot == CURRENT:
            pins = {t.table_key: t.current_snapshot_id for t in among if t.current_snapshot_id is not None}
        else:
            pins = {t.table_key: int(request.snapshot) for t in among}
        return Scope(keys, pins, request.allow_stale, only)

    def _tables(self, request: ScanRequest, principal: Principal) -> list[TableEntry] | None:
        """The tables a request can be about: those its predicates name and its caller sees; None for all."""
        if "table_name" not in request.flight.schema.names and principal.sees_all:
            return None
        names = [predicate.equal_values(request.node, c) for c in ("table_catalog", "table_schema", "table_name")]
        if principal.sees_all and not any(name is not None for name in names):
            return None
        if all(name is not None and len(name) == 1 for name in names):  # one table by its full name, the usual case
            found = self.catalog.find(tuple(next(iter(name or ())) for name in names))  # type: ignore[arg-type]
            among = [found] if found else []
        else:
            among = [
                table for table in self.catalog.tables()
                if all(name is None or part in name for part, name in zip(table.name, names, strict=True))
            ]  # fmt: skip
        return [table for table in among if principal.sees(*table.name)]

    def read(self, request: ScanRequest, principal: Principal, is_cancelled: Callable[[], bool] = never) -> Answer:
        """The answer of a scan, out of the cache where it is there, else as of what was committed when this began."""
        if (known := self._recalled(request, "table", principal)) is not None:
            return known
        if (found := self._cached(request, principal)) is not None:
            batch, of = found
            table = pa.Table.from_batches([batch])
            if batch.num_rows <= 1 or fits(batch, SMALL_BYTES):
                again = "asked" in request.memo
                request.memo["asked"] = (0, 0, None)
                if again and of is not None and batch.num_rows <= MEMO_ROWS:
                    # read back: what is kept must not keep the whole slice
                    message = pa.py_buffer(b"".join([request.head, batch.serialize(), _END]))
                    self._memorize(request, "table", of, lambda: pa.ipc.open_stream(message).read_all(), message.size)
                return table
            return self.streams.serve(table.to_batches(BATCH_ROWS), is_cancelled)
        if self.hot is not None and self._is_whole(request, principal) and (whole := self.hot.get(request)) is not None:
            chosen = whole if request.columns is None else whole.select(request.names)
            return self.streams.serve(chosen.to_batches(), is_cancelled)
        return self._run(request, self.scope(request, principal), is_cancelled)

    def reader(
        self, request: ScanRequest, principal: Principal, is_cancelled: Callable[[], bool] = never
    ) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
        """The schema and batches of a scan."""
        answer = self.read(request, principal, is_cancelled)
        return request.schema, answer.to_batches() if isinstance(answer, pa.Table) else answer

    def table(self, request: ScanRequest, principal: Principal) -> pa.Table:
        """A whole small scan."""
        schema, batches = self.reader(request, principal)
        return pa.Table.from_batches(batches, schema)

    def message(
        self, request: ScanRequest, principal: Principal, is_cancelled: Callable[[], bool] = never
    ) -> pa.Buffer:
        """A small answer as one Arrow IPC stream."""
        if (known := self._recalled(request, "message", principal)) is not None:
            return known
        of = None
        if (found := self._cached(request, principal)) is not None:
            batch, of = found
            batches, whole = [batch], batch.num_rows <= 1 or fits(batch, SMALL_BYTES)
        else:
            answer = self._run(request, self.scope(request, principal), is_cancelled)
            batches, whole = [], isinstance(answer, pa.Table)
            if isinstance(answer, Stream):
                answer.close()
            else:
                batches = answer.to_batches()
        if not whole:
            raise InvalidArgument("the answer is too large for one message", hint="read it with DoGet")
        message = pa.py_buffer(b"".join([request.head, *(batch.serialize() for batch in batches), _END]))
        if of is not None:
            self._memorize(request, "message", of, lambda: message, message.size)
        return message

    def _recalled(self, request: ScanRequest, form: str, principal: Principal) -> Any:
        """What the same command was answered last time, if nothing has happened to its table since."""
        known = request.memo.get(form)
        if known is None or not principal.sees_all or self.changes.generation(known[0]) != known[1]:
            return None
        return known[2]

    def _memorize(
        self, request: ScanRequest, form: str, of: tuple[int, int], answer: Callable[[], Any], size: int
    ) -> None:
        if size <= MEMO_BYTES:
            request.memo[form] = (*of, answer())

    def _is_whole(self, request: ScanRequest, principal: Principal) -> bool:
        """Whether it asks for all rows of a flight, stored or current, as they are now."""
        if request.node or request.limit is not None or request.rows or request.part or not principal.sees_all:
            return False
        if not request.flight.name.startswith("stats.") or request.snapshot not in (None, CURRENT):
            return False
        return request.pins is None or request.pins == self.scope(replace(request, pins=None), principal).pins

    def batches(self, request: ScanRequest) -> Iterator[pa.RecordBatch]:
        """A scan for the server itself, which takes no place among the streams."""
        with self.database.reading() as cursor:
            yield from self._start(cursor, request, self.scope(request, ANONYMOUS))

    def _cached(
        self, request: ScanRequest, principal: Principal
    ) -> tuple[pa.RecordBatch, tuple[int, int] | None] | None:
        """The answer from a slice, with its table's key and generation; None where the request is not about one table,
        or its slice is not kept."""
        if request.rows or request.part is not None or not request.flight.name.startswith("stats."):
            return None
        plan = request.plan
        if plan.name is None:
            return None
        table = self.catalog.find(plan.name)
        if table is None or not principal.sees(*table.name):
            return _none(request), None
        snapshot = None
        if request.snapshot is not None:
            pin = self._pin(request, table)
            if pin is None:
                return _none(request), None
            snapshot = pin
        found = self.slice(request.flight, table, snapshot, request.allow_stale)
        if found is None:
            return None
        batch = found.select(plan, request.limit)
        of = (table.table_key, found.generation)
        return (batch if request.columns is None else batch.select(request.names)), of

    def _pin(self, request: ScanRequest, table: TableEntry) -> int | None:
        if request.pins is not None:
            return request.pins.get(table.table_key)
        return table.current_snapshot_id if request.snapshot == CURRENT else int(request.snapshot or 0)

    def slice(self, flight: Flight, table: TableEntry, snapshot: int | None, allow_stale: bool = False) -> Slice | None:
        """What a flight shows of a table (all stored rows, or those valid for a snapshot), if it is kept ready."""
        stale = allow_stale and snapshot is not None
        return self.slices.get(
            (flight.name, table.table_key, snapshot, stale),
            lambda: self.changes.generation(table.table_key),
            lambda most: self._load(flight, table, snapshot, stale, most),
            lambda generation: None if stale else self._packed(flight, table.table_key, snapshot, generation),
        )

    def _packed(self, flight: Flight, table_key: int, snapshot: int | None, generation: int) -> Slice | None:
        if snapshot is None or flight.name not in _MARKS:
            return None
        data = self.packed.find(flight.name, table_key, snapshot)
        return None if data is None else self.unpack(flight, data, generation)

    def unpack(self, flight: Flight, data: bytes, generation: int) -> Slice | None:
        """The slice of a value; None where another version of this program kept it."""
        return Slice.unpacked(data, _MARKS[flight.name], flight.schema, generation)

    def pack(self, flight: Flight, made: Slice) -> bytes:
        """A slice of a flight of `PACKED` as a value to be kept."""
        return made.packed(_MARKS[flight.name])

    def current(self, flight: Flight, tables: Sequence[TableEntry]) -> Iterator[tuple[int, int, Slice]]:
        """Table key, snapshot id and slice of the current rows of tables, by one query for all; of those with rows."""
        pins = {t.table_key: t.current_snapshot_id for t in tables if t.current_snapshot_id is not None}
        if not pins:
            return
        generations = {key: self.changes.generation(key) for key in pins}
        keys = {table.name: table.table_key for table in tables}
        whole = ScanRequest(flight)
        with self.database.reading() as cursor:
            batches = list(self._begin(cursor, whole, Scope(list(pins), pins)))
        if not (found := pa.Table.from_batches(batches, whole.schema)).num_rows:
            return
        batch = one_batch(found)  # table by table: a read of known tables is in order
        names = [batch.column(name).dictionary_encode().indices.to_numpy() for name in NAMES]
        changes = np.logical_or.reduce([codes[1:] != codes[:-1] for codes in names])
        starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            key = keys[tuple(batch.column(name)[start].as_py() for name in NAMES)]
            made = Slice.of(batch.slice(start, stop - start), generations[key])
            yield key, pins[key], made

    def _load(
        self, flight: Flight, table: TableEntry, snapshot: int | None, allow_stale: bool, most: int
    ) -> pa.RecordBatch | None:
        """All rows of a table as one batch, or None where they have too many bytes."""
        whole = ScanRequest(flight)
        pins = None if snapshot is None else {table.table_key: snapshot}
        scope = Scope([table.table_key], pins, allow_stale, table)
        batches, size = [], 0
        with self.database.reading() as cursor:
            for batch in self._start(cursor, whole, scope):
                size += batch.nbytes
                if size > most:
                    return None
                batches.append(batch)
        return one_batch(_sorted(pa.Table.from_batches(batches, whole.schema), _sort_keys(whole, scope)))

    def _run(self, request: ScanRequest, scope: Scope, is_cancelled: Callable[[], bool]) -> Answer:
        cursor = self.database.read()
        keys = _sort_keys(request, scope)
        hidden = [key for key in keys if key not in request.names]
        wanted = request if not hidden else request.with_columns((*request.names, *hidden))
        strip = (lambda batch: batch.select(request.names)) if hidden else None
        found = self.streams.run(
            cursor, lambda: self._start(cursor, wanted, scope), wanted.schema, is_cancelled, strip
        )  # fmt: skip
        if not keys or isinstance(found, Stream):
            return found
        found = _sorted(found, keys)
        return found.select(request.names) if hidden else found

    def _start(self, cursor: Connection, request: ScanRequest, scope: Scope) -> Iterable[pa.RecordBatch]:
        """The batches; what they are of is fixed once this returns."""
        generation = self._lone(request, scope)
        if generation is not None and scope.only is not None:
            batches = self._begin(cursor, request, replace(scope, lone=True))
            if self.changes.settled(scope.only.table_key) == generation:
                return batches
            del batches  # a cursor has one result at a time
        return self._begin(cursor, request, scope)

    def _lone(self, request: ScanRequest, scope: Scope) -> int | None:
        """The generation of the one table asked about, if its only rows are those of the very snapshot asked for."""
        name, table = request.flight.name, scope.only
        if table is None or not scope.pins or name not in LONE_FLIGHTS:
            return None
        generation = self.changes.settled(table.table_key)
        if generation is None:
            return None
        lone = self.lone.of(name, table.table_key, generation)
        return generation if lone is not None and lone == scope.pins.get(table.table_key) else None

    def _begin(self, cursor: Connection, request: ScanRequest, scope: Scope) -> Iterable[pa.RecordBatch]:
        stored = known.stored_part(request, scope)
        if stored is None:
            return self._query(cursor, request, scope)
        return (known.completed(batch, request, scope) for batch in self._query(cursor, stored, scope))

    def _query(self, cursor: Connection, request: ScanRequest, scope: Scope) -> Iterable[pa.RecordBatch]:
        source = self._source(request, scope)
        sql, parameters = self._sql(request, source, scope)
        for name, table in source.arrow.items():
            cursor.register(name, table)
        batch_rows = _LARGE.get(request.flight.name) or _batch_rows(request.schema)
        reader = cursor.sql(sql, params=parameters or None).to_arrow_reader(batch_rows)
        if not request.names and not request.rows:
            return (batch.select([]) for batch in reader)
        return reader if reader.schema.equals(request.schema) else reader.cast(request.schema)

    # Shares of a scan.

    def parts(self, request: ScanRequest, principal: Principal) -> list[ScanRequest]:
        """The request in as many shares as it asks for: disjoint, and together all of its rows."""
        name = request.flight.name
        if request.partitions == 1 or name not in STORED or request.limit is not None or name == _SKETCHES:
            return [request]
        scope = self.scope(request, principal)
        sizes = list(self.stored_rows(request.flight).items())
        if scope.keys is not None:
            wanted = set(scope.keys)
            sizes = [(key, count) for key, count in sizes if key in wanted]
        total = sum(count for _, count in sizes)
        if not sizes or max(count for _, count in sizes) > 1.5 * total / request.partitions:  # one table is most of it
            shares = [Part(None, None, residue, request.partitions) for residue in range(request.partitions)]
        else:
            bounds: list[int | None] = [None]
            seen = 0
            for key, count in sizes:
                if seen >= total * len(bounds) / request.partitions:
                    bounds.append(key)
                seen += count
            shares = [Part(low, high) for low, high in zip(bounds, [*bounds[1:], None], strict=True)]
        return [replace(request, part=share) for share in shares]

    def _source(self, request: ScanRequest, scope: Scope) -> Source:
        name = request.flight.name
        if made := self.arrow_sources.get(name):
            columns = {column: f'source."{column}"' for column in request.flight.schema.names}
            return Source("source", [], columns, arrow={"source": made(scope)})
        if known := SOURCES.get(name):
            return known(scope)
        used = {*request.names, *(column.strip().lower() for column in predicate.columns_of(request.node))}
        return stats_source(request.flight, scope, used)

    def _sql(self, request: ScanRequest, source: Source, scope: Scope) -> tuple[str, list[Any]]:
        parameters = list(source.parameters)
        schema = request.flight.schema
        chosen = ", ".join(f'{source.columns[name]} AS "{name}"' for name in request.names) or "1"
        if request.rows:
            texts = ", ".join(_text_sql(source.columns[name], schema.field(name).type) for name in request.names)
            chosen = f"to_json([{texts}]::VARCHAR[])::VARCHAR AS row" if texts else "'[]' AS row"
        conditions = [source.where]
        if request.node is not None:
            condition, own = predicate.to_sql(request.node, schema, lambda name: source.columns[name])
            conditions.append(condition)
            parameters += own
        if request.part is not None:
            conditions.append(_part_sql(request.part, source))
        where = " AND ".join(f"({condition})" for condition in conditions)
        ordered = source.order and not _sort_keys(request, scope) and self._small(request, scope)
        order = f" ORDER BY {source.order}" if ordered else ""
        limit = f" LIMIT {request.limit}" if request.limit is not None else ""
        sql = f"SELECT {chosen} FROM {source.sql} WHERE {where}{order}{limit}"
        return _with_names(sql, parameters, source.names) if source.names else (sql, parameters)

    def _small(self, request: ScanRequest, scope: Scope) -> bool:
        if scope.keys is not None or not request.flight.name.startswith("stats."):
            return True
        table = STORED.get(request.flight.name)
        return table is None or self.estimate(table) <= ORDERED_UP_TO

    def stored_rows(self, flight: Flight, keys: Collection[int] | None = None) -> dict[int, int]:
        """How many rows of a stored flight there are of each table that has any, by table key; of all snapshots."""
        among, parameters = (
            ("", []) if keys is None else ("WHERE table_key IN (SELECT unnest(?::BIGINT[]))", [list(keys)])
        )
        sql = f"SELECT table_key, count(*) FROM {STORED[flight.name]} {among} GROUP BY 1 ORDER BY 1"
        return dict(self.database.rows(sql, *parameters))

    def estimate(self, table: str) -> int:
        """Rows of a physical table, by DuckDB's own estimate."""
        found = self.database.rows("SELECT estimated_size FROM duckdb_tables() WHERE table_name = ?", table)
        return int(found[0][0]) if found else 0


_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an IPC stream


def _sort_keys(request: ScanRequest, scope: Scope) -> tuple[str, ...]:
    """The columns by which a small answer about one table is put in order once it is there: DuckDB takes longer for
    the sorting of a few wide rows than for all the rest, and a large answer should not wait for its last row."""
    identity = IDENTITY.get(request.flight.name)
    if scope.only is None or request.limit is not None or request.rows or identity is None:
        return ()
    return () if request.flight.name in ("stats.sketches", "stats.column_groups") else ("snapshot_id", *identity)


def _sorted(table: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    if table.num_rows < 2 or not keys:
        return table
    order = pc.sort_indices(table.select(list(keys)), [(key, "ascending") for key in keys])
    numbers = order.to_numpy()
    return table if (numbers[1:] > numbers[:-1]).all() else table.take(order)


def _batch_rows(schema: pa.Schema) -> int:
    """How many rows make a batch of 1.5 MiB or less: many narrow ones cost less in few batches, until these outgrow the
    processor's cache."""
    width = sum(32 if type.num_buffers > 2 or type.num_fields else 8 for type in schema.types)
    return next((rows for rows in (65_536, 32_768, 16_384, 8192) if rows * width <= 3 << 19), BATCH_ROWS)


def _none(request: ScanRequest) -> pa.RecordBatch:
    return one_batch(request.schema.empty_table())


def _with_names(sql: str, parameters: list[Any], names: tuple[str, ...]) -> tuple[str, list[Any]]:
    """Puts parameters where the SQL has `:t0` …, however often."""
    given, merged = iter(parameters), []  # type: Iterator[Any], list[Any]

    def mark(found: re.Match[str]) -> str:
        merged.append(next(given) if found[1] is None else names[int(found[1])])
        return "?" if found[1] is None else "?::VARCHAR"

    return re.sub(r":t([0-3])|\?", mark, sql), merged


def _part_sql(part: Part, source: Source) -> str:
    conditions = [f"s.table_key >= {int(part.low)}"] if part.low is not None else []
    if part.high is not None:
        conditions.append(f"s.table_key < {int(part.high)}")
    if part.modulus > 1:
        conditions.append(f"hash({source.order}) % {int(part.modulus)} = {int(part.residue)}")
    return " AND ".join(conditions) or "true"


def _text_sql(column: str, type: pa.DataType) -> str:
    """A value as text, for the ROWS format."""
    if pa.types.is_timestamp(type):
        return f"strftime({column}, '%Y-%m-%dT%H:%M:%S.%fZ')"
    if pa.types.is_binary(type):
        return f"to_base64({column})"
    if pa.types.is_list(type):
        return f"to_json({column})::VARCHAR"
    return f"{column}::VARCHAR"
