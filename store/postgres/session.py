"""A connection to Postgres whose every call ends: with an answer, a refusal, or once nobody has answered in time.

Postgres may be out of reach, or reachable and silent: then only the time tells. A call that is late has its socket
shut, so that the driver fails as it does when Postgres ends. Errors say what was wrong without passwords.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import psycopg

from store.model.errors import InvalidArgument, UpstreamError, first_line

CONNECT_SECONDS: Final = 5  # of one address
CALL_SECONDS: Final = 8.0  # of a call that waits for nobody
LOCK_SECONDS: Final = 10.0  # of a call that waits for the writes of other servers
_MASK: Final = "****"
_SETTINGS: Final = {
    "connect_timeout": CONNECT_SECONDS,
    "application_name": "statflight",
    "client_encoding": "UTF8",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
# So that a server whose machine has ended, or that is stopped, holds up the others for some seconds only.
_OPTIONS: Final = (
    "SET lock_timeout = 10000; SET idle_in_transaction_session_timeout = 30000; SET tcp_keepalives_idle = 3;"
    " SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; SET default_transaction_isolation ="
    " 'read committed'; SET synchronous_commit = on; SET search_path = pg_catalog"
)


class Address:
    """The address of a database, `postgresql://user:password@host:port/name`, which shows no password.

    Raises:
        InvalidArgument: It cannot be read.
    """

    def __init__(self, url: str):
        self._url = url
        try:
            parts = urlsplit(url)
            known = psycopg.conninfo.conninfo_to_dict(url)
        except (ValueError, psycopg.Error):
            raise InvalidArgument(
                "store: the address of Postgres cannot be read", hint="postgresql://user:password@host:5432/database"
            ) from None
        self._secrets = {str(text) for text in (parts.password, known.get("password")) if text}
        self._secrets |= {unquote(text) for text in self._secrets}
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
        port = f":{known['port']}" if known.get("port") else ""
        user = f"{known['user']}@" if known.get("user") else ""
        self.shown = f"postgresql://{user}{host}{port}/{known.get('dbname') or ''}"
        """The address without a password."""

    def hide(self, text: str) -> str:
        """A text in which no password of the address is."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, _MASK)
        return text

    def connect(self) -> Session:
        """Opens a session.

        Raises:
            psycopg.OperationalError: Postgres cannot be reached, or refuses; see `refusal`.
        """
        connection = psycopg.connect(self._url, autocommit=True, **_SETTINGS)
        session = Session(self, connection)
        try:
            session.execute(_OPTIONS)
        except BaseException:
            session.close()
            raise
        return session

    def refusal(self, error: BaseException, what: str) -> UpstreamError:
        """An error of Postgres for callers.

        Args:
            what: What was not done.
        """
        reason = self.hide(first_line(error))
        return UpstreamError(f"{what}: Postgres at {self.shown}: {reason}", code="STORE", hint="it may be tried again")


class _Watchdog:
    """Ends calls that are late. One thread watches those of all sessions: a timer for each would start three threads in
    every write."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[object, tuple[float, Callable[[], None]]] = {}  # call → when it is late, and what ends it
        self._wakes_at = float("inf")
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def within(self, seconds: float, end: Callable[[], None]) -> Iterator[None]:
        """Calls a function if the block takes longer; not once it has ended."""
        call, late = object(), time.monotonic() + seconds
        with self._changed:
            self._calls[call] = late, end
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="postgres-watchdog", daemon=True)
                self._thread.start()
            elif late < self._wakes_at:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._calls.pop(call, None)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for call, (late, end) in list(self._calls.items()):
                    if late <= now:
                        del self._calls[call]
                        end()
                self._wakes_at = min((late for late, _ in self._calls.values()), default=float("inf"))
                self._changed.wait(None if self._wakes_at == float("inf") else max(0.0, self._wakes_at - now))


_watchdog: Final = _Watchdog()


class Session:
    """One connection, for one thread at a time."""

    def __init__(self, address: Address, connection: Any):
        self.address, self._connection = address, connection
        self._lock = threading.RLock()
        self.used_at = time.monotonic()

    def execute(self, sql: str, *given: Any, seconds: float = CALL_SECONDS) -> list[tuple[Any, ...]]:
        """Runs statements; returns the rows of the last one, if it has any.

        Args:
            given: Values of `%s`, or none.
            seconds: Until the call is given up, and the session with it.

        Raises:
            psycopg.Error: Postgres refuses it, is out of reach, or silent.
        """
        with self._lock, self._within(seconds):
            cursor = self._connection.execute(sql, given or None)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def append(self, sql: str, rows: Sequence[tuple[Any, ...]], *then: str, seconds: float = CALL_SECONDS) -> None:
        """Runs a statement for each of some rows, of any size, and others after the last one, with which they are sent;
        errors are those of `execute`."""
        with self._lock, self._connection.cursor() as cursor:
            *first, last = rows
            for row in first:
                with self._within(seconds):
                    cursor.execute(sql, row, binary=True)
            with self._within(seconds), self._connection.pipeline():
                cursor.execute(sql, last, binary=True)
                for statement in then:
                    cursor.execute(statement)

    def wait(self, seconds: float, but_of: Callable[[], int | None] = lambda: None) -> None:
        """Waits for a notification.

        Args:
            but_of: The `process` of a session whose notifications do not count.
        """
        with self._lock, self._within(seconds + CALL_SECONDS):
            for notified in self._connection.notifies(timeout=seconds):
                if notified.pid != but_of():
                    break

    @property
    def process(self) -> int:
        """The process of Postgres that serves the session."""
        return self._connection.info.backend_pid

    @property
    def is_open(self) -> bool:
        """False once the session has ended, as far as is known."""
        return not self._connection.closed

    def close(self) -> None:
        """Ends the session, and with it its locks and what was not committed."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    @contextlib.contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        try:
            with _watchdog.within(seconds, self._cut):
                yield
        finally:
            self.used_at = time.monotonic()

    def _cut(self) -> None:
        """Shuts the socket, whatever the driver does with it."""
        with (
            contextlib.suppress(psycopg.Error, OSError),
            socket.socket(fileno=os.dup(self._connection.fileno())) as connection,
        ):
            connection.shutdown(socket.SHUT_RDWR)
