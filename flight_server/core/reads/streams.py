"""Running queries and streams: concurrency limits, deadlines and cancellation.

An answer of a few batches is read completely and holds no resources while it is sent. A larger answer is a stream: it
counts towards a limit until its last batch is sent, its caller disconnects, or its deadline passes. The number of
queries that compute their first batches at once is limited, too: more of them do not increase DuckDB's throughput, and
would take CPU time from requests that need no query. One thread checks deadlines and cancellation for all, because a
thread that is blocked inside DuckDB or gRPC cannot do so itself.

A stream is stalled while its reader does not take the next batch. One caller cannot keep others out by that: a caller
has a share of the places, and a stream that stalls gives its place to one that wants to begin where its caller has more
than a fair part. After a while it ends in any case, sooner where many of one caller stall. What it held (a query that
sorts holds all of its rows) is freed at once, and its reader, if it ever reads on, gets an error.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa

from store.duckdb.database import Connection
from store.model.errors import Cancelled, DeadlineExceeded, ResourceExhausted

MAX_BATCH_BYTES: Final = 4 << 20
MAX_QUERIES: Final = max(4, 2 * (os.cpu_count() or 1))  # default of the setting
SMALL_BATCHES: Final = 2  # answers of at most that many batches
SMALL_ROWS: Final = 16_384  # and rows are not streams
LARGEST_WHOLE: Final = 1 << 30  # bytes; answers that are not streams are smaller
STALLED_SECONDS: Final = 1.0  # without taking a batch, after which a stream may lose its place to another
CROWD_SECONDS: Final = 30.0  # longest pause of a reader whose caller has many that pause
_RESERVE: Final = 8  # the part of the places that one caller alone cannot take; and more that stall are many
_TICK: Final = 0.015  # seconds between two checks
_IDLE_TICKS: Final = 20  # checks without running queries after which the thread ends


def never() -> bool:
    """Default for callers that cannot cancel."""
    return False


class Watched:
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
        watched: Watched,
        batches: Iterator[pa.RecordBatch],
        most_bytes: int,
        bytes_of: Callable[[pa.RecordBatch], int],
    ):
        self._watched, self._batches, self._left, self._bytes_of = watched, batches, most_bytes, bytes_of
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
            self._watched.stop(ResourceExhausted("the stream was ended, because its reader had stopped", hint=_AGAIN))
            self._batches = iter(())
            self._pieces.clear()
        finally:
            self._lock.release()
        return True

    def _next(self) -> pa.RecordBatch:
        try:
            with self._watched.running():
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
                raise _too_large()
        except BaseException:
            self.close()
            raise
        return piece

    def close(self) -> None:
        """Ends the query and frees the stream's slot."""
        self._batches = iter(())  # releases DuckDB's result
        self._pieces.clear()
        self._watched.end()
        for on_close in self._on_close:
            on_close()


_AGAIN: Final = "read it again, without long pauses"


def _too_large() -> ResourceExhausted:
    return ResourceExhausted("the answer has more bytes than this server sends at once", hint="read less at once")


def fits(batch: pa.RecordBatch, most_bytes: int) -> bool:
    """True if the batch has at most `most_bytes` bytes; computes the exact size only if its buffers have more."""
    return batch.get_total_buffer_size() <= most_bytes or batch.nbytes <= most_bytes


def _bytes_alone(batch: pa.RecordBatch) -> int:
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


class FairSemaphore:
    """A semaphore whose waiting callers are served in order of arrival."""

    def __init__(self, slots: int):
        self._free = slots
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def acquire(self, check: Callable[[], None]) -> Iterator[None]:
        """Context that holds a slot; `check` is called while waiting for one, and raises to give up."""
        granted = None
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                granted = threading.Event()
                self._waiting.append(granted)
        try:
            while granted is not None and not granted.wait(_TICK):
                check()
        except BaseException:
            self._leave(granted)
            raise
        try:
            yield
        finally:
            self._release()

    def _leave(self, granted: threading.Event | None) -> None:
        with self._lock:
            if granted is not None and not granted.is_set():
                self._waiting.remove(granted)
                return
        self._release()

    def _release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


Answer = TypeVar("Answer", pa.Table, pa.Buffer)
Result = TypeVar("Result")


class Streams:
    """The limits of streams and queries, and the thread that checks deadlines and cancellation.

    Args:
        places: Most concurrent streams.
        seconds: Longest duration of a query or stream.
        stall_seconds: Longest time that a reader may take from one batch to the next.
        most_bytes: Most bytes of an answer.
        queries: Most queries that compute their first batches at once.
    """

    def __init__(
        self,
        places: int,
        seconds: float,
        most_bytes: int,
        queries: int = MAX_QUERIES,
        stall_seconds: float = float("inf"),
    ):
        self.places, self.seconds, self.most_bytes, self.stall_seconds = places, seconds, most_bytes, stall_seconds
        self.query_slots = FairSemaphore(queries)
        self._open: dict[Stream, str] = {}  # stream that has a place → its caller
        self._evicted: dict[Stream, str] = {}  # stream without one, whose reader has not come back yet
        self._asking = threading.local()
        self._watched: set[Watched] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> int:
        """The number of streams that have a place."""
        return len(self._open)

    @contextmanager
    def asked_by(self, caller: Callable[[], str]) -> Iterator[None]:
        """Context in which this thread begins streams for a caller, whose name is asked for if there is one."""
        self._asking.caller = caller
        try:
            yield
        finally:
            self._asking.caller = None

    def run(
        self,
        cursor: Connection,
        start: Callable[[], Any],
        schema: pa.Schema,
        is_cancelled: Callable[[], bool] = never,
        shape: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
        slots: FairSemaphore | None = None,
    ) -> pa.Table | Stream:
        """Runs a query: all rows, not shaped, if they are few; else a stream of shaped batches.

        Args:
            cursor: The query's own cursor; closed when the answer ends.
            shape: Function applied to each batch of a stream; None for none.
            slots: Limit of queries that run at once; None for that of all reads. A query that waits for reads needs its
                own, or such queries could take the slots that they wait for.

        Raises:
            ResourceExhausted: Too many streams are running.
        """
        watched = self._watch_over(cursor, is_cancelled)
        try:
            with watched.running(), (slots or self.query_slots).acquire(watched.check):
                reader: Iterator[pa.RecordBatch] = iter(start())
                first: list[pa.RecordBatch] = []
                small = True
                while small and (batch := next(reader, None)) is not None:
                    first.append(batch)
                    small = len(first) <= SMALL_BATCHES and sum(each.num_rows for each in first) <= SMALL_ROWS
            if small and all(fits(batch, MAX_BATCH_BYTES // SMALL_BATCHES) for batch in first):
                watched.end()
                return pa.Table.from_batches(first, schema)
            batches = _chained(first, reader)
            return self._stream(watched, batches if shape is None else map(shape, batches), _bytes_alone)
        except BaseException:
            watched.end()
            raise

    def whole(
        self,
        cursor: Connection,
        query: Callable[[], Result],
        is_cancelled: Callable[[], bool] = never,
        seconds: float | None = None,
    ) -> Result:
        """Runs queries whose result is needed whole, within the limits of time and of queries that run at once.

        Args:
            cursor: The queries' own cursor; closed at the end.
            seconds: Longest duration; None for that of all queries.

        Raises:
            Cancelled: The caller has disconnected.
            DeadlineExceeded: The time is over.
        """
        watched = self._watch_over(cursor, is_cancelled, min(self.seconds, seconds or self.seconds))
        try:
            with watched.running(), self.query_slots.acquire(watched.check):
                return query()
        finally:
            watched.end()

    def admit(self, answer: Answer) -> Answer:
        """Returns an answer that is not a stream; raises ResourceExhausted if it exceeds the size limit."""
        if self.most_bytes >= LARGEST_WHOLE:  # adding up a table's buffers would slow down small reads
            return answer
        size = answer.nbytes if isinstance(answer, pa.Table) else answer.size
        if size > self.most_bytes:
            raise _too_large()
        return answer

    def serve(self, batches: Iterable[pa.RecordBatch], is_cancelled: Callable[[], bool] = never) -> Stream:
        """A stream of batches in memory.

        Raises:
            ResourceExhausted: Too many streams are running.
        """
        return self._stream(self._watch_over(None, is_cancelled), iter(batches), lambda batch: batch.nbytes)

    def _stream(
        self, watched: Watched, batches: Iterator[pa.RecordBatch], bytes_of: Callable[[pa.RecordBatch], int]
    ) -> Stream:
        asking = getattr(self._asking, "caller", None)
        caller = "" if asking is None else asking()
        stream = Stream(watched, batches, self.most_bytes, bytes_of)
        try:
            self._admit_stream(stream, caller)
        except ResourceExhausted:
            watched.end()
            raise
        watched.then(lambda: self._free(stream))
        return stream.then(lambda: self._forget(stream))

    def _admit_stream(self, stream: Stream, caller: str) -> None:
        """Gives a stream a place, if need be that of a stalled one."""
        with self._lock:
            unread = sum(each == caller for each in self._evicted.values())
        if unread > self.places:
            raise ResourceExhausted("too many of your streams were left unread", hint="close them")
        while True:
            with self._lock:
                callers = Counter(self._open.values())
                victims, refusal = self._full(callers, caller)
                if refusal is None:
                    self._open[stream] = caller
                    return
            if not any(self._evict(victim) for victim in victims):
                raise refusal

    def _full(self, callers: Counter[str], caller: str) -> tuple[list[Stream], ResourceExhausted | None]:
        """Why a caller gets no place, None if it does, and the streams that may give it theirs, the best first."""
        own, again = callers[caller], "try again later"
        if own and own >= self.places - self.places // _RESERVE:
            refusal = ResourceExhausted(f"too many streams: {own} of yours are running", hint=again)
            return self._stalled(lambda other: other == caller), refusal
        if self.running < self.places:
            return [], None
        fair = self.places // len({*callers, caller})
        refusal = ResourceExhausted(f"too many streams: {self.running} are running", hint=again)
        return self._stalled(lambda other: callers[other] > fair), refusal

    def _stalled(self, of: Callable[[str], bool]) -> list[Stream]:
        """The stalled streams of some callers, the longest stalled first."""
        now = time.monotonic()
        seconds = {stream: stream.stalled_seconds(now) for stream, caller in self._open.items() if of(caller)}
        stalled = [stream for stream, stall in seconds.items() if stall >= STALLED_SECONDS]
        return sorted(stalled, key=lambda stream: -seconds[stream])

    def _overdue(self, now: float) -> list[Stream]:
        """The streams that have stalled for too long."""
        by_caller: dict[str, list[tuple[float, Stream]]] = {}
        for stream, caller in self._open.items():
            by_caller.setdefault(caller, []).append((stream.stalled_seconds(now), stream))
        few, crowd_seconds = max(1, self.places // _RESERVE), min(CROWD_SECONDS, self.stall_seconds)
        found = []
        for stalls in by_caller.values():
            stalls.sort(key=lambda pair: pair[0])
            found += [stream for seconds, stream in stalls[:few] if seconds > self.stall_seconds]
            found += [stream for seconds, stream in stalls[few:] if seconds > crowd_seconds]
        return found

    def _evict(self, stream: Stream) -> bool:
        with self._lock:
            caller = self._open.get(stream)
            if caller is None:
                return True  # it has just ended
            self._evicted[stream] = caller
        if stream.evict():
            return True
        with self._lock:
            self._evicted.pop(stream, None)
        return False

    def _free(self, stream: Stream) -> None:
        with self._lock:
            self._open.pop(stream, None)

    def _forget(self, stream: Stream) -> None:
        with self._lock:
            self._evicted.pop(stream, None)

    def _watch_over(
        self, cursor: Connection | None, is_cancelled: Callable[[], bool], seconds: float | None = None
    ) -> Watched:
        watched = Watched(cursor, is_cancelled, time.monotonic() + (seconds or self.seconds))
        with self._lock:
            self._watched.add(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="streams", daemon=True)
                self._thread.start()
        return watched

    def _watch(self) -> None:
        idle = 0
        while True:
            with self._lock:
                idle = 0 if self._watched else idle + 1
                if idle > _IDLE_TICKS:
                    self._thread = None
                    return
                watched = list(self._watched)
            now = time.monotonic()
            ended = [each for each in watched if not each.still_runs(now)]
            with self._lock:
                self._watched.difference_update(ended)
                overdue = self._overdue(now)
            for stream in overdue:
                self._evict(stream)
            time.sleep(_TICK)


def _chained(first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    first.reverse()
    while first:
        yield first.pop()
    yield from rest
