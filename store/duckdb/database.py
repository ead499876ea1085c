"""The DuckDB file: one writer thread with group commit, a cursor for each reader.

One process owns the file. A write is a function `(connection) -> result` passed to `Database.write`; a single thread
runs it in a transaction together with all other queued writes, so that one fsync serves many callers. If one of them
raises, the group is rolled back and each is run again on its own: functions must not have effects outside of the
connection that a second run would repeat. A write calls `touch` for each table whose rows it changes for readers;
`versions` counts these changes.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb

from store.duckdb import segment_location
from store.duckdb.backup import check_target, copy_files, settle, unwritable, wal
from store.duckdb.commit import Commit
from store.duckdb.commit_log import Applied
from store.duckdb.database_files import CHECKPOINT_BYTES, DatabaseFiles
from store.duckdb.file_lock import FileLock
from store.duckdb.layout import Connection, insert_rows
from store.duckdb.opening import MEMORY, connect, take_lock
from store.duckdb.segment_buckets import carry, files_at
from store.duckdb.segment_files import SegmentFiles
from store.duckdb.segments import Segments
from store.duckdb.table_versions import TableVersions
from store.model.errors import Cancelled, InvalidArgument, ShuttingDown

__all__ = ["Connection", "Database", "insert_rows"]

log = logging.getLogger("statflight.store")

T = TypeVar("T")

GROUP = 64  # writes per commit, at most
WAIT_SECONDS = 0.25  # longest wait of a write for another one that it is stored with
CLOSE_SECONDS = 10.0  # longest wait of `close` for readers
_CORRUPT = re.compile(r"((IO|INTERNAL|Serialization) Error: )?(Corrupt(ed)? |Bitpacking offset is out of range)")
TICK_SECONDS = 0.05  # between checks whether a write is still wanted


class Database:
    """The open file. `read()` returns a new cursor; `write(function)` runs it in the writer's transaction.

    Args:
        is_cache: The caller joins the store that the file is the cache of, or will be; a cache is refused otherwise.

    Attributes:
        phases: What surrounds the writes of a transaction; whoever puts the store together sets it, before the first.
    """

    checkpoint_bytes = CHECKPOINT_BYTES  # size of DuckDB's log at which it is merged into the file

    def __init__(self, path: str | Path, *, is_cache: bool = False):
        self.path = str(path)
        self._is_cache = is_cache
        self._lock = take_lock(self.path)
        self._root = self._open()
        self._files: DatabaseFiles | None = None
        if self.path != MEMORY and Path(self.path).exists():
            self.watch_files()
        self.is_invalidated = False
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._queueing = threading.Lock()  # nothing is queued after the end, which the writer would never reach
        self._closed = False
        self.turn = threading.Lock()  # held while a piece of a listing is written, so that a commit has one at most
        self._opening = threading.Lock()  # a connection cannot be closed while a cursor of it is created
        self.phases = Commit()
        self.segments = Segments(None) if self.path == MEMORY else segment_location.of_file(self._root, Path(self.path))
        self.replaced = 0  # how often; cursors from before read what was there before
        self.versions = TableVersions()
        self._touched: set[int] = set()  # by the running transaction; used by the writer's thread only
        self._outlived: set[int] = set()  # likewise
        self._writer = self._root.cursor()
        self._running: Sequence[_Item] = ()  # writes that an interrupt would end
        self._interrupting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def _open(self) -> Connection:
        """The root connection, with its tables; releases the file on any error."""
        try:
            return connect(self.path, is_cache=self._is_cache)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    @property
    def directory(self) -> Path | None:
        """The directory of the database file, also used for spill files; None for a database in memory."""
        return None if self.path == MEMORY else Path(self.path).absolute().parent

    def read(self) -> Connection:
        """A cursor for one reader; a query sees what was committed when it began.

        Raises:
            ShuttingDown: The database is closed.
        """
        with self._opening:
            if self._closed:
                raise ShuttingDown("the store is closed")
            return self._root.cursor()

    def replace(self, root: Connection) -> None:
        """Replaces all content: everything kept in memory is read again. Reads in flight see the former content."""
        with self._opening:
            self._root, self.replaced = root, self.replaced + 1
        with self.reading() as cursor:
            self.phases.renew(cursor)
            self.segments.load(cursor)
        self.versions.renew()

    def watch_files(self) -> None:
        """Begins to check that commits reach the file that the path names."""
        self._files = DatabaseFiles(self.path)

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """All rows of a small query."""
        with self.reading() as cursor:
            return cursor.execute(sql, list(parameters)).fetchall()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A cursor for the block, closed after it.

        Raises:
            ShuttingDown: The database is closed, or was before a query of the block began.
        """
        cursor = self.read()
        try:
            yield cursor
        except duckdb.ConnectionException:
            if self._closed:
                raise ShuttingDown("the store is closed") from None
            raise
        finally:
            cursor.close()

    def submit(
        self,
        function: Callable[[Connection], T],
        *,
        alone: bool = False,
        may_wait: bool = False,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Future[T]:
        """Queues a function for the writer; the future of its result is set once the write is on disk.

        Args:
            alone: Run it outside of any transaction, while nothing else is written.
            may_wait: It may wait up to `WAIT_SECONDS` for another write, to be stored with it.
            is_cancelled: True once the write is unwanted; it is not begun or committed then.

        Raises:
            ShuttingDown: The database is closed.
        """
        future: Future[T] = Future()
        with self._queueing:
            if self._closed:
                raise ShuttingDown("the store is closed")
            self._queue.put(_Item(function, future, alone, is_cancelled, may_wait))
        return future

    def write(self, function: Callable[[Connection], T], is_cancelled: Callable[[], bool] | None = None) -> T:
        """Runs the function in a transaction and returns its result once the write is on disk. Exceptions of the
        function are raised here.

        Args:
            function: Takes the writer's connection.
            is_cancelled: True once the write is unwanted: its statement is interrupted, and nothing is stored.

        Raises:
            ShuttingDown: The database is closed.
            Cancelled: `is_cancelled` became true before the commit.
        """
        future = self.submit(function, is_cancelled=is_cancelled)
        while is_cancelled is not None and not wait([future], TICK_SECONDS).done:
            if is_cancelled():  # again at each tick: an interrupt between two statements has no effect
                with self._interrupting:
                    if any(item.future is future for item in self._running):
                        self._writer.interrupt()
        return future.result()

    def name_segments(self, location: Path | str | None) -> None:
        """Sets where the segments are kept, which the file notes. Those that are elsewhere are copied to it.

        Args:
            location: A directory, or the URL of a bucket; None stands for the directory beside the database.

        Raises:
            InvalidArgument: It cannot be written, or has the segments of another database.
            UpstreamError: The bucket is out of reach.
        """
        if self.path == MEMORY:
            return
        path = Path(self.path)
        files = files_at(segment_location.beside(path) if location is None else location, segment_location.beside(path))
        self._claim(files)
        with self.reading() as cursor:
            used = segment_location.used(cursor)
        if used and files.location != self.segments.files.location:
            count = carry(self.segments.files, files, used)
            log.info("%d of %d segments were copied to %s", count, len(used), files.location)
        self.write(lambda connection: segment_location.name_location(connection, path, files.location))
        self.segments.use(files)

    def shared_segments(self) -> tuple[str, str]:
        """The place of the segments, a directory or the URL of a bucket, for other processes that write into it, and
        the name by which it is this database's, which the place has too.

        Raises:
            InvalidArgument: It cannot be written, or has the segments of another database.
            UpstreamError: The bucket is out of reach.
        """
        files = self.segments.files
        return files.location, self._claim(files)

    def _claim(self, files: SegmentFiles) -> str:
        """Makes a place this database's own; returns the name by which it is."""
        owner = self.write(segment_location.owner)
        files.prepare()
        files.claim(owner)
        return owner

    def touch(self, *table_keys: int) -> None:
        """Marks tables as changed for readers; called inside of a write."""
        self._touched.update(table_keys)

    def is_touched(self, table_key: int) -> bool:
        """True if the running transaction has changed rows of a table; called inside of a write."""
        return table_key in self._touched

    def outlive(self, table_key: int) -> None:
        """Marks a table as another one than before, of which nothing is stored that is being captured; called inside
        of a write."""
        self._outlived.add(table_key)

    def apply(self, connection: Connection, change: Callable[[Connection], Applied]) -> None:
        """Stores what others have committed, as one transaction; called in the writer's thread, between its writes.

        Args:
            change: Stores it, and says what has changed.
        """
        applied = Applied()
        connection.execute("BEGIN")
        try:
            applied = change(connection)
            self.phases.apply(connection, applied)
            self.versions.begin(applied.touched)
            connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back(connection, error)
            self.versions.note(applied.touched)
            raise
        self._committed()
        if applied.is_whole:
            self.versions.renew()
        self.versions.note(applied.touched)

    def backup(self, path: str | Path) -> int:
        """Writes a consistent copy of the database to a new file. Reads continue; writes wait until the file is copied.

        Returns:
            Size of the copy in bytes.

        Raises:
            InvalidArgument: The path is relative or exists, its directory is missing, or it cannot be written.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.partial")
        if self.path == MEMORY:
            raise InvalidArgument("a database in memory has no file to copy", code="BACKUP")
        try:
            lock = FileLock(f"{partial}.lock")  # two at once would write the same partial file
        except BlockingIOError:
            raise unwritable("another one to this path is under way") from None
        except OSError as error:
            raise unwritable(error.strerror) from None
        except ValueError:
            raise unwritable("its path holds a zero byte") from None
        try:
            check_target(self.path, target)
            _remove(partial)  # left by a backup that was killed
            self.submit(lambda _: copy_files(self.path, partial), alone=True).result()
            settle(partial)
            size = segment_location.copy(self.segments, partial, target)
            partial.replace(target)
            return size + target.stat().st_size
        except duckdb.Error:
            raise unwritable("the copy does not open") from None
        except OSError as error:
            raise unwritable(error.strerror) from None
        finally:
            _remove(partial)
            lock.release()

    def checkpoint(self, then: Callable[[], None]) -> bool:
        """Merges DuckDB's log into the file, while nothing is written.

        Args:
            then: Called after it, before the next write.

        Returns:
            False if DuckDB keeps its log, as while something else is being written; `then` is not called.

        Raises:
            StatflightError: Writes are refused; see `trouble`.
        """

        def run(connection: Connection) -> bool:
            if self._files is not None:
                self._files.check()
            connection.execute("CHECKPOINT")
            if wal(self.path).exists():
                return False
            if self._files is not None:
                self._files.committed()
            then()
            return True

        return self.submit(run, alone=True).result()

    def close(self) -> None:
        """Runs the queued writes, waits up to `CLOSE_SECONDS` for running queries, and closes the file."""
        with self._queueing:
            if self._closed:
                return
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
        stopping, opened = False, self.replaced
        connection = self._writer
        while not stopping:
            group = self._next()
            if opened != self.replaced:
                connection.close()
                self._writer = connection = self._root.cursor()
                opened = self.replaced
            stopping = None in group
            together: list[_Item] = []
            for item in group:
                if item is not None and not item.alone:
                    together.append(item)
                    continue
                self._commit(connection, together)
                together = []
                if item is not None:
                    self._resolve(connection, item)
            self._commit(connection, together)
        connection.close()

    def _next(self) -> list[_Item | None]:
        """The next writes of the queue, at least one; None stands for its end."""
        group = [self._queue.get()]
        deadline = time.monotonic() + WAIT_SECONDS
        while len(group) < GROUP:
            are_waiting = all(item is not None and item.may_wait for item in group)
            left = max(0.0, deadline - time.monotonic()) if are_waiting else 0.0
            try:
                group.append(self._queue.get(timeout=left))
            except queue.Empty:
                break
        return group

    def _commit(self, connection: Connection, group: Sequence[_Item]) -> None:
        if not group:
            return
        phases = self.phases
        is_common = True  # an error would be that of all writes of the group
        try:
            if self.is_invalidated:
                raise ShuttingDown(self.trouble())
            phases.guard.check_begin()
            if self._files is not None:
                self._files.check()
            given = phases.log.begin(connection)
            is_common = False
            self._touched, self._outlived = set(), set()
            _refuse_unwanted(group)
            self._set_running(group)
            connection.execute("BEGIN")
            results = [item.function(given) for item in group]
            _refuse_unwanted(group)
            phases.derived.derive(given)
            _refuse_unwanted(group)
            phases.behind.write(given)
            self._set_running(())
            _refuse_unwanted(group)
            is_common = True
            is_common = phases.log.record(self._touched, self._outlived)
            self.versions.begin(self._touched)
            connection.execute("COMMIT")
            phases.log.ended(is_committed=True)
            if self._files is not None:
                self._files.committed()
        except BaseException as error:
            self._set_running(())
            if not is_common and (isinstance(error, duckdb.InterruptException) or _is_unwanted(group)):
                error = Cancelled(_CANCELLED)
            error = self._roll_back(connection, error)
            phases.log.ended(is_committed=False)
            self.versions.note(self._touched)  # the commit itself may have failed
            self._fail(connection, group, error, is_common=is_common)
            return
        self._committed()
        self.versions.note(self._touched)  # after the rows are visible, before any caller continues
        phases.ship.acknowledge(lambda error: _settle(group, results, error))

    def _committed(self) -> None:
        """Tells of a commit whose rows are visible."""
        self.phases.ship.committed()
        self.phases.derived.publish()
        self.phases.queue.committed()

    def _roll_back(self, connection: Connection, error: BaseException) -> BaseException:
        """Ends a transaction that has failed; returns the error to tell."""
        if isinstance(error, duckdb.FatalException):
            self.is_invalidated = True
        if self._files is not None:
            error = self._files.refusal(error)
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        if _is_corrupt(error):
            self._invalidate(connection, error)
            error = ShuttingDown(self.trouble())
        if not self.is_invalidated:  # else nothing can be read any more
            self.phases.roll_back(connection)
        return error

    def _fail(self, connection: Connection, group: Sequence[_Item], error: BaseException, *, is_common: bool) -> None:
        """Tells the callers of a group the error, or runs each write on its own, so that only the failing one raises.

        Args:
            is_common: The error is not one of the writes.
        """
        if len(group) > 1 and not is_common:
            for item in group:
                self._commit(connection, [item])
            return
        for item in group:
            item.future.set_exception(error)

    def _resolve(self, connection: Connection, item: _Item) -> None:
        try:
            try:
                result = item.function(connection)
            finally:
                if self._files is not None:
                    self._files.committed()  # DuckDB may have removed its log, or created one
        except BaseException as error:
            item.future.set_exception(error)
        else:
            item.future.set_result(result)

    def _invalidate(self, connection: Connection, error: BaseException) -> None:
        """Refuses all further writes, and keeps DuckDB from writing what it has in memory to the file, which together
        with its log has every commit."""
        log.critical("DuckDB has corrupt data in memory, and nothing more is written: %s", str(error).splitlines()[0])
        self.is_invalidated = True
        with contextlib.suppress(duckdb.Error):
            connection.execute("PRAGMA disable_checkpoint_on_shutdown")

    def _set_running(self, group: Sequence[_Item]) -> None:
        with self._interrupting:
            self._running = group

    def trouble(self) -> str:
        """Why writes are refused now, for health checks; empty if they are not."""
        if self.is_invalidated:
            return "the database was invalidated by a failed write; restart the server"
        return "" if self._files is None else self._files.trouble()

    @property
    def is_writing(self) -> bool:
        """True in the writer's thread, which sees uncommitted rows."""
        return threading.get_ident() == self._thread.ident


_CANCELLED = "the job was cancelled"


def _remove(path: Path) -> None:
    """Removes a database and its write-ahead log."""
    for file in (path, wal(path)):
        file.unlink(missing_ok=True)


class _Item(NamedTuple):
    """A queued write."""

    function: Callable[[Connection], Any]
    future: Future[Any]
    alone: bool = False
    is_cancelled: Callable[[], bool] | None = None
    may_wait: bool = False


def _is_unwanted(group: Sequence[_Item]) -> bool:
    return any(item.is_cancelled is not None and item.is_cancelled() for item in group)


def _refuse_unwanted(group: Sequence[_Item]) -> None:
    if _is_unwanted(group):
        raise Cancelled(_CANCELLED)


def _is_corrupt(error: BaseException) -> bool:
    """True if DuckDB cannot read its own data. In version 2.0 that may happen in memory after a checkpoint, while the
    file is whole."""
    return isinstance(error, duckdb.Error) and _CORRUPT.match(str(error)) is not None


def _has_closed(connection: Connection) -> bool:
    try:
        connection.close()
    except duckdb.ResourceInUseException:
        return False
    return True


def _settle(group: Sequence[_Item], results: Sequence[Any], error: BaseException | None) -> None:
    for item, result in zip(group, results, strict=True):
        if error is None:
            item.future.set_result(result)
        else:
            item.future.set_exception(error)
