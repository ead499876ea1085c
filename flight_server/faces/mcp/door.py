"""The tools at `/mcp` of the HTTP port: streamable HTTP without sessions, each request with its token."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from anyio import CapacityLimiter, to_thread
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.responses import Response

from flight_server.core.app import App
from flight_server.core.auth.challenge import challenge
from flight_server.core.auth.principal import Principal
from flight_server.core.auth.tokens import Guard
from flight_server.core.wire import lag
from flight_server.faces.local.client import LocalClient
from flight_server.faces.mcp.protocol import server
from flight_server.faces.mcp.tools import Desk
from store.model.errors import (
    PermissionDenied,
    ResourceExhausted,
    StatflightError,
    Unauthenticated,
    Unimplemented,
)

AT_ONCE: Final = 4  # tools that run at once
WAITING: Final = 64  # requests under way; beyond these callers get 503
BODY_BYTES: Final = 1 << 20  # longest message
_STATUS: Final = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "UNAVAILABLE": 503, "RESOURCE_EXHAUSTED": 503}

logging.getLogger("mcp").setLevel(logging.ERROR)  # each request would be told three times


class Door:
    """The tools of one server, as an ASGI application.

    Args:
        values: True if values of the data are told.
    """

    def __init__(self, app: App, guard: Guard, *, values: bool):
        self._app, self._guard, self._values = app, guard, values
        self._threads: CapacityLimiter | None = None  # made in the event loop that it limits
        self._under_way = 0  # requests; the event loop has one thread, so that no lock is needed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        try:
            _check_origin(request)
            if self._under_way >= WAITING:
                raise ResourceExhausted(f"{WAITING} requests are under way already", hint="try again later")
            self._under_way += 1
            try:
                caller = await to_thread.run_sync(self._caller, request)  # may ask an identity provider
                await self._answer(caller, scope, receive, send)
            finally:
                self._under_way -= 1
        except StatflightError as refused:
            await _refusal(refused, request)(scope, receive, send)

    def _caller(self, request: Request) -> Principal:
        """The caller of a request.

        Raises:
            Unauthenticated, PermissionDenied: It may not read.
        """
        caller = self._guard.authenticate(request.headers.get("authorization"))
        self._app.access.require(caller, "stats.read")
        lag.check(self._app.role, request.headers.get)
        return caller

    async def _answer(self, caller: Principal, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request; the library's manager lives as long as it, since no sessions are kept."""
        self._threads = self._threads or CapacityLimiter(AT_ONCE)

        @contextmanager
        def desk() -> Iterator[Desk]:
            yield Desk(LocalClient(self._app, _unread, caller), self._values)

        manager = StreamableHTTPSessionManager(
            server(desk, self._threads), stateless=True, json_response=True, max_request_body_size=BODY_BYTES
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)


def _unread(table: str, column_id: int, snapshot: str | int) -> bool:
    raise Unimplemented(f"agents have no column read: #{column_id} of {table} at {snapshot}")


def _check_origin(request: Request) -> None:
    """Refuses pages of other sites, which a browser lets ask with what it may reach.

    Raises:
        PermissionDenied: The origin is not this server.
    """
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower():
        raise PermissionDenied("pages of other sites may not ask here")


def _refusal(refused: StatflightError, request: Request) -> Response:
    is_unknown = isinstance(refused, Unauthenticated)
    headers = {"WWW-Authenticate": challenge(request.headers.get("authorization"))} if is_unknown else {}
    status = _STATUS.get(refused.status, 400)
    return Response(f"{refused}\n", status, headers, "text/plain; charset=utf-8")
