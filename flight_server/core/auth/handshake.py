"""The handshake of Flight clients that log in: takes `authorization` as Basic or Bearer, and returns it as Bearer.

Each call is authenticated by its own token, so a handshake stores nothing. Flight SQL drivers need it to connect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow.flight as flight

from flight_server.core.auth.principal import Principal
from flight_server.core.auth.tokens import token_of
from flight_server.core.wire.status import to_flight

Headers = Mapping[str, Sequence[str | bytes]]


class NoHandshake(flight.ServerAuthHandler):
    """Accepts every handshake and call: each call is authenticated by its header `authorization`."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Exchanges nothing."""

    # Flight calls it before each call. A method in Python would cost twice as much: a frame needs a stack, which the
    # thread maps for it and unmaps after it. The result names the peer, which nothing asks for.
    is_valid = bytes


class Greeting(flight.ServerMiddleware):
    """The answer to a handshake: the token for all further calls."""

    def __init__(self, token: str):
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"}


def greet(authenticate: Callable[[str | None], Principal], headers: Headers) -> Greeting:
    """The answer to a handshake with these headers.

    Raises:
        flight.FlightUnauthenticatedError: The token is missing or invalid.
    """
    values = headers.get("authorization")
    given = None if not values else values[0] if isinstance(values[0], str) else values[0].decode("latin-1")
    try:
        authenticate(given)
    except Exception as error:
        raise to_flight(error, "") from None
    return Greeting(token_of(given or "") or "anonymous")
