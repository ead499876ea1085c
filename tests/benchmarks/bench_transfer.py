"""Export and import of a database through servers: seconds, memory of each process, bytes.

STATFLIGHT_BENCH_ROWS: records (2 000 000), half of columns over ten snapshots, half of files' columns.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from store.history import validation
from store.model.schemas import FLIGHTS
from store.stats_store import DuckDBStatsStore, Put, PutMode
from store.transfer.contents import RECORDS
from store.transfer.manifest import path_of
from tests.benchmarks import store_data

pytestmark = pytest.mark.benchmark

ROWS = int(os.environ.get("STATFLIGHT_BENCH_ROWS", "2000000"))
SNAPSHOTS = 10
MOST_SECONDS, MOST_BYTES = 60.0, 1 << 30
COMMAND = str(Path(sys.executable).with_name("statflight"))


class Running:
    """A process, whose memory is looked at until it ends."""

    def __init__(self, *arguments: object):
        self.process = subprocess.Popen([COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
        self.peak = 0
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()

    def end(self) -> int:
        """Waits for the end; returns the exit status."""
        assert self.process.stdout is not None
        with self.process.stdout:
            status = self.process.wait()
        self._watch.join()
        return status

    def _look(self) -> None:
        status = Path(f"/proc/{self.process.pid}/status")
        while self.process.poll() is None:
            with suppress(OSError):  # it has just ended
                found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
                self.peak = max(self.peak, int(found[1]) << 10 if found else 0)
            time.sleep(0.1)


@contextmanager
def serving(db: Path) -> Iterator[tuple[str, Running]]:
    running = Running("serve", "--db", db, "--port", 0, "--workers", 0, "--watch-seconds", 0)
    try:
        found = re.search(r"grpc://\S+", running.process.stdout.readline())
        assert found
        yield found[0], running
    finally:
        running.process.send_signal(signal.SIGTERM)
        running.end()


def fill(path: Path) -> None:
    """Half of the rows are columns of tables with ten snapshots, each tenth with another schema."""
    store = DuckDBStatsStore.open(path)
    columns, files = FLIGHTS["stats.columns"], FLIGHTS["stats.file_columns"]
    tables = max(1, ROWS // 2 // SNAPSHOTS // 500)
    for snapshot in range(1, SNAPSHOTS + 1):
        for first in range(0, tables, 50):
            each = [column_rows(table, snapshot) for table in range(first, min(first + 50, tables))]
            prepared = validation.prepare(columns, pa.concat_tables(each))
            store.put([Put(columns.name, prepared, PutMode.REPLACE_SNAPSHOT)])
    of_files = max(1, ROWS // 2 // store_data.COLUMNS // 5_000)
    for table in range(of_files):
        prepared = validation.prepare(files, store_data.file_columns(10_000 + table, 5_000))
        store.put([Put(files.name, prepared, PutMode.REPLACE_SNAPSHOT)])
    store.close()


def column_rows(table: int, snapshot: int) -> pa.Table:
    """500 columns of a table at a snapshot."""
    rows = 500
    scalars = store_data._scalars(rows, table * SNAPSHOTS + snapshot)
    if snapshot % SNAPSHOTS == 0:
        scalars["schema_hash"] = pa.array(["f" * 64] * rows)
    names = {"column_id": pa.array(range(1, rows + 1)), "column_name": pa.array([f"column_{i}" for i in range(rows)])}
    return pa.table(store_data.key(table, rows, snapshot) | names | scalars)


def test_export_and_import(tmp_path):
    fill(tmp_path / "old.duckdb")
    with serving(tmp_path / "old.duckdb") as (uri, server):
        began, running = time.monotonic(), Running("export", tmp_path / "out", "--server", uri)
        assert running.end() == 0
        export_seconds, export_peaks = time.monotonic() - began, (server.peak, running.peak)
    with serving(tmp_path / "new.duckdb") as (uri, server):
        began, running = time.monotonic(), Running("import", tmp_path / "out", "--server", uri)
        assert running.end() == 0
        import_seconds, import_peaks = time.monotonic() - began, (server.peak, running.peak)
    records = sum(pq.read_metadata(tmp_path / "out" / path_of(flight)).num_rows for flight in RECORDS)
    size = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.parquet"))
    for name, seconds, peaks in (
        ("export", export_seconds, export_peaks),
        ("import", import_seconds, import_peaks),
    ):
        memory = ", ".join(f"{peak / 1e6:.0f} MB" for peak in peaks)
        print(f"{name} of {records:,} records: {seconds:.1f} s; server and client {memory}")
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{size / 1e6:.0f} MB of Parquet, {(tmp_path / 'new.duckdb').stat().st_size / 1e6:.0f} MB of database;"
        f" processor time of all {cpu.ru_utime + cpu.ru_stime:.1f} s, load {os.getloadavg()[0]:.1f}"
    )
    assert export_seconds + import_seconds <= MOST_SECONDS
    assert max(*export_peaks, *import_peaks) <= MOST_BYTES
