"""Sessions of browsers: a signed cookie names one, its token stays in the server's memory."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from threading import Lock

from itsdangerous import BadSignature, TimestampSigner

COOKIE = "statflight_session"
SECONDS = 12 * 3600  # lifetime of a session
MOST = 10_000  # sessions; the least recently used is evicted


class Sessions:
    """Tokens by session. A restart of the server ends all sessions."""

    def __init__(self) -> None:
        self._signer = TimestampSigner(secrets.token_bytes(32), salt="statflight.session", digest_method=_sha256)
        self._tokens: OrderedDict[str, str] = OrderedDict()
        self._lock = Lock()

    def start(self, token: str) -> str:
        """Starts a session; returns its cookie."""
        name = secrets.token_urlsafe(24)
        with self._lock:
            self._tokens[name] = token
            while len(self._tokens) > MOST:
                self._tokens.popitem(last=False)
        return self._signer.sign(name).decode()

    def token(self, cookie: str | None) -> str | None:
        """The token of a cookie; None if the cookie is invalid or expired, or its session has ended."""
        if (name := self._name(cookie)) is None:
            return None
        with self._lock:
            token = self._tokens.get(name)
            if token is not None:
                self._tokens.move_to_end(name)
            return token

    def end(self, cookie: str | None) -> None:
        """Ends the session of a cookie, if it exists."""
        if (name := self._name(cookie)) is not None:
            with self._lock:
                self._tokens.pop(name, None)

    def _name(self, cookie: str | None) -> str | None:
        if not cookie:
            return None
        try:
            return self._signer.unsign(cookie, max_age=SECONDS).decode()
        except (BadSignature, UnicodeError):
            return None


def _sha256(data: bytes = b"") -> object:
    import hashlib

    return hashlib.sha256(data)
