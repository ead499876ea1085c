"""ScanRequest → RecordBatchReader, all inside DuckDB and Arrow: projection, predicates and limit are one SQL query."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from flight_server.auth import Principal
from flight_server.descriptors import CURRENT, ScanRequest
from flight_server.tables import SOURCES, Scope, Source, stats_source
from store import predicate
from store.catalog_store import Catalog, TableEntry
from store.database import BY_SNAPSHOT, BY_SPAN, Connection, Database

BATCH_ROWS = 8192  # ~2 MiB of statistics; fewer where single values are large
_LARGE = {"stats.sketches": 64, "stats.files": 16_384}
ORDERED_UP_TO = 100_000  # rows; a larger unscoped read comes as it is stored, clustered by table

ArrowSource = Callable[[Scope], pa.Table]


class Scanner:
    """Runs scans for callers. `arrow_sources` give the flights that are not in DuckDB, by name."""

    def __init__(self, database: Database, catalog: Catalog):
        self.database, self.catalog = database, catalog
        self.arrow_sources: dict[str, ArrowSource] = {}

    def pin(self, request: ScanRequest, principal: Principal) -> ScanRequest:
        """The request with "current" fixed to today's snapshot ids, for its ticket."""
        if request.snapshot != CURRENT or request.pins is not None:
            return request
        return replace(request, pins=dict(self.scope(request, principal).pins or {}))

    def scope(self, request: ScanRequest, principal: Principal) -> Scope:
        tables = self._tables(request, principal)
        keys = None if tables is None else [table.table_key for table in tables]
        if request.snapshot is None:
            return Scope(keys)
        if request.pins is not None:
            return Scope(keys, request.pins, request.allow_stale)
        among = self.catalog.tables() if tables is None else tables
        if request.snapshot == CURRENT:
            pins = {t.table_key: t.current_snapshot_id for t in among if t.current_snapshot_id is not None}
        else:
            pins = {t.table_key: int(request.snapshot) for t in among}
        return Scope(keys, pins, request.allow_stale)

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

    def reader(
        self, request: ScanRequest, principal: Principal, on_start: Callable[[Connection], None] = lambda _: None
    ) -> tuple[pa.Schema, Iterable[pa.RecordBatch] | pa.RecordBatchReader]:
        """The schema and batches of a scan; the reader sees what was committed when it began.

        `on_start` is handed the cursor before the query runs, so that a watchdog can interrupt it.
        """
        scope = self.scope(request, principal)
        source = self._source(request, scope)
        sql, parameters = self._query(request, source, scope)
        cursor = self.database.read()
        on_start(cursor)
        for name, table in source.arrow.items():
            cursor.register(name, table)
        batch_rows = _LARGE.get(request.flight.name, BATCH_ROWS)
        reader = cursor.sql(sql, params=parameters or None).to_arrow_reader(batch_rows)
        if not request.names and not request.rows:
            return request.schema, (batch.select([]) for batch in reader)
        if not reader.schema.equals(request.schema):
            reader = reader.cast(request.schema)
        return request.schema, reader

    def table(self, request: ScanRequest, principal: Principal) -> pa.Table:
        """A whole small scan."""
        schema, batches = self.reader(request, principal)
        return pa.Table.from_batches(batches, schema)

    def _source(self, request: ScanRequest, scope: Scope) -> Source:
        name = request.flight.name
        if made := self.arrow_sources.get(name):
            columns = {column: f'source."{column}"' for column in request.flight.schema.names}
            return Source("source", [], columns, arrow={"source": made(scope)})
        if known := SOURCES.get(name):
            return known(scope)
        return stats_source(request.flight, scope)

    def _query(self, request: ScanRequest, source: Source, scope: Scope) -> tuple[str, list[Any]]:
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
        where = " AND ".join(f"({condition})" for condition in conditions)
        order = f" ORDER BY {source.order}" if source.order and self._small(request, scope) else ""
        limit = f" LIMIT {request.limit}" if request.limit is not None else ""
        return f"SELECT {chosen} FROM {source.sql} WHERE {where}{order}{limit}", parameters

    def _small(self, request: ScanRequest, scope: Scope) -> bool:
        if scope.keys is not None or not request.flight.name.startswith("stats."):
            return True
        table = (BY_SNAPSHOT | BY_SPAN).get(request.flight.name)
        return table is None or self.estimate(table) <= ORDERED_UP_TO

    def estimate(self, table: str) -> int:
        """Rows of a physical table, by DuckDB's own estimate."""
        found = self.database.rows("SELECT estimated_size FROM duckdb_tables() WHERE table_name = ?", table)
        return int(found[0][0]) if found else 0


def _text_sql(column: str, type: pa.DataType) -> str:
    """A value as text, for the ROWS format."""
    if pa.types.is_timestamp(type):
        return f"strftime({column}, '%Y-%m-%dT%H:%M:%S.%fZ')"
    if pa.types.is_binary(type):
        return f"to_base64({column})"
    if pa.types.is_list(type):
        return f"to_json({column})::VARCHAR"
    return f"{column}::VARCHAR"
