"""Webhook delivery to receivers that accept, reject, fail and hang."""

from __future__ import annotations

import json
import logging
import socket
import threading

import pytest

from flight_server.insight import webhook
from flight_server.insight.webhook import SIGNATURE, Webhook
from tests.http_receiver import receiving


@pytest.fixture
def receiver():
    with receiving() as server:
        yield server


def test_message_is_signed_with_the_secret(receiver):
    hook = Webhook(receiver.url, "secret")
    hook.post({"table": "ä", "n": 1})
    assert receiver.received.wait(60)
    ((_, _, headers, body),) = receiver.requests
    assert json.loads(body) == {"table": "ä", "n": 1} and headers[SIGNATURE] == hook.signature(body)
    assert headers[SIGNATURE] != Webhook("http://x", "other").signature(body)
    hook.stop()


@pytest.mark.parametrize(
    ("statuses", "tries", "delivered"),
    [([503, 500, 200], 3, True), ([503], 4, False), ([400], 1, False), ([302], 1, False), ([429, 200], 2, True)],
)
def test_transient_failures_are_retried_with_pauses(monkeypatch, receiver, statuses, tries, delivered):
    left = list(statuses)
    receiver.answer = lambda _: (left.pop(0) if len(left) > 1 else left[0], b"")  # the last one repeats
    pauses, hook = [], Webhook(receiver.url)
    monkeypatch.setattr(hook._stop, "wait", pauses.append)
    assert hook._deliver(b"{}") is delivered
    assert len(receiver.requests) == tries and pauses == list(webhook.PAUSES[: tries - 1])
    assert SIGNATURE not in receiver.requests[0].headers  # no secret, no signature


def test_hanging_receiver_does_not_block_posts(monkeypatch, caplog):
    monkeypatch.setattr(webhook, "SECONDS", 0.2)
    monkeypatch.setattr(webhook, "PAUSES", ())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/")
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
