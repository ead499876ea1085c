"""Keeps the leases of a worker alive while their work goes on, and learns of cancellations."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from capture.connectors.storage.secrets import mask_uri
from flight_server.client.connection import Connection
from store.model.errors import Cancelled

ACTION_SECONDS: Final = 60.0  # timeout of a short action, so that a worker never hangs on one
MAX_NAME: Final = 1000  # characters of a file's name that are reported
_MOST_SECONDS: Final = 2.0  # between two renewals, which also report a cancellation
_NEWS_SECONDS: Final = 1.0  # between two renewals that carry progress


class Renewals:
    """Renews all leases of a worker from one thread, which ends when none is left."""

    def __init__(self, server: Connection):
        self.server = server
        self._changed = threading.Condition()
        self._keepers: set[LeaseKeeper] = set()
        self._thread: threading.Thread | None = None

    def add(self, keeper: LeaseKeeper) -> None:
        """Starts renewing a lease."""
        with self._changed:
            self._keepers.add(keeper)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
                self._thread.start()

    def remove(self, keeper: LeaseKeeper) -> None:
        """Stops renewing a lease."""
        with self._changed:
            self._keepers.discard(keeper)
            self._changed.notify()

    def wake(self) -> None:
        """Tells the thread that a lease is due earlier."""
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while (keeper := self._next()) is not None:
            if not keeper.renew(self.server):
                self.remove(keeper)

    def _next(self) -> LeaseKeeper | None:
        """Waits for the next lease that is due; None once there is none, and the thread has to end."""
        with self._changed:
            while self._keepers:
                keeper = min(self._keepers, key=lambda one: one.due_at)
                if (seconds := keeper.due_at - time.monotonic()) <= 0:
                    return keeper
                self._changed.wait(seconds)
            self._thread = None
        return None


class LeaseKeeper:
    """Keeps a lease alive while its work goes on, and learns when the work was cancelled.

    Attributes:
        touched: Time of the last sign of life of the work, by `time.monotonic()`.
        unwanted: Set when the work was cancelled, or the lease is lost.

    Args:
        lease: As `lease_job` answers it.
        renewals: Those of the worker.
    """

    def __init__(self, lease: Mapping[str, Any], renewals: Renewals):
        self.lease, self._renewals = lease, renewals
        self.touched = time.monotonic()
        self.unwanted = threading.Event()
        self._every = min(max(0.3, float(lease["lease_seconds"]) / 3), _MOST_SECONDS)
        self._progress: tuple[float | None, str | None] = (None, None)
        self._sent: tuple[float | None, str | None] = (None, None)
        self._renewed = time.monotonic()

    def start(self) -> None:
        """Starts renewing the lease."""
        self._renewed = time.monotonic()
        self._renewals.add(self)

    def stop(self) -> None:
        """Stops renewing the lease."""
        self._renewals.remove(self)

    def progress(self, share: float | None, message: str) -> None:
        """Records progress for the next renewal.

        Args:
            share: 0 to 1; None when unknown.

        Raises:
            Cancelled: The work was cancelled.
        """
        self.touched = time.monotonic()
        had_news = self._has_news
        self._progress = (None if share is None else min(max(share, 0.0), 1.0), message or None)
        if self._has_news and not had_news:
            self._renewals.wake()
        if self.unwanted.is_set():
            raise Cancelled("the job was cancelled")

    def announce(self, file: str) -> None:
        """Tells the server which file is read next, before it is: the file may end this process."""
        self.touched = time.monotonic()
        self._call({"reading": mask_uri(file)[-MAX_NAME:]})
        if self.unwanted.is_set():
            raise Cancelled("the job was cancelled")

    @property
    def _has_news(self) -> bool:
        return self._progress != self._sent

    @property
    def due_at(self) -> float:
        """When the lease is to be renewed, by `time.monotonic()`: after a third of its time, when there is progress to
        report, and every few seconds to learn of a cancellation."""
        return self._renewed + (min(self._every, _NEWS_SECONDS) if self._has_news else self._every)

    def renew(self, server: Connection) -> bool:
        """Renews the lease.

        Returns:
            False if the lease is lost.
        """
        self._sent, self._renewed = self._progress, time.monotonic()
        news = {"progress": self._sent[0], "message": self._sent[1]}
        return self._call({k: v for k, v in news.items() if v is not None}, server)

    def _call(self, news: Mapping[str, Any], server: Connection | None = None) -> bool:
        body = {"job_id": self.lease["job_id"], "lease_token": self.lease["lease_token"], **news}
        try:
            (answer,) = (server or self._renewals.server).act("renew_lease", body, ACTION_SECONDS)
            if not answer["wanted"]:
                self.unwanted.set()
        except pa.ArrowInvalid as refusal:
            if "LEASE_LOST" in str(refusal):
                self.unwanted.set()
                return False
        except (pa.ArrowException, OSError):
            pass
        return True
