"""Publications beside a writer, and of a wide table.

200 publications of each home while another process appends in a loop: no append may be lost, no file left behind. A
table of 500 columns, captured by a live server, published to each home that needs no JVM.
`python -m pytest tests/benchmarks/bench_publish.py -m benchmark -s`
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from capture.publishers.publishing import publish
from capture.publishers.spi import LostRace
from store.errors import Conflict
from tests.capture.connectors.iceberg_tables import make_catalog
from tests.capture.publishers.contract import rows
from tests.flight_server.live_server import serving
from tests.integration.test_publishers import CONTRACTS, reopened

pytestmark = pytest.mark.benchmark

PUBLICATIONS = 200
COLUMNS = 500

_APPENDING = """
import sys, time
from pathlib import Path
from tests.integration.test_publishers import CONTRACTS, reopened
from tests.capture.connectors.iceberg_tables import make_catalog
from tests.capture.publishers.contract import rows
home, root = sys.argv[1], Path(sys.argv[2])
contract, table, count = CONTRACTS[home](), reopened(home, root), 0
print("ready", flush=True)
while not (root / "stop").exists():
    contract.append(table, rows(10_000 + count, 10_001 + count))
    count += 1
    time.sleep(0.1)
print(count, flush=True)
"""


@pytest.mark.parametrize("home", CONTRACTS)
def test_beside_an_appending_writer(home, tmp_path, monkeypatch):
    contract = CONTRACTS[home]()
    contract.build(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", _APPENDING, home, str(tmp_path)], stdout=subprocess.PIPE,
                              text=True, cwd=Path(__file__).parents[2])  # fmt: skip
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    table, done, moved, lost, times = reopened(home, tmp_path), 0, 0, 0, []
    for _ in range(PUBLICATIONS):
        begun = time.perf_counter()
        try:
            publish(table.publisher())
            done += 1
        except LostRace:
            lost += 1
        except Conflict:
            moved += 1
        times.append(time.perf_counter() - begun)
    (tmp_path / "stop").touch()
    appended = int(writer.stdout.read())
    assert writer.wait() == 0
    writer.stdout.close()
    assert contract.count(table) == 150 + appended
    publisher = type(table.publisher())
    if hasattr(publisher, "orphan_seconds"):
        monkeypatch.setattr(publisher, "orphan_seconds", 0.0)
    assert publish(table.publisher()).state == "CURRENT"
    print(
        f"\n{home}: {PUBLICATIONS} publications beside {appended} appends, none lost: {done} done, {moved} refused for "
        f"the table had moved on, {lost} lost every race; {sum(times) / len(times) * 1000:.0f} ms each"
    )


@pytest.mark.parametrize("home", ["trino", "lance", "iceberg"])
def test_a_table_of_500_columns(home, tmp_path):
    content = pa.table({f"c{i}": rows(0, 1000)["id"] for i in range(COLUMNS)})
    lake = {"format": {"trino": "delta"}.get(home, home), "uri": str(tmp_path / "lake")}
    if home == "trino":
        write_deltalake(tmp_path / "lake/wide", content)
    elif home == "lance":
        lance.write_dataset(content, tmp_path / "lake/wide")
    else:
        catalog = make_catalog(tmp_path / "lake")
        catalog.create_namespace("default")
        catalog.create_table("default.wide", content.schema).append(content)
        catalog.close()
        lake["uri"] = str(tmp_path / "lake/warehouse/default")
    with serving(tmp_path, "--workers", 1) as server, server.connect() as client:
        client.timeout = 600.0
        client.act("register_connector", {"catalog": "lake"} | lake)
        client.act("discover", {"catalog": "lake"})
        targets = [{"kind": "TABLE"}, *({"kind": "COLUMN", "column_id": i + 1} for i in range(COLUMNS))]
        requests = [{"table": "lake.default.wide", "target": target} for target in targets]
        assert {o["outcome"] for o in client.act("capture", {"requests": requests})} == {"CAPTURED"}
        begun = time.perf_counter()
        (told,) = client.act("publish", {"table": "lake.default.wide", "to": home})
        seconds = time.perf_counter() - begun
    assert len(told["columns"]) == COLUMNS
    print(f"\n{home}: {COLUMNS} columns in {seconds:.2f} s")
