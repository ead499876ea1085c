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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pyarrow as pa

from flight_server.core.reads.fair_semaphore import FairSemaphore
from flight_server.core.reads.stream import MAX_BATCH_BYTES, Stoppable, Stream, bytes_alone, fits, never, too_large
from store.duckdb.database import Connection
from store.model.errors import ResourceExhausted

MAX_QUERIES: Final = max(4, 2 * (os.cpu_count() or 1))  # default of the setting
SMALL_BATCHES: Final = 2  # answers of at most that many batches
SMALL_ROWS: Final = 16_384  # and rows are not streams
LARGEST_WHOLE: Final = 1 << 30  # bytes; answers that are not streams are smaller
STALLED_SECONDS: Final = 1.0  # without taking a batch, after which a stream may lose its place to another
CROWD_SECONDS: Final = 30.0  # longest pause of a reader whose caller has many that pause
_RESERVE: Final = 8  # the part of the places that one caller alone cannot take; and more that stall are many
_TICK: Final = 0.015  # seconds between two checks
_IDLE_TICKS: Final = 20  # checks without running queries after which the thread ends


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
        self._stoppables: set[Stoppable] = set()
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
        stoppable = self._watch_over(cursor, is_cancelled)
        try:
            with stoppable.running(), (slots or self.query_slots).acquire(stoppable.check):
                reader: Iterator[pa.RecordBatch] = iter(start())
                first: list[pa.RecordBatch] = []
                small = True
                while small and (batch := next(reader, None)) is not None:
                    first.append(batch)
                    small = len(first) <= SMALL_BATCHES and sum(each.num_rows for each in first) <= SMALL_ROWS
            if small and all(fits(batch, MAX_BATCH_BYTES // SMALL_BATCHES) for batch in first):
                stoppable.end()
                return pa.Table.from_batches(first, schema)
            batches = _chained(first, reader)
            return self._stream(stoppable, batches if shape is None else map(shape, batches), bytes_alone)
        except BaseException:
            stoppable.end()
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
        stoppable = self._watch_over(cursor, is_cancelled, min(self.seconds, seconds or self.seconds))
        try:
            with stoppable.running(), self.query_slots.acquire(stoppable.check):
                return query()
        finally:
            stoppable.end()

    def admit(self, answer: Answer) -> Answer:
        """Returns an answer that is not a stream; raises ResourceExhausted if it exceeds the size limit."""
        if self.most_bytes >= LARGEST_WHOLE:  # adding up a table's buffers would slow down small reads
            return answer
        size = answer.nbytes if isinstance(answer, pa.Table) else answer.size
        if size > self.most_bytes:
            raise too_large()
        return answer

    def serve(self, batches: Iterable[pa.RecordBatch], is_cancelled: Callable[[], bool] = never) -> Stream:
        """A stream of batches in memory.

        Raises:
            ResourceExhausted: Too many streams are running.
        """
        return self._stream(self._watch_over(None, is_cancelled), iter(batches), lambda batch: batch.nbytes)

    def _stream(
        self, stoppable: Stoppable, batches: Iterator[pa.RecordBatch], bytes_of: Callable[[pa.RecordBatch], int]
    ) -> Stream:
        asking = getattr(self._asking, "caller", None)
        caller = "" if asking is None else asking()
        stream = Stream(stoppable, batches, self.most_bytes, bytes_of)
        try:
            self._admit_stream(stream, caller)
        except ResourceExhausted:
            stoppable.end()
            raise
        stoppable.then(lambda: self._free(stream))
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
    ) -> Stoppable:
        stoppable = Stoppable(cursor, is_cancelled, time.monotonic() + (seconds or self.seconds))
        with self._lock:
            self._stoppables.add(stoppable)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="streams", daemon=True)
                self._thread.start()
        return stoppable

    def _watch(self) -> None:
        idle = 0
        while True:
            with self._lock:
                idle = 0 if self._stoppables else idle + 1
                if idle > _IDLE_TICKS:
                    self._thread = None
                    return
                known = list(self._stoppables)
            now = time.monotonic()
            ended = [each for each in known if not each.still_runs(now)]
            with self._lock:
                self._stoppables.difference_update(ended)
                overdue = self._overdue(now)
            for stream in overdue:
                self._evict(stream)
            time.sleep(_TICK)


def _chained(first: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    first.reverse()
    while first:
        yield first.pop()
    yield from rest
