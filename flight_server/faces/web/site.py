"""The routes of the pages: authentication, parameters, and the security headers of each answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qs

import pyarrow as pa
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from flight_server.core.auth.challenge import challenge
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.wire import lag
from flight_server.faces.web import column_page, data, overview, render, sql_page
from flight_server.faces.web.data import Asked
from flight_server.faces.web.sessions import COOKIE, SECONDS, Sessions
from flight_server.faces.web.urls import LiveUrls
from store.model.errors import NotFound, PermissionDenied, ResourceExhausted, StatflightError, Unauthenticated

if TYPE_CHECKING:
    from flight_server.core.app import App
    from flight_server.core.auth.principal import Principal
    from flight_server.core.auth.tokens import Guard
    from flight_server.core.config import Settings

Select: TypeAlias = "Callable[[str, Principal, int], pa.Table]"

log = logging.getLogger("statflight.server")

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PAGES_AT_ONCE: Final = 4  # threads that make pages, so that Flight keeps the other cores
PAGES_WAITING: Final = 256  # pages running or waiting; beyond these callers get 503
RETRY_SECONDS: Final = 5  # when such a caller may retry
LOGIN_BYTES: Final = 16 << 10  # maximum body of a login
LONGEST: Final = 2_000  # characters of a parameter
_STATUS: Final = {
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "INVALID_ARGUMENT": 400,
    "UNAVAILABLE": 503,
}


_CATALOG: Final = "/iceberg"
"""Path of the catalog that engines may be pointed at, if a part serves it."""
_LISTS: Final[dict[str, tuple[str, Callable[[LocalReader], list[dict[str, Any]]], str]]] = {
    "checks": ("Checks", overview.checks, "The newest result of each rule of `serve --checks`, the worst first."),
    "changes": ("Changes", overview.changes, "Differences of each captured snapshot from the one before."),
    "joins": ("Joins", overview.joins, "Columns that refer to others: declared, or found by their values."),
}
"""Name of a list → its title, its rows, and what they are."""


class Site:
    """The pages of one server.

    Args:
        settings: With TLS, the cookie gets the attribute Secure.
        probes: An ASGI application that serves `/metrics` and `/health`.
        select: Runs a statement for a caller and answers at most so many rows; None where there is no SQL.
        mounts: ASGI applications by the path below which they serve.
    """

    def __init__(
        self,
        settings: Settings,
        app: App,
        guard: Guard,
        probes: Any,
        select: Select | None = None,
        mounts: Mapping[str, Any] | None = None,
    ):
        self._app, self._guard, self._secure = app, guard, settings.tls_cert is not None
        self._select = select
        self._catalog_path = _CATALOG if _CATALOG in (mounts or {}) else ""
        self._sessions = Sessions()
        self._threads: CapacityLimiter | None = None  # made in the event loop that it limits
        self._under_way = 0
        catalog, table, column, sql = map(self._limited, (self._catalog, self._table, self._column, self._sql))
        listing = self._limited(self._listing)
        self.asgi = Starlette(
            routes=[
                Route("/", catalog),
                Route("/index.json", catalog),
                Route("/table", table),
                Route("/table.json", table),
                Route("/column", column),
                Route("/column.json", column),
                *(Route(f"/{name}{twin}", listing) for name in _LISTS for twin in ("", ".json")),
                Route("/sql", sql),
                Route("/sql.csv", self._limited(self._csv)),
                Route("/sql.json", sql),
                Route("/login", self._login_page, methods=["GET"]),
                Route("/login", self._login, methods=["POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/style.css", self._style),
                Route("/icon.svg", self._icon),
                Route("/keys.js", self._keys),
                Route("/metrics", probes),
                Route("/health", probes),
                *(
                    Route(f"{path}{below}", served)
                    for path, served in (mounts or {}).items()
                    for below in ("", "/{rest:path}")
                ),
            ],
            exception_handlers={404: self._missing, 405: self._refused, Exception: self._broken},
        )
        self.asgi.add_middleware(_Confined, hosts=_names(settings), server=app)

    # Pages.

    def _limited(self, make: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """Makes a page in one of a few threads; 503 if too many wait already."""

        async def answer(request: Request) -> Response:
            if self._under_way >= PAGES_WAITING:
                return _busy(request.url.path.endswith(".json"))
            self._threads = self._threads or CapacityLimiter(PAGES_AT_ONCE)
            self._under_way += 1  # the event loop has one thread: no lock is needed
            try:
                return await to_thread.run_sync(make, request, limiter=self._threads)
            finally:
                self._under_way -= 1

        return answer

    def _catalog(self, request: Request) -> Response:
        asked = _asked(request, data.TABLE_ORDERS)
        return self._answer(
            request, "catalog.html", LiveUrls("/"), lambda reader: data.catalog(reader, asked), "/index.json", asked
        )

    def _table(self, request: Request) -> Response:
        name, asked = _parameter(request, "name"), _asked(request, data.COLUMN_ORDERS)
        at = _parameter(request, "snapshot")
        snapshot = int(at) if at.removeprefix("-").isdecimal() and len(at) < 21 else "current"
        urls = LiveUrls("/table", {"name": name, "snapshot": "" if snapshot == "current" else at})
        if self._catalog_path:
            urls.catalog = f"{str(request.base_url).rstrip('/')}{self._catalog_path}"
        return self._answer(
            request, "table.html", urls, lambda reader: data.table(reader, name, asked, snapshot), "/table.json", asked
        )

    def _listing(self, request: Request) -> Response:
        name = request.url.path.removeprefix("/").removesuffix(".json")
        title, read, about = _LISTS[name]
        asked = _asked(request, ())

        def values(reader: LocalReader) -> dict[str, Any]:
            return overview.listing(title, read(reader), asked.page, asked.search) | {"about": about}

        return self._answer(request, "list.html", LiveUrls(f"/{name}"), values, f"/{name}.json", asked)

    def _csv(self, request: Request) -> Response:
        statement = request.query_params.get("q", "").strip()
        try:
            caller, _ = self._caller(request)
            select = self._select
            run = None if select is None else lambda text: select(text, caller, sql_page.MOST_CSV)
            body = sql_page.csv(LocalReader(self._app.scanner, caller, run), statement)
        except Unauthenticated as refusal:
            return self._ask_for_token(request, str(refusal), True)
        except (StatflightError, pa.ArrowException, ValueError) as error:
            return _trouble(error, True)
        headers = {"Content-Disposition": 'attachment; filename="answer.csv"'}
        return Response(body, media_type="text/csv", headers=headers)

    def _column(self, request: Request) -> Response:
        table, name, then = _parameter(request, "table"), _parameter(request, "name"), _parameter(request, "then")
        at = int(then) if then.isdecimal() and len(then) < 20 else None
        return self._answer(
            request,
            "column.html",
            LiveUrls(),
            lambda reader: column_page.column(reader, table, name, at),
            "/column.json",
        )

    def _sql(self, request: Request) -> Response:
        statement = request.query_params.get("q", "").strip()
        as_json = request.url.path.endswith(".json")

        def run(reader: LocalReader) -> dict[str, Any]:
            try:
                return sql_page.sql(reader, statement)
            except (StatflightError, pa.ArrowException) as error:
                if as_json:
                    raise
                return sql_page.answered(statement) | {"trouble": str(error)}

        asked = _asked(request, ())
        answer = self._answer(request, "sql.html", LiveUrls("/sql"), run, "/sql.json", asked)
        answer.headers["Content-Security-Policy"] = f"{HEADERS['Content-Security-Policy']}; script-src 'self'"
        return answer

    def _answer(
        self,
        request: Request,
        template: str,
        urls: LiveUrls,
        read: Callable[[LocalReader], dict[str, Any]],
        twin: str,
        asked: Asked | None = None,
    ) -> Response:
        as_json = request.url.path.endswith(".json")
        try:
            caller, by_cookie = self._caller(request)
            lag.check(self._app.role, request.headers.get)
            select = self._select
            run = None if select is None else lambda statement: select(statement, caller, sql_page.ANSWERED + 1)
            values = read(LocalReader(self._app.scanner, caller, run))
        except Unauthenticated as refusal:
            return self._ask_for_token(request, "" if request.cookies.get(COOKIE) is None else str(refusal), as_json)
        except (StatflightError, pa.ArrowKeyError, ValueError) as error:
            return _trouble(error, as_json)
        if as_json:
            return Response(render.to_json(values), media_type="application/json")
        json_url = f"{twin}?{request.url.query}" if request.url.query else twin
        page = render.page(
            template,
            url=urls,
            asked=asked or Asked(),
            json_url=json_url,
            logout=by_cookie,
            caller=caller.name,
            **values,
        )
        return HTMLResponse(page)

    # Callers.

    def _caller(self, request: Request) -> tuple[Principal, bool]:
        """The caller, and True if a cookie identified it."""
        header = request.headers.get("authorization")
        token = None if header else self._sessions.token(request.cookies.get(COOKIE))
        caller = self._guard.authenticate(header or (f"Bearer {token}" if token else None))
        if not caller.may("stats.read"):
            raise PermissionDenied("this needs the scope stats.read")
        return caller, token is not None

    def _ask_for_token(self, request: Request, error: str, as_json: bool) -> Response:
        headers = {"WWW-Authenticate": challenge(request.headers.get("authorization"))}
        if as_json:
            body = json.dumps({"error": "UNAUTHENTICATED", "message": "send the header authorization: Bearer <token>"})
            return Response(body, 401, headers, "application/json")
        query = f"?{request.url.query}" if request.url.query else ""
        page = render.page("login.html", url=LiveUrls(), next=request.url.path + query, trouble=error)
        return HTMLResponse(page, 401, headers)

    def _login_page(self, _request: Request) -> Response:
        return HTMLResponse(render.page("login.html", url=LiveUrls(), next="/", trouble=""))

    async def _login(self, request: Request) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > LOGIN_BYTES:
                return _trouble(ValueError("the form is too large"), False, 413)
        form = parse_qs(body.decode("utf-8", "replace"))
        token, onward = form.get("token", [""])[0].strip(), _local(form.get("next", ["/"])[0])
        try:
            caller = await to_thread.run_sync(
                self._guard.authenticate, f"Bearer {token}"
            )  # may ask an identity provider
        except Unauthenticated:
            page = render.page("login.html", url=LiveUrls(), next=onward, trouble="This token is not known here.")
            return HTMLResponse(page, 401)
        log.info("pages: %s logged in", caller.name)
        answer = RedirectResponse(onward, 303)
        answer.set_cookie(
            COOKIE, self._sessions.start(token), max_age=SECONDS, httponly=True, samesite="lax", secure=self._secure
        )
        return answer

    def _logout(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(COOKIE))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE)
        return answer

    # Other routes.

    def _style(self, _request: Request) -> Response:
        return Response(render.style(), media_type="text/css", headers={"Cache-Control": "max-age=300"})

    def _keys(self, _request: Request) -> Response:
        return Response(render.keys(), media_type="text/javascript", headers={"Cache-Control": "max-age=300"})

    def _icon(self, _request: Request) -> Response:
        return Response(render.ICON, media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})

    def _missing(self, _request: Request, _trouble: Exception) -> Response:
        return _message(404, "Not found", "This page does not exist.")

    def _refused(self, _request: Request, _trouble: Exception) -> Response:
        return _message(405, "Not allowed", "Pages are read only.")

    def _broken(self, _request: Request, error: Exception) -> Response:
        log.error("a page failed", exc_info=error)
        return _message(500, "Failed", "The server's log says why.")


_OF_ANY_NAME: Final = frozenset({"/health"})  # tells nothing of tables; balancers ask by no name, or by theirs


class _Confined:
    """Adds security headers that an answer has not set, and those of a follower; refuses unknown host names, but for
    health checks."""

    def __init__(self, app: Any, hosts: frozenset[str], server: App):
        self._app, self._hosts, self._server = app, hosts, server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        role = self._server.role
        told = lag.headers(role.lag_ms, role.generation) if role.tells else {}  # before the rows, which may be newer

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in (HEADERS | told).items():
                    headers.setdefault(name, value)
            await send(message)

        is_confined = scope["type"] == "http" and bool(self._hosts) and scope["path"] not in _OF_ANY_NAME
        if is_confined and _host(scope) not in self._hosts:
            await _message(400, "Wrong address", "This server is not known by that name.")(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def _names(settings: Settings) -> frozenset[str]:
    """The host names that an open server on the loopback accepts, so that a foreign page cannot read it by pointing its
    own name there (DNS rebinding); none if the server needs tokens or listens on a network: it accepts any."""
    if settings.auth is not None or not settings.is_loopback:
        return frozenset()
    host = settings.host.strip("[]").lower()
    return frozenset({"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host})


def _host(scope: Any) -> str:
    """The name in the header `Host`, without its port."""
    value = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    name, colon, port = value.rpartition(":")
    return (name if colon and port.isdecimal() else value).lower()


def _parameter(request: Request, name: str) -> str:
    return request.query_params.get(name, "")[:LONGEST]


def _asked(request: Request, orders: tuple[str, ...]) -> Asked:
    order, page = _parameter(request, "sort"), _parameter(request, "page")
    return Asked(
        search=_parameter(request, "q").strip()[:200],
        order=order if order in orders else "",
        descending=_parameter(request, "desc") == "1",
        page=int(page) if page.isdecimal() and len(page) < 8 else 1,
        within=_parameter(request, "in"),
        state=_parameter(request, "state"),
        format=_parameter(request, "format"),
        owner=_parameter(request, "owner"),
    )


def _local(onward: str) -> str:
    """The address if it is on this server, else the home page: a login must not redirect elsewhere."""
    return onward if onward.startswith("/") and not onward.startswith(("//", "/\\")) and onward.isprintable() else "/"


def _trouble(error: Exception, as_json: bool, status: int | None = None) -> Response:
    if isinstance(error, pa.ArrowKeyError):
        error = NotFound(str(error.args[0]).partition("] ")[2] or str(error), code="NOT_FOUND")
    code = error.status if isinstance(error, StatflightError) else "INVALID_ARGUMENT"
    status = status or _STATUS.get(code, 500)
    if as_json:
        return Response(json.dumps({"error": code, "message": str(error)}), status, media_type="application/json")
    title = {401: "Log in", 403: "Not allowed", 404: "Not found", 503: "Busy"}.get(status, "Wrong address")
    return _message(status, title, str(error))


def _busy(as_json: bool) -> Response:
    busy = ResourceExhausted(f"{PAGES_WAITING} pages are under way already; try again in {RETRY_SECONDS} s")
    response = _trouble(busy, as_json, 503)
    response.headers["Retry-After"] = str(RETRY_SECONDS)
    return response


def _message(status: int, title: str, message: str) -> Response:
    return HTMLResponse(render.page("message.html", url=LiveUrls(), title=title, message=message), status)
