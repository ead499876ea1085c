"""The open connectors of a worker, and its threads with their leases and finished captures."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from capture.connectors import open_connector
from capture.connectors.spi import Connector, ConnectorConfig
from capture.connectors.storage.secrets import resolve
from capture.homes import with_catalogs
from flight_server.worker.lease_keeper import LeaseKeeper
from flight_server.worker.reports import Ended
from flight_server.worker.stored_together import StoredTogether

CAPTURE_SECONDS: Final = 1.0  # after a longer capture, the leases behind it are given back
BUNDLE_SECONDS: Final = 5.0  # after which leases not begun are given back: they are not renewed
FIRST_SIZE: Final = 8  # leases of the first call
MAX_SIZE: Final = 64  # leases of one call
REPORT_SECONDS: Final = 2.0  # maximum wait of a finished capture for others of its report
REPORT_COUNT: Final = 24  # captures of one report
REPORT_BYTES: Final = 5 << 20  # of rows of its captures, after which it has no more
CONNECTOR_SECONDS: Final = 300.0  # for which a connector stays open: credentials may change
MAX_CONNECTORS: Final = 32  # open ones that nobody uses


class Connectors:
    """The open connectors of a worker, each used by one thread at a time. Each inspection reads the lake's metadata
    again, so none is ever stale. Thread-safe.

    Args:
        spark: Gives a Spark session, for lakes whose statistics are read from Spark's catalog too.
    """

    def __init__(self, spark: Callable[[], Any] | None = None) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._idle: dict[str, list[tuple[Connector, float]]] = {}  # with the times at which they were opened

    @contextlib.contextmanager
    def opened(self, config: Mapping[str, Any]) -> Iterator[Connector]:
        """Gives an open connector for the block. One that raised an error, or is old, is not used again.

        Args:
            config: `catalog`, `format`, `uri`, `options`, as a lease has it.

        Yields:
            The connector.

        Raises:
            StatflightError: A secret does not exist, or the lake cannot be opened.
        """
        resolved = dict(config, options=resolve(config["options"]))
        key = json.dumps(resolved, sort_keys=True)  # a changed credential opens a new connector
        self.close_old()
        with self._lock:
            idle = self._idle.get(key)
            taken = idle.pop() if idle else None
        if taken is None:
            options = ConnectorConfig(config["catalog"], config["format"], config["uri"], resolved["options"])
            taken = with_catalogs(open_connector(options), options, self._spark), time.monotonic()
        try:
            yield taken[0]
        except BaseException:
            _close([taken[0]])
            raise
        with self._lock:
            self._idle.setdefault(key, []).append(taken)
        self._close_surplus()

    def close_old(self) -> None:
        """Closes connectors that have been open for too long."""
        now = time.monotonic()
        with self._lock:
            old = self._take(lambda since: now - since > CONNECTOR_SECONDS)
        _close(old)

    def _close_surplus(self) -> None:
        """Closes the oldest of too many idle connectors."""
        with self._lock:
            times = sorted(since for idle in self._idle.values() for _, since in idle)
            surplus = len(times) - MAX_CONNECTORS
            old = self._take(lambda since: since <= times[surplus - 1]) if surplus > 0 else []
        _close(old)

    def _take(self, is_old: Callable[[float], bool]) -> list[Connector]:
        """Removes idle connectors by the time at which they were opened."""
        old = [connector for idle in self._idle.values() for connector, since in idle if is_old(since)]
        kept = {key: [each for each in idle if not is_old(each[1])] for key, idle in self._idle.items()}
        self._idle = {key: idle for key, idle in kept.items() if idle}
        return old


def _close(connectors: Sequence[Connector]) -> None:
    for connector in connectors:
        with contextlib.suppress(Exception):
            connector.close()


class Slot:
    """A thread of a worker: the kinds of leases it serves, its current lease, and the finished captures that are not
    reported yet."""

    def __init__(self, kinds: Sequence[str]):
        self.kinds = tuple(kinds)
        self.keeper: LeaseKeeper | None = None
        self.abandoned = False
        self.together: StoredTogether | None = None  # of the leases that it has
        self.most = FIRST_SIZE  # leases to ask for at once
        self._leases: deque[Mapping[str, Any]] = deque()  # not begun
        self._ended: list[Ended] = []
        self.report: Future[None] | None = None  # the last one
        self.is_wanted = False  # a report was asked for, and has not taken what ended until then
        self._lock = threading.Lock()
        self._begun = self._returned = 0
        self._since = self._started = self._longest = 0.0

    def take(self, leases: Sequence[Mapping[str, Any]]) -> None:
        """Takes the leases of one call, to be begun one after the other."""
        with self._lock:
            self._leases.extend(leases)
            self._begun = self._returned = 0
            self._since = self._started = time.monotonic()
            self._longest = min([BUNDLE_SECONDS, *(float(lease["lease_seconds"]) / 3 for lease in leases)])

    def end(self, ended: Ended) -> None:
        """Adds a finished capture."""
        with self._lock:
            self._ended.append(ended)

    def is_due(self, *, is_working: bool = False) -> bool:
        """True if captures have waited long enough, or for enough others; or for all of the leases, if none of them
        `is_working`."""
        ended = self._ended
        is_idle = not (self._leases or is_working)
        return bool(ended) and (
            self.is_wanted or is_idle or time.monotonic() - ended[0].since > REPORT_SECONDS or self.is_full()
        )

    def is_full(self) -> bool:
        """True if the finished captures are enough for one report."""
        ended = self._ended
        return len(ended) >= REPORT_COUNT or sum(end.size_bytes for end in ended) > REPORT_BYTES

    def take_ended(self) -> list[Ended]:
        """Removes the finished captures, and returns them."""
        with self._lock:
            ended, self._ended, self.is_wanted = self._ended, [], False
        return ended

    def next(self) -> Mapping[str, Any] | None:
        """The next lease to begin; after the last, doubles `most`, or lowers it to the number that could be begun."""
        with self._lock:
            self._since = time.monotonic()
            if self._leases:
                self._begun += 1
                return self._leases.popleft()
            if self._begun > 1 or self._returned:
                self.most = max(1, self._begun) if self._returned else min(MAX_SIZE, self._begun * 2)
            return None

    def is_slow(self) -> bool:
        """True if leases wait behind a capture that takes long, or have waited long."""
        now = time.monotonic()
        return bool(self._leases) and (now - self._since > CAPTURE_SECONDS or now - self._started > self._longest)

    def drop(self) -> list[str]:
        """Removes the leases that are not begun; returns their tokens."""
        with self._lock:
            tokens = [lease["lease_token"] for lease in self._leases]
            self._returned += len(tokens)
            self._leases.clear()
        return tokens
