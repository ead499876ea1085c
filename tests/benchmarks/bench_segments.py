"""A large listing in segments and in the database file, in one run: how long it takes to store, what it takes on disk,
and how long a selective scan is planned.

`python -m pytest tests/benchmarks/bench_segments.py -m benchmark -s`; STATFLIGHT_BENCH_FILES (100000) files of
STATFLIGHT_BENCH_COLUMNS (20) columns each. Plans of both sides are interleaved.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from flight_server.core.reads.streams import Streams
from flight_server.planning.scan_plan import ScanPlanner
from store.history import validation
from store.model.predicates.tree import Leaf, Op
from store.model.puts import Put, PutMode
from store.model.schemas import FLIGHTS
from store.segment_listings import SegmentListing
from store.staged_listings import StagedListing
from store.stats_store import DuckDBStatsStore
from tests.benchmarks.bench_large_tables import peak_mb

pytestmark = pytest.mark.benchmark

FILES = int(os.environ.get("STATFLIGHT_BENCH_FILES", "100000"))
COLUMNS = int(os.environ.get("STATFLIGHT_BENCH_COLUMNS", "20"))
PLANS, BLOCK = 15, 10_000
KEY = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1}


class Side(NamedTuple):
    """A store with the listing, and the planner that reads it."""

    store: DuckDBStatsStore
    planner: ScanPlanner


def paths(first: int, files: int) -> pa.Array:
    return pa.array([f"s3://bucket/t/part-{number:08}.parquet" for number in range(first, first + files)])


def prepared(flight: str, values: dict[str, pa.Array], rows: int) -> pa.Table:
    named = {name: pa.repeat(value, rows) for name, value in KEY.items()}
    return validation.prepare(FLIGHTS[flight], pa.table(named | values), checked=True)


def files_block(first: int, files: int) -> pa.Table:
    values = {
        "file_path": paths(first, files),
        "file_content": pa.repeat("DATA", files),
        "file_format": pa.repeat("PARQUET", files),
        "row_count": pa.repeat(pa.scalar(100, pa.int64()), files),
        "size_bytes": pa.repeat(pa.scalar(10_000, pa.int64()), files),
    }
    return prepared("stats.files", values, files)


def columns_block(first: int, files: int) -> pa.Table:
    """Rows of integer columns, each file with a range of its own."""
    rows = files * COLUMNS
    ids, numbers = np.tile(np.arange(1, COLUMNS + 1), files), np.repeat(np.arange(first, first + files), COLUMNS)
    names = pa.array([f"c{number}" for number in range(COLUMNS + 1)])
    values = {
        "file_path": paths(first, files).take(pa.array(numbers - first)),
        "column_id": pa.array(ids),
        "column_name": names.take(pa.array(ids)),
        "logical_type": pa.repeat("INT", rows),
        "row_count": pa.repeat(pa.scalar(100, pa.int64()), rows),
        "null_count": pa.repeat(pa.scalar(0, pa.int64()), rows),
        "min": pa.array(numbers * 100).cast(pa.string()),
        "max": pa.array(numbers * 100 + 99).cast(pa.string()),
        "confidence_level": pa.repeat(1.0, rows),
        "completeness": pa.repeat("COMPLETE", rows),
    }
    return prepared("stats.file_columns", values, rows)


def stored(path: Path, kind: type[StagedListing]) -> tuple[Side, float]:
    """Stores the listing; returns it with the seconds, without those of making its rows."""
    store = DuckDBStatsStore.open(path)
    rows = pa.Table.from_pylist([KEY | {"row_count": FILES * 100}])
    store.put([Put("stats.tables", validation.prepare(FLIGHTS["stats.tables"], rows), PutMode.UPSERT)])
    seconds, listings = 0.0, []
    makers: dict[str, Callable[[int, int], pa.Table]] = {
        "stats.files": files_block,
        "stats.file_columns": columns_block,
    }
    for flight, make in makers.items():
        listing = None
        for first in range(0, FILES, BLOCK):
            block = make(first, min(BLOCK, FILES - first))
            began = time.perf_counter()
            if listing is None:
                listing = store.stage([Put(flight, block, PutMode.CAPTURE)], kind=kind)
                assert listing is not None
                listings.append(listing)
            listing.add(block, PutMode.CAPTURE)
            seconds += time.perf_counter() - began
    began = time.perf_counter()
    for listing in listings:
        listing.settle()
    store.database.write(lambda connection: store.put_in(connection, [], staged=listings))
    seconds += time.perf_counter() - began
    for listing in listings:
        listing.close()
    planner = ScanPlanner(store.database, store.catalog, Streams(8, 100.0, 1 << 30, stall_seconds=100.0))
    return Side(store, planner), seconds


def size_mb(*files: Path) -> float:
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def test_a_large_listing_in_segments_and_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides, lines = {}, []
    for name, kind in (("segments", SegmentListing), ("file", StagedListing)):
        path = tmp_path / f"{name}.duckdb"
        sides[name], seconds = stored(path, kind)
        size = size_mb(path, path.with_name(f"{path.name}.wal"))
        beside = size_mb(*Path(f"{path}.segments").rglob("*"))
        lines.append(f"{name}: stored in {seconds:.1f} s; database {size:.0f} MB, segments {beside:.0f} MB")
    took: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(PLANS):  # each with other literals, because plans are cached
        kept, low = set(), 50_000 + 1000 * turn
        condition = Leaf("c3", Op.BETWEEN, (low, low + 500))
        for name, side in sides.items():
            table = side.store.catalog.get("c.s.t")
            began = time.perf_counter()
            files = side.planner.plan(table, condition, ["c3"], 1).files
            took[name].append(1000 * (time.perf_counter() - began))
            kept.add(tuple(files["file_path"].to_pylist()))
        assert len(kept) == 1
    for name, each in took.items():
        lines.append(f"{name}: planned in {statistics.median(each):.0f} ms (median), {min(each):.0f} ms at best")
    for side in sides.values():
        side.store.close()
    with capsys.disabled():
        print(f"\n{FILES} files × {COLUMNS} columns, load {os.getloadavg()[0]:.0f}\n  " + "\n  ".join(lines))
        print(f"  peak memory of both {peak_mb(os.getpid()):.0f} MB")
