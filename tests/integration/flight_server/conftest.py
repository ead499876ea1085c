"""One running server for the tests that only add to it; `serving` of `live_server` starts others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.flight_server.live_server import Client, LiveServer, serving


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server without capture workers, stopped by SIGTERM; its exit status is 0 or the session fails."""
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="session")
def server_uri(live_server: LiveServer) -> str:
    return live_server.uri


@pytest.fixture
def live_client(live_server: LiveServer) -> Iterator[Client]:
    with live_server.connect() as client:
        yield client
