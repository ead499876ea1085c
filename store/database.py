"""The DuckDB file: its tables, their migrations, one writer thread with group commit, a cursor for each reader.

One process owns the file. Everything that writes is a function `(connection) -> result` handed to `Database.write`; a
single thread runs it inside a transaction, together with whatever else is waiting, so that one fsync serves many
callers. When one of them raises, the whole group is rolled back and each is run again on its own: functions must not
have effects outside of the connection that a second run would repeat.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import duckdb
import pyarrow as pa

from store.errors import InvalidArgument, ShuttingDown
from store.schemas import FLIGHTS, KEY

T = TypeVar("T")
Connection: TypeAlias = duckdb.DuckDBPyConnection

VERSION = 1
GROUP = 64  # writes that share one commit at the most
OPEN_END = 2**62  # `to_pos` of a row that the newest file listing still holds

# Flight → physical table. Rows of the first kind are kept once for each snapshot; rows of the second once for as long
# as they do not change: they hold for the file listings at positions from_pos <= pos < to_pos (see file_snapshots).
BY_SNAPSHOT = {
    "stats.tables": "stats_tables",
    "stats.columns": "stats_columns",
    "stats.expressions": "stats_expressions",
    "stats.column_groups": "stats_column_groups",
    "stats.sketches": "stats_sketches",
}
BY_SPAN = {"stats.files": "stats_files", "stats.file_columns": "stats_file_columns", "file_sketches": "file_sketches"}

_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int64(): "BIGINT",
    pa.int32(): "INTEGER",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BLOB",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
    pa.list_(pa.int64()): "BIGINT[]",
    pa.list_(pa.string()): "VARCHAR[]",
}

_CATALOG = """
CREATE TABLE settings (name VARCHAR, value VARCHAR);
CREATE TABLE connectors (catalog VARCHAR, format VARCHAR, uri VARCHAR, options VARCHAR, state VARCHAR,
    last_seen_at TIMESTAMPTZ, last_error VARCHAR);
CREATE TABLE tables (table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR,
    table_id VARCHAR, format VARCHAR, location VARCHAR, current_snapshot_id BIGINT, dropped BOOLEAN);
CREATE TABLE schemas (table_key BIGINT, schema_hash VARCHAR, columns VARCHAR);
CREATE TABLE table_columns (table_key BIGINT, column_name VARCHAR, data_type VARCHAR, ordinal_position BIGINT,
    is_nullable VARCHAR, column_id BIGINT);
CREATE TABLE column_ids (table_key BIGINT, column_name VARCHAR, column_id BIGINT);
CREATE TABLE table_constraints (table_key BIGINT, kind VARCHAR, name VARCHAR, ordinal_position BIGINT,
    column_name VARCHAR, clause VARCHAR);
CREATE TABLE snapshots (table_key BIGINT, snapshot_id BIGINT, ordinal BIGINT, parent_snapshot_id BIGINT,
    sequence_number BIGINT, committed_at TIMESTAMPTZ, operation VARCHAR, schema_hash VARCHAR, is_live BOOLEAN);
CREATE TABLE file_snapshots (table_key BIGINT, family VARCHAR, snapshot_id BIGINT, pos BIGINT);
CREATE TABLE idempotency (key VARCHAR, content_hash VARCHAR, answer VARCHAR, stored_at TIMESTAMPTZ);
CREATE TABLE jobs (job_id VARCHAR, state VARCHAR, table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR,
    table_name VARCHAR, snapshot VARCHAR, mode VARCHAR, targets VARCHAR, request VARCHAR, dedupe VARCHAR,
    attempts BIGINT, priority BIGINT, queued_at TIMESTAMPTZ, started_at TIMESTAMPTZ, finished_at TIMESTAMPTZ,
    not_before TIMESTAMPTZ, lease_until TIMESTAMPTZ, lease_token VARCHAR, progress DOUBLE, degraded BOOLEAN,
    stats_processed BIGINT, message VARCHAR);
CREATE TABLE capture_decisions (decided_at TIMESTAMPTZ, correlation_id VARCHAR, table_key BIGINT,
    table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR, snapshot_id BIGINT, target_kind VARCHAR,
    storage_id VARCHAR, outcome VARCHAR, engine_id VARCHAR, detail VARCHAR, elapsed_ms DOUBLE);
"""


def stored_columns(flight: str) -> dict[str, pa.DataType]:
    """The columns that a flight's physical table holds after its key: payload, then recorded provenance."""
    schema = FLIGHTS["stats.sketches" if flight == "file_sketches" else flight].schema
    names = [n for n in schema.names if n not in KEY and n not in ("freshness", "usable_for")]
    return {name: schema.field(name).type for name in names}


def _ddl(flight: str, table: str, leading: str) -> str:
    columns = []
    for name, type in stored_columns(flight).items():
        # sketches do not compress: trying to costs 3 to 5 times the write
        extra = " USING COMPRESSION uncompressed" if name == "data" else ""
        columns.append(f'"{name}" {_SQL_TYPES[type]}{extra}')
    return f"CREATE TABLE {table} (table_key BIGINT, {leading}, {', '.join(columns)}, generation BIGINT, " \
           f"created_at TIMESTAMPTZ);"  # fmt: skip


def _create(connection: Connection) -> None:
    statements = [_CATALOG]
    statements += [_ddl(flight, table, "snapshot_id BIGINT") for flight, table in BY_SNAPSHOT.items()]
    statements += [_ddl(flight, table, "from_pos BIGINT, to_pos BIGINT") for flight, table in BY_SPAN.items()]
    statements.append(f"INSERT INTO settings VALUES ('schema_version', '{VERSION}')")
    for statement in statements:
        connection.execute(statement)


MIGRATIONS: dict[int, Callable[[Connection], None]] = {}
"""Version → what brings a file of that version to the next one."""


class Database:
    """The open file. `read()` gives a cursor of its own; `write(function)` runs it in the writer's transaction."""

    def __init__(self, path: str | Path):
        self.path = str(path)
        try:
            if self.path != ":memory:":
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            self._root = duckdb.connect(self.path)
        except duckdb.IOException as trouble:
            held = "lock" in str(trouble).lower()
            reason = "another process holds it; stop that one first" if held else "it cannot be opened as a database"
            raise InvalidArgument(f'database "{Path(self.path).name}": {reason}', code="DATABASE") from None
        except OSError as trouble:
            raise InvalidArgument(f"database: its directory cannot be made ({trouble.strerror})") from None
        self._root.execute("SET GLOBAL TimeZone='UTC'")
        self._migrate()
        self._queue: queue.SimpleQueue[tuple[Callable[[Connection], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._closed = False
        self.on_rollback: Callable[[Connection], None] = lambda _: None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def _migrate(self) -> None:
        connection = self._root
        known = connection.sql("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'settings'").fetchall()[0][0]
        connection.execute("BEGIN")
        if not known:
            _create(connection)
        else:
            found = connection.sql("SELECT value FROM settings WHERE name = 'schema_version'").fetchall()
            version = int(found[0][0]) if found else 0
            if version > VERSION:
                connection.execute("ROLLBACK")
                raise InvalidArgument(
                    f"the database was written by a newer statflight (layout {version}, this one knows {VERSION})",
                    hint="install that version or newer, or name another file with --db",
                )
            for step in range(version, VERSION):
                MIGRATIONS[step](connection)
            connection.execute(f"UPDATE settings SET value = '{VERSION}' WHERE name = 'schema_version'")
        connection.execute("COMMIT")

    def read(self) -> Connection:
        """A cursor for one reader: it sees what was committed when its query began."""
        if self._closed:
            raise ShuttingDown("the store is closed")
        return self._root.cursor()

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """All rows of a small query."""
        with self.reading() as cursor:
            return cursor.execute(sql, list(parameters)).fetchall()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        cursor = self.read()
        try:
            yield cursor
        finally:
            cursor.close()

    def submit(self, function: Callable[[Connection], T]) -> Future[T]:
        if self._closed:
            raise ShuttingDown("the store is closed")
        future: Future[T] = Future()
        self._queue.put((function, future))
        return future

    def write(self, function: Callable[[Connection], T]) -> T:
        """Runs the function in a transaction and returns its result once it is on disk."""
        return self.submit(function).result()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            self._root.close()

    def _run(self) -> None:
        connection = self._root.cursor()
        stopping = False
        while not stopping:
            group = [self._queue.get()]
            while len(group) < GROUP and not self._queue.empty():
                group.append(self._queue.get())
            stopping = None in group
            self._commit(connection, [item for item in group if item is not None])
        connection.close()

    def _commit(self, connection: Connection, group: list[tuple[Callable[[Connection], Any], Future[Any]]]) -> None:
        if not group:
            return
        try:
            connection.execute("BEGIN")
            results = [function(connection) for function, _ in group]
            connection.execute("COMMIT")
        except BaseException as trouble:
            with contextlib.suppress(duckdb.Error):
                connection.execute("ROLLBACK")
            self.on_rollback(connection)
            if len(group) == 1:
                group[0][1].set_exception(trouble)
            else:  # each on its own: only the one that failed hears of it
                for item in group:
                    self._commit(connection, [item])
            return
        for (_, future), result in zip(group, results, strict=True):
            future.set_result(result)
