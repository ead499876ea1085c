"""The log of commits in Postgres, as the writer of one server's cache uses it.

A transaction begins with the lock on the newest generation, and with all commits of others up to it in the cache. What
it has changed is committed in Postgres first, then in the cache: a server that is killed between the two finds the
commit there when it starts. The cache names its store and its generation in its own table `settings`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence, Set
from typing import Final

import psycopg
import pyarrow as pa

from store.duckdb.commit_log import Applied, CommitLog
from store.duckdb.database import Database
from store.duckdb.layout import Connection
from store.duckdb.opening import SHARED_ADDRESS, SHARED_STORE
from store.model.errors import ShuttingDown, StatflightError, UpstreamError
from store.postgres import shared
from store.postgres.changes import Change, Commit, apply, decode, encode, layout_of
from store.postgres.recorder import Recorder, prepare
from store.postgres.session import Address, Session

GENERATION: Final = "shared_generation"  # in the table `settings`: the newest commit that is in the cache
_PATIENCE_SECONDS: Final = 5.0  # after which an open transaction tells Postgres that it goes on
_AT_ONCE_SECONDS: Final = 2.0  # within which an error tells that a session had ended
_BASE_ROWS: Final = 50_000  # of a part of a base


class SharedLog(CommitLog):
    """The log of one cache. `begin`, `record`, `ended` and `catch_up` are for the writer's thread.

    Attributes:
        generation: The newest commit that is in the cache.
        current_at: Monotonic time at which nothing newer was known to Postgres.
        trouble: Why Postgres is out of reach; empty if it is not. Writes are refused at once then.
    """

    def __init__(self, database: Database, address: Address):
        self._database, self._address = database, address
        with database.reading() as cursor:
            self._layout = layout_of(cursor)
            self.generation = _generation(cursor)
        self.current_at = time.monotonic()
        self.trouble = ""
        self.secrets: dict[str, str | None] = {}  # of connectors, that the transaction changes
        self._schemas: dict[str, pa.Schema] = {}  # of tables whose rows were read
        self._recorder: Recorder | None = None
        self._prepared: Connection | None = None
        self._session: Session | None = None  # with an open transaction while a write runs
        self._is_locked, self._newest = False, 0
        self._changed = threading.Condition()
        self._is_closed = False

    # Writes.

    def begin(self, connection: Connection) -> Connection:
        self.secrets = {}
        asked = time.monotonic()
        session, newest = self._locked()
        with self._refusing("nothing is stored", session):
            self.catch_up(connection, session, newest)
        self.current_at = max(self.current_at, asked)
        if self._prepared is not connection:
            prepare(connection)
            self._prepared = connection
        self._recorder = Recorder(connection, self._layout, self._schemas)
        return self._recorder

    def record(self, touched: Set[int], outlived: Set[int]) -> bool:
        assert self._recorder is not None
        assert self._session is not None
        changes = self._recorder.changes()
        if not changes and not self.secrets:
            return False
        self._newest = self.generation + 1
        _note(self._recorder, self._newest)
        data = encode(Commit(changes, touched, outlived))
        with self._refusing("whether the write is stored is not known", self._session):
            shared.set_secrets(self._session, self.secrets)
            shared.commit(self._session, self._newest, data)
            self._is_locked = False
        return True

    def ended(self, *, is_committed: bool) -> None:
        self._recorder = None
        if self._is_locked and self._session is not None:
            self._is_locked = False
            with contextlib.suppress(StatflightError), self._refusing("", self._session):
                shared.unlock(self._session)
        elif is_committed and self._newest > self.generation:
            self._moved(self._newest)

    def _locked(self) -> tuple[Session, int]:
        """The session for writes, in a transaction before which all others have ended, and the newest generation."""
        asked, is_old = time.monotonic(), self._session is not None
        session = self._ready()
        with self._refusing("nothing is stored", session):
            try:
                newest = shared.lock(session)
            except psycopg.OperationalError:
                # Postgres may have ended the session long ago, and be there again
                if not is_old or session.is_open or time.monotonic() - asked > _AT_ONCE_SECONDS:
                    raise
                session = self._ready()
                newest = shared.lock(session)
        self._is_locked = True
        return session, newest

    def _ready(self) -> Session:
        """The session for writes.

        Raises:
            UpstreamError: Postgres is out of reach.
        """
        if self._is_closed:
            raise ShuttingDown("the store is closed")
        if self.trouble:
            raise self.refusal()
        if self._session is None or not self._session.is_open:
            self._session = None
            with self._refusing("nothing is stored"):
                self._session = self._address.connect()
        assert self._session is not None
        return self._session

    def process(self) -> int | None:
        """The process of Postgres that stores the commits of this cache, None if there is none; for any thread."""
        session = self._session
        return session.process if session is not None and session.is_open else None

    def refusal(self) -> UpstreamError:
        """The error of a write while Postgres is out of reach."""
        return UpstreamError(f"nothing is stored: {self.trouble}", code="STORE", hint="it is tried again")

    @contextlib.contextmanager
    def _refusing(self, what: str, session: Session | None = None) -> Iterator[None]:
        """Makes errors of Postgres in the block errors for callers; the session is not used again."""
        try:
            yield
        except psycopg.Error as error:
            refusal = self._address.refusal(error, what)
            self._is_locked = False
            if session is not None:
                session.close()
            if isinstance(error, psycopg.OperationalError) and not isinstance(error, psycopg.errors.LockNotAvailable):
                self.trouble = str(refusal.message).removeprefix(f"{what}: ")
            raise refusal from None

    def keep_alive(self) -> None:
        """Tells Postgres that an open transaction goes on; for any thread."""
        session = self._session
        if self._is_locked and session is not None and time.monotonic() - session.used_at > _PATIENCE_SECONDS:
            with contextlib.suppress(psycopg.Error):
                session.execute("SELECT 1")

    def stored_secrets(self, catalog: str) -> str | None:
        """The secrets of a connector; inside of a write those that it has changed."""
        if self._database.is_writing and self._session is not None:
            if catalog in self.secrets:
                return self.secrets[catalog]
            return shared.secrets(self._session, catalog)
        with self._refusing("the secrets of the connector cannot be read"):
            session = self._address.connect()
            try:
                return shared.secrets(session, catalog)
            finally:
                session.close()

    # What others have committed.

    def catch_up(self, connection: Connection, session: Session, newest: int) -> None:
        """Stores what is newer than the cache, up to a generation, in transactions of their own.

        Raises:
            psycopg.Error: Postgres is out of reach.
        """
        if self.generation > newest:  # Postgres was restored
            self._fill(connection, session)
        while self.generation < newest:
            commits = shared.commits(session, self.generation, newest)
            if commits:
                self.apply(connection, commits)
            else:
                self._fill(connection, session)

    def apply(self, connection: Connection, commits: Sequence[tuple[int, bytes]]) -> None:
        """Stores commits that follow each other, without those that are there."""
        new = [(number, data) for number, data in commits if number > self.generation]
        if not new or new[0][0] != self.generation + 1:
            return
        newest = new[-1][0]

        def change(connection: Connection) -> Applied:
            applied = apply(connection, (decode(data) for _, data in new))
            _note(connection, newest)
            return applied

        self._database.apply(connection, change)
        self._moved(newest)

    def _fill(self, connection: Connection, session: Session) -> None:
        """Replaces all content by the base; once more if that was replaced while it was read."""
        is_filled = False
        while not is_filled:
            with contextlib.suppress(shared.BaseReplaced):
                self._fill_once(connection, session)
                is_filled = True

    def _fill_once(self, connection: Connection, session: Session) -> None:
        newest, parts = shared.base(session)

        def change(connection: Connection) -> Applied:
            for table in self._layout:
                connection.execute(f"DELETE FROM {table}")
            for data in parts:
                apply(connection, [decode(data)])
            _note(connection, newest)
            return Applied(is_whole=True)

        self._database.apply(connection, change)
        self._moved(newest)

    def _moved(self, generation: int) -> None:
        with self._changed:
            self.generation = generation
            self._changed.notify_all()

    def wait_for(self, generation: int, seconds: float) -> bool:
        """True once the cache has a commit; False after the time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.generation >= generation, seconds)

    # The base.

    def store_base(self, session: Session) -> None:
        """Stores the content of the cache as the base.

        Raises:
            psycopg.Error: Postgres is out of reach, or full.
        """
        with self._database.reading() as cursor:
            cursor.execute("BEGIN")
            newest = _generation(cursor)
            shared.store_base(session, newest, _parts(cursor, self._layout))

    def close(self) -> None:
        """Refuses writes from then on."""
        self._is_closed = True
        if self._session is not None:
            self._session.close()


def _parts(cursor: Connection, layout: dict[str, tuple[str, ...]]) -> Iterator[bytes]:
    """The parts of a base: all rows that a cursor reads."""
    for table in layout:
        reader = cursor.sql(f"SELECT * FROM {table}").to_arrow_reader(_BASE_ROWS)
        for batch in reader:
            if batch.num_rows:
                yield encode(Commit([Change(table, None, pa.Table.from_batches([batch]))]))


def _generation(connection: Connection) -> int:
    rows = connection.execute("SELECT value FROM settings WHERE name = ?", [GENERATION]).fetchall()
    return int(rows[0][0]) if rows else 0


def _note(connection: Connection | Recorder, generation: int) -> None:
    connection.execute("UPDATE settings SET value = ? WHERE name = ?", [str(generation), GENERATION])


def store_of(database: Database) -> str | None:
    """The store that a database is the cache of; None for none."""
    rows = database.rows("SELECT value FROM settings WHERE name = ?", SHARED_STORE)
    return str(rows[0][0]) if rows else None


def become_cache(database: Database, store: str, shown: str) -> None:
    """Has a database, which is empty or of this store already, be the cache of a store at an address."""

    def run(connection: Connection) -> None:
        known = dict(connection.execute("SELECT name, value FROM settings").fetchall())
        for name, value in {GENERATION: "0", SHARED_STORE: store, SHARED_ADDRESS: shown}.items():
            if name not in known:
                connection.execute("INSERT INTO settings VALUES (?, ?)", [name, value])
        if known.get(SHARED_ADDRESS, shown) != shown:
            connection.execute("UPDATE settings SET value = ? WHERE name = ?", [shown, SHARED_ADDRESS])

    database.write(run)
