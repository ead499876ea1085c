"""Sends messages, signed and with retries, from its own thread, so that a slow receiver delays nothing else."""

from __future__ import annotations

import hashlib
import hmac
import logging
import queue
import smtplib
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from email import message_from_bytes
from typing import Final
from urllib.parse import unquote

from capture.connectors.storage.http import OPENER
from flight_server.core.alarm_address import alarm_address
from flight_server.insight.alarms import Alarms, Message, bodies

log = logging.getLogger("statflight.server")

SECONDS: Final = 10.0  # for the receiver to answer
PAUSES: Final = (1.0, 5.0, 30.0)  # seconds before each further try
MOST_WAITING: Final = 1000  # messages; beyond these the oldest is dropped
SIGNATURE: Final = "X-Statflight-Signature"


def alarms_to(addresses: str | None, secret: str | None, digest_seconds: float) -> Alarms:
    """Alarms that are sent to addresses.

    Args:
        addresses: Separated by spaces; None for none.
        secret: Signs each body that is posted.
        digest_seconds: For how long changes are gathered; 0 sends each at once.
    """
    return Alarms([Webhook(address, secret) for address in (addresses or "").split()], digest_seconds)


class Webhook:
    """Sends messages in order.

    Args:
        secret: Signs each body that is posted; without one there is no signature.
    """

    def __init__(self, url: str, secret: str | None = None):
        self._parts = parts = alarm_address(url)
        host = parts.netloc.rpartition("@")[2]
        self._url = parts._replace(scheme=parts.scheme.rpartition("+")[2], netloc=host).geturl()
        self._secret = secret
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def post(self, *messages: Message) -> None:
        """Queues messages and returns at once."""
        for body in bodies(self._parts, messages):
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
        with suppress(queue.Full):  # else the thread has something to wake it
            self._waiting.put_nowait(None)

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
        while (body := self._waiting.get()) is not None and not self._stop.is_set():
            self._deliver(body)

    def _deliver(self, body: bytes) -> bool:
        """True if the receiver accepted it, with retries."""
        for seconds in (*PAUSES, None):
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
            if seconds is None or self._stop.wait(seconds):
                break
        log.warning("webhook: a message is given up: %s", reason)
        return False

    def _mail(self, body: bytes) -> None:
        parts = self._parts
        server = smtplib.SMTP_SSL if parts.scheme == "smtps" else smtplib.SMTP
        with server(parts.hostname or "", parts.port or 0, timeout=SECONDS) as smtp:
            if parts.scheme == "smtp" and smtp.ehlo()[0] == 250 and smtp.has_extn("starttls"):
                smtp.starttls()
            if parts.username:
                smtp.login(unquote(parts.username), unquote(parts.password or ""))
            smtp.send_message(message_from_bytes(body))

    def _send(self, body: bytes) -> None:
        if self._parts.scheme.startswith("smtp"):
            self._mail(body)
            return
        headers = {"Content-Type": "application/json", "User-Agent": "statflight"}
        if self._secret:
            headers[SIGNATURE] = self.signature(body)
        request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310  checked by the settings
        with OPENER.open(request, timeout=SECONDS) as answer:
            answer.read(1024)
