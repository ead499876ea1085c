"""Finished captures on their way to the server: one call reports all that have finished meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from flight_server.worker.draft_sink import Held, encoded
from flight_server.worker.lease_keeper import LeaseKeeper

log = logging.getLogger("statflight.worker")

SENDERS: Final = 2  # calls at once, so that a long commit does not delay all others
LINGER_SECONDS: Final = 2.0  # maximum wait of a finished capture for others of its call
LINGER_COUNT: Final = 24
MAX_SIZE: Final = 64  # captures of one call
MAX_BYTES: Final = 5 << 20  # of rows in one call
MAX_ENDED: Final = 128  # finished captures that may wait to be reported; beyond it, `put` blocks


@dataclass(frozen=True)
class Ended:
    """A finished lease: the body of its `finish_job`, and the rows sent with it.

    Attributes:
        more: True if captures of its bundle are still to come.
    """

    keeper: LeaseKeeper
    body: Mapping[str, Any]
    more: Callable[[], bool] = lambda: False
    since: float = field(default_factory=time.monotonic)

    @property
    def lease(self) -> Mapping[str, Any]:
        """The lease, as `lease_job` answered it."""
        return self.keeper.lease

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows, as Arrow holds them."""
        return sum(held.size_bytes for held in self.body.get("rows", ()))


class Outbox:
    """Reports finished captures from threads of its own.

    Args:
        send: Reports captures to the server.
    """

    def __init__(self, send: Callable[[list[Ended]], None]):
        self._send = send
        self._ended: deque[Ended] = deque()
        self._changed = threading.Condition()
        self._threads = 0

    def put(self, ended: Ended) -> None:
        """Queues a finished capture; blocks while MAX_ENDED wait.

        Args:
            ended: The capture; its lease is renewed until it is reported.
        """
        with self._changed:
            if self._threads < SENDERS:
                self._threads += 1
                threading.Thread(target=self._run, daemon=True, name="outbox").start()
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
            groups.setdefault((held.flight, held.extra, held.whole, held.checked, held.rows.schema), []).append(
                (at, held)
            )
    items = []
    for members in groups.values():
        rows = pa.concat_tables([held.rows for _, held in members])
        counts = [[at, held.rows.num_rows] for at, held in members]
        items.append(encoded(members[0][1]._replace(rows=rows)) | {"counts": counts})
    return items
