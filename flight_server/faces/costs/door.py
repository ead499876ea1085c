"""`POST /changed`: notifications of object stores, or names of tables."""

from __future__ import annotations

import logging
from typing import Any, Final

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from flight_server.core.app import App
from flight_server.core.auth.challenge import challenge
from flight_server.core.auth.tokens import Guard
from flight_server.core.reads.stream import never
from flight_server.core.wire.action_bodies import parse_body
from flight_server.core.wire.scan_request import MAX_COMMAND_BYTES, parse_json
from flight_server.faces.costs.actions import Changed
from flight_server.faces.costs.news import News
from flight_server.faces.costs.notifications import Locations, objects_of
from store.model.errors import InvalidArgument, ResourceExhausted, StatflightError, Unauthenticated

log = logging.getLogger("statflight.server")

PATH: Final = "/changed"
AT_ONCE: Final = 8  # requests answered at once
WAITING: Final = 256  # requests running or waiting; beyond these callers get 503
_STATUS: Final = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "NOT_FOUND": 404, "INVALID_ARGUMENT": 400}


class Door:
    """The path of one server, as an ASGI application."""

    def __init__(self, app: App, guard: Guard, news: News):
        self._app, self._guard, self._news = app, guard, news
        self._locations = Locations()
        self._threads: CapacityLimiter | None = None  # made in the event loop that it limits
        self._under_way = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        if request.method != "POST":
            response: Response = JSONResponse({"message": "POST only"}, 405, {"Allow": "POST"})
        else:
            response = await self._in_turn(request)
        await response(scope, receive, send)

    async def _in_turn(self, request: Request) -> Response:
        if self._under_way >= WAITING:
            return _refusal(ResourceExhausted(f"{WAITING} requests are under way already", hint="try again later"))
        self._threads = self._threads or CapacityLimiter(AT_ONCE)
        self._under_way += 1
        try:
            body = bytearray()
            async for chunk in request.stream():
                if len(body) <= MAX_COMMAND_BYTES:
                    body += chunk
            return await to_thread.run_sync(self._response, request, bytes(body), limiter=self._threads)
        finally:
            self._under_way -= 1

    def _response(self, request: Request, body: bytes) -> Response:
        try:
            return self._answer(request, body)
        except StatflightError as error:
            return _refusal(error, request.headers.get("authorization"))
        except Exception:
            log.exception("a notification of a change failed")
            return _refusal(StatflightError("failed; the server's log says why"))

    def _answer(self, request: Request, body: bytes) -> Response:
        caller, access = self._guard.authenticate(request.headers.get("authorization")), self._app.access
        access.require(caller, "capture.run")
        if len(body) > MAX_COMMAND_BYTES:
            raise InvalidArgument(f"the body has more than {MAX_COMMAND_BYTES} bytes")
        said = parse_json(body, "body")
        if not isinstance(said, dict):
            raise InvalidArgument("the body is not a JSON object")
        if "tables" in said:
            names = parse_body(body, Changed).tables
            tables = [access.table(name, caller, "capture.run") for name in names]
            return JSONResponse(self._app.lakes.changed(tables, never))
        found = self._locations.tables(self._app.catalog.entries.committed, objects_of(said))
        seen = [table for table in found if caller.sees(*table.name)]
        self._news.add(seen)
        return JSONResponse({"tables": [table.full_name for table in seen]}, 202)


def _refusal(error: StatflightError, sent: str | None = None) -> Response:
    headers = {"WWW-Authenticate": challenge(sent)} if isinstance(error, Unauthenticated) else None
    return JSONResponse({"code": error.code, "message": str(error)}, _STATUS.get(error.status, 503), headers)
