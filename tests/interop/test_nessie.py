"""Iceberg tables of a Nessie server on S3: captured, and statistics published through its catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.flight_server.live_server import Client, capture, serving
from tests.integration.aws_server import KEY, SECRET, Aws, aws, aws_port
from tests.interop.processes import downloaded, free_port, require, running
from tests.interop.trino_server import java

__all__ = ["aws", "aws_port"]

pytestmark = pytest.mark.interop

VERSION = "0.99.0"


@pytest.fixture
def nessie(aws: Aws, tmp_path: Path) -> Iterator[str]:
    """The address of its Iceberg REST catalog."""
    artifact = f"-Dartifact=org.projectnessie.nessie:nessie-quarkus:{VERSION}:jar:runner"
    downloaded(
        f"Nessie {VERSION}", [require("mvn"), "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={tmp_path}"]
    )
    folder, port = tmp_path / "nessie", free_port()
    folder.mkdir()
    s3 = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.enabled": "false",
        "quarkus.otel.sdk.disabled": "true",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "warehouse",
        "nessie.catalog.warehouses.warehouse.location": f"s3://{aws.bucket}/wh",
        f"{s3}.endpoint": aws.endpoint,
        f"{s3}.path-style-access": "true",
        f"{s3}.region": "us-east-1",
        f"{s3}.access-key": "urn:nessie-secret:quarkus:statflight.s3",
        "statflight.s3.name": KEY,
        "statflight.s3.secret": SECRET,
    }
    command = [
        java(),
        *(f"-D{name}={value}" for name, value in settings.items()),
        "-jar",
        tmp_path / f"nessie-quarkus-{VERSION}-runner.jar",
    ]
    uri = f"http://127.0.0.1:{port}/iceberg"
    with running(command, folder, port, lambda: answers(f"{uri}/v1/config")):
        yield uri


def answers(url: str) -> bool:
    try:
        with urlopen(url) as answer:
            return bool(answer.status == 200)
    except URLError:
        return False


def current(client: Client) -> dict[str, tuple[object, ...]]:
    """Column → what is told of the current snapshot."""
    rows = client.get({"table": "stats.columns", "snapshot": "current"}).to_pylist()
    told = ("row_count", "null_count", "min", "max", "ndv", "freshness")
    return {row["column_name"]: tuple(row[name] for name in told) for row in rows}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_tables_of_nessie_are_captured_and_get_statistics(nessie: str, aws: Aws, tmp_path: Path):
    catalog: Catalog = load_catalog("nessie", type="rest", uri=nessie, **aws.iceberg)
    catalog.create_namespace("shop")
    rows = pa.table({"id": pa.array(range(1000), pa.int64()), "kind": [f"k{i % 7}" for i in range(999)] + [None]})
    table = catalog.create_table("shop.orders", rows.schema)
    table.append(rows)
    connector = {"catalog": "lake", "format": "iceberg", "uri": nessie, "options": {"type": "rest", **aws.iceberg}}
    with serving(tmp_path, "--workers", 1) as server, server.connect() as client:
        client.act("register_connector", connector)
        capture(client, "lake.shop.orders")
        assert current(client) == {
            "id": (1000, 0, "0", "999", 1000, "EXACT"),
            "kind": (1000, 1, "k0", "k6", 7, "EXACT"),
        }
        table.append(pa.table({"id": pa.array([5000], pa.int64()), "kind": ["new"]}))
        capture(client, "lake.shop.orders")
        assert current(client) == {
            "id": (1001, 0, "0", "5000", 1001, "EXACT"),
            "kind": (1001, 1, "k0", "new", 8, "EXACT"),
        }
        client.act("publish", {"table": "lake.shop.orders", "to": "iceberg"})
        assert SECRET not in server.log.read_text()
    published = catalog.load_table("shop.orders").metadata.statistics
    assert [file.snapshot_id for file in published] == [table.refresh().current_snapshot().snapshot_id]
    assert {blob.fields[0]: blob.properties["ndv"] for blob in published[0].blob_metadata} == {1: "1001", 2: "8"}
