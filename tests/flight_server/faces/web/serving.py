"""The pages of an in-process app, and a minimal browser."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPMessage
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin

import numpy as np

from flight_server.core.app import App
from flight_server.core.auth.tokens import Guard
from flight_server.faces.iceberg_rest.door import Door
from flight_server.faces.web.site import Site
from flight_server.process.http import Http, Probes
from flight_server.process.metrics import Metrics
from store.model.sketches import kll
from store.model.target_ids import of_column
from tests.flight_server.serving import app_in, put


@contextmanager
def pages_of(app: App, tokens: Path | None = None) -> Iterator[str]:
    """The URL of the pages of an app."""
    guard = Guard(tokens, "internal secret")
    probes = Probes(Metrics(app, "0", guard.authenticate))
    site = Site(
        replace(app.settings, auth=tokens),
        app,
        guard,
        probes,
        app.parts.select,
        {"/iceberg": Door(app, guard, lambda table, snapshot: None)},
    )
    pages = Http(site.asgi, app.settings.host, 0, "http-port")
    try:
        yield pages.uri
    finally:
        pages.close()


@contextmanager
def large_catalog(directory: Path, tables: int) -> Iterator[str]:
    """The URL of the pages of a catalog of many tables and one of 500 columns, `lake.s.wide`."""
    key = {"table_catalog": "lake", "table_schema": "s", "table_name": "t", "snapshot_id": 1}
    column = {"logical_type": "INT", "row_count": 100, "null_count": 3, "ndv": 97.0, "min": "0", "max": "99"}
    wide = key | {"table_name": "wide"}
    with app_in(directory) as app:
        put(app, [key | {"row_count": 1, "total_size_bytes": 5}], "stats.tables")
        put(app, [key | column | {"column_id": 1, "column_name": "c1"}])
        put(app, [wide | column | {"column_id": number, "column_name": f"c{number}"} for number in range(1, 501)])
        sketches = [
            wide
            | {
                "target_kind": "COLUMN",
                "storage_id": of_column(number),
                "column_id": number,
                "role": "QUANTILES",
                "sketch_type": "apache-datasketches-kll-doubles-v1",
                "data": kll(np.arange(1000.0) * number),
            }
            for number in range(1, 501)
        ]
        put(app, sketches, "stats.sketches")

        def copy(connection: Any) -> None:
            first = "(SELECT min(table_key) FROM tables)"
            for name in ("tables", "snapshots", "stats_tables_current", "stats_columns_current", "table_columns"):
                named = ", format('table_{:05d}', i) AS table_name, 's' || i % 20 AS table_schema"
                more = named if name == "tables" else ", i AS row_count" if name.startswith("stats_tables") else ""
                connection.execute(
                    f"INSERT INTO {name} SELECT t.* REPLACE (t.table_key + 100 + i AS table_key{more})"
                    f" FROM {name} t, range({tables}) r(i) WHERE t.table_key = {first}"
                )

        app.database.write(copy)
    with app_in(directory) as app, pages_of(app) as base:
        yield base


@dataclass
class Response:
    status: int
    headers: HTTPMessage
    text: str
    url: str


class Browser:
    """Follows redirects and keeps cookies."""

    def __init__(self, base: str):
        self.base, self.cookies = base, CookieJar()
        with_cookies = urllib.request.HTTPCookieProcessor(self.cookies)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), with_cookies)

    def get(
        self, url: str = "/", form: dict[str, str] | None = None, method: str | None = None, **headers: str
    ) -> Response:
        data = None if form is None else urlencode(form).encode()
        request = urllib.request.Request(urljoin(self.base, url), data, headers, method=method)
        try:
            response = self._opener.open(request, timeout=60)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return Response(response.status, response.headers, response.read().decode(), response.url)
