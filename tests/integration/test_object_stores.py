"""Every format on an object store, through every step: listed, described, captured and scanned."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.compute.readers.tasks import read
from capture.connectors import open_connector
from capture.connectors.options import patient
from capture.connectors.spi import ConnectorConfig
from store.model.errors import StatflightError, UpstreamError
from tests.integration.aws_server import SECRET, process

ROWS = pa.table(
    {"id": pa.array(range(100), pa.int64()), "label": [None if i % 4 == 0 else f"v{i}" for i in range(100)]}
)

pytestmark = pytest.mark.usefixtures("nothing_secret_is_logged")


def capture_and_scan(
    config: ConnectorConfig, namespace: str, name: str, rows: int = 100, *, bounds: bool = True
) -> dict:
    """Lists, describes, captures and scans a table; returns its description, statistics and connector."""
    connector = open_connector(config)
    try:
        assert namespace in connector.list_namespaces()
        assert name in connector.list_tables(namespace)
        table = connector.describe(namespace, name)
        assert [column.name for column in table.schema.columns] == ["id", "label"]
        ids = {c.name: c.field_id or i for i, c in enumerate(table.schema.columns, 1)}
        listing = connector.enumerate_snapshots(namespace, name)
        current = listing.current_snapshot_id
        assert current in listing.live_snapshot_ids
        native = connector.capture_snapshot_target_stats(namespace, name, current, ids)
        assert native.row_count == rows and native.total_size_bytes > 0
        by_column = {row["column_name"]: row for part in native.file_columns() for row in part.to_pylist()}
        if bounds:
            assert (by_column["id"]["min"], by_column["label"]["null_count"]) == ("0", 25)
        found: dict[str, list] = {}
        files = set(native.files["file_path"].to_pylist())
        for task in connector.plan_files(namespace, name, current, ids):
            assert task.file_path in files
            for column, values in read(task, task.columns):
                found.setdefault(column.name, []).extend(values.to_pylist())
        assert sorted(found["id"]) == list(range(rows))
        assert SECRET not in repr(config) + repr(table) + repr(connector)
        return {"table": table, "native": native, "connector": connector}
    finally:
        connector.close()


def test_parquet_on_s3_is_captured_and_scanned(aws):
    system = aws.file_system()
    pq.write_table(ROWS[:50], f"{aws.bucket}/lake/points/a.parquet", filesystem=system)
    pq.write_table(ROWS[50:], f"{aws.bucket}/lake/points/b.parquet", filesystem=system)
    connector = open_connector(ConnectorConfig("c", "parquet", f"s3://{aws.bucket}/lake", aws.options))
    assert connector.list_tables("default") == ["points"]
    found = capture_and_scan(
        ConnectorConfig("c", "parquet", f"s3://{aws.bucket}/lake", aws.options), "default", "points", bounds=False
    )
    assert found["native"].files["file_path"][0].as_py() == f"s3://{aws.bucket}/lake/points/a.parquet"
    one = f"s3://{aws.bucket}/lake/points/a.parquet"
    capture_and_scan(ConnectorConfig("c", "parquet", one, aws.options), "default", "a", 50, bounds=False)


def test_delta_on_s3_is_captured_and_scanned(aws):
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(f"s3://{aws.bucket}/lake/points", ROWS, storage_options=aws.options)
    capture_and_scan(ConnectorConfig("c", "delta", f"s3://{aws.bucket}/lake", aws.options), "default", "points")
    capture_and_scan(ConnectorConfig("c", "delta", f"s3://{aws.bucket}/lake/points", aws.options), "default", "points")


def test_lance_on_s3_is_captured_and_scanned(aws):
    lance = pytest.importorskip("lance")
    lance.write_dataset(ROWS, f"s3://{aws.bucket}/lake/points.lance", storage_options=aws.options)
    capture_and_scan(
        ConnectorConfig("c", "lance", f"s3://{aws.bucket}/lake", aws.options), "default", "points", bounds=False
    )


def test_hudi_on_s3_is_captured_and_scanned(aws, tmp_path):
    pytest.importorskip("hudi")
    _write_hudi(aws, tmp_path)
    config = ConnectorConfig("c", "hudi", f"s3://{aws.bucket}/lake", aws.options)
    found = capture_and_scan(config, "default", "points", bounds=False)
    assert found["native"].files["file_path"][0].as_py().startswith(f"s3://{aws.bucket}/lake/points/")


def test_hudi_table_in_a_store_that_cannot_be_reached_is_worth_another_try(aws, tmp_path):
    pytest.importorskip("hudi")
    _write_hudi(aws, tmp_path)
    for_library = {"s3.endpoint_url": aws.options["aws_endpoint"], "aws_endpoint": "http://127.0.0.1:1", "timeout": "1"}
    lake = open_connector(ConnectorConfig("c", "hudi", f"s3://{aws.bucket}/lake", aws.options | for_library))
    with pytest.raises(UpstreamError, match=r'table "default.points" cannot be read') as refused:
        lake.describe("default", "points")
    assert refused.value.retryable and SECRET not in str(refused.value) and "/" not in refused.value.message


def test_lance_on_s3_below_a_folder_with_an_odd_name_is_captured_and_scanned(aws):
    lance = pytest.importorskip("lance")
    lance.write_dataset(ROWS, f"s3://{aws.bucket}/a%2520b%3Fc%23d/points.lance", storage_options=aws.options)
    place = f"s3://{aws.bucket}/a%20b?c#d"
    found = capture_and_scan(ConnectorConfig("c", "lance", place, aws.options), "default", "points", bounds=False)
    assert found["table"].location == f"{place}/points.lance"
    assert found["native"].files["file_path"][0].as_py().startswith(f"{place}/points.lance/data/")


def write_paimon(warehouse: Path) -> None:
    """Table `sales.points`."""
    import pypaimon

    catalog = pypaimon.CatalogFactory.create({"warehouse": str(warehouse)})
    catalog.create_database("sales", True)
    catalog.create_table(
        "sales.points", pypaimon.Schema.from_pyarrow_schema(ROWS.schema, options={"metadata.stats-mode": "full"}), False
    )
    table = catalog.get_table("sales.points")
    builder = table.new_batch_write_builder()
    writer = builder.new_write()
    writer.write_arrow(ROWS)
    builder.new_commit().commit(writer.prepare_commit())
    writer.close()


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")
def test_paimon_on_s3_is_captured_and_scanned(aws, tmp_path):
    pytest.importorskip("pypaimon")
    write_paimon(tmp_path)
    system = aws.file_system()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            with system.open_output_stream(f"{aws.bucket}/wh/{path.relative_to(tmp_path)}") as out:
                out.write(path.read_bytes())
    capture_and_scan(ConnectorConfig("c", "paimon", f"s3://{aws.bucket}/wh", aws.options), "sales", "points")


def test_iceberg_on_s3_is_captured_and_scanned_with_and_without_a_catalog(aws, tmp_path):
    pytest.importorskip("pyiceberg")
    uri = f"sqlite:///{tmp_path}/catalog.db"
    options = {**aws.iceberg, "warehouse": f"s3://{aws.bucket}/wh"}
    _write_iceberg("sql", uri=uri, **options)
    found = capture_and_scan(ConnectorConfig("c", "iceberg", uri, options), "sales", "points")
    capture_and_scan(ConnectorConfig("c", "iceberg", f"s3://{aws.bucket}/wh", aws.options), "sales", "points")
    location = found["table"].location
    assert location.startswith("s3://")


def test_iceberg_in_glue_is_captured_and_scanned_after_a_rename(aws):
    pytest.importorskip("pyiceberg")
    pytest.importorskip("boto3")
    options = {**aws.iceberg, **aws.glue, "warehouse": f"s3://{aws.bucket}/wh"}
    catalog = _write_iceberg("glue", namespace=f"n{aws.bucket[5:]}", **options)
    capture_and_scan(ConnectorConfig("c", "iceberg", "glue://", options), f"n{aws.bucket[5:]}", "points")
    catalog.rename_table((f"n{aws.bucket[5:]}", "points"), (f"n{aws.bucket[5:]}", "dots"))
    capture_and_scan(ConnectorConfig("c", "iceberg", "glue://", options), f"n{aws.bucket[5:]}", "dots")


def _write_iceberg(kind: str, namespace: str = "sales", **properties: str):
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("c", type=kind, **properties)
    catalog.create_namespace(namespace)
    catalog.create_table((namespace, "points"), ROWS.schema).append(ROWS)
    return catalog


@pytest.mark.parametrize("format", ["parquet", "delta", "hudi", "lance", "iceberg", "paimon"])
def test_error_of_a_missing_lake_names_its_uri_and_no_secret(aws, format, monkeypatch):
    nowhere = ConnectorConfig("c", format, f"s3://{aws.bucket}/nowhere", aws.options)
    with pytest.raises(StatflightError) as refused:
        open_connector(nowhere).list_namespaces()
    assert f"s3://{aws.bucket}/nowhere" in str(refused.value) and SECRET not in str(refused.value)
    with pytest.raises(StatflightError) as refused:
        open_connector(ConnectorConfig("c", format, "s3://no-such-bucket/x", aws.options)).list_namespaces()
    assert SECRET not in str(refused.value)


_FAILS_ONCE = """
import sys, threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
port, status = int(sys.argv[1]), int(sys.argv[2])
seen = set()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = (self.command, self.path, self.headers.get("Range"))
        if request not in seen:
            seen.add(request)
            return self.answer(status, b"", [])
        upstream = HTTPConnection("127.0.0.1", port)
        upstream.request(self.command, self.path, body, dict(self.headers))
        answer = upstream.getresponse()
        self.answer(answer.status, answer.read(), answer.getheaders())
        upstream.close()

    def answer(self, status, content, headers):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length") or (
                    name.lower() == "content-length" and self.command == "HEAD"):
                self.send_header(name, value)
        if self.command != "HEAD" or not headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_POST = do_GET

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("format", ["parquet", "delta", "lance", "iceberg"])
def test_failed_requests_to_the_store_are_retried(aws, format):
    """Every request fails the first time."""
    write = {"parquet": _write_parquet, "delta": _write_delta, "lance": _write_lance, "iceberg": _write_warehouse}
    pytest.importorskip(
        {"delta": "deltalake", "iceberg": "pyiceberg"}.get(format, format.replace("parquet", "pyarrow"))
    )
    write[format](aws)
    with process(_FAILS_ONCE, str(aws.port), "500") as port:
        options = {**aws.options, "aws_endpoint": f"http://127.0.0.1:{port}"}
        config = ConnectorConfig("c", format, f"s3://{aws.bucket}/lake", options)
        namespace = "sales" if format == "iceberg" else "default"
        capture_and_scan(config, namespace, "points", bounds=format in ("delta", "iceberg"))


def test_lance_dataset_in_a_store_that_cannot_be_reached_is_worth_another_try(aws):
    pytest.importorskip("lance")
    _write_lance(aws)
    for_library = {"s3.endpoint_url": aws.options["aws_endpoint"], "aws_endpoint": "http://127.0.0.1:1", "timeout": "1"}
    lake = open_connector(ConnectorConfig("c", "lance", f"s3://{aws.bucket}/lake", aws.options | for_library))
    assert lake.list_tables("default") == ["points"]
    with pytest.raises(UpstreamError, match=r'table "default.points" cannot be read') as refused:
        lake.describe("default", "points")
    assert refused.value.retryable and SECRET not in str(refused.value) and "/" not in refused.value.message


def _write_parquet(aws) -> None:
    pq.write_table(ROWS, f"{aws.bucket}/lake/points/a.parquet", filesystem=aws.file_system())


def _write_delta(aws) -> None:
    import deltalake

    deltalake.write_deltalake(f"s3://{aws.bucket}/lake/points", ROWS, storage_options=aws.options)


def _write_hudi(aws, directory) -> None:
    from tests.capture.connectors.hudi.hudi_tables import HudiTable

    written = HudiTable(directory / "points")
    written.commit("20260101000000000", {"aaaaaaaa-0000-0000-0000-000000000001": ROWS})
    pa.fs.copy_files(
        str(written.path), f"{aws.bucket}/lake/points", destination_filesystem=aws.file_system(), chunk_size=1 << 20
    )


def _write_lance(aws) -> None:
    import lance

    lance.write_dataset(ROWS, f"s3://{aws.bucket}/lake/points.lance", storage_options=aws.options)


def _write_warehouse(aws) -> None:
    _write_iceberg("sql", uri="sqlite://", warehouse=f"s3://{aws.bucket}/lake", **aws.iceberg).close()


_HANGING = """
import socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
connections = []
def accept():
    while True:
        connections.append(server.accept()[0])
threading.Thread(target=accept, daemon=True).start()
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def hanging():
    with process(_HANGING) as port:
        yield f"http://127.0.0.1:{port}"


def test_hanging_store_times_out_with_a_retryable_error(hanging):
    options = {
        "aws_endpoint": hanging,
        "aws_access_key_id": "k",
        "aws_secret_access_key": SECRET,
        "aws_region": "r",
        "aws_allow_http": "true",
        "timeout": "0.5",
    }
    started = time.monotonic()
    with pytest.raises(UpstreamError) as refused:
        open_connector(ConnectorConfig("c", "parquet", "s3://bucket/lake", options)).list_namespaces()
    assert refused.value.retryable and time.monotonic() - started < 60


@pytest.mark.parametrize("format", ["delta", "lance"])
def test_timeout_applies_to_stores_of_format_libraries(hanging, format):
    library = pytest.importorskip({"delta": "deltalake", "lance": "lance"}[format])
    storage = {
        "aws_endpoint": hanging,
        "aws_access_key_id": "k",
        "aws_secret_access_key": SECRET,
        "aws_region": "r",
        "aws_allow_http": "true",
    }
    started = time.monotonic()
    with pytest.raises((OSError, ValueError)):
        opened = library.DeltaTable if format == "delta" else library.dataset
        opened("s3://bucket/lake", storage_options=patient(storage, {"timeout": "0.5"}))
    assert time.monotonic() - started < 60
