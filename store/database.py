"""The DuckDB file: its tables, their migrations, one writer thread with group commit, a cursor for each reader.

One process owns the file. Everything that writes is a function `(connection) -> result` handed to `Database.write`; a
single thread runs it inside a transaction, together with whatever else is waiting, so that one fsync serves many
callers. When one of them raises, the whole group is rolled back and each is run again on its own: functions must not
have effects outside of the connection that a second run would repeat. They `touch` the tables whose readers they change
something for, and `changes` tells.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import duckdb
import pyarrow as pa

from store.backup import check_target, copy_files, settle, unwritable, wal
from store.errors import InvalidArgument, ShuttingDown
from store.file_lock import FileLock
from store.schemas import DELETE_FILE, DELETES, FLIGHTS, KEY, MOMENTS
from store.table_versions import Changes

T = TypeVar("T")
Connection: TypeAlias = duckdb.DuckDBPyConnection

MEMORY = ":memory:"
VERSION = 5  # of the layout
GROUP = 64  # writes that share one commit at the most
CLOSE_SECONDS = 10.0  # that the end waits for readers
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
STORED = BY_SNAPSHOT | BY_SPAN

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
    pa.list_(DELETE_FILE): "STRUCT(file_path VARCHAR, file_content VARCHAR, content_offset BIGINT,"
    " content_size BIGINT)[]",
}

_CATALOG = """
CREATE TABLE settings (name VARCHAR, value VARCHAR);
CREATE TABLE connectors (catalog VARCHAR, format VARCHAR, uri VARCHAR, options VARCHAR, state VARCHAR,
    last_seen_at TIMESTAMPTZ, last_error VARCHAR);
CREATE TABLE tables (table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR,
    table_id VARCHAR, format VARCHAR, location VARCHAR, current_snapshot_id BIGINT, dropped BOOLEAN,
    partition_keys VARCHAR[], properties VARCHAR, state VARCHAR, last_error VARCHAR, discovered_at TIMESTAMPTZ,
    checked_at TIMESTAMPTZ);
CREATE TABLE schemas (table_key BIGINT, schema_hash VARCHAR, columns VARCHAR);
CREATE TABLE table_columns (table_key BIGINT, column_name VARCHAR, data_type VARCHAR, ordinal_position BIGINT,
    is_nullable VARCHAR, column_id BIGINT, column_path VARCHAR[]);
CREATE TABLE column_ids (table_key BIGINT, column_name VARCHAR, column_id BIGINT);
CREATE TABLE table_constraints (table_key BIGINT, kind VARCHAR, name VARCHAR, ordinal_position BIGINT,
    column_name VARCHAR, clause VARCHAR);
CREATE TABLE snapshots (table_key BIGINT, snapshot_id BIGINT, ordinal BIGINT, parent_snapshot_id BIGINT,
    sequence_number BIGINT, committed_at TIMESTAMPTZ, operation VARCHAR, schema_hash VARCHAR, is_live BOOLEAN);
CREATE TABLE file_snapshots (table_key BIGINT, family VARCHAR, snapshot_id BIGINT, pos BIGINT);
CREATE TABLE file_marks (table_key BIGINT, snapshot_id BIGINT, mark VARCHAR);
CREATE TABLE publications (table_key BIGINT, home VARCHAR, snapshot_id BIGINT, state VARCHAR, location VARCHAR,
    columns VARCHAR[], published_at TIMESTAMPTZ, detail VARCHAR, made_snapshot_id BIGINT);
CREATE TABLE idempotency (key VARCHAR, content_hash VARCHAR, answer VARCHAR, stored_at TIMESTAMPTZ);
CREATE TABLE jobs (job_id VARCHAR, state VARCHAR, table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR,
    table_name VARCHAR, snapshot VARCHAR, mode VARCHAR, targets VARCHAR, request VARCHAR, dedupe VARCHAR,
    attempts BIGINT, priority BIGINT, queued_at TIMESTAMPTZ, started_at TIMESTAMPTZ, finished_at TIMESTAMPTZ,
    not_before TIMESTAMPTZ, lease_until TIMESTAMPTZ, lease_token VARCHAR, progress DOUBLE, degraded BOOLEAN,
    stats_processed BIGINT, message VARCHAR);
CREATE TABLE capture_decisions (decided_at TIMESTAMPTZ, correlation_id VARCHAR, table_key BIGINT,
    table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR, snapshot_id BIGINT, target_kind VARCHAR,
    storage_id VARCHAR, outcome VARCHAR, engine_id VARCHAR, detail VARCHAR, elapsed_ms DOUBLE);
CREATE TABLE column_usage (table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR,
    column_name VARCHAR, reads BIGINT, last_read_at TIMESTAMPTZ);
CREATE TABLE packed (flight VARCHAR, table_key BIGINT, snapshot_id BIGINT, data BLOB USING COMPRESSION uncompressed);
"""


def insert_rows(connection: Connection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Appends rows, of all columns and one type in each, in one statement: `executemany` takes a millisecond a row."""
    if rows:
        columns = [list(column) for column in zip(*rows, strict=True)]
        connection.execute(f"INSERT INTO {table} SELECT {', '.join(['unnest(?)'] * len(columns))}", columns)


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


def create(connection: Connection) -> None:
    """The tables of an empty file, in the newest layout."""
    statements = [_CATALOG]
    statements += [_ddl(flight, table, "snapshot_id BIGINT") for flight, table in BY_SNAPSHOT.items()]
    statements += [_ddl(flight, table, "from_pos BIGINT, to_pos BIGINT") for flight, table in BY_SPAN.items()]
    statements.append(f"INSERT INTO settings VALUES ('schema_version', '{VERSION}')")
    for statement in statements:
        connection.execute(statement)


def _add_column_usage(connection: Connection) -> None:
    """Layout 2. Servers made the table themselves before it was part of the layout: what they counted stays."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS column_usage (table_key BIGINT, table_catalog VARCHAR, table_schema VARCHAR,"
        " table_name VARCHAR, column_name VARCHAR, reads BIGINT, last_read_at TIMESTAMPTZ)"
    )


def _add_file_marks(connection: Connection) -> None:
    """Layout 3. Listings put before have no mark: the next capture of a table puts all its files once more."""
    connection.execute("CREATE TABLE file_marks (table_key BIGINT, snapshot_id BIGINT, mark VARCHAR)")


def _add_packed(connection: Connection) -> None:
    """Layout 4. The values are made from the rows."""
    connection.execute(
        "CREATE TABLE packed (flight VARCHAR, table_key BIGINT, snapshot_id BIGINT,"
        " data BLOB USING COMPRESSION uncompressed)"
    )


def _add_moments(connection: Connection) -> None:
    """Layout 5. What was stored before has null in the new columns until it is captured again."""
    scalar = {name: _SQL_TYPES[type] for name, type in MOMENTS.items()}
    added = {STORED[flight]: scalar for flight in ("stats.columns", "stats.file_columns", "stats.expressions",
                                                   "stats.column_groups")}  # fmt: skip
    added["stats_files"] = {name: _SQL_TYPES[type] for name, type in DELETES.items()}
    added["table_columns"] = {"column_path": "VARCHAR[]"}
    added["tables"] = {
        "partition_keys": "VARCHAR[]", "properties": "VARCHAR", "state": "VARCHAR", "last_error": "VARCHAR",
        "discovered_at": "TIMESTAMPTZ", "checked_at": "TIMESTAMPTZ",
    }  # fmt: skip
    for table, columns in added.items():
        for name, type in columns.items():
            connection.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {type}')
    connection.execute("UPDATE tables SET state = 'ACTIVE'")
    connection.execute(
        "CREATE TABLE publications (table_key BIGINT, home VARCHAR, snapshot_id BIGINT, state VARCHAR,"
        " location VARCHAR, columns VARCHAR[], published_at TIMESTAMPTZ, detail VARCHAR, made_snapshot_id BIGINT)"
    )


MIGRATIONS: dict[int, Callable[[Connection], None]] = {
    1: _add_column_usage, 2: _add_file_marks, 3: _add_packed, 4: _add_moments,
}  # fmt: skip
"""Version → what brings a file of that version to the next one."""


def migrate(connection: Connection, name: str) -> None:
    """Brings a file to the newest layout, in one transaction: all steps or none.

    Raises:
        InvalidArgument: A newer statflight wrote the file, or something else did.
    """
    tables = {table for (table,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    connection.execute("BEGIN")
    try:
        if not tables:
            create(connection)
        elif not {"settings", "stats_columns"} <= tables:
            raise InvalidArgument(
                f'database "{name}": it holds tables that are not of statflight',
                code="DATABASE", hint="name another file with --db",
            )  # fmt: skip
        else:
            _migrate_from(connection)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _migrate_from(connection: Connection) -> None:
    found = connection.execute("SELECT value FROM settings WHERE name = 'schema_version'").fetchall()
    version = int(found[0][0]) if found else 0
    if version > VERSION:
        raise InvalidArgument(
            f"the database was written by a newer statflight (layout {version}, this one knows {VERSION})",
            code="DATABASE", hint="install that version or newer, or name another file with --db",
        )  # fmt: skip
    for step in range(version, VERSION):
        MIGRATIONS[step](connection)
    if version < VERSION:
        connection.execute("UPDATE settings SET value = ? WHERE name = 'schema_version'", [str(VERSION)])


class Database:
    """The open file. `read()` gives a cursor of its own; `write(function)` runs it in the writer's transaction."""

    def __init__(self, path: str | Path):
        self.path = str(path)
        self._lock = _lock(self.path)
        self._root = self._open()
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._closed = False
        self._opening = threading.Lock()  # a connection refuses to be closed while a cursor of it is made
        self.on_rollback: list[Callable[[Connection], None]] = []
        self.on_commit: list[Callable[[], None]] = []
        self.before_commit: list[Callable[[Connection, AbstractSet[int]], None]] = []  # with the tables it touched
        self.changes = Changes()
        self._touched: set[int] = set()  # by the transaction that runs; the writer's thread alone uses it
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def _open(self) -> Connection:
        """The root connection, of a file in the newest layout; on any error the file is free again."""
        name, root = Path(self.path).name, None
        try:
            root = duckdb.connect(self.path)
            root.execute("SET GLOBAL TimeZone='UTC'")
            migrate(root, name)
        except BaseException as trouble:
            if root is not None:
                root.close()
            if self._lock is not None:
                self._lock.release()
            if root is None and isinstance(trouble, duckdb.Error):
                held = "lock" in str(trouble).lower()
                raise _unusable(name, _HELD if held else "it cannot be opened as a database") from None
            raise
        return root

    @property
    def directory(self) -> Path | None:
        """Where the file is, and where there is room for what is on its way into it."""
        return None if self.path == MEMORY else Path(self.path).absolute().parent

    def read(self) -> Connection:
        """A cursor for one reader: it sees what was committed when its query began."""
        with self._opening:
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

    def submit(self, function: Callable[[Connection], T], *, alone: bool = False) -> Future[T]:
        """Queues a function for the writer. `alone`: outside of any transaction, while nothing else is written."""
        if self._closed:
            raise ShuttingDown("the store is closed")
        future: Future[T] = Future()
        self._queue.put(_Item(function, future, alone))
        return future

    def write(self, function: Callable[[Connection], T]) -> T:
        """Runs the function in a transaction and returns its result once it is on disk."""
        return self.submit(function).result()

    def touch(self, table_key: int) -> None:
        """Tells, inside of a write, that readers of this table will see another thing after it."""
        self._touched.add(table_key)

    def is_settled(self, table_key: int, generation: int) -> bool:
        """Whether, inside of a write, a table is still as readers saw it at a generation."""
        return table_key not in self._touched and self.changes.generation(table_key) == generation

    def backup(self, path: str | Path) -> int:
        """Writes a copy of the database to a new file, consistent and complete; its size in bytes.

        Reads go on meanwhile; writes wait for the copy of the file, not for what follows it.

        Raises:
            InvalidArgument: The path is relative or taken, its directory is missing, or it cannot be written.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.partial")
        if self.path == MEMORY:
            raise InvalidArgument("a database in memory has no file to copy", code="BACKUP")
        check_target(self.path, target)
        try:
            _remove(partial)  # of a backup that a kill cut off
            self.submit(lambda _: copy_files(self.path, partial), alone=True).result()
            settle(partial)
            partial.replace(target)
            return target.stat().st_size
        except OSError as trouble:
            raise unwritable(trouble.strerror) from None
        finally:
            _remove(partial)

    def close(self) -> None:
        """Writes what waits and closes the file, once no reader is in the middle of a query; it gives up on one that
        takes too long: what was committed is on disk."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            deadline = time.monotonic() + CLOSE_SECONDS
            with self._opening:
                while not (closed := _has_closed(self._root)) and time.monotonic() < deadline:
                    time.sleep(0.01)
            if closed and self._lock is not None:
                self._lock.release()

    def _run(self) -> None:
        connection = self._root.cursor()
        stopping = False
        while not stopping:
            group = [self._queue.get()]
            while len(group) < GROUP and not self._queue.empty():
                group.append(self._queue.get())
            stopping = None in group
            together: list[_Item] = []
            for item in group:
                if item is not None and not item.alone:
                    together.append(item)
                    continue
                self._commit(connection, together)
                together = []
                if item is not None:
                    _resolve(connection, item)
            self._commit(connection, together)
        connection.close()

    def _commit(self, connection: Connection, group: Sequence[_Item]) -> None:
        if not group:
            return
        self._touched = set()
        try:
            connection.execute("BEGIN")
            results = [item.function(connection) for item in group]
            for ready in self.before_commit:
                ready(connection, self._touched)
            self.changes.begin(self._touched)
            connection.execute("COMMIT")
        except BaseException as trouble:
            with contextlib.suppress(duckdb.Error):
                connection.execute("ROLLBACK")
            for hook in self.on_rollback:
                hook(connection)
            self.changes.note(self._touched)  # it may have been the commit that failed
            if len(group) == 1:
                group[0].future.set_exception(trouble)
            else:  # each on its own: only the one that failed hears of it
                for item in group:
                    self._commit(connection, [item])
            return
        for told in self.on_commit:
            told()
        self.changes.note(self._touched)  # once all of it can be seen, and before any caller hears of it
        for item, result in zip(group, results, strict=True):
            item.future.set_result(result)

    @property
    def is_writing(self) -> bool:
        """Whether the caller is the writer's own thread: what it sees is not committed yet."""
        return threading.get_ident() == self._thread.ident


_HELD = "another process holds it; stop that one first"


def _lock(path: str) -> FileLock | None:
    """The lock beside a database, None of one in memory; its directory is made.

    Raises:
        InvalidArgument: The database is in use, or its directory cannot be written.
    """
    if path == MEMORY:
        return None
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file = file.resolve()
        return FileLock(file.with_name(file.name + ".lock"))
    except BlockingIOError:
        raise _unusable(file.name, _HELD) from None
    except OSError as trouble:
        raise InvalidArgument(f"database: its directory cannot be used ({trouble.strerror})") from None


def _remove(path: Path) -> None:
    """Removes a database and its log."""
    for file in (path, wal(path)):
        file.unlink(missing_ok=True)


def _unusable(name: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f'database "{name}": {reason}', code="DATABASE")


class _Item(NamedTuple):
    """A write that waits."""

    function: Callable[[Connection], Any]
    future: Future[Any]
    alone: bool = False


def _has_closed(connection: Connection) -> bool:
    try:
        connection.close()
    except duckdb.ResourceInUseException:
        return False
    return True


def _resolve(connection: Connection, item: _Item) -> None:
    try:
        item.future.set_result(item.function(connection))
    except BaseException as trouble:
        item.future.set_exception(trouble)
