"""Catalogs of Iceberg tables: SQL, REST, their options and failures."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from capture.connectors.iceberg.connector import IcebergConnector
from capture.connectors.iceberg.errors import upstream
from capture.connectors.spi import ConnectorConfig
from store.model.errors import InvalidArgument, NotFound, UpstreamError
from tests.capture.connectors import iceberg_tables as built
from tests.capture.connectors.iceberg.lake import ROWS, directory, lake, rows, sql, stats, with_foreign_statistics


def test_single_catalog_of_a_database_needs_no_name(table):
    connector = sql(lake(table))
    assert connector.list_namespaces() == ["db"]
    connector.close()


def test_nested_namespaces_are_listed_with_dots(tmp_path):
    catalog = built.make_catalog(tmp_path)
    for namespace in ("a", "a.b", "empty"):
        catalog.create_namespace(namespace)
    catalog.create_table("a.b.t", ROWS).append(rows(0, 3))
    catalog.close()
    connector = sql(tmp_path, name="lake")
    assert connector.list_namespaces() == ["a", "a.b", "empty"]
    assert connector.list_tables("a.b") == ["t"]
    assert stats(connector, namespace="a.b").row_count == 3
    connector.close()


def test_missing_sql_catalog_is_not_created(tmp_path):
    with pytest.raises(NotFound, match="nothing"):
        IcebergConnector(ConnectorConfig("c", "iceberg", f"sqlite:///{tmp_path}/nothing.db")).list_namespaces()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "word"),
    [({"wharehouse": "x"}, "warehouse"), ({"type": "pigeon"}, "pigeon"), ({"path_rewrite": "x"}, "path_rewrite")],
)
def test_error_names_the_invalid_option(tmp_path, options, word):
    with pytest.raises(InvalidArgument, match=word):
        directory(tmp_path, **options)


def test_properties_of_pyiceberg_are_accepted(tmp_path):
    directory(tmp_path, **{"s3.endpoint": "http://x", "token": "t", "warehouse": "w", "policy": "off"})


@pytest.fixture
def rest(tmp_path, table):
    """A REST catalog of one table, whose metadata lists a foreign blob."""
    document = with_foreign_statistics(json.loads(Path(table.metadata_location.removeprefix("file://")).read_text()))
    answers = {
        "/v1/config": {"defaults": {}, "overrides": {}},
        "/v1/namespaces": {"namespaces": [["db"]]},
        "/v1/namespaces?parent=db": {"namespaces": []},
        "/v1/namespaces/db/tables": {"identifiers": [{"namespace": ["db"], "name": "t"}]},
        "/v1/namespaces/db/tables/t": {"metadata-location": table.metadata_location, "metadata": document},
    }
    seen = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers.get("Authorization"))
            path = self.path if self.path in answers else self.path.partition("?")[0]
            body = json.dumps(
                answers.get(path, {"error": {"message": "no", "type": "NoSuchTableException", "code": 404}})
            )
            self.send_response(200 if path in answers else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()
    thread.join()


def test_rest_catalog_lists_and_describes_tables(rest):
    uri, seen = rest
    connector = IcebergConnector(ConnectorConfig("c", "iceberg", uri, {"token": "s3cret-token"}))
    assert connector.list_namespaces() == ["db"]
    assert connector.list_tables("db") == ["t"]
    assert stats(connector, namespace="db").row_count == 150
    with pytest.raises(NotFound, match=r"db\.other"):
        connector.describe("db", "other")
    assert "Bearer s3cret-token" in seen
    connector.close()


BASIC = {"type": "basic", "basic": {"username": "ann", "password": "pass-w0rd"}}


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({}, None),
        ({"auth": '{"type": "noop"}'}, None),
        ({"auth.type": "noop"}, None),
        ({"auth": json.dumps(BASIC)}, "Basic YW5uOnBhc3MtdzByZA=="),
        (
            {"auth.type": "basic", "auth.basic.username": "ann", "auth.basic.password": "pass-w0rd"},
            "Basic YW5uOnBhc3MtdzByZA==",
        ),
        ({"header.authorization": "Custom x"}, "Custom x"),
    ],
)
def test_requests_to_a_rest_catalog_have_the_configured_credentials(rest, options, header):
    uri, seen = rest
    connector = IcebergConnector(ConnectorConfig("c", "iceberg", uri, options))
    assert connector.list_namespaces() == ["db"] and stats(connector, namespace="db").row_count == 150
    assert set(seen) == {header}
    connector.close()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"auth": "pass-w0rd"}, "auth: must be a JSON object"),
        ({"auth": '"basic"'}, "auth: must be a JSON object"),
        ({"auth": '{"type": "pigeon"}'}, "type must be one of noop, basic"),
        ({"auth": '{"type": "legacyoauth2"}'}, "use the options token and credential"),
        ({"auth": '{"basic": {}}'}, "type must be one of"),
        ({"auth": '{"type": "basic", "basic": {"username": "ann"}}'}, "password is missing"),
        ({"auth": json.dumps({**BASIC, "oauth2": {}})}, "has no part oauth2"),
        ({"auth": '{"type": "noop", "noop": {"user": "ann"}}'}, "user is unknown; it takes nothing"),
        ({"auth": '{"type": "basic", "basic": "ann:pass-w0rd"}'}, "basic must be an object"),
        ({"auth.type": "custom"}, "impl is missing"),
        ({"auth.type": "basic", "auth.type.x": "y"}, "auth.type.x"),
        ({"ssl": "yes"}, "ssl: must be a JSON object"),
    ],
)
def test_malformed_credentials_are_refused_with_the_option(options, word):
    with pytest.raises(InvalidArgument, match=re.escape(word)) as refused:
        IcebergConnector(ConnectorConfig("c", "iceberg", "http://127.0.0.1:9", options))
    assert "pass-w0rd" not in str(refused.value)


def test_error_of_an_unreachable_catalog_is_retryable(monkeypatch):
    monkeypatch.setattr("capture.connectors.storage.retry.ATTEMPTS", 2)
    connector = IcebergConnector(ConnectorConfig("c", "iceberg", "http://127.0.0.1:9", {"token": "s3cret-token"}))
    with pytest.raises(UpstreamError, match="cannot be reached") as refused:
        connector.list_namespaces()
    assert refused.value.retryable and "s3cret" not in str(refused.value)


def test_sql_catalog_is_not_modified(table):
    before = (lake(table) / "catalog.db").read_bytes()
    connector = sql(lake(table))
    stats(connector, namespace="db")
    connector.close()
    assert (lake(table) / "catalog.db").read_bytes() == before
    assert isinstance(built.make_catalog(lake(table)), SqlCatalog)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation"), True),
        (OSError("Couldn't deserialize thrift: TProtocolException"), False),
        (PermissionError(13, "denied"), False),
    ],
)
def test_object_store_that_is_away_may_return(error, retryable):
    with pytest.raises(UpstreamError) as refused, upstream('table "n.t"', {}):
        raise error
    assert refused.value.retryable is retryable
