"""Bundles: several small captures leased in one call, and several finished ones reported in one call."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from flight_server.client.connection import Connection
from flight_server.worker.draft_sink import Held, encoded
from flight_server.worker.lease_keeper import ACTION_SECONDS, LeaseKeeper

log = logging.getLogger("statflight.worker")

CAPTURE_SECONDS: Final = 1.0  # after a longer capture, the rest of its bundle is given back
BUNDLE_SECONDS: Final = 5.0  # after which the rest is given back: waiting leases are not renewed
FIRST_SIZE: Final = 8  # leases of the first bundle
MAX_SIZE: Final = 64
LINGER_SECONDS: Final = 2.0  # maximum wait of a finished capture for others of its bundle
LINGER_COUNT: Final = 24
MAX_BYTES: Final = 5 << 20  # of rows in one call
MAX_ENDED: Final = 128  # finished captures that may wait to be reported; beyond it, `put` blocks


class Bundle:
    """Leases of one call, captured one after the other.

    After a capture of more than CAPTURE_SECONDS, or BUNDLE_SECONDS in all, the rest goes back to the server for other
    workers.

    Args:
        server: The server that leased them.
        leases: The server's answer; at least one.
    """

    def __init__(self, server: Connection, leases: Sequence[Mapping[str, Any]]):
        self.begun = self.returned = 0
        self._server, self._waiting, self._lock = server, deque(leases), threading.Lock()
        self._since = self._started = time.monotonic()
        self._longest = min(BUNDLE_SECONDS, float(leases[0]["lease_seconds"]) / 3)
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="bundle").start()

    @property
    def has_more(self) -> bool:
        """True if a lease is left."""
        return bool(self._waiting)

    def next(self) -> Mapping[str, Any] | None:
        """Takes the next lease.

        Returns:
            The lease to begin; None when none is left.
        """
        with self._lock:
            self._since = time.monotonic()
            if not self._waiting:
                return None
            self.begun += 1
            return self._waiting.popleft()

    def close(self) -> int:
        """Gives back the leases not begun.

        Returns:
            Number of leases to ask for next: twice as many when the whole bundle was done in time.
        """
        self._closed.set()
        self._give_back()
        asked = self.begun + self.returned
        return max(1, self.begun) if self.returned else min(MAX_SIZE, asked * 2)

    def _watch(self) -> None:
        while not self._closed.wait(min(CAPTURE_SECONDS, self._longest) / 4):
            now = time.monotonic()
            if now - self._since > CAPTURE_SECONDS or now - self._started > self._longest:
                self._give_back()
                return

    def _give_back(self) -> None:
        with self._lock:
            tokens = [lease["lease_token"] for lease in self._waiting]
            self.returned += len(tokens)
            self._waiting.clear()
        if tokens:
            with contextlib.suppress(pa.ArrowException, OSError):  # then the leases run out
                self._server.act("return_leases", {"lease_tokens": tokens}, ACTION_SECONDS)


@dataclass(frozen=True)
class Ended:
    """A finished capture: its lease, the body of `finish_job`, and the rows sent with it.

    Attributes:
        more: True if captures of its bundle are still to come.
    """

    keeper: LeaseKeeper
    lease: Mapping[str, Any]
    body: Mapping[str, Any]
    more: Callable[[], bool] = lambda: False
    since: float = field(default_factory=time.monotonic)

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows, as Arrow holds them."""
        return sum(held.size_bytes for held in self.body.get("rows", ()))


class Outbox:
    """Finished captures on their way to the server: one call at a time takes all that have finished meanwhile.

    Args:
        send: Reports captures to the server.
    """

    def __init__(self, send: Callable[[list[Ended]], None]):
        self._send = send
        self._ended: deque[Ended] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, ended: Ended) -> None:
        """Queues a finished capture; blocks while MAX_ENDED wait.

        Args:
            ended: The capture; its lease is renewed until it is reported.
        """
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="outbox")
                self._thread.start()
            self._changed.wait_for(lambda: len(self._ended) < MAX_ENDED)
            self._ended.append(ended)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_due():
                    self._changed.wait(0.05 if self._ended else None)
                batch = self._take()
                self._changed.notify_all()
            try:
                self._send(batch)
            except BaseException as error:  # their leases run out
                log.error("%s while captures are finished: %s", type(error).__name__, error)

    def _is_due(self) -> bool:
        if not self._ended:
            return False
        old = time.monotonic() - LINGER_SECONDS
        return len(self._ended) >= LINGER_COUNT or any(not e.more() or e.since < old for e in self._ended)

    def _take(self) -> list[Ended]:
        batch = [self._ended.popleft()]
        size = batch[0].size_bytes
        while self._ended and len(batch) < MAX_SIZE and (size := size + self._ended[0].size_bytes) <= MAX_BYTES:
            batch.append(self._ended.popleft())
        return batch


def rows_together(ended: Sequence[Ended]) -> list[dict[str, Any]]:
    """The `rows` of `finish_jobs`: one stream for rows of one flight, kind and schema.

    Args:
        ended: The captures of one call, in the order of `finishes`.

    Returns:
        Items whose `counts` give the number of rows of each capture in the stream.
    """
    groups: dict[tuple[Any, ...], list[tuple[int, Held]]] = {}
    for at, end in enumerate(ended):
        for held in end.body.get("rows", ()):
            groups.setdefault((held.flight, held.extra, held.whole, held.rows.schema), []).append((at, held))
    items = []
    for members in groups.values():
        first = members[0][1]
        rows = pa.concat_tables([held.rows for _, held in members])
        counts = [[at, held.rows.num_rows] for at, held in members]
        items.append(encoded(Held(first.flight, first.extra, first.whole, rows)) | {"counts": counts})
    return items
