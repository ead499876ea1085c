"""The role of one of several servers that share a store: each writes, each follows what the others write.

A thread with a session of its own waits for notifications, and looks without one too; it counts the beats of this
server, and watches those of the others. Its session holds the lock of the one server that keeps house.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import wait
from typing import Any, Final, TypeVar

import psycopg

from store.duckdb.database import Connection, Database
from store.model.errors import ShuttingDown, StatflightError
from store.postgres import shared
from store.postgres.session import Address, Session
from store.postgres.shared_log import SharedLog
from store.role import MOST_WAIT_SECONDS, Role

log = logging.getLogger("statflight.store")

T = TypeVar("T")

BEAT_SECONDS: Final = 1.0
GONE_SECONDS: Final = 60.0  # without a beat, after which a server is gone
BASE_BYTES: Final = 64 << 20  # of commits, after which a base is stored, once they are more than the base before
_UNKNOWN_SECONDS: Final = 3.0  # after which a server without a beat is gone
_RETRY_SECONDS: Final = 1.0
_BASE_SECONDS: Final = 60.0  # between two looks whether one is due
_CLOSE_SECONDS: Final = 10.0


class Member(Role):
    """One server of several.

    Args:
        lag_ms: Within how many milliseconds a commit of another server is to be here.
        gone_seconds: Without a beat, after which the jobs of a server are given to others.
    """

    name = "MEMBER"
    tells = True
    shares_secrets = True

    def __init__(
        self, database: Database, log: SharedLog, address: Address, lag_ms: int, gone_seconds: float = GONE_SECONDS
    ):
        self._database, self._log, self._at = database, log, address
        self.log = log
        self._store_lag = lag_ms / 1000
        self._gone_seconds = gone_seconds
        self.holder = self._me = uuid.uuid4().hex
        self._address = ""  # of this server, for people
        self._beats: dict[str, tuple[int, float]] = {}  # server → its beat, and since when it is the same
        self._unknown: dict[str | None, float] = {}  # holder without a beat → since when
        self._house = False
        self._beaten_at = self._based_at = float("-inf")
        self._awaited = threading.local()  # `generation` that the read of a thread has waited for
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="store-follower", daemon=True)

    # In the thread of a caller.

    def listening(self, address: str) -> None:
        self._address = address
        self.start()

    def begin(self, session: Session) -> None:
        """Makes this server known, and brings the cache up to date, before anything reads it."""
        shared.beat(session, self._me, "")
        newest = shared.generation(session)
        run = lambda connection: self._log.catch_up(connection, session, newest)  # noqa: E731
        self._database.submit(run, alone=True).result()

    def start(self) -> None:
        """Begins to follow the other servers."""
        self._thread.start()

    @property
    def may_write(self) -> bool:
        return not self._log.trouble

    def check_writes(self) -> None:
        if self._log.trouble:
            raise self._log.refusal()

    @property
    def keeps_house(self) -> bool:
        return self._house

    @property
    def lag_ms(self) -> int:
        """Milliseconds for which there may be commits that are not here."""
        return max(0, int((time.monotonic() - self._log.current_at) * 1000))

    @property
    def generation(self) -> int:
        return self._log.generation

    def row(self) -> dict[str, Any]:
        return {
            "role": self.name,
            "generation": self.generation,
            "lag_ms": self.lag_ms,
            "writer": self._address or None,
            "url": self._at.shown,
            "last_error": self._log.trouble or None,
        }

    def trouble(self) -> str:
        return self._log.trouble

    def check_read(self, max_lag_ms: int | None, min_generation: int | None) -> None:
        super().check_read(max_lag_ms, min_generation)
        if min_generation is not None:
            self._awaited.generation = min_generation

    @property
    def wait_seconds(self) -> float:
        return max(self._store_lag, MOST_WAIT_SECONDS)

    def wait_for(self, generation: int) -> bool:
        return self._log.wait_for(generation, self.wait_seconds)

    def consistently(self, read: Callable[[], T], discard: Callable[[T], None]) -> tuple[T, int | None]:  # noqa: ARG002
        self._awaited.generation = 0
        generation = self.generation  # before the read, which has this one at least, unless it waits for another
        result = read()
        return result, max(generation, self._awaited.generation)

    def gone(self, holders: Collection[str | None]) -> set[str | None]:
        """Those of these servers that are gone, if it is for this one to say."""
        if not self._house or self._log.trouble:
            return set()
        now, beats = time.monotonic(), self._beats
        unknown = {holder for holder in holders if holder not in beats}  # it has ended, or its first beat is to come
        self._unknown = {holder: self._unknown.get(holder, now) for holder in unknown}
        ended = {holder for holder, since in self._unknown.items() if now - since > _UNKNOWN_SECONDS}
        return ended | {holder for holder in holders if holder in beats and now - beats[holder][1] > self._gone_seconds}

    def read_secrets(self, catalog: str) -> str | None:
        return self._log.stored_secrets(catalog)

    def write_secrets(self, catalog: str, secrets: str | None) -> None:
        self._log.secrets[catalog] = secrets

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)
        self._log.close()

    # In the follower's thread.

    def _follow(self) -> None:
        session: Session | None = None
        while not self._stop.is_set():
            try:
                if session is None:
                    session = self._connect()
                self._look(session)
                if self._log.trouble:
                    log.warning("Postgres is within reach again")
                    self._log.trouble = ""
                session.wait(self._store_lag / 4, but_of=self._log.process)
            except ShuttingDown:
                break
            except Exception as error:
                self._failed(error)
                if session is not None:
                    session.close()
                session = None
                self._stop.wait(_RETRY_SECONDS)
        self._house = False
        if session is not None:
            try:
                shared.forget(session, [self._me])
            except psycopg.Error as error:
                log.warning("%s", self._at.refusal(error, "the end of this server is not told"))
            session.close()

    def _connect(self) -> Session:
        session = self._at.connect()
        shared.listen(session)
        self._beats = {}
        self._beaten_at = float("-inf")
        return session

    def _failed(self, error: Exception) -> None:
        self._house = False
        self.failures += 1
        is_known = isinstance(error, StatflightError | psycopg.Error)
        reason = self._at.refusal(error, "").message.removeprefix(": ") if is_known else type(error).__name__
        if not self._log.trouble:
            log.error("Postgres cannot be followed, it is tried again: %s", reason, exc_info=not is_known)
        self._log.trouble = reason

    def _look(self, session: Session) -> None:
        """Brings the cache up to date, and does what is due."""
        asked = time.monotonic()
        newest = shared.generation(session)
        if newest > self.generation:
            commits = shared.commits(session, self.generation, newest)
            self._apply(session, commits)
        if self.generation >= newest:
            self._log.current_at = max(self._log.current_at, asked)
        if asked - self._beaten_at > BEAT_SECONDS:
            self._beaten_at = asked
            self._count(shared.beat(session, self._me, self._address))
            self._house = shared.keep_house(session)
        self._log.keep_alive()
        if self._house and asked - self._based_at > _BASE_SECONDS:
            self._based_at = asked
            self._keep(session)

    def _apply(self, session: Session, commits: list[tuple[int, bytes]]) -> None:
        """Has the writer's thread store commits; the beats go on while it is busy."""

        def run(connection: Connection) -> None:
            if commits:
                self._log.apply(connection, commits)
            else:
                # of this server too there may be newer ones by now
                self._log.catch_up(connection, session, shared.generation(session))

        future = self._database.submit(run, alone=True)
        while not wait([future], BEAT_SECONDS).done and not self._stop.is_set():
            self._log.keep_alive()
            if commits:
                shared.beat(session, self._me, self._address)
        if future.done():
            future.result()

    def _count(self, beats: dict[str, int]) -> None:
        now, known = time.monotonic(), self._beats
        self._beats = {
            server: known[server] if server in known and known[server][0] == beat else (beat, now)
            for server, beat in beats.items()
        }

    def _keep(self, session: Session) -> None:
        """Stores a base if one is due, and forgets servers that are long gone."""
        commits, base = shared.grown_bytes(session)
        if commits > max(BASE_BYTES, base):
            began = time.monotonic()
            self._log.store_base(session)
            log.info("stored a base of the store in %.1f s", time.monotonic() - began)
        now = time.monotonic()
        gone = (server for server, (_, since) in self._beats.items() if now - since > 10 * self._gone_seconds)
        shared.forget(session, list(gone))
