"""Pages of an app in this process, and a browser without scripts to look at them."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPMessage
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode, urljoin

from flight_server.app import App
from flight_server.auth.tokens import Guard
from flight_server.process.metrics import Metrics
from flight_server.web.listener import Pages


@contextmanager
def pages_of(app: App, tokens: Path | None = None) -> Iterator[str]:
    """The URL of the pages of an app."""
    guard = Guard(tokens, "internal secret")
    settings = app.settings.__class__(**{**vars(app.settings), "http_port": 0, "auth": tokens})
    pages = Pages(settings, app, guard, Metrics(app, "0", guard.authenticate))
    try:
        yield pages.uri
    finally:
        pages.close()


@dataclass
class Answer:
    status: int
    headers: HTTPMessage
    text: str
    url: str


class Browser:
    """Follows redirects and keeps cookies."""

    def __init__(self, base: str):
        self.base, self.cookies = base, CookieJar()
        kept = urllib.request.HTTPCookieProcessor(self.cookies)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), kept)

    def get(
        self, url: str = "/", form: dict[str, str] | None = None, method: str | None = None, **headers: str
    ) -> Answer:
        data = None if form is None else urlencode(form).encode()
        request = urllib.request.Request(urljoin(self.base, url), data, headers, method=method)
        try:
            answer = self._opener.open(request, timeout=20)
        except urllib.error.HTTPError as refusal:
            answer = refusal
        with answer:
            return Answer(answer.status, answer.headers, answer.read().decode(), answer.url)
