"""The leases of a worker's work: renewed while the work goes on, and asked whether it is still wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from flight_server.worker.connection import Server
from store.errors import Cancelled

_TICK_SECONDS: Final = 0.25
_MOST_SECONDS: Final = 2.0  # between two renewals, which tell of a cancellation
_NEWS_SECONDS: Final = 1.0  # between two renewals that carry progress


class Renewals:
    """Renews leases, all of them in one thread, which ends when none is left.

    Args:
        server: Where the leases are from.
    """

    def __init__(self, server: Server):
        self._server = server
        self._lock = threading.Lock()
        self._keepers: set[LeaseKeeper] = set()
        self._thread: threading.Thread | None = None

    def add(self, keeper: LeaseKeeper) -> None:
        """Begins to renew a lease."""
        with self._lock:
            self._keepers.add(keeper)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
                self._thread.start()

    def remove(self, keeper: LeaseKeeper) -> None:
        """Renews a lease no more."""
        with self._lock:
            self._keepers.discard(keeper)

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(_TICK_SECONDS)
            with self._lock:
                keepers = list(self._keepers)
                idle = 0 if keepers else idle + 1
                if idle > 1:
                    self._thread = None
                    return
            for keeper in keepers:
                if keeper in self._keepers and not keeper.renew(self._server):  # not one that has ended meanwhile
                    self.remove(keeper)


class LeaseKeeper:
    """Keeps a lease alive while its work goes on, and hears when the work is not wanted any more.

    Attributes:
        touched: When the work last showed that it lives; by `time.monotonic()`.
        unwanted: Set when the work was cancelled, or the lease is lost.

    Args:
        server: Where the lease is from.
        lease: As `lease_job` answers it.
        renewals: The renewals of the worker; None for a thread of the lease's own.
    """

    def __init__(self, server: Server, lease: Mapping[str, Any], renewals: Renewals | None = None):
        self.lease = lease
        self.touched = time.monotonic()
        self.unwanted = threading.Event()
        self._renewals = renewals or Renewals(server)
        self._every = min(max(0.3, float(lease["lease_seconds"]) / 3), _MOST_SECONDS)
        self._progress: tuple[float | None, str | None] = (None, None)
        self._sent: tuple[float | None, str | None] = (None, None)
        self._renewed = time.monotonic()

    def start(self) -> None:
        """Begins to renew the lease."""
        self._renewed = time.monotonic()
        self._renewals.add(self)

    def stop(self) -> None:
        """Renews the lease no more."""
        self._renewals.remove(self)

    def progress(self, share: float | None, message: str) -> None:
        """Notes how far the work is, for the next renewal.

        Args:
            share: 0 to 1; None where it is not known.
            message: A few words for whoever watches the job.

        Raises:
            Cancelled: The work is not wanted any more.
        """
        self.touched = time.monotonic()
        self._progress = (None if share is None else min(max(share, 0.0), 1.0), message or None)
        if self.unwanted.is_set():
            raise Cancelled("the job was cancelled")

    def renew(self, server: Server) -> bool:
        """Renews the lease where it is due: at a third of its time, when there is progress to tell, and every few
        seconds to hear of a cancellation.

        Args:
            server: Where the lease is from.

        Returns:
            False if the lease is lost.
        """
        waited = time.monotonic() - self._renewed
        if waited < self._every and (self._progress == self._sent or waited < _NEWS_SECONDS):
            return True
        self._sent, self._renewed = self._progress, time.monotonic()
        body = {"job_id": self.lease["job_id"], "lease_token": self.lease["lease_token"],
                "progress": self._sent[0], "message": self._sent[1]}  # fmt: skip
        try:
            (answer,) = server.act("renew_lease", {k: v for k, v in body.items() if v is not None})
            if not answer["wanted"]:
                self.unwanted.set()
        except pa.ArrowInvalid as refusal:
            if "LEASE_LOST" in str(refusal):
                self.unwanted.set()
                return False
        except (pa.ArrowException, OSError):
            pass
        return True
