"""Posts JSON to a URL, signed and with retries, from its own thread, so that a slow receiver delays nothing else."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

log = logging.getLogger("statflight.server")

SECONDS: Final = 10.0  # for the receiver to answer
PAUSES: Final = (1.0, 5.0, 30.0)  # seconds before each further try
MOST_WAITING: Final = 1000  # messages; beyond these the oldest is dropped
SIGNATURE: Final = "X-Statflight-Signature"


class Webhook:
    """Sends messages in order.

    Args:
        url: `http://…` or `https://…`.
        secret: Signs each body; without one there is no signature.
        timeout: Seconds for the receiver to answer.
        pauses: Seconds before each further try.
    """

    def __init__(
        self, url: str, secret: str | None = None, timeout: float = SECONDS, pauses: tuple[float, ...] = PAUSES
    ):
        self._url, self._secret, self._timeout, self._pauses = url, secret, timeout, pauses
        self._waiting: queue.Queue[bytes] = queue.Queue(MOST_WAITING)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._opener = urllib.request.build_opener(_NoRedirect)

    def post(self, message: Mapping[str, Any]) -> None:
        """Queues a message and returns at once."""
        body = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        while True:
            try:
                self._waiting.put_nowait(body)
                break
            except queue.Full:
                self._drop()
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="webhook", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stops sending; queued messages are dropped."""
        self._stop.set()

    def signature(self, body: bytes) -> str:
        """`sha256=` and the HMAC of the body, as the receiver computes it."""
        return "sha256=" + hmac.new((self._secret or "").encode(), body, hashlib.sha256).hexdigest()

    def _drop(self) -> None:
        try:
            self._waiting.get_nowait()
            log.warning("webhook: a message is dropped, %s wait already", MOST_WAITING)
        except queue.Empty:
            return

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                body = self._waiting.get(timeout=0.5)
            except queue.Empty:
                continue
            self._deliver(body, self._stop.wait)

    def _deliver(self, body: bytes, pause: Callable[[float], Any] = time.sleep) -> bool:
        """True if the receiver accepted it, with retries."""
        for seconds in (*self._pauses, None):
            try:
                self._send(body)
                return True
            except urllib.error.HTTPError as refusal:
                reason = f"status {refusal.code}"
                refusal.close()
                if refusal.code < 500 and refusal.code not in (408, 429):  # a retry would be refused too
                    break
            except (OSError, ValueError) as error:
                reason = str(error)
            if seconds is None or self._stop.is_set():
                break
            pause(seconds)
        log.warning("webhook: a message is given up: %s", reason)
        return False

    def _send(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "statflight"}
        if self._secret:
            headers[SIGNATURE] = self.signature(body)
        request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310  checked by the settings
        with self._opener.open(request, timeout=self._timeout) as answer:
            answer.read(1024)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the body goes to the configured receiver only."""

    def redirect_request(self, *_: Any) -> None:
        return None
