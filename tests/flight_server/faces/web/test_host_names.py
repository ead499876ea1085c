"""Host names by which an open server on loopback answers: one of its own, or any for a check of its health."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from flight_server.faces.web.site import _Confined
from store.role import Role


def status(path: str, *headers: tuple[bytes, bytes]) -> int:
    """The status of a request to an application that answers everything with 200."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "method": "GET", "headers": list(headers)}
    confined = _Confined(app, frozenset({"127.0.0.1"}), SimpleNamespace(role=Role()))
    asyncio.run(confined(scope, None, send))
    return sent[0]["status"]


OTHERS = {"none": (), "another": ((b"host", b"stats.internal:80"),)}


@pytest.mark.parametrize("headers", OTHERS.values(), ids=OTHERS)
def test_health_is_told_by_any_name(headers):
    assert status("/health", *headers) == 200


@pytest.mark.parametrize("headers", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("path", ["/", "/metrics", "/health/", "/sql"])
def test_all_else_is_refused_by_other_names(path, headers):
    assert status(path, *headers) == 400
    assert status(path, (b"host", b"127.0.0.1:8080")) == 200
