"""Native capture of tables of very many files, each in a process of its own: time beside the library's, peak memory.

The library only lists the files with their statistics, which is the least it can do; the capture also returns rows of
all columns, and finds the table first. Processor time is printed too, as it depends less on other load. Then a repeated
capture of the same snapshot; and, through a server and its worker, the capture of a table of many files, of the same
table again, and after one commit.

`python -m pytest tests/benchmarks/bench_connectors.py -m benchmark -s`; STATFLIGHT_BENCH_DELTA_ADDS,
STATFLIGHT_BENCH_DELTA_COLUMNS, STATFLIGHT_BENCH_ICEBERG_FILES and STATFLIGHT_BENCH_FOOTERS make it smaller.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.benchmarks import lake_data
from tests.flight_server.live_server import serving

pytestmark = pytest.mark.benchmark

ADDS = int(os.environ.get("STATFLIGHT_BENCH_DELTA_ADDS", "300000"))
COLUMNS = int(os.environ.get("STATFLIGHT_BENCH_DELTA_COLUMNS", "100"))
FILES = int(os.environ.get("STATFLIGHT_BENCH_ICEBERG_FILES", "100000"))
FOOTERS = int(os.environ.get("STATFLIGHT_BENCH_FOOTERS", "10000"))
ROUNDS = int(os.environ.get("STATFLIGHT_BENCH_ROUNDS", "3"))  # of library and capture alternately
MEMORY_MB = 1536
TIMES = 2.0

_MEASURE = """
import json, resource, sys, time
def measured(*works):
    results = []
    for work in works:
        started, busy = time.perf_counter(), time.process_time()
        count = work()
        took = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - busy, "count": count}
        results.append(took | {"mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})
    print(json.dumps(results))
"""
_OURS = """
import importlib
from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
importlib.import_module(f"capture.connectors.{sys.argv[1]}")
def capture():
    connector = open_connector(ConnectorConfig("c", sys.argv[1], sys.argv[2]))
    namespace = connector.list_namespaces()[0]
    name = connector.list_tables(namespace)[0]
    listing = connector.enumerate_snapshots(namespace, name)
    schema = next(s for s in listing.snapshots if s.snapshot_id == listing.current_snapshot_id).schema
    ids = {column.name: column.field_id or i for i, column in enumerate(schema.columns, 1)}
    stats = connector.capture_snapshot_target_stats(namespace, name, listing.current_snapshot_id, ids)
    return stats.data_file_count, sum(rows.num_rows for rows in stats.file_columns())
measured(capture, capture)
"""
_DELTA = """
import deltalake, pyarrow
measured(lambda: pyarrow.table(deltalake.DeltaTable(sys.argv[2] + "/t").get_add_actions(flatten=True)).num_rows)
"""
_ICEBERG = """
from pyiceberg.catalog import load_catalog
table = load_catalog("c", type="sql", uri=sys.argv[2]).load_table("db.t")
def listed():
    count = 0
    for manifest in table.current_snapshot().manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            count += bool(entry.data_file.lower_bounds)
    return count
measured(listed)
"""
_FOOTERS = """
from pathlib import Path
import pyarrow.parquet
measured(lambda: sum(1 for f in Path(sys.argv[2], "t").iterdir() if pyarrow.parquet.read_metadata(f).to_dict()))
"""


def run(code, format, uri):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _MEASURE + code, format, uri],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("format", ["delta", "iceberg", "parquet"])
def test_tables_of_many_files(format, tmp_path):
    if format == "delta":
        lake_data.delta_log(tmp_path / "lake" / "t", ADDS, COLUMNS)
        uri, library, files = str(tmp_path / "lake"), _DELTA, ADDS
    elif format == "iceberg":
        uri, _ = lake_data.iceberg_manifests(tmp_path / "lake", FILES)
        library, files = _ICEBERG, FILES
    else:
        lake_data.footers(tmp_path / "lake" / "t", FOOTERS)
        uri, library, files = str(tmp_path / "lake"), _FOOTERS, FOOTERS
    rounds = [(run(library, format, uri)[0], run(_OURS, format, uri)) for _ in range(ROUNDS)]
    for theirs, (ours, _) in rounds:
        assert (theirs["count"], ours["count"][0]) == (files, files)

    def ratio(unit):
        return statistics.median(ours[unit] / theirs[unit] for theirs, (ours, _) in rounds)

    theirs, (ours, repeated) = rounds[-1]
    print(
        f"\n{format}: {files} files, library {theirs['seconds']:.1f} s {theirs['mb']:.0f} MB, native capture with"
        f" discovery {ours['seconds']:.1f} s {ours['mb']:.0f} MB: {ratio('seconds'):.2f} times (at most {TIMES}),"
        f" {ratio('cpu'):.2f} of processor time; a second one {repeated['seconds'] / ours['seconds']:.3f} of the first"
    )
    assert max(ours["mb"] for _, (ours, _) in rounds) <= MEMORY_MB


def test_one_commit_on_many_files(tmp_path):
    from pyiceberg.catalog.sql import SqlCatalog

    uri, warehouse = lake_data.iceberg_manifests(tmp_path / "lake", FILES)
    catalog = SqlCatalog("c", uri=uri, warehouse=warehouse)
    table = catalog.load_table("db.t")
    with serving(tmp_path, "--workers", "1") as live, live.connect() as client:
        client.timeout = 900.0
        client.act("register_connector", {"catalog": "lake", "format": "iceberg", "uri": uri})
        client.act("discover", {"catalog": "lake"})

        def capture():
            body = {"table": "lake.db.t", "target": {"kind": "TABLE"}, "mode": "SYNC"}
            started = time.perf_counter()
            (outcome,) = client.act("capture", {"requests": [body]})
            assert outcome["outcome"] == "CAPTURED", outcome
            return time.perf_counter() - started

        first, unchanged = capture(), capture()
        lake_data.append_files(table, FILES, FILES + 1)
        commit = capture()
        lake_data.append_files(table, FILES + 1, FILES + 2)
        commits = [commit, capture()]
        (row,) = client.get({"table": "stats.tables", "snapshot": "current"}).to_pylist()
        assert row["data_file_count"] == FILES + 2
    catalog.close()
    print(
        f"\n{FILES} files: first capture {first:.1f} s, unchanged {unchanged:.2f} s, after one commit "
        f"{min(commits):.2f} s: {min(commits) / first:.4f} of the first"
    )
    assert min(commits) < first / 10
