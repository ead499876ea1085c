"""Disk that sketches of files take, as a share of the data, and the errors of incremental captures with them.

A table of many files with many columns, as lakes have it: keys, measures, dimensions, texts, times. With each setting
of `file_sketches` it is captured, then again after a tenth of its files is added, and after a tenth is removed.
Errors are those of the worst column: of distinct values, of ranks, and the width of the counts of most common values.
And the memory of a worker that captures a table of many small files, and once more after an append.
`python -m pytest tests/benchmarks/bench_file_sketches.py -m benchmark -s`.
"""

import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from capture.connectors import open_connector
from capture.connectors.spi import ConnectorConfig
from capture.engines import default_engines
from capture.spec import FileSketches
from capture.store_sink import LocalStore
from store.model import sketches
from tests.benchmarks.bench_small_tables import peak_mb
from tests.flight_server.live_server import eventually, serving

pytestmark = pytest.mark.benchmark

FILES, ROWS, COLUMNS = 200, 4000, 30
MOST_SHARE = 0.1  # of the data's bytes that the whole database may take
TABLE = "lake.default.events"
SMALL_FILES = int(os.environ.get("STATFLIGHT_BENCH_FILES", "3000"))


def write(path: Path, number: int) -> None:
    """One file: a fifth of the columns has values of its own, others share them with all files."""
    random = np.random.default_rng(number)
    names = np.array([f"name-{i:05}-{i * 7919 % 10007}" for i in range(20_000)])
    first = number * ROWS
    kinds = [
        lambda: pa.array(np.arange(first, first + ROWS) * 7),
        lambda: pa.array(random.integers(0, 20_000, ROWS)),
        lambda: pa.array(random.integers(0, 1_000_000, ROWS)),
        lambda: pa.array(random.normal(100, 15, ROWS)),
        lambda: pa.array(names[np.minimum(random.zipf(1.3, ROWS), len(names)) - 1]),
        lambda: pa.array(names[random.integers(0, 100, ROWS)]),
        lambda: pa.array((first + np.arange(ROWS)) * 1_000_000 + random.integers(0, 10**6, ROWS), pa.timestamp("us")),
        lambda: pa.array([f"{value:032x}" for value in random.integers(0, 2**63, ROWS)]),
        lambda: pa.array(np.round(random.exponential(50, ROWS), 2)),
        lambda: pa.array(random.integers(0, 5, ROWS)),
    ]
    columns = {f"c{i:02}": kinds[i % len(kinds)]() for i in range(COLUMNS)}
    pq.write_table(pa.table(columns), path / f"{number:05}.parquet", compression="zstd")


def errors(store: LocalStore, path: Path) -> tuple[float, float, float]:
    """Largest relative error of ndv, rank error, and width of a common value's count as a share of the rows."""
    columns = [f"c{i:02}" for i in range(10)]  # the others have values of the same kinds
    table = ds.dataset(path).to_table(columns=columns)
    ids = {row["column_name"]: row for row in store.read("stats.columns", TABLE).to_pylist()}
    found = store.read("stats.sketches", TABLE)
    found = found.filter(pc.equal(found["target_kind"], "COLUMN"))
    blobs = {(row["column_id"], row["role"]): row["data"] for row in found.to_pylist()}
    worst = [0.0, 0.0, 0.0]
    for name in columns:
        row, values = ids[name], table[name]
        true = pc.count_distinct(values).as_py()
        worst[0] = max(worst[0], abs(row["ndv"] / true - 1))
        if kll := blobs.get((row["column_id"], "QUANTILES")):
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.int64())
            numbers = np.sort(values.to_numpy().astype(np.float64))
            state = sketches.read_kll(kll)
            assert state is not None
            told = np.cumsum(state.weights) / len(numbers)
            last = np.append(state.values[1:] != state.values[:-1], True)  # of equal values
            rank = np.searchsorted(numbers, state.values, "right") / len(numbers)
            worst[1] = max(worst[1], float(np.abs(told - rank)[last].max()))
        _, total, offset = sketches.read_frequent(blobs[row["column_id"], "MCV"])
        worst[2] = max(worst[2], offset / total)
    return worst[0], worst[1], worst[2]


def test_disk_is_a_tenth_of_the_data_and_incremental_captures_are_as_precise(tmp_path: Path) -> None:
    events = tmp_path / "lake" / "events"
    events.mkdir(parents=True)
    settings = (FileSketches.FULL, FileSketches.AUTO)
    databases = {setting: tmp_path / f"{setting}.duckdb" for setting in settings}
    shares: dict[FileSketches, float] = {}
    lake = open_connector(ConnectorConfig("lake", "parquet", str(events.parent)))
    tenth = FILES // 10
    for step, added in (
        ("all files", range(FILES)),
        ("a tenth added", range(FILES, FILES + tenth)),
        ("a tenth removed", range(0)),
    ):
        for number in added:
            write(events, number)
        if not added:
            for number in range(tenth):
                (events / f"{number:05}.parquet").unlink()
        size = sum(path.stat().st_size for path in events.glob("*"))
        found: dict[FileSketches, tuple[float, float, float]] = {}
        for setting in settings:
            with LocalStore(databases[setting], default_engines(file_sketches=setting)) as store:
                began = time.process_time()
                results = store.capture(lake, "lake", "default", "events")
                took = time.process_time() - began
                found[setting] = errors(store, events)
            stored = databases[setting].stat().st_size
            shares.setdefault(setting, stored / size)
            ndv, rank, common = found[setting]
            share, reused = stored / size, results[-1].attributes["files_reused"]
            print(
                f"\n{step}, {setting}: {stored / 1e6:.1f} MB stored of {size / 1e6:.1f} MB of data, {share:.1%};"
                f" {took:.1f} s of processor, {reused} files reused;"
                f" errors: ndv {ndv:.2%}, rank {rank:.2%}, common values {common:.3%}"
            )
            assert ndv <= 3 / np.sqrt(sketches.THETA_K) and rank <= 2 / sketches.KLL_K
        assert found[FileSketches.AUTO][2] <= found[FileSketches.FULL][2] * 1.001
    lake.close()
    assert shares[FileSketches.AUTO] <= MOST_SHARE


def test_memory_of_a_worker(tmp_path: Path) -> None:
    """Prints it after a capture, and after one more with a new file."""
    (events := tmp_path / "lake" / "events").mkdir(parents=True)
    random = np.random.default_rng(1)

    def add(number: int) -> None:
        values = random.integers(0, 500, 500), random.random(500), np.arange(500) + number * 500
        pq.write_table(pa.table({f"c{i}": values[i % 3] for i in range(20)}), events / f"{number}.parquet")

    for number in range(SMALL_FILES):
        add(number)
    with serving(tmp_path, "--workers", 1) as server:
        client = server.connect()
        client.timeout = 900.0
        lake = {"catalog": "lake", "format": "parquet", "uri": str(events.parent)}
        eventually(lambda: client.act("register_connector", lake), ignoring=(pa.ArrowException,))
        client.act("discover", {"catalog": "lake"})
        pid = server.process.pid
        (worker,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        requests = [
            {"table": TABLE, "snapshot": "current", "target": {"kind": "COLUMN", "column_id": i}} for i in range(1, 21)
        ]
        for what in ("first", "after an append"):
            began = time.perf_counter()
            outcomes = client.act("capture", {"requests": requests})
            assert {outcome["outcome"] for outcome in outcomes} == {"CAPTURED"}
            print(f"\n{what}: {time.perf_counter() - began:.1f} s, the worker had up to {peak_mb(worker):.0f} MB")
            add(SMALL_FILES)
