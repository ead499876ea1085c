"""The handshake of Flight clients that log in: `authorization` goes in as Basic or Bearer and comes back as Bearer.

A token is looked at anew with each call, so a handshake keeps nothing. Without it, Flight SQL drivers do not connect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow.flight as flight

from flight_server.auth.principal import Principal
from flight_server.auth.tokens import token_of
from flight_server.wire.status import to_flight

Headers = Mapping[str, Sequence[str | bytes]]


class NoHandshake(flight.ServerAuthHandler):
    """Lets every handshake and call pass: the header `authorization` of each call says who calls."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Exchanges nothing."""

    def is_valid(self, token: bytes) -> bytes:  # noqa: ARG002  Flight's own
        return b""


class Greeting(flight.ServerMiddleware):
    """The answer to a handshake: the token with which all other calls are to be made."""

    def __init__(self, token: str):
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"}


def greet(authenticate: Callable[[str | None], Principal], headers: Headers) -> Greeting:
    """The answer to a handshake with these headers.

    Raises:
        flight.FlightUnauthenticatedError: It has no token, or not a good one.
    """
    values = headers.get("authorization")
    given = None if not values else values[0] if isinstance(values[0], str) else values[0].decode("latin-1")
    try:
        authenticate(given)
    except Exception as error:
        raise to_flight(error, "") from None
    return Greeting(token_of(given or "") or "anonymous")
