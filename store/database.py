"""The DuckDB file: one writer thread with group commit, a cursor for each reader.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb

from store.backup import check_target, copy_files, settle, unwritable, wal
from store.errors import InvalidArgument, ShuttingDown
from store.file_lock import FileLock
from store.layout import Connection, insert_rows
from store.migrations import migrate
from store.table_versions import TableVersions

__all__ = ["MEMORY", "Connection", "Database", "insert_rows"]

T = TypeVar("T")

MEMORY = ":memory:"
GROUP = 64  # writes that share one commit at the most
CLOSE_SECONDS = 10.0  # that the end waits for readers


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
        self.versions = TableVersions()
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
                is_locked = "lock" in str(trouble).lower()
                raise _unusable(name, _HELD if is_locked else "it cannot be opened as a database") from None
            raise
        return root

    @property
    def directory(self) -> Path | None:
        """The directory of the database file, in which rows on their way into it wait; None in memory."""
        return None if self.path == MEMORY else Path(self.path).absolute().parent

    def read(self) -> Connection:
        """A cursor for one reader: it sees what was committed when its query began.

        Raises:
            ShuttingDown: The database is closed.
        """
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
        """A cursor for the block, closed after it."""
        cursor = self.read()
        try:
            yield cursor
        finally:
            cursor.close()

    def submit(self, function: Callable[[Connection], T], *, alone: bool = False) -> Future[T]:
        """Queues a function for the writer.

        Args:
            function: Takes the writer's connection.
            alone: Run it outside of any transaction, while nothing else is written.

        Returns:
            A future of its result, done once that is on disk.

        Raises:
            ShuttingDown: The database is closed.
        """
        if self._closed:
            raise ShuttingDown("the store is closed")
        future: Future[T] = Future()
        self._queue.put(_Item(function, future, alone))
        return future

    def write(self, function: Callable[[Connection], T]) -> T:
        """Runs the function in a transaction and returns its result once it is on disk.

        Raises:
            ShuttingDown: The database is closed. What the function raises is raised here too.
        """
        return self.submit(function).result()

    def touch(self, table_key: int) -> None:
        """Tells, inside of a write, that readers of this table will see another thing after it."""
        self._touched.add(table_key)

    def touch_all(self, table_keys: Iterable[int]) -> None:
        """`touch` for many tables."""
        self._touched.update(table_keys)

    def is_settled(self, table_key: int, generation: int) -> bool:
        """True, inside of a write, if a table is still as readers saw it at a generation of `versions`."""
        return table_key not in self._touched and self.versions.generation(table_key) == generation

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
            self.versions.begin(self._touched)
            connection.execute("COMMIT")
        except BaseException as trouble:
            with contextlib.suppress(duckdb.Error):
                connection.execute("ROLLBACK")
            for hook in self.on_rollback:
                hook(connection)
            self.versions.note(self._touched)  # it may have been the commit that failed
            if len(group) == 1:
                group[0].future.set_exception(trouble)
            else:  # each on its own: only the one that failed hears of it
                for item in group:
                    self._commit(connection, [item])
            return
        for callback in self.on_commit:
            callback()
        self.versions.note(self._touched)  # once all of it can be seen, and before any caller hears of it
        for item, result in zip(group, results, strict=True):
            item.future.set_result(result)

    @property
    def is_writing(self) -> bool:
        """True in the writer's own thread, which sees uncommitted rows."""
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
