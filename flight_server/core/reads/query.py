"""ScanRequest → record batches by one SQL query with projection, predicates and limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from flight_server.core.reads.catalog_sources import SOURCES
from flight_server.core.reads.scope import FlightSource, ReadScope
from flight_server.core.reads.stats_sources import (
    IN_PARTS,
    LABELS,
    TABLE_COLUMNS,
    label_columns,
    stats_source,
    with_labels,
)
from flight_server.core.wire.scan_request import Part, ScanRequest
from store.catalog.catalog import Catalog
from store.duckdb.arrow_sql import query
from store.duckdb.database import Connection, Database
from store.duckdb.layout import BY_SNAPSHOT, BY_SPAN, STORED, parts
from store.duckdb.table_versions import TableVersions
from store.model.flight import Flight
from store.model.predicates import tree
from store.model.predicates.sql import to_sql
from store.model.puts import IDENTITY

BATCH_ROWS: Final = 4096  # ~1 MiB of statistics
_SKETCHES: Final = "stats.sketches"  # a union of two tables, which has no sort columns in common
_LARGE: Final = {_SKETCHES: 64}  # rows of a batch for flights with large values
NAMED_UP_TO: Final = 1000  # most rows of a limited read that gets the table names from the catalog
ORDERED_UP_TO: Final = 100_000  # rows; a larger unscoped read is in storage order, clustered by table

FAMILIES: Final = {
    "stats.files": ("stats.files",),
    "stats.file_columns": ("stats.file_columns",),
    "stats.sketches": ("file_sketches",),
    "stats.partitions": ("stats.files",),
    "sys.storage": tuple(BY_SPAN),
}
"""Flight → the families of rows of files that it reads."""

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)
Typed = TypeVar("Typed", pa.Table, pa.RecordBatchReader)
ArrowSource: TypeAlias = Callable[[ReadScope], pa.Table | FlightSource]


class Queries:
    """Queries DuckDB for the rows of flights. `arrow_sources` has the sources of computed flights, by name."""

    def __init__(self, database: Database, catalog: Catalog, versions: TableVersions):
        self.database, self.versions, self.catalog = database, versions, catalog
        self.arrow_sources: dict[str, ArrowSource] = {}
        self._estimates: tuple[int, dict[str, int]] = (-1, {})  # epoch; row estimates by physical table

    def start(self, cursor: Connection, request: ScanRequest, scope: ReadScope) -> Iterable[pa.RecordBatch]:
        """Starts the query of a request; the rows are those committed when this returns.

        Returns:
            The batches, with the schema of the request.
        """
        families = FAMILIES.get(request.flight.name)
        if families is None:
            return self._start(cursor, request, scope)
        segments = self.database.segments
        is_attached = segments.attach(cursor, scope.keys, families)
        batches = self._start(cursor, request, scope)
        if is_attached or not segments.may_have(scope.keys):
            return batches
        del batches  # a table has got segments meanwhile
        segments.attach(cursor, scope.keys, families)
        return self._start(cursor, request, scope)

    def _start(self, cursor: Connection, request: ScanRequest, scope: ReadScope) -> Iterable[pa.RecordBatch]:
        # The requested snapshots are current: a plain filter, if there is no commit.
        if scope.epoch is not None and request.flight.name in BY_SNAPSHOT:
            batches = self._query(cursor, request, replace(scope, pins=None, current=True))
            if self.versions.steady() == scope.epoch:
                return batches
            del batches  # a cursor has one result at a time
        return self._query(cursor, request, scope)

    def _query(self, cursor: Connection, request: ScanRequest, scope: ReadScope) -> Iterable[pa.RecordBatch]:
        source = self._source(request, scope)
        for name, table in source.arrow.items():
            cursor.register(name, table)
        if (rows := self._few(cursor, request, source, scope)) is not None:
            return rows.to_batches()
        sql, parameters = self._sql(request, source, scope)
        batch_rows = _LARGE.get(request.flight.name) or _batch_rows(request.schema)
        # What the catalog has of a table, or a row for each of its columns: a copy of them costs less than to parse and
        # bind twice, as a stream does.
        is_few = request.flight.name in SOURCES or (not scope.is_stored and request.flight.name in IN_PARTS)
        if is_few and scope.only is not None and request.names and not request.rows:
            return _typed(query(cursor, sql, parameters), request.schema).to_batches(batch_rows)
        reader = cursor.sql(sql, params=parameters or None).to_arrow_reader(batch_rows)
        if not request.names and not request.rows:
            return (batch.select([]) for batch in reader)
        return _typed(reader, request.schema)

    def _source(self, request: ScanRequest, scope: ReadScope) -> FlightSource:
        name = request.flight.name
        if arrow_source := self.arrow_sources.get(name):
            source = arrow_source(scope)
            if isinstance(source, FlightSource):
                return source
            columns = {column: f'source."{column}"' for column in request.flight.schema.names}
            return FlightSource("source", [], columns, arrow={"source": source})
        if catalog_source := SOURCES.get(name):
            return catalog_source(scope)
        return stats_source(request.flight, scope, tree.columns_of(request.node).union(request.names))

    def _sql(
        self, request: ScanRequest, source: FlightSource, scope: ReadScope, *, unnamed: str = ""
    ) -> tuple[str, list[Any]]:
        """The statement and its parameters; `unnamed` is SQL of other columns, without a join."""
        parameters = list(source.parameters)
        schema = request.flight.schema
        conditions = [source.where]
        if request.node is not None:
            condition, own = to_sql(request.node, schema, source.columns.__getitem__)
            conditions.append(condition)
            parameters += own
        if request.part is not None:
            conditions.append(_part_sql(request.part, source))
        where = " AND ".join(f"({condition})" for condition in conditions)
        ordered = source.order and not sort_keys(request, scope) and self._small(request, scope)
        order = f" ORDER BY {source.order}" if ordered else ""
        limit = f" LIMIT {request.limit}" if request.limit is not None else ""
        rows = source.base if unnamed else source.sql
        return f"SELECT {unnamed or _chosen(request, source)} FROM {rows} WHERE {where}{order}{limit}", parameters

    def _few(self, cursor: Connection, request: ScanRequest, source: FlightSource, scope: ReadScope) -> pa.Table | None:
        """The rows of a query with a small limit, with table names and labels added in Arrow, because a join and SQL of
        labels would double the time. None if there may be many rows, the join has more than these, or there was a
        commit in between."""
        is_few = not request.rows and request.limit is not None and request.limit <= NAMED_UP_TO
        epoch = self.versions.steady()
        if not (is_few and source.base) or epoch is None:
            return None
        split = _without_join(request, source, scope)
        if split is None:
            return None
        sql, parameters = self._sql(request, source, scope, unnamed=split.values)
        rows = query(cursor, sql, parameters)
        if self.versions.steady() != epoch:
            return None
        keys = pc.dictionary_encode(rows["table_key"].combine_chunks())
        tables = [self.catalog.by_key(key) for key in keys.dictionary.to_pylist()]
        if split.has_labels:
            current = pa.array([table.current_snapshot_id for table in tables], pa.int64()).take(keys.indices)
            rows = with_labels(rows, current if scope.snapshot is None else scope.snapshot)
        for name in TABLE_COLUMNS:
            names = pa.array([getattr(table, name) for table in tables], pa.string())
            rows = rows.append_column(name, names.take(keys.indices))
        return _typed(rows.select(request.names), request.schema)

    def _small(self, request: ScanRequest, scope: ReadScope) -> bool:
        name = request.flight.name
        if scope.keys is not None or not name.startswith("stats."):
            return True
        if name in STORED and request.limit is not None:  # any rows will do, and sorting takes ten times as long
            return False
        return name not in STORED or self.estimate(name, only_current=scope.current) <= ORDERED_UP_TO

    def split(self, request: ScanRequest, keys: Collection[int] | None) -> list[ScanRequest]:
        """Splits a scan without a limit into at most `partitions` disjoint parts of about as many rows.

        Args:
            keys: Keys of the tables that it reads; None for all.

        Returns:
            One scan per part; the scan itself if its flight is computed or `stats.sketches`.
        """
        if request.flight.name not in STORED or request.flight.name == _SKETCHES:
            return [request]
        sizes = list(self.stored_rows([request.flight]).items())
        if keys is not None:
            wanted = set(keys)
            sizes = [(key, count) for key, count in sizes if key in wanted]
        return [request.changed(part=share) for share in _shares(sizes, request.partitions)]

    def stored_rows(self, flights: Iterable[Flight], keys: Collection[int] | None = None) -> dict[int, int]:
        """Table key → rows of stored flights over all snapshots, by ascending key, without tables that have none.

        Args:
            keys: Keys of the tables to count; None for all.
        """
        among = "" if keys is None else "WHERE table_key IN (SELECT unnest($1::BIGINT[]))"
        flights = list(flights)
        rows = " UNION ALL ".join(f"SELECT table_key FROM {STORED[flight.name]} {among}" for flight in flights)
        sql = f"SELECT table_key, count(*) FROM ({rows}) GROUP BY 1 ORDER BY 1"
        with self.database.reading() as cursor:
            families = {family for flight in flights for family in FAMILIES.get(flight.name, ())}
            if families:
                self.database.segments.attach(cursor, keys, families)
            return dict(cursor.execute(sql, [] if keys is None else [list(keys)]).fetchall())

    def estimate(self, flight: str, *, only_current: bool = False) -> int:
        """The number of rows of a flight, estimated by DuckDB."""
        epoch = self.versions.epoch
        if epoch != self._estimates[0]:  # one estimate takes as long as all
            rows = self.database.rows("SELECT table_name, estimated_size FROM duckdb_tables()")
            estimates: dict[str, int] = dict(rows)
            if self.database.segments.may_have():
                with self.database.reading() as cursor:
                    for family, count in self.database.segments.count(cursor).items():
                        estimates[BY_SPAN[family]] += count
            self._estimates = (epoch, estimates)
        tables = parts(flight) if flight in BY_SNAPSHOT else (STORED[flight],)
        return sum(self._estimates[1].get(table, 0) for table in (tables[:1] if only_current else tables))


class _WithoutJoin(NamedTuple):
    """A query of the rows alone.

    Attributes:
        values: SQL of their columns, the first of which is the key of the table.
        has_labels: True if labels are added to the rows.
    """

    values: str
    has_labels: bool


def _chosen(request: ScanRequest, source: FlightSource) -> str:
    """SQL of the columns of a request; of whole rows as JSON, if it asks for these."""
    if not request.rows:
        return ", ".join(f'{source.columns[name]} AS "{name}"' for name in request.names) or "1"
    schema = request.flight.schema
    texts = ", ".join(_text_sql(source.columns[name], schema.field(name).type) for name in request.names)
    return f"to_json([{texts}]::VARCHAR[])::VARCHAR AS row" if texts else "'[]' AS row"


def _without_join(request: ScanRequest, source: FlightSource, scope: ReadScope) -> _WithoutJoin | None:
    """The query without its join; None if it has none, or needs more of it than the names of tables and labels."""
    is_plain = request.flight.name in IN_PARTS and not scope.allow_stale and scope.pins is None
    labels = LABELS.intersection(request.names) if is_plain and not scope.is_stored else frozenset()
    joined = {name for name in request.names if name in TABLE_COLUMNS or "t." in source.columns[name]} | labels
    if not joined or joined - labels - {*TABLE_COLUMNS}:
        return None
    if any("t." in source.columns.get(column, "") for column in tree.columns_of(request.node)):
        return None
    return _WithoutJoin(_own_columns(request, source, joined, has_labels=bool(labels)), bool(labels))


def _own_columns(request: ScanRequest, source: FlightSource, joined: Collection[str], *, has_labels: bool) -> str:
    """SQL of the columns that rows have without a join; with labels those, unlabelled, that labels are made of."""
    needed = [*request.names, *(label_columns(request.flight) if has_labels else [])]
    chosen = [name for name in dict.fromkeys(needed) if name not in joined or name == "ndv_exact"]
    columns = (f's."{name}"' if has_labels else f'{source.columns[name]} AS "{name}"' for name in chosen)
    return ", ".join(["s.table_key", *columns])


def sort_keys(request: ScanRequest, scope: ReadScope) -> tuple[str, ...]:
    """The columns by which a small result about one table is sorted after the query; empty if it is not. DuckDB takes
    longer to sort a few wide rows than for the rest of the query, and a stream cannot wait for the last row."""
    if scope.only is None or request.limit is not None or request.rows:
        return ()
    return order_of(request.flight)


def order_of(flight: Flight) -> tuple[str, ...]:
    """The columns by which the rows of one table are sorted after a query; empty if the query has to sort them."""
    identity = IDENTITY.get(flight.name)
    is_sorted = identity is None or flight.name in ("stats.sketches", "stats.column_groups")
    return () if is_sorted else ("snapshot_id", *(identity or ()))


def _typed(rows: Typed, schema: pa.Schema) -> Typed:
    return rows if rows.schema.equals(schema) else rows.cast(schema)


def in_order(table: Rows, keys: tuple[str, ...]) -> Rows:
    """The rows sorted by the keys, ascending; the rows themselves if they are sorted already."""
    if table.num_rows < 2 or not keys:
        return table
    order = pc.sort_indices(table.select(list(keys)), [(key, "ascending") for key in keys])
    numbers = order.to_numpy()
    return table if (numbers[1:] > numbers[:-1]).all() else table.take(order)


def _batch_rows(schema: pa.Schema) -> int:
    """The number of rows of a batch of at most 1.5 MiB: few batches are cheaper, if they fit the CPU's cache."""
    width = sum(32 if type.num_buffers > 2 or type.num_fields else 8 for type in schema.types)
    return next((rows for rows in (65_536, 32_768, 16_384, 8192) if rows * width <= 3 << 19), BATCH_ROWS)


def _part_sql(part: Part, source: FlightSource) -> str:
    conditions = [f"s.table_key >= {int(part.low)}"] if part.low is not None else []
    if part.high is not None:
        conditions.append(f"s.table_key < {int(part.high)}")
    if part.modulus > 1:
        conditions.append(f"hash({source.order}) % {int(part.modulus)} = {int(part.residue)}")
    return " AND ".join(conditions) or "true"


def _text_sql(column: str, type: pa.DataType) -> str:
    """SQL of a value as text, for the ROWS format."""
    if pa.types.is_timestamp(type):
        return f"strftime({column}, '%Y-%m-%dT%H:%M:%S.%fZ')"
    if pa.types.is_binary(type):
        return f"to_base64({column})"
    if pa.types.is_list(type):
        return f"to_json({column})::VARCHAR"
    return f"{column}::VARCHAR"


def _shares(sizes: Sequence[tuple[int, int]], count: int) -> list[Part]:
    """Parts of about as many rows, of tables with these numbers of stored rows: ranges of keys, or shares of each table
    if one has most of the rows."""
    total = sum(rows for _, rows in sizes)
    if not sizes or max(rows for _, rows in sizes) > 1.5 * total / count:
        return [Part(None, None, residue, count) for residue in range(count)]
    bounds: list[int | None] = [None]
    seen = 0
    for key, rows in sizes:
        if seen >= total * len(bounds) / count:
            bounds.append(key)
        seen += rows
    return [Part(low, high, 0, 1) for low, high in zip(bounds, [*bounds[1:], None], strict=True)]
