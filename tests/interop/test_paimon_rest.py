"""Tables of Paimon's own REST catalog, the server of its tests in Java."""

from __future__ import annotations

import json
import urllib.request

import pytest

from tests.capture.connectors.paimon.rest_contract import TOKEN, RestContract
from tests.capture.connectors.paimon.warehouse import Warehouse, rows
from tests.flight_server.live_server import serving
from tests.interop.java import jars, jvm

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning"),  # of the library's writer
]

COORDINATES = (
    "org.apache.paimon:paimon-core:1.3.1",
    "org.apache.paimon:paimon-core:1.3.1:test-jar",
    "org.apache.paimon:paimon-format:1.3.1",
    "com.squareup.okhttp3:mockwebserver:4.12.0",
    "org.apache.hadoop:hadoop-client-api:3.3.6",
    "org.apache.hadoop:hadoop-client-runtime:3.3.6",
)
OLDER = ("hadoop-annotations-", "hadoop-auth-", "hadoop-common-")  # of which the client of Hadoop has newer classes


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a catalog, and its warehouse."""
    folder = tmp_path_factory.mktemp("paimon")
    class_path = [jar for jar in jars(folder / "jars", COORDINATES) if not jar.name.startswith(OLDER)]
    with jvm(class_path) as java:
        rest, no_options = java.org.apache.paimon.rest, java.java.util.HashMap
        prefix = no_options()
        prefix.put("prefix", "mine")
        config, auth = rest.responses.ConfigResponse(prefix, no_options()), rest.auth.BearTokenAuthProvider(TOKEN)
        catalog = rest.RESTCatalogServer(str(folder / "wh"), auth, config, "wh")
        catalog.start()
        uri = catalog.getUrl().rstrip("/")
        options = {"metastore": "rest", "uri": uri, "warehouse": "wh", "token.provider": "bear", "token": TOKEN}
        yield uri, Warehouse(folder / "wh", **options)
        catalog.shutdown()


@pytest.fixture(scope="module")
def catalog(server):
    """The address of the catalog, with a table."""
    uri, warehouse = server
    warehouse.create("events", partition_keys=["part"], options={"metastore.partitioned-table": "true"})
    warehouse.write("events", rows(0, 100), rows(100, 200))
    return uri


def partitions(uri):
    """Rows, files and bytes by partition, as the catalog has them."""
    request = urllib.request.Request(
        f"{uri}/v1/mine/databases/sales/tables/events/partitions", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request) as answer:
        found = json.loads(answer.read())["partitions"]
    return {json.dumps(p["spec"]): (p["recordCount"], p["fileCount"], p["fileSizeInBytes"]) for p in found}


class TestRest(RestContract):
    """See `RestContract`."""


def test_partitions_have_the_figures_that_commits_gave_to_the_catalog(catalog, tmp_path):
    with serving(tmp_path, "--workers", 1) as statflight, statflight.connect() as client:
        options = {"warehouse": "wh", "token": TOKEN}
        client.act("register_connector", {"catalog": "p", "format": "paimon", "uri": catalog, "options": options})
        client.act("discover", {"catalog": "p"})
        (outcome,) = client.act("capture", {"requests": [{"table": "p.sales.events"}]})
        assert outcome["outcome"] == "CAPTURED"
        served = client.get({"table": "stats.partitions"}).to_pylist()
    assert len(served) == 2
    figures = ("row_count", "file_count", "size_bytes")
    assert partitions(catalog) == {row["partition_data_json"]: tuple(row[f] for f in figures) for row in served}
