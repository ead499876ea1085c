"""A stream: batches of a large answer, one at a time, until its end, its caller leaves or its deadline passes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import duckdb
import pyarrow as pa

from store.duckdb.database import Connection
from store.model.errors import Cancelled, DeadlineExceeded, ResourceExhausted

MAX_BATCH_BYTES: Final = 4 << 20
_AGAIN: Final = "read it again, without long pauses"


def never() -> bool:
    """Default for callers that cannot cancel."""
    return False


class Stoppable:
    """A query or stream that is stopped when its caller disconnects or its deadline passes.

    `_lock` is held during the check for cancellation, because Flight frees the context of a call soon after its end,
    which must not happen while the context is in use.
    """

    def __init__(self, cursor: Connection | None, is_cancelled: Callable[[], bool], deadline: float):
        self._cursor, self._is_cancelled, self._deadline = cursor, is_cancelled, deadline
        self._lock = threading.Lock()
        self._ended = self._left = self._late = False
        self._stopped: Exception | None = None
        self._on_end: Callable[[], None] | None = None

    def still_runs(self, now: float) -> bool:
        """Checks for cancellation and the deadline at a time `now` (monotonic seconds); False once it has ended."""
        with self._lock:
            if self._ended:
                return False
            self._left = self._left or self._is_cancelled()
            self._late = self._late or now > self._deadline
            if (self._left or self._late) and self._cursor is not None:
                with suppress(duckdb.Error):
                    self._cursor.interrupt()
            on_end = None
            if self._late:  # free the slot now: the caller may never read again
                on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()
        return True

    def then(self, on_end: Callable[[], None]) -> None:
        """Registers a callback for the end, called once."""
        self._on_end = on_end

    def end(self) -> None:
        """Ends the watch, and closes the cursor."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            cursor, self._cursor = self._cursor, None
            on_end, self._on_end = self._on_end, None
        if cursor is not None:
            with suppress(duckdb.Error):
                cursor.close()
        if on_end is not None:
            on_end()

    def stop(self, reason: Exception) -> None:
        """Ends the watch; whoever goes on is told the reason."""
        self._stopped = reason
        self.end()

    def check(self) -> None:
        """Raises Cancelled or DeadlineExceeded if the query has to stop."""
        if self._left or self._late:
            raise self._reason()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context for calls of DuckDB: raises the reason of an interruption, Cancelled or DeadlineExceeded."""
        try:
            if self._late or self._stopped is not None:
                raise self._reason()
            yield
        except (duckdb.InterruptException, pa.ArrowException, OSError) as error:
            # Arrow wraps exceptions of DuckDB during a stream
            if self._left or self._late:
                raise self._reason() from None
            raise RuntimeError("the query failed") from error  # not the caller's fault

    def _reason(self) -> Exception:
        if self._stopped is not None:
            return self._stopped
        if self._late:
            return DeadlineExceeded("the stream took longer than this server allows", hint="read less at once")
        return Cancelled("the call was cancelled")


class Stream:
    """Batches of a large answer, each of at most MAX_BATCH_BYTES. A reader that stops before the end must close it.

    There is no destructor: the garbage collector may run one in any thread, whatever locks that thread holds.
    """

    def __init__(
        self,
        stoppable: Stoppable,
        batches: Iterator[pa.RecordBatch],
        most_bytes: int,
        bytes_of: Callable[[pa.RecordBatch], int],
    ):
        self._stoppable, self._batches, self._left, self._bytes_of = stoppable, batches, most_bytes, bytes_of
        self._lock = threading.Lock()  # held while the next batch is made
        self._taken_at = time.monotonic()
        self._pieces: deque[pa.RecordBatch] = deque()
        self._on_close: list[Callable[[], None]] = []

    def map(self, function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Stream:
        """Applies a function to each batch that is still to come; returns the stream itself."""
        self._batches = map(function, self._batches)
        return self

    def then(self, on_close: Callable[[], None]) -> Stream:
        """Registers a callback for the end of the stream, called at each `close`; returns the stream itself."""
        self._on_close.append(on_close)
        return self

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            try:
                return self._next()
            finally:
                self._taken_at = time.monotonic()

    def stalled_seconds(self, now: float) -> float:
        """The time since the reader took a batch; 0 while one is made."""
        return 0.0 if self._lock.locked() else now - self._taken_at

    def evict(self) -> bool:
        """Ends a stalled stream and frees what it holds; False if its reader has just come back."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._stoppable.stop(ResourceExhausted("the stream was ended, because its reader had stopped", hint=_AGAIN))
            self._batches = iter(())
            self._pieces.clear()
        finally:
            self._lock.release()
        return True

    def _next(self) -> pa.RecordBatch:
        try:
            with self._stoppable.running():
                while not self._pieces:
                    batch = next(self._batches, None)
                    if batch is None:
                        break
                    self._pieces.extend(pieces(batch))
            if not self._pieces:
                raise StopIteration
            piece = self._pieces.popleft()
            self._left -= self._bytes_of(piece)
            if self._left < 0:
                raise too_large()
        except BaseException:
            self.close()
            raise
        return piece

    def close(self) -> None:
        """Ends the query and frees the stream's slot."""
        self._batches = iter(())  # releases DuckDB's result
        self._pieces.clear()
        self._stoppable.end()
        for on_close in self._on_close:
            on_close()


def too_large() -> ResourceExhausted:
    """The error of an answer of more bytes than are sent at once."""
    return ResourceExhausted("the answer has more bytes than this server sends at once", hint="read less at once")


def fits(batch: pa.RecordBatch, most_bytes: int) -> bool:
    """True if the batch has at most `most_bytes` bytes; computes the exact size only if its buffers have more."""
    return batch.get_total_buffer_size() <= most_bytes or batch.nbytes <= most_bytes


def bytes_alone(batch: pa.RecordBatch) -> int:
    """Size of a batch in bytes: that of its buffers, twenty times faster than `nbytes`, unless they are large and may
    be shared with other batches."""
    size: int = batch.get_total_buffer_size()
    return size if size <= MAX_BATCH_BYTES else batch.nbytes


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Splits a batch into parts of at most MAX_BATCH_BYTES, or of one row."""
    if batch.num_rows <= 1 or fits(batch, MAX_BATCH_BYTES):
        yield batch
    else:
        rows = -(-batch.num_rows // -(-batch.nbytes // MAX_BATCH_BYTES))
        for start in range(0, batch.num_rows, rows):
            yield from pieces(batch.slice(start, rows))
