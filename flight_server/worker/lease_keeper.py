"""The lease of a worker's work: renewed while the work goes on, and asked whether it is still wanted."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from flight_server.worker.connection import Server
from store.errors import Cancelled


class LeaseKeeper:
    """Keeps a lease alive while its work goes on, and hears when the work is not wanted any more."""

    def __init__(self, server: Server, lease: Mapping[str, Any]):
        self.server, self.lease = server, lease
        self.touched = time.monotonic()  # when the work last showed that it lives
        self.unwanted = threading.Event()  # cancelled, or the lease is lost
        self._progress: tuple[float | None, str | None] = (None, None)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)

    def start(self) -> None:
        """Begins to renew the lease, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Renews the lease no more."""
        self._stop.set()

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

    def _keep(self) -> None:
        """Renews at a third of the lease, when there is progress to tell, and every few seconds to hear of a cancel."""
        every = min(max(0.3, float(self.lease["lease_seconds"]) / 3), 2.0)
        sent: tuple[float | None, str | None] = (None, None)
        renewed = time.monotonic()
        while not self._stop.wait(0.25):
            news = self._progress != sent and time.monotonic() - renewed >= 1.0
            if not news and time.monotonic() - renewed < every:
                continue
            sent, renewed = self._progress, time.monotonic()
            body = {"job_id": self.lease["job_id"], "lease_token": self.lease["lease_token"],
                    "progress": sent[0], "message": sent[1]}  # fmt: skip
            try:
                (answer,) = self.server.act("renew_lease", {k: v for k, v in body.items() if v is not None})
                if not answer["wanted"]:
                    self.unwanted.set()
            except pa.ArrowInvalid as refusal:
                if "LEASE_LOST" in str(refusal):
                    self.unwanted.set()
                    return
            except (pa.ArrowException, OSError):
                continue
