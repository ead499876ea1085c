"""Speed of a capture of all statistics, as ratios to other work on the same files.

TPC-H lineitem, scale factor 1, 12 Parquet files: Spark's own `ANALYZE TABLE … FOR ALL COLUMNS` (six numbers a column),
DuckDB's SUMMARIZE, and decoding the files only. Runs are interleaved; a ratio is that of medians.
`python -m pytest tests/benchmarks/bench_capture.py -m benchmark -s`; STATFLIGHT_BENCH_SCALE makes it smaller.
"""

import hashlib
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from capture.connectors.parquet.connector import ParquetConnector
from capture.connectors.spi import ConnectorConfig
from capture.engines.compute.engine import ComputeEngine
from capture.spark.session import Spark
from capture.spi import CaptureRequest, Outcome, Sink, TableHandle
from store.model import schemas
from store.model.targets import Target
from tests.benchmarks.bench_small_tables import peak_mb

pytestmark = [pytest.mark.benchmark, pytest.mark.spark]

ROUNDS = 5
SCALE = os.environ.get("STATFLIGHT_BENCH_SCALE", "1")


class NullSink(Sink):
    """Discards all rows and stores none: every capture computes everything."""

    def put(self, flight, rows, *, extra=False, whole=False, checked=False):
        pass

    def stored(self, flight, table, columns=None, column_ids=None):
        found = schemas.FLIGHTS[flight].schema.empty_table()
        return found.select(columns) if columns else found

    def list_files(self, table, listing):
        return False

    def progress(self, share, message=""):
        pass


class KeepingSink(NullSink):
    """Keeps rows for the next capture, like the store."""

    def __init__(self):
        self.rows = {}

    def put(self, flight, rows, *, extra=False, whole=False, checked=False):
        self.rows.setdefault(flight, []).append(rows)

    def stored(self, flight, table, columns=None, column_ids=None):
        if flight not in self.rows:
            return super().stored(flight, table, columns)
        found = pa.concat_tables(self.rows[flight])
        if column_ids is not None:
            found = found.filter(pc.is_in(found["column_id"], pa.array(column_ids, pa.int64())))
        return found.select(columns) if columns else found


def handle(root, name, lake=None):
    lake = lake or ParquetConnector(ConnectorConfig("bench", "parquet", str(root)))
    listing = lake.enumerate_snapshots("default", name)
    snapshot = max(listing.snapshots, key=lambda found: found.ordinal)
    ids = {column.name: number for number, column in enumerate(snapshot.schema.columns, 1)}
    return TableHandle("bench", "default", name, name, snapshot.snapshot_id, snapshot.schema, ids, lake)


def capture(engine, table, execution, sink=None):
    requests = [CaptureRequest.of(table, Target.column(i)) for i in table.column_ids.values()]
    results = engine.capture_batch(requests, sink or NullSink())
    assert {(result.outcome, result.detail) for result in results} == {(Outcome.CAPTURED, "")}
    assert results[0].attributes["execution"] == execution
    return results[0].attributes


def decode(path):
    pq.ParquetFile(path, memory_map=True).read(use_threads=False)


def timed(action):
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def interleaved(actions, rounds=ROUNDS, warmups=1):
    """Median seconds of each action, after some warm-up runs of each."""
    for _ in range(warmups):
        for action in actions.values():
            action()
    took = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            took[name].append(timed(action))
    return {name: statistics.median(times) for name, times in took.items()}


def generate(root, parts, scale=SCALE):
    generator = Path(sys.executable).with_name("tpchgen-cli")
    command = [generator, "parquet", "-s", scale, "--tables", "lineitem", "--parts", str(parts), "--output-dir", root]
    subprocess.run(command, check=True, capture_output=True)
    return sorted((root / "lineitem").glob("*.parquet"))


@pytest.fixture(scope="module")
def engine():
    engine = ComputeEngine(spark=Spark("local[2]"))
    yield engine
    engine.close()


def report(capsys, title, ratios):
    with capsys.disabled():
        print(f"\n{title}: " + ", ".join(f"{name} {value:.2f}" for name, value in ratios.items()))


def test_all_statistics_of_lineitem(engine, tmp_path, capsys):
    import duckdb

    files = generate(tmp_path, 12)
    table = handle(tmp_path, "lineitem")
    engine.inline_max_cells = 0
    engine.spark.ensure()
    session = engine.spark._session
    session.sql(f"CREATE TABLE bench_lineitem USING parquet LOCATION '{tmp_path / 'lineitem'}'")
    connection = duckdb.connect(config={"threads": 2})
    with ProcessPoolExecutor(2) as pool:
        medians = interleaved(
            {
                "capture": lambda: capture(engine, table, "spark"),
                "ANALYZE": lambda: session.sql(
                    "ANALYZE TABLE bench_lineitem COMPUTE STATISTICS FOR ALL COLUMNS"
                ).collect(),
                "SUMMARIZE": lambda: connection.execute(
                    f"SUMMARIZE FROM read_parquet('{tmp_path}/lineitem/*.parquet')"
                ).fetchall(),
                "decode": lambda: list(pool.map(decode, files)),
            },
            warmups=5,
        )
    session.sql("DROP TABLE bench_lineitem")
    ratios = {f"{name} / capture": medians[name] / medians["capture"] for name in ("ANALYZE", "SUMMARIZE")}
    ratios["capture / decode"] = medians["capture"] / medians["decode"]
    ratios["peak MB of a worker"] = worker_peak_mb()
    report(capsys, f"lineitem SF{SCALE}, all statistics", ratios)
    if SCALE == "1":
        assert ratios["ANALYZE / capture"] >= 5


def worker_peak_mb():
    """Peak memory in MB of the largest of Spark's Python workers; Linux."""
    peaks = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"pyspark.daemon" in (process / "cmdline").read_bytes():
                peaks.append(peak_mb(int(process.name)))
    return max(peaks, default=0.0)


def wide(directory):
    """200 columns of 200 000 rows."""
    for number in range(4):
        rows = range(number * 50_000, (number + 1) * 50_000)
        columns = {f"c{i:03}": pa.array([(row * 7919 + i) % 50_021 for row in rows]) for i in range(20)}
        columns |= {f"c{i:03}": columns[f"c{i % 20:03}"] for i in range(20, 200)}
        pq.write_table(pa.table(columns), directory / f"{number}.parquet")


def strings(directory):
    """10 million distinct strings of 40 bytes."""
    for number in range(10):
        texts = pa.array([hashlib.sha1(b"%d" % i).hexdigest() for i in range(number * 10**6, (number + 1) * 10**6)])
        pq.write_table(pa.table({"text": texts}), directory / f"{number}.parquet", use_dictionary=False)


@pytest.mark.parametrize("make", [wide, strings])
def test_against_analyze(engine, tmp_path, capsys, make):
    (tmp_path / make.__name__).mkdir()
    make(tmp_path / make.__name__)
    table = handle(tmp_path, make.__name__)
    engine.inline_max_cells = 0
    engine.spark.ensure()
    session = engine.spark._session
    session.sql(f"CREATE TABLE bench_other USING parquet LOCATION '{tmp_path / make.__name__}'")
    medians = interleaved(
        {
            "capture": lambda: capture(engine, table, "spark"),
            "ANALYZE": lambda: session.sql("ANALYZE TABLE bench_other COMPUTE STATISTICS FOR ALL COLUMNS").collect(),
        },
        warmups=5,
    )
    session.sql("DROP TABLE bench_other")
    report(
        capsys,
        make.__doc__,
        {
            "ANALYZE / capture": medians["ANALYZE"] / medians["capture"],
            "capture s": medians["capture"],
            "peak MB of a worker": worker_peak_mb(),
        },
    )


def test_small_table(engine, tmp_path, capsys):
    (tmp_path / "small").mkdir()
    pq.write_table(pa.table({"id": range(10), "word": list("abcdefghij")}), tmp_path / "small/a.parquet")
    table = handle(tmp_path, "small")
    engine.inline_max_cells = 1_000_000
    took = interleaved({"capture": lambda: capture(engine, table, "inline")})["capture"]
    report(capsys, "ten rows, share of the 150 ms allowed", {"capture": took / 0.150})
    assert took <= 0.150


def test_wide_table(engine, tmp_path, capsys):
    """Two hundred columns of few rows: the fixed cost per column dominates."""
    (tmp_path / "wide").mkdir()
    columns = {f"c{i:03}": pa.array([(j * 7919 + i) % 5003 for j in range(20_000)]) for i in range(200)}
    for number in range(2):
        pq.write_table(pa.table(columns), tmp_path / f"wide/{number}.parquet")
    table = handle(tmp_path, "wide")
    engine.inline_max_cells = 10**9
    files = sorted((tmp_path / "wide").glob("*.parquet"))
    medians = interleaved(
        {
            "capture": lambda: capture(engine, table, "inline"),
            "decode": lambda: [decode(file) for file in files],
        }
    )
    report(capsys, "200 columns, one process", {"capture / decode": medians["capture"] / medians["decode"]})


def test_one_added_file(engine, tmp_path, capsys):
    """Lineitem in 101 files, a hundred of them captured before, compared with a table of the other file only."""
    files = generate(tmp_path, 101)
    engine.inline_max_cells = 10**12
    lake = ParquetConnector(ConnectorConfig("bench", "parquet", str(tmp_path)))
    added = files[50]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / added.name).write_bytes(added.read_bytes())
    content = added.read_bytes()
    added.unlink()
    before = KeepingSink()
    capture(engine, handle(tmp_path, "lineitem", lake), "inline", before)
    added.write_bytes(content)

    def incremental():
        sink = KeepingSink()
        sink.stored = before.stored
        assert capture(engine, handle(tmp_path, "lineitem", lake), "inline", sink)["files_reused"] == 100

    medians = interleaved(
        {
            "added": incremental,
            "alone": lambda: capture(engine, handle(tmp_path, "one", lake), "inline", KeepingSink()),
        }
    )
    allowed = 1.5 * medians["alone"] + 0.1
    report(
        capsys,
        "one file more than a hundred",
        {
            "added / alone": medians["added"] / medians["alone"],
            "added / allowed": medians["added"] / allowed,
        },
    )
    if SCALE == "1":
        assert medians["added"] <= allowed
