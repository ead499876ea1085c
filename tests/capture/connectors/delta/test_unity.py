import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest

from capture.connectors import open_connector
from capture.connectors.delta.unity import UnityCatalog, _storage_credentials
from capture.connectors.spi import ConnectorConfig
from store.model.errors import InvalidArgument, NotFound, UpstreamError

deltalake = pytest.importorskip("deltalake")
TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def catalog(tmp_path):
    """A Unity Catalog of two Delta tables and one CSV table, in a thread; its schemas have two pages."""
    deltalake.write_deltalake(tmp_path / "store/orders", pa.table({"id": [1, 2, 3]}))
    tables = [
        {
            "name": "orders",
            "data_source_format": "DELTA",
            "table_id": "t-1",
            "storage_location": f"file://{tmp_path}/store/orders",
            "table_constraints": [{"primary_key_constraint": {"name": "pk", "child_columns": ["id"]}}],
        },
        {"name": "notes", "data_source_format": "CSV", "table_id": "t-2", "storage_location": "s3://b/notes"},
        {"name": "far", "data_source_format": "DELTA", "table_id": "t-3", "storage_location": "s3://b/far"},
    ]
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body, status=200):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        def do_GET(self):
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            path = url.path.removeprefix("/api/2.1/unity-catalog/")
            requests.append(path)
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                return self.answer({}, 401)
            if path == "schemas" and query.get("catalog_name") == "main":
                if "page_token" in query:
                    return self.answer({"schemas": [{"name": "empty"}, {"name": "information_schema"}]})
                return self.answer({"schemas": [{"name": "sales"}], "next_page_token": "2"})
            if path == "schemas" and query.get("catalog_name") == "web":
                return self.answer(b"<html>")
            if path == "schemas" and query.get("catalog_name") == "down":
                return self.answer({}, 503)
            if path == "tables":
                return self.answer({"tables": tables if query["schema_name"] == "sales" else []})
            found = [t for t in tables if path == f"tables/main.sales.{t['name']}"]
            return self.answer(found[0] if found else {}, 200 if found else 404)

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body["table_id"])
            keys = {"access_key_id": "a", "secret_access_key": "hush-hush", "session_token": "s"}
            self.answer({"aws_temp_credentials": keys, "expiration_time": int((time.time() + server.lent) * 1000)})

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.requests = requests
    server.lent = 3600  # seconds
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def connect(server, name="main", token=TOKEN):
    options = {"token": token, "unity_allow_http_url": "true", "aws_region": "r"}
    return open_connector(ConnectorConfig("c", "delta", f"uc://127.0.0.1:{server.server_port}/{name}", options))


def test_tables_of_a_catalog_are_listed_and_read(catalog):
    found = connect(catalog)
    assert found.list_namespaces() == ["sales"]
    assert found.list_tables("sales") == ["far", "orders"]
    table = found.describe("sales", "orders")
    assert [(c.kind, c.columns) for c in table.constraints] == [("PRIMARY KEY", ("id",))]
    current = found.enumerate_snapshots("sales", "orders").current_snapshot_id
    stats = found.capture_snapshot_target_stats("sales", "orders", current, {"id": 1})
    assert (stats.row_count, next(stats.file_columns())["max"].to_pylist()) == (3, ["3"])
    (task,) = found.plan_files("sales", "orders", current, {"id": 1})
    assert TOKEN not in str(task)


def test_vended_credentials_are_cached(catalog):
    found = connect(catalog)._lake
    assert isinstance(found, UnityCatalog)
    for _ in range(2):
        place = found.find("sales", "far")
    assert catalog.requests.count("t-3") == 1
    assert found.storage_of(place)["aws_secret_access_key"] == "hush-hush"
    assert found.storage_of(place)["aws_region"] == "r"
    assert "token" not in found.storage_of(place)
    assert found.reason(OSError("hush-hush")) == "hush-hush"
    assert found.reason(OSError("hush-hush"), place) == "****"


def test_credentials_close_to_expiry_are_renewed(catalog):
    catalog.lent = 30
    found = connect(catalog)._lake
    for _ in range(2):
        found.find("sales", "far")
    assert catalog.requests.count("t-3") == 2


def test_credentials_of_other_clouds_are_translated():
    assert _storage_credentials({"azure_user_delegation_sas": {"sas_token": "x"}}) == {"azure_storage_sas_token": "x"}
    assert _storage_credentials({"gcp_oauth_token": {"oauth_token": "x"}}) == {"google_access_token": "x"}
    assert _storage_credentials({}) == {}


def test_failures_are_distinguished_by_error_and_retryability(catalog):
    with pytest.raises(NotFound, match=r'"sales.ordrs"; did you mean "orders"'):
        connect(catalog).describe("sales", "ordrs")
    with pytest.raises(NotFound, match="notes"):
        connect(catalog).describe("sales", "notes")
    with pytest.raises(NotFound, match="uc://"):
        connect(catalog, "nowhere").list_namespaces()
    with pytest.raises(UpstreamError, match="refuses the token") as refused:
        connect(catalog, token="wrong-token").list_namespaces()
    assert not refused.value.retryable
    assert "wrong-token" not in str(refused.value)
    with pytest.raises(UpstreamError, match="503") as down:
        connect(catalog, "down").list_namespaces()
    assert down.value.retryable
    with pytest.raises(UpstreamError, match="JSON"):
        connect(catalog, "web").list_namespaces()
    assert connect(catalog).list_tables("nowhere") == []


def test_invalid_uri_is_refused(catalog):
    for uri in ("uc://", "uc://host", "uc://host/a/b"):
        with pytest.raises(InvalidArgument, match="uc://host/catalog"):
            open_connector(ConnectorConfig("c", "delta", uri, {}))
