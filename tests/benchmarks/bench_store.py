"""The store compared with DuckDB itself and with its own empty responses: ratios, both sides interleaved in one run.

STATFLIGHT_BENCH_ROWS: rows of stats.file_columns (10 000 000 for a full run); a tenth as many rows of stats.columns and
sketches of 1 KB come on top. STATFLIGHT_BENCH_SNAPSHOTS: of the history benchmark.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.duckdb.layout import prepare
from store.history import validation
from store.model.schemas import FLIGHTS
from store.stats_store import DuckDBStatsStore, Put, PutMode
from tests.benchmarks import store_data

pytestmark = pytest.mark.benchmark

ROWS = int(os.environ.get("STATFLIGHT_BENCH_ROWS", "1000000"))
SNAPSHOTS = int(os.environ.get("STATFLIGHT_BENCH_SNAPSHOTS", "100"))
STREAM_FILES = 25_000  # × 20 columns = rows of one stream
UPSERT_FILES = 5_000
STREAMS = max(2, ROWS // (2 * STREAM_FILES * store_data.COLUMNS) * 2)
BATCH_ROWS = 65_536


@contextmanager
def serving(db: Path) -> Iterator[flight.FlightClient]:
    command = [str(Path(sys.executable).with_name("statflight")), "serve", "--db", str(db), "--port", "0"]
    with db.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen([*command, "--workers", "0"], stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        found = re.search(r"grpc://\S+", process.stdout.readline())
        assert found, db.with_suffix(".log").read_text()
        with flight.connect(found[0]) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def put(client: flight.FlightClient, name: str, rows: pa.Table, mode: str = "create") -> dict[str, int]:
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"table": name, "mode": mode}))
    writer, reader = client.do_put(descriptor, rows.schema)
    with writer:
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            writer.write_batch(batch)
        writer.done_writing()
        return json.loads(reader.read().to_pybytes())


class Bare:
    """DuckDB alone: the same physical table in a file of its own, one commit for each stream."""

    def __init__(self, path: Path):
        self.connection = duckdb.connect(str(path))
        prepare(self.connection, "bench")

    def insert(self, rows: pa.Table) -> None:
        self.connection.register("staged", rows)
        self.connection.execute("INSERT INTO stats_file_columns SELECT *, now() FROM staged")
        self.connection.unregister("staged")

    def upsert(self, rows: pa.Table, table_key: int) -> None:
        self.connection.register("staged", rows)
        self.connection.execute("BEGIN")
        self.connection.execute(
            f"DELETE FROM stats_file_columns t USING staged s WHERE t.table_key = {table_key}"
            " AND t.file_path = s.file_path AND t.column_id = s.column_id"
        )
        self.connection.execute("INSERT INTO stats_file_columns SELECT *, now() FROM staged")
        self.connection.execute("COMMIT")
        self.connection.unregister("staged")


def timed(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


class Loaded:
    """A server with the rows, and the seconds that both sides took to load each pair of streams.

    Two streams are in flight, as with a real loader: the server checks one while it stores the other. DuckDB itself
    loads one after the other, which is fastest for it.
    """

    def __init__(self, directory: Path, client: flight.FlightClient):
        self.client, self.db = client, directory / "ours.db"
        self.bare = Bare(directory / "bare.db")
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.payload = 0
        with ThreadPoolExecutor(2) as pool:
            for number in range(0, STREAMS, 2):
                pair = [store_data.file_columns(number + each, STREAM_FILES) for each in (0, 1)]
                bare_pair = [store_data.physical(rows, number + each + 1) for each, rows in enumerate(pair)]
                self.payload += sum(rows.nbytes for rows in pair)

                def ours(pair: list[pa.Table] = pair) -> None:
                    list(pool.map(functools.partial(put, client, "stats.file_columns"), pair))

                def theirs(pair: list[pa.Table] = bare_pair) -> None:
                    for rows in pair:
                        self.bare.insert(rows)

                sides = [(self.ours, ours), (self.theirs, theirs)]
                for seconds, side in sides if number % 4 else reversed(sides):
                    seconds.append(timed(side))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    directory = tmp_path_factory.mktemp("bench")
    with serving(directory / "ours.db") as client:
        yield Loaded(directory, client)


def show(what: str, ratio: float, target: str, detail: str = "") -> None:
    print(f"\n{what}: {ratio:.2f} (target {target}) {detail}", flush=True)


def test_load_by_put(loaded: Loaded) -> None:
    """Rate of DoPut with durable acknowledgement over the rate of INSERT … SELECT from Arrow."""
    rows = STREAM_FILES * store_data.COLUMNS
    ratio = sum(loaded.theirs) / sum(loaded.ours)
    rates = f"{rows * STREAMS / sum(loaded.ours):,.0f} against {rows * STREAMS / sum(loaded.theirs):,.0f} rows/s"
    show(f"load of {rows * STREAMS:,} rows, over DuckDB's own", ratio, "≥ 0.5", rates)
    assert ratio >= 0.5


def test_load_by_one_client(loaded: Loaded) -> None:
    """The same by a client that waits for each acknowledgement before it sends the next stream."""
    ours, theirs = [], []
    for number in range(STREAMS, STREAMS + 6):
        rows = store_data.file_columns(number, STREAM_FILES)
        bare_rows = store_data.physical(rows, number + 1)
        loaded.payload += rows.nbytes
        sides = [
            (ours, lambda rows=rows: put(loaded.client, "stats.file_columns", rows)),
            (theirs, lambda rows=bare_rows: loaded.bare.insert(rows)),
        ]
        for seconds, side in sides if number % 2 else reversed(sides):
            seconds.append(timed(side))
    ratio = sum(theirs) / sum(ours)
    rows_of = STREAM_FILES * store_data.COLUMNS * len(ours)
    rates = f"{rows_of / sum(ours):,.0f} against {rows_of / sum(theirs):,.0f} rows/s"
    show("load by one client, over DuckDB's own", ratio, "≥ 0.5", rates)
    assert ratio >= 0.5


def test_upsert_by_put(loaded: Loaded) -> None:
    """Batches of 100 000 rows, all changed, over delete and insert of the same keys in one transaction."""
    ours, theirs = [], []
    for number in range(min(STREAMS, 8)):
        rows = store_data.file_columns(number, UPSERT_FILES, seed=1, first=number * 100)
        bare_rows = store_data.physical(rows, number + 1)
        ours.append(timed(lambda rows=rows: put(loaded.client, "stats.file_columns", rows, "upsert")))
        theirs.append(timed(lambda rows=bare_rows, n=number: loaded.bare.upsert(rows, n + 1)))
    ratio = statistics.median(theirs) / statistics.median(ours)
    rows_of = UPSERT_FILES * store_data.COLUMNS
    rates = f"{rows_of / statistics.median(ours):,.0f} against {rows_of / statistics.median(theirs):,.0f} rows/s"
    show("upsert of 100 000 rows, over DuckDB's own", ratio, "≥ 0.5", rates)
    assert ratio >= 0.5


def test_columns_of_one_snapshot_and_size(loaded: Loaded) -> None:
    """p50 of one table's columns at one snapshot over that of a read without rows; bytes on disk over bytes put."""
    tables = max(1, ROWS // 10 // (store_data.COLUMNS * SNAPSHOTS))
    for number in range(tables):
        for name, make in (("stats.columns", store_data.columns), ("stats.sketches", store_data.sketches)):
            rows = make(number, range(1, SNAPSHOTS + 1))
            loaded.payload += rows.nbytes
            put(loaded.client, name, rows)

    def command(**more: Any) -> bytes:
        names = {
            "table_catalog": "lake",
            "table_schema": "sales",
            "table_name": f"table_{random.randrange(tables):05d}",
        }
        predicates = [{"column": c, "op": "EQ", "values": [v]} for c, v in names.items()]
        return json.dumps({"table": "stats.columns", "predicates": predicates} | more).encode()

    def read(ticket: bytes) -> float:
        started = time.perf_counter()
        rows = loaded.client.do_get(flight.Ticket(ticket)).read_all().num_rows
        assert rows == (0 if b'"limit": 0' in ticket else store_data.COLUMNS)
        return time.perf_counter() - started

    # first reads come from DuckDB, repeated ones mostly from memory
    tickets = [command(snapshot=random.randrange(1, SNAPSHOTS + 1)) for _ in range(100)]
    cold = [read(ticket) for ticket in tickets]
    for _ in range(3):
        for ticket in tickets:
            read(ticket)
    warm, empty = [], []
    for number in range(2000):
        warm.append(read(tickets[number % len(tickets)]))
        empty.append(read(command(limit=0, snapshot="current")))
    least = statistics.median(empty)
    ratio = statistics.median(warm) / least
    p50 = f"{statistics.median(warm) * 1e3:.2f} ms against {least * 1e3:.2f} ms"
    show("one table's columns at one snapshot, over an empty read", ratio, "≤ 4", p50)
    show("the same at the first read, from DuckDB", statistics.median(cold) / least, "none")
    size = loaded.db.stat().st_size + Path(f"{loaded.db}.wal").stat().st_size
    show("file over payload", size / loaded.payload, "≤ 1.6", f"{size / 1e6:,.0f} MB of {loaded.payload / 1e6:,.0f} MB")
    assert ratio <= 4
    assert size <= 1.6 * loaded.payload


def test_history_grows_by_the_changed_files(tmp_path: Path) -> None:
    """1000 files of 20 columns, at each snapshot one more and one less."""
    database = Database(tmp_path / "h.db")
    store = DuckDBStatsStore(database, Catalog(database))
    sizes = []
    for snapshot in range(SNAPSHOTS):
        per_column = store_data.file_columns(1, 1000, snapshot, first=snapshot)
        # the statistics of a file do not change with the snapshot
        row_counts = np.arange(snapshot * store_data.COLUMNS, (snapshot + 1000) * store_data.COLUMNS)
        per_column = per_column.set_column(
            per_column.column_names.index("row_count"), "row_count", pa.array(row_counts + 10**7)
        ).drop_columns(["min", "max", "null_count", "ndv", "rows_scanned"])
        files = store_data.key(1, 1000, snapshot) | {
            "file_path": store_data.paths(1, np.arange(snapshot, snapshot + 1000)),
            "row_count": pa.array(np.arange(snapshot, snapshot + 1000)),
        }
        tables = {"stats.files": pa.table(files), "stats.file_columns": per_column}
        prepared = {name: validation.prepare(FLIGHTS[name], rows) for name, rows in tables.items()}
        store.put([Put(name, rows, PutMode.REPLACE_SNAPSHOT) for name, rows in prepared.items()])
        database.submit(lambda connection: connection.execute("CHECKPOINT"), alone=True).result()
        sizes.append((tmp_path / "h.db").stat().st_size)
    table = store.catalog.get("lake.sales.table_00001")
    assert store.count(table, SNAPSHOTS - 1) == 1000
    database.close()
    show(
        f"size after {SNAPSHOTS} snapshots, over that after the first",
        sizes[-1] / sizes[0],
        "≤ 3",
        f"{sizes[-1] / 1e6:.1f} MB of {sizes[0] / 1e6:.1f} MB",
    )
    assert sizes[-1] <= 3 * sizes[0]
