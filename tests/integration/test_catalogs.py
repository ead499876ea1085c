"""Catalog servers in processes of their own: Iceberg REST, Glue and Unity Catalog, also when they fail."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.connectors.storage.places import open_place
from capture.publishers.iceberg import IcebergPublisher
from capture.publishers.spi import ColumnStatistics, Destination, LostRace, TableStatistics
from store.model.errors import InvalidArgument, NotFound, StatflightError, UpstreamError
from tests.capture.connectors.iceberg_tables import publish_thetas
from tests.datasketches_package import datasketches
from tests.integration.aws_server import KEY, SECRET, process
from tests.integration.test_object_stores import ROWS, capture_and_scan

pytest.importorskip("pyiceberg")
pytestmark = pytest.mark.usefixtures("nothing_secret_is_logged")
TOKEN, NEW_TOKEN = "the-first-hush-hush-token", "the-second-hush-hush-token"
_REST = (Path(__file__).parents[1] / "capture/connectors/rest_server.py").read_text()


class Rest:
    """A running REST catalog."""

    def __init__(self, folder: Path, port: str):
        self.folder, self.uri = folder, f"http://127.0.0.1:{port}"

    def fault(self, **what) -> None:
        (self.folder / "fault").write_text(json.dumps(what))

    def protect(self, token: str) -> None:
        (self.folder / "token").write_text(token)

    def require_signature(self, secret: str, session: str = "") -> None:
        settings = {
            "access_key": KEY,
            "secret": secret,
            "region": "us-east-1",
            "service": "execute-api",
            "session": session,
        }
        (self.folder / "aws").write_text(json.dumps(settings))

    def requests(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()

    def config(self, **options: str) -> ConnectorConfig:
        return ConnectorConfig("c", "iceberg", self.uri, options)

    def client(self):
        from pyiceberg.catalog import load_catalog

        return load_catalog("c", type="rest", uri=self.uri)


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rest")
    with process(_REST, str(folder)) as port:
        server = Rest(folder, port)
        catalog = server.client()
        for namespace in ("sales", ("sales", "eu")):
            catalog.create_namespace(namespace)
            catalog.create_table(
                (*((namespace,) if isinstance(namespace, str) else namespace), "points"), ROWS.schema
            ).append(ROWS)
        yield server


@pytest.fixture
def rest(rest_server):
    yield rest_server
    for name in ("fault", "token", "aws", "page"):
        (rest_server.folder / name).unlink(missing_ok=True)


# REST.


def test_rest_tables_are_captured_and_scanned(rest):
    capture_and_scan(rest.config(), "sales", "points")
    capture_and_scan(rest.config(), "sales.eu", "points")


def test_rest_listing_reads_all_pages(rest):
    catalog = rest.client()
    catalog.create_namespace("many")
    names = [f"t{number}" for number in range(7)]
    for name in names:
        catalog.create_table(("many", name), ROWS.schema)
    (rest.folder / "page").write_text("2")
    connector = open_connector(rest.config())
    before = len(rest.requests())
    assert sorted(connector.list_tables("many")) == names
    assert len(rest.requests()) - before >= 4
    assert {"many", "sales", "sales.eu"} <= set(connector.list_namespaces())
    connector.close()
    for name in names:
        catalog.drop_table(("many", name))


def test_renamed_or_dropped_table_is_not_found(rest):
    catalog = rest.client()
    catalog.create_table(("sales", "brief"), ROWS.schema).append(ROWS)
    connector = open_connector(rest.config())
    uuid = connector.describe("sales", "brief").table_id
    catalog.rename_table(("sales", "brief"), ("sales", "lasting"))
    assert connector.describe("sales", "lasting").table_id == uuid
    with pytest.raises(NotFound, match=r"sales\.brief"):
        connector.describe("sales", "brief")
    catalog.drop_table(("sales", "lasting"))
    assert connector.list_tables("sales") == ["points"]
    with pytest.raises(NotFound, match=r"sales\.lasting"):
        connector.enumerate_snapshots("sales", "lasting")
    connector.close()


def test_token_is_sent_and_reread_from_the_secrets_file(rest, tmp_path, monkeypatch):
    rest.protect(TOKEN)
    secrets = tmp_path / "secrets.toml"
    monkeypatch.setenv("STATFLIGHT_SECRETS_FILE", str(secrets))
    secrets.write_text(f'[lake]\ntoken = "{TOKEN}"\n')
    capture_and_scan(rest.config(secret="lake"), "sales", "points")
    rest.protect(NEW_TOKEN)
    with pytest.raises(StatflightError) as refused:
        open_connector(rest.config(secret="lake")).list_namespaces()
    assert TOKEN not in str(refused.value) and NEW_TOKEN not in str(refused.value)
    secrets.write_text(f'[lake]\ntoken = "{NEW_TOKEN}"\n')
    capture_and_scan(rest.config(secret="lake"), "sales", "points")
    with pytest.raises(StatflightError, match=r"nauthorized|not valid"):
        open_connector(rest.config()).list_namespaces()


@pytest.mark.parametrize("status", [500, 503, 429])
def test_failed_request_is_retried_until_the_catalog_recovers(rest, status):
    connector = open_connector(rest.config())
    assert connector.list_tables("sales") == ["points"]
    before = len(rest.requests())
    rest.fault(status=status, times=2)
    assert connector.describe("sales", "points").name == "points"
    assert [line.rpartition(" ")[2] for line in rest.requests()[before:]] == [str(status), str(status), "200"]
    connector.close()


def test_catalog_outage_raises_a_retryable_error(rest):
    connector = open_connector(rest.config())
    assert connector.list_tables("sales") == ["points"]
    rest.fault(status=503, times=9)
    with pytest.raises(UpstreamError, match=r'table "sales\.points"') as refused:
        connector.describe("sales", "points")
    assert refused.value.retryable
    connector.close()


@pytest.mark.parametrize("at", ["first", "later"])
def test_hanging_catalog_times_out_with_a_retryable_error(rest, at):
    connector = open_connector(rest.config(timeout="2"))
    if at == "later":
        assert connector.list_tables("sales") == ["points"]
    rest.fault(seconds=30, times=1)  # a second request would succeed
    with pytest.raises(UpstreamError, match="cannot be reached") as refused:
        connector.list_tables("sales")
    assert refused.value.retryable
    connector.close()


def test_publish_to_rest_and_read_back(rest):
    _publish(open_connector(rest.config()), "sales.eu", "points")


SIGNING = {
    "rest.sigv4-enabled": "true",
    "rest.signing-region": "us-east-1",
    "rest.signing-name": "execute-api",
    "client.region": "us-east-1",
}


def test_requests_are_signed_with_sigv4(rest):
    """The server recomputes each signature, also of nested namespaces, queries and commits."""
    pytest.importorskip("boto3")
    rest.require_signature(SECRET)
    options = {**SIGNING, "client.access-key-id": KEY, "client.secret-access-key": SECRET}
    capture_and_scan(rest.config(**options), "sales", "points")
    _publish(open_connector(rest.config(**options)), "sales.eu", "points")


@pytest.mark.parametrize(
    "wrong",
    [
        {"client.secret-access-key": "hush-hush-but-wrong"},
        {"rest.signing-name": "glue"},
        {"rest.sigv4-enabled": "false"},
    ],
)
def test_error_of_a_wrong_signature_shows_no_secret(rest, wrong):
    pytest.importorskip("boto3")
    rest.require_signature(SECRET)
    options = {**SIGNING, "client.access-key-id": KEY, "client.secret-access-key": SECRET} | wrong
    with pytest.raises(StatflightError, match=r"signature|not signed") as refused:
        open_connector(rest.config(**options)).list_namespaces()
    assert SECRET not in str(refused.value) and "hush-hush" not in str(refused.value)


def test_signing_keys_are_read_from_the_environment(rest, monkeypatch, tmp_path):
    pytest.importorskip("boto3")
    rest.require_signature(SECRET)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidArgument, match="AWS credentials"):
        open_connector(rest.config(**SIGNING)).list_namespaces()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    capture_and_scan(rest.config(**SIGNING), "sales", "points")


def test_session_token_is_part_of_the_signature(rest, monkeypatch):
    pytest.importorskip("boto3")
    rest.require_signature(SECRET, NEW_TOKEN)
    keys = {**SIGNING, "client.access-key-id": KEY, "client.secret-access-key": SECRET}
    capture_and_scan(rest.config(**keys, **{"client.session-token": NEW_TOKEN}), "sales", "points")
    with pytest.raises(StatflightError, match="session token") as refused:
        open_connector(rest.config(**keys, **{"client.session-token": TOKEN})).list_namespaces()
    assert TOKEN not in str(refused.value) and SECRET not in str(refused.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", NEW_TOKEN)
    capture_and_scan(rest.config(**SIGNING), "sales", "points")


# Glue.


def test_publish_to_glue_and_read_back(aws):
    pytest.importorskip("boto3")
    from pyiceberg.catalog import load_catalog

    options = {**aws.iceberg, **aws.glue, "warehouse": f"s3://{aws.bucket}/wh"}
    namespace = f"p{aws.bucket[5:]}"
    catalog = load_catalog("c", type="glue", **options)
    catalog.create_namespace(namespace)
    catalog.create_table((namespace, "points"), ROWS.schema).append(ROWS)
    connector = open_connector(ConnectorConfig("c", "iceberg", "glue://", options))
    _publish(connector, namespace, "points")
    table = catalog.load_table((namespace, "points"))
    assert table.metadata.metadata_log and table.scan().to_arrow().num_rows == ROWS.num_rows
    assert not _files_beside(table, ".stats") - {file.statistics_path for file in table.metadata.statistics}


def test_lost_race_in_glue_leaves_no_file(aws):
    pytest.importorskip("boto3")
    from pyiceberg.catalog import load_catalog

    options = {**aws.iceberg, **aws.glue, "warehouse": f"s3://{aws.bucket}/wh"}
    namespace = f"r{aws.bucket[5:]}"
    catalog = load_catalog("c", type="glue", **options)
    catalog.create_namespace(namespace)
    catalog.create_table((namespace, "points"), ROWS.schema).append(ROWS)
    config = ConnectorConfig("c", "iceberg", "glue://", options)
    connector = open_connector(config)
    current = connector.enumerate_snapshots(namespace, "points").current_snapshot_id
    columns = (ColumnStatistics(1, "id", "INT", ndv=5.0, theta=b"x"),)
    publisher = IcebergPublisher(Destination(connector, config), TableStatistics(namespace, "points", current, columns))
    draft = publisher.prepare()
    catalog.load_table((namespace, "points")).append(ROWS)
    table = catalog.load_table((namespace, "points"))
    before = _files_beside(table, "")
    with pytest.raises(LostRace):
        publisher.write(draft)
    assert _files_beside(table, "") == before
    connector.close()


def _files_beside(table, ending: str) -> set[str]:
    """Full names of the files beside a table's metadata."""
    folder = table.metadata_location.rpartition("/")[0]
    place = open_place(folder, table.io.properties)
    infos = place.file_system.get_file_info(pafs.FileSelector(place.path))
    return {f"{folder}/{info.base_name}" for info in infos if info.base_name.endswith(ending)}


def test_glue_without_credentials_or_server_raises_a_clear_error(aws, monkeypatch):
    pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    bare = ConnectorConfig("c", "iceberg", "glue://", {"glue.endpoint": aws.endpoint, "glue.region": "us-east-1"})
    with pytest.raises(StatflightError, match="redentials"):
        open_connector(bare).list_namespaces()
    unreachable = {**aws.glue, "glue.endpoint": "http://127.0.0.1:9", "timeout": "1"}
    with pytest.raises(StatflightError) as refused:
        open_connector(ConnectorConfig("c", "iceberg", "glue://", unreachable)).list_namespaces()
    assert SECRET not in str(refused.value)


def _publish(connector, namespace: str, name: str) -> None:
    current = connector.enumerate_snapshots(namespace, name).current_snapshot_id
    theta = datasketches.update_theta_sketch()
    for value in range(100):
        theta.update(value)
    data = theta.compact().serialize()
    written = publish_thetas(connector, namespace, name, current, [(1, data, 100.0)])
    assert written.columns == ("c1",)
    native = connector.capture_snapshot_target_stats(namespace, name, current, {"id": 1, "label": 2})
    assert [(column, content) for column, _, _, content, _ in native.sketches] == [(1, data)]
    connector.close()


# Unity.

_UNITY = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import threading
settings = json.loads(sys.argv[1])
fault = {"times": 0}

class Handler(BaseHTTPRequestHandler):
    def answer(self, body, status=200):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        path, _, query = self.path.removeprefix("/api/2.1/unity-catalog/").partition("?")
        if path.startswith("fault/"):
            _, fault["status"], fault["times"] = path.split("/")
            fault["times"] = int(fault["times"])
            return self.answer({})
        if fault["times"] > 0:
            fault["times"] -= 1
            if fault["status"] == "hang":
                time.sleep(30)
            return self.answer({}, 503 if fault["status"] == "hang" else int(fault["status"]))
        if self.headers["Authorization"] != "Bearer " + settings["token"]:
            return self.answer({}, 401)
        table = {"name": "points", "data_source_format": "DELTA", "table_id": "t-1",
                 "storage_location": settings["location"]}
        if path == "schemas":
            return self.answer({"schemas": [{"name": "sales"}]})
        if path == "tables":
            return self.answer({"tables": [table]})
        self.answer(table, 200) if path == "tables/main.sales.points" else self.answer({}, 404)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"aws_temp_credentials": settings["keys"]})

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def unity(aws):
    deltalake = pytest.importorskip("deltalake")
    location = f"s3://{aws.bucket}/lake/points"
    deltalake.write_deltalake(location, ROWS, storage_options=aws.options)
    keys = {"access_key_id": "an-access-key", "secret_access_key": SECRET, "session_token": "a-session"}
    with process(_UNITY, json.dumps({"token": TOKEN, "location": location, "keys": keys})) as port:
        options = {
            "token": TOKEN,
            "unity_allow_http_url": "true",
            "aws_endpoint": aws.endpoint,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }
        yield ConnectorConfig("c", "delta", f"uc://127.0.0.1:{port}/main", options)


def _unity_fault(config: ConnectorConfig, status: object, times: int) -> None:
    from urllib.request import urlopen

    host = config.uri.removeprefix("uc://").partition("/")[0]
    urlopen(f"http://{host}/api/2.1/unity-catalog/fault/{status}/{times}").close()


def test_unity_table_is_read_with_vended_credentials(unity):
    capture_and_scan(unity, "sales", "points")


def test_unity_errors_are_retried_and_timeouts_are_retryable(unity):
    _unity_fault(unity, 503, 2)
    assert open_connector(unity).list_tables("sales") == ["points"]
    _unity_fault(unity, "hang", 1)
    impatient = ConnectorConfig("c", "delta", unity.uri, {**unity.options, "timeout": "500ms"})
    with pytest.raises(UpstreamError, match=r"did not answer within 0\.5 s") as refused:
        open_connector(impatient).list_tables("sales")
    assert refused.value.retryable
