"""Sessions of browsers: a random cookie names one, its token stays in the server's memory."""

from __future__ import annotations

import secrets
import time
from typing import Final

from store.duckdb.lru import LruCache

COOKIE: Final = "statflight_session"
SECONDS: Final = 12 * 3600  # lifetime of a session
MOST: Final = 10_000  # sessions; the least recently used is evicted


class Sessions:
    """Tokens by session. A restart of the server ends all sessions."""

    def __init__(self) -> None:
        self._tokens: LruCache[str, tuple[str, float]] = LruCache(MOST)  # with the end, by `time.monotonic()`

    def start(self, token: str) -> str:
        """Starts a session; returns its cookie."""
        cookie = secrets.token_urlsafe(32)
        self._tokens.put(cookie, (token, time.monotonic() + SECONDS))
        return cookie

    def token(self, cookie: str | None) -> str | None:
        """The token of a cookie; None if it is of no session, or of one that has ended."""
        session = self._tokens.get(cookie or "")
        return session[0] if session is not None and time.monotonic() < session[1] else None

    def end(self, cookie: str | None) -> None:
        """Ends the session of a cookie, if it exists."""
        self._tokens.drop(cookie or "")
