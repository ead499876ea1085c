"""The follower's side: a read-only database that is replaced by a newer one each time the writer has shipped something.

The copy is the file of a base and, beside it, DuckDB's log up to what was applied, so it is a database that DuckDB can
open. Each view of it is opened through names of its own, for DuckDB opens a path once only: reads in flight finish on
the view that they began with. A note beside the copy tells its position; without it the copy is made again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import duckdb

from store.duckdb.backup import wal
from store.duckdb.commit import Acknowledgement
from store.duckdb.database_files import DatabaseFiles
from store.duckdb.layout import OlderLayout, prepare
from store.duckdb.opening import prepared
from store.model.errors import InvalidArgument, StatflightError, first_line
from store.replication import lease as leases
from store.replication.followed_database import FollowedDatabase, note_of
from store.replication.log import Base, Commit, Damaged, Log, Position
from store.replication.restore import bases, write_base
from store.replication.segment_files import digests, fetch
from store.role import MOST_WAIT_SECONDS, Lagging, ReadOnly, Role

if TYPE_CHECKING:
    from store.replication.writer import Writer

log = logging.getLogger("statflight.replication")

T = TypeVar("T")

_FIRST_LOOK_SECONDS: Final = 5.0  # most that the start waits for the first look
_NEVER: Final = 1e9  # seconds
_PATIENCE: Final = 5  # looks at a damaged or missing object until the follower begins again with the newest base


class _Copy(NamedTuple):
    """The contents of the copy."""

    base: Base
    position: Position
    last: Commit  # `end` is the length of DuckDB's log


class Follower(Role):
    """The role of a server that serves what another one has shipped.

    Args:
        interval: Seconds between two looks.
        take_over: Called by a standby in its own thread once the writer's lease has ended, with that lease; returns the
            writer that this server has become, None if another one was faster. None for a follower.
    """

    takes_writes = False
    tells = True

    def __init__(
        self,
        database: FollowedDatabase,
        log: Log,
        interval: float,
        take_over: Callable[[Follower, leases.Lease], Writer | None] | None = None,
    ):
        self.name = "FOLLOWER" if take_over is None else "STANDBY"
        self._database, self._log, self._interval, self._take_over = database, log, interval, take_over
        self._path = Path(database.path).resolve()
        self._note = note_of(self._path)
        self._copy: _Copy | None = None
        self._lease: leases.Lease | None = None
        self._lease_seen = leases.clock()
        self._fresh = leases.clock() - _NEVER  # when all that is served was all that there was
        self._error: str | None = None
        self._misses = 0
        self._unfit: dict[Position, str] = {}  # the newest base if it is of another layout or DuckDB, and what it is
        self._version = 0  # odd while a view is being replaced
        self._readers = 0  # that must not see a replacement
        self._changed = threading.Condition()
        self._stop = threading.Event()
        for left in self._path.parent.glob(f".{self._path.name}.*"):  # of a process that was killed
            left.unlink(missing_ok=True)
        self._reopen()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="replication", daemon=True)
        self._thread.start()
        self._looked.wait(_FIRST_LOOK_SECONDS)

    # In the threads of readers.

    @property
    def writer(self) -> str:
        """The writer's address; empty if it is not known."""
        return "" if self._lease is None else self._lease.writer

    @property
    def lag_ms(self) -> int:
        return int((leases.clock() - self._fresh) * 1000)

    @property
    def generation(self) -> int:
        return 0 if self._copy is None else self._copy.last.generation

    def row(self) -> dict[str, Any]:
        lease = self._lease
        return {
            "role": self.name,
            "epoch": None if lease is None else lease.epoch,
            "generation": self.generation,
            "shipped_generation": None if lease is None else max(lease.generation, self.generation),
            "lag_ms": self.lag_ms,
            "writer": self.writer or None,
            "url": self._log.place.url,
            "last_error": self._error,
        }

    def check_writes(self) -> None:
        raise ReadOnly(
            f"this server follows {self.writer or 'another one'} and takes no writes",
            hint="write there",
            params={"writer": self.writer},
        )

    # In the store's writer thread, once this server is the writer.

    def check_begin(self) -> None:
        if self.successor is not None:
            self.successor.check_begin()

    def committed(self) -> None:
        if self.successor is not None:
            self.successor.committed()

    def acknowledge(self, done: Acknowledgement) -> None:
        if self.successor is None:
            super().acknowledge(done)
        else:
            self.successor.acknowledge(done)

    # In the threads of readers.

    def check_lag(self, max_lag_ms: int | None) -> None:
        if self._copy is None:
            raise Lagging(
                f"nothing of the replica is here yet: {self._error or 'it is being fetched'}",
                hint="read at the writer, or try again",
                params={"lag_ms": self.lag_ms},
            )
        super().check_lag(max_lag_ms)

    @property
    def wait_seconds(self) -> float:
        return max(2 * self._interval, MOST_WAIT_SECONDS)

    def wait_for(self, generation: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.generation >= generation, self.wait_seconds)

    def trouble(self) -> str:
        return self._error or f"follows {self.writer or self._log.place.url}"

    def consistently(self, read: Callable[[], T], discard: Callable[[T], None]) -> tuple[T, int]:
        before = self._version
        if not before % 2:
            generation, result = self.generation, read()
            if self._version == before:
                return result, generation
            discard(result)
        with self._held():
            return read(), self.generation

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Keeps the view for the block."""
        with self._changed:
            self._changed.wait_for(lambda: not self._version % 2)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    def close(self) -> None:
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)
        if self.successor is not None:
            self.successor.close()

    # In the follower's thread.

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
                if self._take_over is not None and self._lease_has_ended():
                    self._become_writer()
                    if self.successor is not None:
                        return
                if self._error is not None:
                    log.warning("the replica is within reach again")
                self._error = None
            except Exception as error:
                self.failures += 1
                if self._error is None:
                    log.error(
                        "the replica cannot be followed, it is tried again: %s",
                        error,
                        exc_info=not isinstance(error, StatflightError | OSError),
                    )
                self._error = _reason(error)
            self._looked.set()
            self._stop.wait(self._interval / 2)

    def look(self) -> None:
        """Applies what has been shipped since the last look."""
        began = leases.clock()
        lease = leases.newest(self._log.place)
        is_new = lease is not None and (self._lease is None or lease.number != self._lease.number)
        if lease is not None and (self._lease is None or lease.holder != self._lease.holder):
            self._log.require(self._identity, "start again with a new --db to follow that one")
        if is_new:
            self._lease, self._lease_seen = lease, leases.clock()
        self._catch_up()
        if is_new and lease is not None and not lease.released and self.generation >= lease.generation:
            self._fresh = began

    def _catch_up(self, *, is_promoted: bool = False) -> None:
        """Applies all that is there; of an epoch that has ended only what its successor has, once that has begun."""
        later = [] if self._copy is None else self._log.after(self._copy.position)
        if self._copy is None or self._has_base(self._copy, later):
            self._begin_again(is_promoted=is_promoted)
            return
        data, copy, is_followed = bytearray(), self._copy, False
        try:
            for position in later:
                if position.number == 0:
                    is_followed = True  # by another base, which has been shipped meanwhile
                    break
                if position != copy.position._replace(number=copy.position.number + 1):
                    raise Damaged(f'a segment before "{position.name}" is missing')
                segment = self._log.segment(position)
                if segment.offset != self._copy.last.end + len(data):
                    raise Damaged(f'"{position.name}" does not follow what was before it')
                data += segment.data
                last = segment.commits[-1]._replace(end=segment.offset + segment.commits[-1].end)
                copy = copy._replace(position=position, last=last)
        except Damaged:
            self._misses += 1
            if self._misses < _PATIENCE:
                raise
        if not data or not (is_promoted or self._may_apply(copy.position)):
            return
        log_path = wal(self._path)
        with log_path.open("rb+" if log_path.exists() else "xb") as file:
            file.truncate(self._copy.last.end)  # an earlier attempt may have failed after a part
            file.seek(self._copy.last.end)
            file.write(data)
        self._serve(copy)
        self._record(copy)
        if is_followed:
            self._catch_up(is_promoted=is_promoted)

    def _may_apply(self, position: Position) -> bool:
        """False if the next epoch may lack what was read at a position: it arrived after its writer's lease had ended.
        What was there before the next lease was taken is in the next epoch."""
        lease = leases.newest(self._log.place)
        return lease is None or lease.epoch <= position.epoch

    def _has_base(self, copy: _Copy, later: list[Position]) -> bool:
        """True if the newest base has to be fetched: all segments before one are applied, another epoch has begun, or a
        segment stays away."""
        if not later:
            return False
        return later[0].number == 0 or later[-1].epoch > copy.position.epoch or self._misses >= _PATIENCE

    def _begin_again(self, *, is_promoted: bool) -> None:
        """Fetches the newest base, with the blocks that the copy does not have, and what follows it."""
        base = next((base for base, _ in bases(self._log)), None)
        if base is None or (self._copy is not None and base.position[:2] == self._copy.position[:2]):
            self._misses = 0
            return
        if self._copy is not None and base.generation < self._copy.last.generation:
            raise Damaged(f'"{base.position.name}" is older than what is served')
        if self._copy is not None and not (is_promoted or self._may_apply(base.position)):
            return
        if base.position in self._unfit:  # it is not fetched again and again
            raise InvalidArgument(self._unfit[base.position])
        old = self._copy.base if self._copy is not None else None
        with self._beside() as fetched:
            write_base(self._log, base, fetched, old, None if old is None else self._path)
            try:
                with duckdb.connect(str(fetched), read_only=True) as found:
                    prepare(found, self._log.place.url)
            except OlderLayout as older:
                older.hint = "it is served once its writer is upgraded, and has shipped that"
                self._unfit = {base.position: first_line(older)}
                raise
            except (InvalidArgument, duckdb.Error) as error:
                self._unfit = {base.position: first_line(error)}
                raise
            self._record(None)  # until it is whole, so that a file that is left over is known as a copy
            wal(self._path).unlink(missing_ok=True)
            fetched.replace(self._path)
        self._misses = 0
        copy = _Copy(base, base.position, Commit(base.generation, base.micros, 0))
        self._serve(copy)
        self._record(copy)
        self._catch_up(is_promoted=is_promoted)

    @contextlib.contextmanager
    def _beside(self) -> Iterator[Path]:
        """The path of a new file beside the copy, removed with its log after the block if it is still there."""
        path = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
        try:
            yield path
        finally:
            for left in (path, wal(path)):
                left.unlink(missing_ok=True)

    def _serve(self, copy: _Copy) -> None:
        """Opens a view of the copy and replaces the present one."""
        with self._beside() as view:
            for source, name in ((self._path, view), (wal(self._path), wal(view))):
                if source.exists():
                    os.link(source, name)
            root = duckdb.connect(str(view), read_only=True)
        prepared(root, self._log.place.url)
        fetch(self._log, root, self._database.segments.files)
        with self._replacing():
            self._database.replace(root)
            self._copy = copy
        self._database.segments.files.collect(digests(root))

    @contextlib.contextmanager
    def _replacing(self) -> Iterator[None]:
        """Waits for the readers that must not see a replacement, and holds others up during the block."""
        with self._changed:
            self._version += 1
            self._changed.wait_for(lambda: not self._readers)
        try:
            yield
        finally:
            with self._changed:
                self._version += 1
                self._changed.notify_all()

    def _record(self, copy: _Copy | None) -> None:
        """Writes the note; None for a copy that is not whole."""
        contents = {} if copy is None else {"base": copy.base.position, "position": copy.position, "last": copy.last}
        partial = self._note.with_name(f".{self._note.name}")
        partial.write_text(json.dumps({"replica": self._identity, **contents}))
        partial.replace(self._note)

    def _reopen(self) -> None:
        """Serves the copy that an earlier process has left.

        Raises:
            InvalidArgument: The file is not a copy of this replica.
        """
        self._identity = self._log.existing()
        try:
            note = json.loads(self._note.read_text())
        except FileNotFoundError:
            if self._path.exists():
                raise InvalidArgument(
                    f'"{self._path}" is no copy of the replica "{self._log.place.url}"',
                    code="REPLICA",
                    hint="name a new --db, it is filled from the replica",
                ) from None
            return
        except ValueError:  # the machine ended while it was written: the copy is made again
            return
        if note["replica"] != self._identity:
            raise InvalidArgument(
                f'"{self._path}" is a copy of another replica than "{self._log.place.url}"',
                code="REPLICA",
                hint="name a new --db",
            )
        if "base" not in note:
            return
        base, last = self._log.base(Position(*note["base"])), Commit(*note["last"])
        applied = wal(self._path).stat().st_size if wal(self._path).exists() else 0
        if base is None or not self._path.exists() or applied < last.end:  # gone meanwhile: the copy is made again
            return
        self._fresh = leases.clock() - max(0.0, time.time() - last.micros / 1e6)
        if last.end:
            os.truncate(wal(self._path), last.end)
        else:
            wal(self._path).unlink(missing_ok=True)
        try:
            self._serve(_Copy(base, Position(*note["position"]), last))
        except OlderLayout as older:  # of a statflight of before an upgrade: the copy is made again
            log.warning("the copy is of a former time, and is fetched again: %s", older.message)

    # A standby.

    def _lease_has_ended(self) -> bool:
        lease = self._lease
        if lease is None or self._copy is None:
            return False
        return lease.released or leases.clock() - self._lease_seen > lease.seconds

    def _become_writer(self) -> None:
        if self._take_over is not None and self._lease is not None:
            log.warning("the lease of %s has ended: taking over", self.writer or "the writer")
            try:
                self.successor = self._take_over(self, self._lease)
            except Exception as error:
                if self._database.is_promoted:
                    self.over = f"it could not take over: {error}; start it again by the same command"
                raise
            if self.successor is not None:
                self._note.unlink(missing_ok=True)
                self._database.accept()

    def promote(self) -> tuple[int, Position]:
        """Makes the copy a database of its own and opens it for writing, once the lease is taken.

        Returns:
            The generation that it has, and the position.

        Raises:
            ResourceExhausted: There is no room for it.
        """
        self._catch_up(is_promoted=True)
        if self._copy is None:
            raise Damaged(f'"{self._log.place.url}" has no base')
        DatabaseFiles(str(self._path)).check()
        with self._beside() as own:
            with self._path.open("rb") as source, own.open("xb") as target:  # views still read the file itself
                own.chmod(0o600)
                while os.sendfile(target.fileno(), source.fileno(), None, 1 << 30):
                    pass
                os.fsync(target.fileno())
            self._record(None)  # a process that is killed before it writes makes the copy again
            own.replace(self._path)
        if wal(self._path).exists():
            with wal(self._path).open("rb+") as file:
                os.fsync(file.fileno())
        with self._replacing():
            self._database.promote()
        return self.generation, self._copy.position


def _reason(error: Exception) -> str:
    """The message of an error for callers, without paths of this machine."""
    if isinstance(error, StatflightError):
        return str(error)
    if isinstance(error, OSError):  # of the copy: those of the place are StatflightErrors
        return f"the copy cannot be written: {error.strerror or type(error).__name__}"
    return f"internal error: {type(error).__name__}"
