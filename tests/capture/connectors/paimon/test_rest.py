"""Paimon tables of a REST catalog, which a thread of the test serves; tests/interop has Paimon's own server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

pytest.importorskip("pypaimon")

from store.model.errors import InvalidArgument, NotFound, UpstreamError
from tests.capture.connectors.paimon.rest_contract import TOKEN, RestContract
from tests.capture.connectors.paimon.warehouse import connect

pytestmark = pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # of the library's writer


@pytest.fixture
def catalog(append):
    """The address of a catalog of an append table, a table without a path and one of another format, on two pages."""
    tables = [
        {"name": "events", "id": "t-1", "path": f"file://{append}", "schema": {"options": {}}},
        {"name": "lost", "id": "t-2", "schema": {"options": {"type": "table"}}},
        {"name": "csv", "id": "t-3", "path": "/x", "schema": {"options": {"type": "format-table"}}},
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            body, status = self.answer(url.path.strip("/").split("/"), query)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def answer(self, path, query):
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                return {}, 401
            match path:
                case ["v1", "config"]:
                    return {"defaults": {"prefix": "mine"}, "overrides": None}, 200 if query[
                        "warehouse"
                    ] == "wh" else 404
                case ["v1", "mine", "databases"]:
                    return {"databases": ["sales", "bare"], "nextPageToken": None}, 200
                case ["v1", "mine", "databases", "sales", "table-details"]:
                    page = tables[2:] if "pageToken" in query else tables[:2]
                    return {"tableDetails": page, "nextPageToken": None if "pageToken" in query else "2"}, 200
                case ["v1", "mine", "databases", "bare", "table-details"]:
                    return {"tableDetails": []}, 200
                case ["v1", "mine", "databases", "sales", "tables", name]:
                    name = unquote(name).removesuffix("$snapshots")  # as Paimon's own server
                    found = [table for table in tables if table["name"] == name]
                    return (found[0], 200) if found else ({}, 404)
            return {}, 404

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class TestRest(RestContract):
    """See `RestContract`."""


def test_only_tables_of_paimon_are_listed(catalog):
    connector = connect(catalog, warehouse="wh", token=TOKEN)
    assert connector.list_namespaces() == ["bare", "sales"]
    assert (connector.list_tables("bare"), connector.list_tables("sales")) == ([], ["events", "lost"])
    assert connector.describe("sales", "events").table_id == "t-1"
    with pytest.raises(NotFound, match=r'"sales.csv"'):
        connector.describe("sales", "csv")
    with pytest.raises(NotFound, match=r"events\$snapshots"):
        connector.describe("sales", "events$snapshots")
    with pytest.raises(UpstreamError, match=r'"sales.lost": the catalog has no path'):
        connector.describe("sales", "lost")


def test_the_token_stays_with_the_catalog(catalog):
    (task, *_) = connect(catalog, warehouse="wh", token=TOKEN).plan_files("sales", "events", 2, {"id": 1})
    assert TOKEN not in str(task)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({}, InvalidArgument, "options.warehouse: a REST catalog needs it"),
        ({"warehouse": "wh"}, UpstreamError, r"refuses the token \(401\)"),
        ({"warehouse": "other", "token": TOKEN}, NotFound, "does not exist"),
    ],
)
def test_wrong_options_are_refused_by_name(catalog, options, error, text):
    with pytest.raises(error, match=text):
        connect(catalog, **options).list_namespaces()
