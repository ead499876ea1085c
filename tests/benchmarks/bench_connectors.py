"""Native capture of tables of very many files, each in a process of its own: time beside the library's, peak memory.

The library lists the files with their statistics, which is the least it can do. Ours gives rows of all columns besides.
`python -m pytest tests/benchmarks/bench_connectors.py -m benchmark -s`; STATFLIGHT_BENCH_DELTA_ADDS,
STATFLIGHT_BENCH_DELTA_COLUMNS, STATFLIGHT_BENCH_ICEBERG_FILES and STATFLIGHT_BENCH_FOOTERS make it smaller.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import lake_data

pytestmark = pytest.mark.benchmark

ADDS = int(os.environ.get("STATFLIGHT_BENCH_DELTA_ADDS", "300000"))
COLUMNS = int(os.environ.get("STATFLIGHT_BENCH_DELTA_COLUMNS", "100"))
FILES = int(os.environ.get("STATFLIGHT_BENCH_ICEBERG_FILES", "100000"))
FOOTERS = int(os.environ.get("STATFLIGHT_BENCH_FOOTERS", "10000"))
MEMORY_MB = 1536
TIMES = 2.0

_MEASURE = """
import json, resource, sys, time
def measured(work):
    started = time.perf_counter()
    count = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": time.perf_counter() - started, "mb": peak, "count": count}))
"""
_OURS = """
from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
connector = open_connector(ConnectorConfig("c", sys.argv[1], sys.argv[2]))
namespace = connector.list_namespaces()[0]
name = connector.list_tables(namespace)[0]
listing = connector.enumerate_snapshots(namespace, name)
schema = next(s for s in listing.snapshots if s.snapshot_id == listing.current_snapshot_id).schema
ids = {column.name: column.field_id or i for i, column in enumerate(schema.columns, 1)}
def capture():
    stats = connector.capture_snapshot_target_stats(namespace, name, listing.current_snapshot_id, ids)
    return stats.data_file_count, sum(rows.num_rows for rows in stats.file_columns())
measured(capture)
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
    held = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _MEASURE + code, format, uri],
        stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return json.loads(held.stdout)


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
    theirs, ours = run(library, format, uri), run(_OURS, format, uri)
    assert (theirs["count"], ours["count"][0]) == (files, files)
    ratio = ours["seconds"] / theirs["seconds"]
    print(
        f"\n{format}: {files} files, library {theirs['seconds']:.1f} s {theirs['mb']:.0f} MB,"
        f" native capture {ours['seconds']:.1f} s {ours['mb']:.0f} MB: {ratio:.2f} times (at most {TIMES})"
    )
    assert ours["mb"] <= MEMORY_MB
