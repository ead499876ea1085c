"""Webhook delivery to receivers that accept, reject, fail and hang."""

from __future__ import annotations

import json
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flight_server.control import webhook
from flight_server.control.webhook import SIGNATURE, Webhook


@pytest.fixture
def receiver():
    """An HTTP receiver: its recorded requests, and the statuses of its responses (the last one repeats)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.requests.append((json.loads(body), self.headers.get(SIGNATURE), body))
            self.send_response(server.statuses.pop(0) if len(server.statuses) > 1 else server.statuses[0])
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            server.received.set()

        def log_message(self, *_):
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.requests, server.statuses, server.received = [], [200], threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def url(server) -> str:
    return f"http://127.0.0.1:{server.server_port}/hook"


def test_message_is_signed_with_the_secret(receiver):
    hook = Webhook(url(receiver), "secret")
    hook.post({"table": "ä", "n": 1})
    assert receiver.received.wait(60)
    ((message, signature, body),) = receiver.requests
    assert message == {"table": "ä", "n": 1} and signature == hook.signature(body)
    assert signature != Webhook("http://x", "other").signature(body)
    hook.stop()


@pytest.mark.parametrize(
    ("statuses", "tries", "delivered"),
    [([503, 500, 200], 3, True), ([503], 4, False), ([400], 1, False), ([302], 1, False), ([429, 200], 2, True)],
)  # fmt: skip
def test_transient_failures_are_retried_with_pauses(receiver, statuses, tries, delivered):
    receiver.statuses = statuses
    pauses = []
    assert Webhook(url(receiver))._deliver(b"{}", pauses.append) is delivered
    assert len(receiver.requests) == tries and pauses == list(webhook.PAUSES[: tries - 1])
    assert receiver.requests[0][1] is None  # no secret, no signature


def test_hanging_receiver_does_not_block_posts(caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout=0.2, pauses=())
        for number in range(5):
            hook.post({"n": number})
        with caplog.at_level(logging.WARNING):
            assert not hook._deliver(b"{}")
        hook.stop()
    assert "given up" in caplog.text


def test_oldest_message_is_dropped_when_the_queue_is_full(monkeypatch):
    monkeypatch.setattr(webhook, "MOST_WAITING", 2)
    hook = Webhook("http://127.0.0.1:9/")
    hook._thread = threading.current_thread()  # nothing is sent
    for number in range(4):
        hook.post({"n": number})
    assert [json.loads(hook._waiting.get_nowait())["n"] for _ in range(2)] == [2, 3]
