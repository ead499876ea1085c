"""The writer's side: ships what is committed, keeps the lease, and refuses writes without it.

The store's writer thread only notes each commit: it reads the bytes that the commit appended to DuckDB's log. A thread
ships them as segments, at most `interval` seconds later. A base is due when the log is long, and whenever segments
cannot tell what happened: at the start, after too long a time out of reach, and after a large write, of which DuckDB
stores the rows in the file itself and only points to them in the log. For a base that thread has the store checkpoint
while nothing is written, and then reads the file while writes go on: until the next checkpoint DuckDB changes no block
that the last one refers to. DuckDB's own checkpoints are turned off.

The file is never opened for a single read: closing it would drop DuckDB's lock (see `store.duckdb.backup`). One
descriptor stays open as long as the database.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from store.duckdb.backup import wal
from store.duckdb.commit import Acknowledgement
from store.duckdb.database import Database
from store.duckdb.segment_location import used
from store.model.errors import ShuttingDown, StatflightError, UpstreamError
from store.replication import lease as leases
from store.replication.log import BLOCK_BYTES, Base, Commit, Damaged, Log, Position, Segment, block_name, digest
from store.replication.segment_files import Shipped
from store.role import ReadOnly, Role

log = logging.getLogger("statflight.replication")

SEGMENT_BYTES: Final = 4 << 20
MOST_QUEUED_BYTES: Final = 64 << 20  # unshipped commits kept in memory; beyond, a base takes their place
UPLOADS: Final = 8
_RETRY_SECONDS: Final = 1.0
_CLEAN_SECONDS: Final = 600.0
_CLOSE_SECONDS: Final = 15.0  # longest wait of `close` for what is not shipped yet


class _Pending(NamedTuple):
    """A commit that is not shipped yet, with the bytes that it appended to the log from `offset`."""

    generation: int
    micros: int
    offset: int
    data: bytes


class Writer(Role):
    """The role of the one server that writes.

    Args:
        database: The open database; its file must be the newest of the replica.
        keeper: The lease, taken already.
        generation: Generation of the database as it is now, greater than all that are known.
        follows: Where the log of the epochs before ends.
        interval: Seconds between two segments.
        durable: Acknowledge writes only once they are shipped.
        keep: Seconds for which generations stay restorable.
    """

    name = "WRITER"

    def __init__(
        self,
        database: Database,
        log: Log,
        keeper: leases.Keeper,
        generation: int,
        follows: Position | None,
        *,
        interval: float,
        durable: bool,
        keep: float,
    ):
        self._database, self._log, self._keeper = database, log, keeper
        self._identity = log.existing()
        self._path = Path(database.path).resolve()
        self._interval, self._durable, self._keep = interval, durable, keep
        self._generation, self._shipped, self._micros = generation, generation, 0
        self._follows = follows
        self._queue: deque[_Pending | Base] = deque()  # what is to be shipped; a base without its blocks
        self._queued_bytes = 0
        self._sending: Sequence[Any] = ()  # the batch of a failed attempt, which may be there all the same
        self._waiting: deque[tuple[int, Acknowledgement]] = deque()
        self._known: set[str] = set()  # blocks that are there
        self._position = Position(keeper.lease.epoch, 0)  # of what was shipped last
        self._checkpoints = 0
        self._offset = 0  # of DuckDB's log, up to which commits are noted
        self._untouched = 0  # time of the file's last change, as set after a checkpoint
        self._base_due = self._has_gap = False  # with a gap, only a base tells what has happened
        self._cleaned = time.monotonic()
        self._errors: dict[str, str] = {}  # by what failed
        self._lock = threading.Lock()
        self._wake, self._stop, self._done = threading.Event(), threading.Event(), threading.Event()
        self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._wal: int | None = None
        database.segments.files.is_shipped = True
        self._segment_files = Shipped(log, database.segments)
        with database.reading() as cursor:
            cursor.execute("SET GLOBAL checkpoint_threshold = '1TB'")
        self._checkpoint()
        for target in (self._ship_all, self._keep_lease):
            threading.Thread(target=target, name="replication", daemon=True).start()

    # In the thread of a caller.

    def listening(self, address: str) -> None:
        with contextlib.suppress(UpstreamError):  # the keeper's thread tries again
            self._keeper.renew(self._shipped, writer=address)

    @property
    def may_write(self) -> bool:
        return self._keeper.is_valid

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def over(self) -> str:  # type: ignore[override]
        """Why the server must end: another writer has taken over."""
        successor = self._keeper.successor
        if successor is None:
            return ""
        return (
            f'the server at {successor.writer} has taken over "{self._log.place.url}"; this file is no longer the'
            " newest: start it with --standby and a new --db"
        )

    def row(self) -> dict[str, Any]:
        return {
            "role": self.name,
            "epoch": self._keeper.lease.epoch,
            "generation": self._generation,
            "shipped_generation": self._shipped,
            "lag_ms": 0,
            "writer": self._keeper.lease.writer,
            "url": self._log.place.url,
            "last_error": self._error(),
        }

    def trouble(self) -> str:
        return self._error() or ""

    def _error(self) -> str | None:
        return next(iter(self._errors.values()), None)

    def close(self) -> None:
        """Ships what is left, as long as the place answers, and ends the lease."""
        self._stop.set()
        self._wake.set()
        self._done.wait(_CLOSE_SECONDS)
        self._done.set()
        if self._keeper.is_valid:
            with contextlib.suppress(StatflightError):
                self._require_place()
                self._keeper.renew(self._shipped, released=True)
        self._fail_waiting()
        os.close(self._file)

    # In the store's writer thread.

    def check_begin(self) -> None:
        if not self._keeper.is_valid:
            raise self._refusal()

    def _refusal(self) -> StatflightError:
        if (successor := self._keeper.successor) is not None:
            return ReadOnly(f"the writer is now {successor.writer}", params={"writer": successor.writer})
        return UpstreamError(
            "the writer's lease has ended and cannot be renewed",
            code="NO_LEASE",
            hint=self._errors.get("lease", "it is tried again"),
        )

    def committed(self) -> None:
        """Notes the bytes of a commit. Must not raise: the commit has happened."""
        try:
            data = self._appended()
        except OSError:
            data = None
        if data == b"":
            return
        with self._lock:
            self._generation += 1
            self._micros = max(self._micros, time.time_ns() // 1000)
            if data is None:
                self._has_gap = True
            elif not self._has_gap:
                self._queue.append(_Pending(self._generation, self._micros, self._offset, data))
                self._queued_bytes += len(data)
                if self._queued_bytes > MOST_QUEUED_BYTES:
                    self._has_gap, self._queued_bytes = True, 0
                    self._queue.clear()
                    self._sending = ()
            self._offset += len(data or b"")
            self._base_due = self._has_gap or self._offset >= self._database.checkpoint_bytes
            urgent = self._durable or self._base_due or self._queued_bytes >= SEGMENT_BYTES
        if urgent:
            self._wake.set()

    def _appended(self) -> bytes | None:
        """The new bytes of DuckDB's log; None if the commit has stored rows in the file itself."""
        if os.fstat(self._file).st_mtime_ns != self._untouched:
            return None
        if self._wal is None:
            try:
                self._wal = os.open(wal(self._path), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""  # nothing was changed
        return os.pread(self._wal, os.fstat(self._wal).st_size - self._offset, self._offset)

    def acknowledge(self, done: Acknowledgement) -> None:
        if not self._keeper.is_valid:
            done(self._unsure())
        elif not self._durable:
            done(None)
        else:
            with self._lock:
                self._waiting.append((self._generation, done))
            self._wake.set()

    def _checkpoint(self) -> None:
        if not self._database.checkpoint(self._checkpointed):
            raise UpstreamError("the database cannot be checkpointed now", code="REPLICA")

    def _checkpointed(self) -> None:
        """Queues the base that the file is now."""
        if self._wal is not None:
            os.close(self._wal)
            self._wal = None
        earlier = time.time_ns() - 10**9  # so that the next change has another time, however coarse the clock is
        os.utime(self._path, ns=(earlier, earlier))
        with self._lock:
            found = os.fstat(self._file)
            self._untouched, self._offset = found.st_mtime_ns, 0
            self._base_due = self._has_gap = False
            self._micros = max(self._micros, time.time_ns() // 1000)
            self._checkpoints += 1
            position = Position(self._keeper.lease.epoch, self._checkpoints)
            self._queue.append(Base(position, self._generation, self._micros, found.st_size, [], self._follows))

    # In the shipper's thread.

    def _ship_all(self) -> None:
        while True:
            stopping = self._stop.is_set()
            self._wake.clear()
            try:
                self._require_place()
                self._ship()
                self._clean()
                self._recovered("ship")
            except ShuttingDown:
                break
            except Exception as error:
                self._failed("ship", error)
                if not stopping:
                    self._stop.wait(_RETRY_SECONDS)
            if stopping:
                break
            self._wake.wait(self._interval)
        self._done.set()

    def _ship(self) -> None:
        """Ships the queue, and a base if one is due."""
        while self._keeper.is_valid:
            with self._lock:
                batch = self._sending = self._sending or self._batch()
                has_base = any(isinstance(item, Base) for item in self._queue)
            if not batch:
                if not self._base_due or has_base:
                    break
                self._checkpoint()
                continue
            self._segment_files.ship(self._used)  # what the batch refers to
            shipped = self._ship_base(batch[0]) if isinstance(batch[0], Base) else self._ship_segment(batch)
            with self._lock:
                self._shipped, self._sending = shipped, ()
                for item in batch:
                    if self._queue and self._queue[0] is item:  # else the queue was cleared meanwhile
                        self._queue.popleft()
                        self._queued_bytes -= 0 if isinstance(item, Base) else len(item.data)
            self._settle_waiting()
        self._settle_waiting()

    def _used(self) -> set[str]:
        """Names of the files of the database's segments."""
        with self._database.reading() as cursor:
            return used(cursor)

    def _batch(self) -> list[Any]:
        """The part of the queue for the next object: a base, or commits up to the next base."""
        batch: list[_Pending | Base] = []
        size = 0
        for item in self._queue:
            if isinstance(item, Base):
                return batch or [item]
            if batch and size + len(item.data) > SEGMENT_BYTES:
                break
            batch.append(item)
            size += len(item.data)
        return batch

    def _ship_segment(self, batch: Sequence[_Pending]) -> int:
        commits, end = [], 0
        for pending in batch:
            end += len(pending.data)
            commits.append(Commit(pending.generation, pending.micros, end))
        position = self._position._replace(number=self._position.number + 1)
        data = b"".join(pending.data for pending in batch)
        self._create(position, Segment(position, batch[0].offset, commits, data).encode())
        return commits[-1].generation

    def _ship_base(self, base: Base) -> int:
        if not self._known:
            newest = (base for base in self._log.bases() if isinstance(base, Base))
            self._known = {block for base in islice(newest, 2) for block in base.blocks}
        offsets = range(0, base.size, BLOCK_BYTES)
        with ThreadPoolExecutor(UPLOADS, "replica-upload") as pool:
            blocks = list(pool.map(lambda offset: self._ship_block(offset, base.size), offsets))
        self._create(base.position, replace(base, blocks=blocks).encode())
        self._known.update(blocks)
        self._follows = None
        return base.generation

    def _create(self, position: Position, data: bytes) -> None:
        place = self._log.place
        is_there = not place.create(position.name, data)  # by an earlier attempt that seemed to fail
        # a base that was sent again may differ, in blocks that DuckDB has freed
        if is_there and position.number and place.read(position.name) != data:
            raise UpstreamError(f'replica "{place.url}": "{position.name}" is there already', code="REPLICA")
        self._position = position

    def _ship_block(self, offset: int, size: int) -> str:
        data = os.pread(self._file, min(BLOCK_BYTES, size - offset), offset)
        name = digest(data)
        if name not in self._known:
            self._log.place.create(block_name(name), data)
        return name

    def _settle_waiting(self) -> None:
        """Acknowledges the writes that are shipped, if the lease did not end meanwhile."""
        if not self._keeper.is_valid:
            self._fail_waiting()
            return
        while True:
            with self._lock:
                if not self._waiting or self._waiting[0][0] > self._shipped:
                    return
                _, done = self._waiting.popleft()
            done(None)

    def _fail_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done(self._unsure())

    def _unsure(self) -> StatflightError:
        """The error of a write that is stored here but was not shipped in time."""
        refusal = self._refusal()
        refusal.hint = f"{refusal.hint}; it is not known whether this write stays".lstrip("; ")
        return refusal

    def _clean(self) -> None:
        """Deletes what no restorable generation needs."""
        if time.monotonic() - self._cleaned < _CLEAN_SECONDS:
            return
        self._cleaned = time.monotonic()
        clean(self._log, time.time_ns() // 1000 - int(self._keep * 1e6), lambda: self._keeper.is_valid)
        self._segment_files.clean(self._used(), self._keep)
        self._known = set()

    # In the keeper's thread.

    def _keep_lease(self) -> None:
        every = min(self._interval, self._keeper.lease.seconds / 4)
        is_done = False
        while not is_done:  # at once for the first time: a takeover may have lasted long
            try:
                self._require_place()
                self._keeper.renew(self._shipped)
                self._recovered("lease")
            except Exception as error:
                self._failed("lease", error)
            if not self._keeper.is_valid:
                self._fail_waiting()
            is_done = self._done.wait(every)

    def _require_place(self) -> None:
        """Raises an error if the place, which was out of reach, has come back as that of another database."""
        if self._errors:
            self._log.require(self._identity, "bring the former one back, or start with another place")

    def _failed(self, what: str, error: Exception) -> None:
        self.failures += 1
        if what not in self._errors:
            log.error("replication fails and is tried again: %s", error)
        self._errors[what] = str(error)

    def _recovered(self, what: str) -> None:
        if self._errors.pop(what, None) is not None and not self._errors:
            log.warning("replication works again")


def clean(log: Log, before: int, may_delete: Callable[[], bool]) -> None:
    """Deletes generations that are older, and the blocks that no other base has.

    Args:
        before: Time in microseconds since 1970; what was the newest at that time stays.
        may_delete: False once the lease has ended.
    """
    kept: set[str] = set()
    doomed: list[Base] = []
    is_older = False
    for base in log.bases():
        if isinstance(base, Damaged):
            raise base  # nobody knows which blocks it has
        if is_older:
            doomed.append(base)
        else:
            kept.update(base.blocks)
            is_older = base.micros < before
    if not doomed:
        return
    for base in reversed(doomed):  # the oldest first, its base last, so that what is left is whole
        for position in reversed(log.segments(base.position)):
            _delete(log, position.name, may_delete)
        _delete(log, base.position.name, may_delete)
    for block in {block for base in doomed for block in base.blocks} - kept:
        _delete(log, block_name(block), may_delete)


def _delete(log: Log, name: str, may_delete: Callable[[], bool]) -> None:
    if not may_delete():
        raise UpstreamError("the lease has ended", code="NO_LEASE")
    log.place.delete(name)
