"""Publications beside a writer, and of a wide table.

200 publications of each home while another process appends in a loop: no append may be lost, no file left behind. A
table of 500 columns, captured by a live server, published to each home.
`python -m pytest tests/benchmarks/bench_publish.py -m benchmark -s`
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from capture.connectors.parquet.connector import ParquetConnector
from capture.connectors.spi import ConnectorConfig
from capture.publishers import files
from capture.publishers.publishing import publish
from capture.publishers.spark_catalog import SparkCatalogPublisher
from capture.publishers.spi import Destination, LostRace
from capture.spark.session import Spark
from flight_server.client.connection import Connection
from flight_server.publishing.work import stored_statistics
from store.model.errors import Conflict
from tests.capture.connectors.iceberg_tables import make_catalog
from tests.capture.publishers import test_hive as hive_fake
from tests.capture.publishers.contract import rows
from tests.capture.publishers.test_glue import glue
from tests.capture.publishers.test_glue import options as glue_options
from tests.capture.publishers.test_hive import metastore
from tests.flight_server.live_server import Client, serving
from tests.integration.publishing import CONTRACTS, contract_of, reopened

__all__ = ["glue", "metastore"]
pytestmark = pytest.mark.benchmark

PUBLICATIONS = 200
COLUMNS = 500

_APPENDING = """
import sys, time
from pathlib import Path
from tests.integration.publishing import contract_of, reopened
from tests.capture.connectors.iceberg_tables import make_catalog
from tests.capture.publishers.contract import rows
home, root = sys.argv[1], Path(sys.argv[2])
contract, table, count = contract_of(home), reopened(home, root), 0
print("ready", flush=True)
while not (root / "stop").exists():
    contract.append(table, rows(10_000 + count, 10_001 + count))
    count += 1
    time.sleep(0.1)
print(count, flush=True)
"""


@pytest.mark.parametrize("home", CONTRACTS)
def test_beside_an_appending_writer(home, tmp_path, monkeypatch):
    contract = contract_of(home)
    contract.build(tmp_path)
    writer = subprocess.Popen(
        [sys.executable, "-c", _APPENDING, home, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    table, done, stale, lost, times = reopened(home, tmp_path), 0, 0, 0, []
    for _ in range(PUBLICATIONS):
        started = time.perf_counter()
        try:
            publish(table.publisher())
            done += 1
        except LostRace:
            lost += 1
        except Conflict:
            stale += 1
        times.append(time.perf_counter() - started)
    (tmp_path / "stop").touch()
    appended = int(writer.stdout.read())
    assert writer.wait() == 0
    writer.stdout.close()
    assert contract.count(table) == 150 + appended
    monkeypatch.setattr(files, "ORPHAN_SECONDS", 0.0)
    assert publish(table.publisher()).state == "CURRENT"
    print(
        f"\n{home}: {PUBLICATIONS} publications beside {appended} appends, none lost: {done} done, {stale} refused for "
        f"the table had moved on, {lost} lost every race; {sum(times) / len(times) * 1000:.0f} ms each"
    )


@pytest.mark.parametrize("home", ["trino", "lance", "iceberg", "paimon", "glue", "hive", "spark"])
def test_table_of_500_columns(home, tmp_path, request):
    """Through the server's action; to Spark in a running session, as in a worker after its first publication."""
    content = pa.table({f"c{i}": rows(0, 1000)["id"] for i in range(COLUMNS)})
    lake = {"format": {"trino": "delta"}.get(home, home), "uri": str(tmp_path / "lake")}
    options: dict[str, str] = {}
    if home == "trino":
        write_deltalake(tmp_path / "lake/wide", content)
    elif home == "lance":
        lance.write_dataset(content, tmp_path / "lake/wide")
    elif home == "iceberg":
        catalog = make_catalog(tmp_path / "lake")
        catalog.create_namespace("default")
        catalog.create_table("default.wide", content.schema).append(content)
        catalog.close()
        lake["uri"] = str(tmp_path / "lake/warehouse/default")
    elif home == "paimon":
        write_paimon(tmp_path / "lake", content)
        lake["uri"] = str(tmp_path / "lake/default.db")
    else:
        (tmp_path / "lake/wide").mkdir(parents=True)
        pq.write_table(content, tmp_path / "lake/wide/part.parquet")
        lake["format"] = "parquet"
        monkeypatch = request.getfixturevalue("monkeypatch")
        if home == "glue":
            handler, url = request.getfixturevalue("glue")
            options = glue_options(url)
            monkeypatch.setattr(handler, "columns", {f"c{i}": "bigint" for i in range(COLUMNS)}, raising=False)
        elif home == "hive":
            _, options["uri"] = request.getfixturevalue("metastore")
            monkeypatch.setattr(hive_fake, "TYPES", {f"c{i}": "bigint" for i in range(COLUMNS)})
            options["table"] = "t"
    with serving(tmp_path, "--workers", 1) as server, server.connect() as client:
        client.timeout = 600.0
        client.act("register_connector", {"catalog": "lake"} | lake)
        client.act("discover", {"catalog": "lake"})
        targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": i + 1} for i in range(COLUMNS))]
        requests = [{"table": "lake.default.wide", "target": target} for target in targets]
        assert {o["outcome"] for o in client.act("capture", {"requests": requests})} == {"CAPTURED"}
        if home == "spark":
            columns, seconds = published_to_spark(client, server.uri, tmp_path / "lake")
        else:
            started = time.perf_counter()
            (answer,) = client.act("publish", {"table": "lake.default.wide", "to": home, "options": options})
            seconds, columns = time.perf_counter() - started, answer["columns"]
    assert len(columns) == COLUMNS
    print(f"\n{home}: {COLUMNS} columns in {seconds:.2f} s")


def published_to_spark(client: Client, uri: str, lake: Path) -> tuple[tuple[str, ...], float]:
    """Publishes in a Spark session of this process; the columns and the seconds."""
    spark = Spark("local[1]")
    with spark.held() as session:
        session().sql(f"CREATE TABLE wide USING parquet LOCATION '{lake / 'wide'}'")
        session().table("wide").count()
        config, server = ConnectorConfig("lake", "parquet", str(lake)), Connection(uri, None)
        (row,) = client.get({"table": "sys.tables"}).to_pylist()
        name = {"catalog": "lake", "schema": "default", "name": "wide", "full_name": "lake.default.wide"}
        payload = {"table": name, "snapshot_id": row["snapshot_id"], "allow_inherited": False}
        started = time.perf_counter()
        stored = stored_statistics(server, payload, SparkCatalogPublisher.sketches)
        destination = Destination(ParquetConnector(config), config, {}, session)
        publication = publish(SparkCatalogPublisher(destination, stored))
        seconds = time.perf_counter() - started
        server.close()
    spark.stop()
    return publication.columns, seconds


def write_paimon(lake: Path, content: pa.Table) -> None:
    import pypaimon

    catalog = pypaimon.CatalogFactory.create({"warehouse": str(lake)})
    catalog.create_database("default", False)
    catalog.create_table("default.wide", pypaimon.Schema.from_pyarrow_schema(content.schema), False)
    builder = catalog.get_table("default.wide").new_batch_write_builder()
    writer = builder.new_write()
    writer.write_arrow(content)
    builder.new_commit().commit(writer.prepare_commit())
    writer.close()
