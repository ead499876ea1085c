"""The routes of the Iceberg REST catalog below `/iceberg`: authentication, bodies, and the status of each answer.

Requests run in threads of their own, so that neither pages nor probes wait for a lake.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from anyio import CancelScope, CapacityLimiter, to_thread
from anyio.lowlevel import checkpoint
from starlette.requests import Request
from starlette.responses import Response

from flight_server.client.conditions.exact_json import dumps
from flight_server.core.app import App
from flight_server.core.auth.challenge import challenge
from flight_server.core.auth.principal import Principal
from flight_server.core.auth.tokens import Guard
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.wire import lag
from flight_server.core.wire.scan_request import MAX_COMMAND_BYTES, parse_json
from flight_server.faces.iceberg_rest.conditional import is_known, takes_gzip
from flight_server.faces.iceberg_rest.expressions import columns_of, texts
from flight_server.faces.iceberg_rest.plans import Plans
from flight_server.faces.iceberg_rest.tables import CONFIG, Body, ManifestWriter, Tables
from store.model.catalog_entries import TableEntry
from store.model.errors import (
    InvalidArgument,
    InvalidField,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    StatflightError,
)
from store.model.names import join_name

log = logging.getLogger("statflight.server")

PREFIX: Final = "/iceberg"
AT_ONCE: Final = 16  # requests answered at once
WAITING: Final = 256  # whole requests running or waiting; beyond these callers get 503
ARRIVING_BYTES: Final = 64 << 20  # of bodies that have not arrived whole; beyond these the oldest is given up
COMPRESSED_BYTES: Final = 16 << 10  # shortest answer that is compressed for clients that take gzip
GZIP_LEVEL: Final = 1  # a tenth larger than by level 6, in a fifth of the time
_TABLE: Final = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
_NAMESPACE: Final = "/v1/{prefix}/namespaces/{namespace}"
ENDPOINTS: Final = (
    "GET /v1/{prefix}/namespaces",
    f"GET {_NAMESPACE}",
    f"HEAD {_NAMESPACE}",
    f"GET {_NAMESPACE}/tables",
    f"GET {_TABLE}",
    f"HEAD {_TABLE}",
    f"POST {_TABLE}/plan",
    f"POST {_TABLE}/tasks",
    f"POST {_TABLE}/metrics",
)
COMMITS: Final = (f"POST {_TABLE}", "POST /v1/{prefix}/transactions/commit")
"""Endpoints that answer 403. They are named to clients that write: where Iceberg's libraries find no such endpoint they
give up without a request, and leave the data files that they wrote in the lake; after a 403 they delete them."""
_WRITERS: Final = "x-client-version"  # the header by which Iceberg's libraries say who they are
_NO_TOKENS: Final = {  # an error of RFC 6749, which clients that send credentials can read
    "error": "unsupported_grant_type",
    "error_description": "tokens are not issued here; set the property token to one of the server's",
}
_COUNTS: Final = "x-statflight-statistics"  # "off" leaves out the distinct counts that the metadata's tables lack
_STATUS: Final = {
    "UNAUTHENTICATED": (401, "NotAuthorizedException"),
    "PERMISSION_DENIED": (403, "ForbiddenException"),
    "NOT_FOUND": (404, "NotFoundException"),
    "INVALID_ARGUMENT": (400, "BadRequestException"),
    "UNIMPLEMENTED": (406, "UnsupportedOperationException"),
    "UNAVAILABLE": (503, "ServiceUnavailableException"),
}
_TYPES: Final = {
    "UNKNOWN_TABLE": "NoSuchTableException",
    "UNKNOWN_NAMESPACE": "NoSuchNamespaceException",
    "UNKNOWN_PLAN_TASK": "NoSuchPlanTaskException",
}
_READ_ONLY: Final = "this catalog is read-only: it serves what the lakes have"

Answer = Mapping[str, Any] | Body | None
"""JSON, as a value or with its tag; None for 204."""


class Door:
    """The catalog of one server, as an ASGI application.

    Args:
        capture: Captures the files of a table at a snapshot, without its caller's scope `capture.run`.
        manifests: Writes manifests of made-up metadata; None if it has none.
    """

    def __init__(
        self,
        app: App,
        guard: Guard,
        capture: Callable[[TableEntry, str | int], None],
        manifests: ManifestWriter | None = None,
    ):
        self._app, self._guard = app, guard
        self._tables = Tables(app, capture, manifests)
        self._plans = Plans(app, self._tables)
        self._threads: CapacityLimiter | None = None  # made in the event loop that it limits
        self._under_way = 0  # requests that arrived whole
        self._bodies = Bodies(ARRIVING_BYTES)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        try:
            body = await self._bodies.read(request.stream())
            response = await self._in_turn(request, body)
        except StatflightError as refused:
            response = _refusal(refused)
        await response(scope, receive, send)

    async def _in_turn(self, request: Request, body: bytes | None) -> Response:
        """The answer to a request that arrived whole.

        Raises:
            ResourceExhausted: Too many such requests are under way.
        """
        if self._under_way >= WAITING:
            raise ResourceExhausted(f"{WAITING} requests are under way already", hint="try again later")
        self._threads = self._threads or CapacityLimiter(AT_ONCE)
        self._under_way += 1
        try:
            return await to_thread.run_sync(self._response, request, body, limiter=self._threads)
        finally:
            self._under_way -= 1

    def _response(self, request: Request, body: bytes | None) -> Response:
        if request.method == "POST" and request.url.path == f"{PREFIX}/v1/oauth/tokens":
            return Response(dumps(_NO_TOKENS), 400, {"Cache-Control": "no-store"}, "application/json")
        try:
            answer = self._answer(request, body)
        except StatflightError as error:
            return _refusal(error, request.headers.get("authorization"))
        except Exception:
            log.exception("a request to the Iceberg catalog failed")
            return _refusal(StatflightError("failed; the server's log says why"))
        if answer is None:
            return Response(status_code=204)
        if isinstance(answer, Body):
            return _conditional(request, answer)
        return _json(request, dumps(answer).encode())

    def _answer(self, request: Request, body: bytes | None) -> Answer:
        caller = self._guard.authenticate(request.headers.get("authorization"))
        lag.check(self._app.role, request.headers.get)
        # split before it is unquoted: names may contain slashes
        path = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1").partition("?")[0]
        parts = [unquote(part) for part in path.removeprefix(f"{PREFIX}/").split("/")]
        self._app.access.require(caller, "stats.read")
        if body is None:
            raise InvalidArgument(f"the body has more than {MAX_COMMAND_BYTES} bytes")
        match request.method, parts:
            case "POST", ["v1", "namespaces", levels, "tables", name, "plan" | "tasks" | "metrics" as what]:
                table = self._table(caller, levels, name)
                return self._posted(caller, table, what, body, is_of_pyiceberg=_is_of_pyiceberg(request))
            case "GET", ["v1", "config"]:
                commits = COMMITS if _WRITERS in request.headers else ()
                return {"defaults": {}, "overrides": CONFIG, "endpoints": [*ENDPOINTS, *commits]}
            case "GET", ["v1", "namespaces"]:
                return self._namespaces(caller, request.url.query)
            case (("GET" | "HEAD" as method), ["v1", "namespaces", levels]):
                self._schemas(caller, levels)
                return None if method == "HEAD" else {"namespace": levels.split("\x1f"), "properties": {}}
            case "GET", ["v1", "namespaces", levels, "tables"]:
                return self._listed(caller, levels, request.url.query)
            case (("GET" | "HEAD" as method), ["v1", "namespaces", levels, "tables", name]):
                table = self._table(caller, levels, name)
                return None if method == "HEAD" else self._body(table, request)
            case (("POST" | "PUT" | "PATCH" | "DELETE"), _):
                raise PermissionDenied(_READ_ONLY)
        raise NotFound("no such endpoint", hint=f"GET {PREFIX}/v1/config lists them")

    # Names. A namespace is the catalog, then each part of the schema.

    def _schemas(self, caller: Principal, levels: str) -> list[list[str]]:
        """The levels of the schemas at or below a namespace; "" for all.

        Raises:
            NotFound: There is none that the caller sees.
        """
        rows = LocalReader(self._app.scanner, caller).read("information_schema.schemata").to_pylist()
        schemas = [[row["catalog_name"], *row["schema_name"].split(".")] for row in rows]
        within = levels.split("\x1f") if levels else []
        found = [schema for schema in schemas if schema[: len(within)] == within]
        if within and not found:
            shown = ".".join(within)[:200]
            raise NotFound(
                f'no namespace "{shown}"', code="UNKNOWN_NAMESPACE", hint="namespaces are [catalog, schema…]"
            )
        return found

    def _namespaces(self, caller: Principal, query: str) -> Answer:
        parent = parse_qs(query).get("parent", [""])[0]
        depth = len(parent.split("\x1f")) if parent else 0
        found = {tuple(schema[: depth + 1]) for schema in self._schemas(caller, parent) if len(schema) > depth}
        return _page("namespaces", [list(levels) for levels in sorted(found)], query)

    def _listed(self, caller: Principal, levels: str, query: str) -> Answer:
        self._schemas(caller, levels)
        namespace = levels.split("\x1f")
        place = namespace[0], ".".join(namespace[1:])
        tables = [table for table in self._app.catalog.tables() if table.name[:2] == place and caller.sees(*table.name)]
        names = sorted(table.table_name for table in tables)
        return _page("identifiers", [{"namespace": namespace, "name": name} for name in names], query)

    def _table(self, caller: Principal, levels: str, name: str) -> TableEntry:
        catalog, *schema = levels.split("\x1f")
        place = (catalog, ".".join(schema), name)
        # Hidden tables are unknown ones: clients take 403 for a refusal, and try `t.files` before the files of `t`.
        if not caller.sees(*place) or self._app.catalog.find(place) is None:
            raise NotFound(f'no table "{".".join(place)[:200]}"', code="UNKNOWN_TABLE")
        return self._app.access.table(join_name(*place), caller, "stats.read")

    # Tables.

    def _body(self, table: TableEntry, request: Request) -> Body:
        # By itself pyiceberg takes the column of a partition for null unless it is selected, so that rows are lost.
        by_itself = not _is_of_pyiceberg(request)
        return self._tables.body(table, with_counts=_wants_counts(request), with_manifests=by_itself)

    def _posted(self, caller: Principal, table: TableEntry, what: str, data: bytes, *, is_of_pyiceberg: bool) -> Answer:
        body = parse_json(data or b"{}", "body", exact=True)
        if not isinstance(body, dict):
            raise InvalidArgument("the body is not a JSON object")
        match what:
            case "plan":
                return self._plans.plan(caller, table, body, internal=is_of_pyiceberg)
            case "tasks":
                return self._plans.page(caller, table, body.get("plan-task"))
        if body.get("report-type") == "scan-report":
            names = {*columns_of(body.get("filter")), *texts(body.get("projected-field-names"))}
            self._app.usage.note(table.table_key, tuple(names))
        return None


class Bodies:
    """Reads the bodies of requests. Those that have not arrived whole share a budget of bytes; once it is used up, the
    oldest makes room, so that whoever sends a whole body is heard, however many send half of one.
    """

    def __init__(self, budget_bytes: int):
        self._budget_bytes = budget_bytes
        self._arriving: dict[CancelScope, int] = {}  # bytes of each, the oldest first
        self._held_bytes = 0

    async def read(self, parts: AsyncIterable[bytes]) -> bytes | None:
        """The body; None if it is too large.

        Raises:
            ResourceExhausted: It made room for newer ones.
        """
        with CancelScope() as scope:
            self._arriving[scope] = 0
            try:
                return await self._joined(scope, parts)
            finally:
                self._held_bytes -= self._arriving.pop(scope, 0)
        raise ResourceExhausted("the body did not arrive in time", hint="send the request again")

    async def _joined(self, scope: CancelScope, parts: AsyncIterable[bytes]) -> bytes | None:
        joined: list[bytes] = []
        async for part in parts:
            if scope not in self._arriving:
                await checkpoint()  # raises, because the scope is cancelled
            self._arriving[scope] += len(part)
            self._held_bytes += len(part)
            if self._arriving[scope] > MAX_COMMAND_BYTES:
                return None
            joined.append(part)
            while self._held_bytes > self._budget_bytes:
                oldest = next(iter(self._arriving))
                self._held_bytes -= self._arriving.pop(oldest)
                oldest.cancel()
        return b"".join(joined)


def _page(name: str, items: Sequence[Any], query: str) -> dict[str, Any]:
    """A list, or the part of it that `pageToken` and `pageSize` ask for."""
    asked = parse_qs(query, keep_blank_values=True)
    start, size = asked.get("pageToken", [""])[0] or "0", asked.get("pageSize", ["1000"])[0]
    if not (start.isdecimal() and size.isdecimal() and len(start) < 10 and int(size[:9]) > 0):
        raise InvalidArgument("pageToken and pageSize: expected a token of this list, and an integer above 0")
    if "pageToken" not in asked:  # by the specification the client takes no pages
        return {name: items}
    end = int(start) + int(size[:9])
    return {name: items[int(start) : end], "next-page-token": str(end) if end < len(items) else None}


def _wants_counts(request: Request) -> bool:
    """True unless the client asks for metadata without our distinct counts.

    Raises:
        InvalidArgument: The header has another value.
    """
    value = request.headers.get(_COUNTS, "on").strip().lower()
    if value not in ("on", "off"):
        raise InvalidField(_COUNTS, "must be on or off", expected="on | off", actual=value)
    return value == "on"


def _is_of_pyiceberg(request: Request) -> bool:
    return "pyiceberg" in request.headers.get("user-agent", "").lower()


def _conditional(request: Request, body: Body) -> Response:
    """A table's metadata; 304 to a client that has it already."""
    tag = f'W/"{body.tag}"'  # weak: whatever the body is encoded with
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": f"Authorization, User-Agent, {_COUNTS}"}
    if is_known(request.headers.getlist("if-none-match"), body.tag):
        return Response(status_code=304, headers=headers)
    return _json(request, body.text, headers)


def _json(request: Request, text: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON, compressed if it is long and the client takes gzip."""
    headers = dict(headers or {})
    if len(text) >= COMPRESSED_BYTES:
        headers["Vary"] = f"{headers['Vary']}, Accept-Encoding" if "Vary" in headers else "Accept-Encoding"
        if takes_gzip(request.headers.getlist("accept-encoding")):
            text, headers["Content-Encoding"] = gzip.compress(text, GZIP_LEVEL), "gzip"
    return Response(text, headers=headers, media_type="application/json")


def _refusal(error: StatflightError, authorization: str | None = None) -> Response:
    status, type = _STATUS.get(error.status, (500, "InternalServerError"))
    type = _TYPES.get(error.code, type)
    headers = {"Retry-After": "5"} if status == 503 else {}
    if status == 401:
        headers = {"WWW-Authenticate": challenge(authorization)}
    body = {"error": {"message": str(error), "type": type, "code": status}}
    return Response(dumps(body), status, headers, "application/json")
