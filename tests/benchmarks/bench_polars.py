"""Frames of planned scans that polars reads by itself, against the same files as a dataset of pyarrow.

Processor time and wall time, the least of some rounds, interleaved; rows are the same.
`python -m pytest tests/benchmarks/bench_polars.py -m benchmark -s`
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from flight_server.faces.local.tables import LocalTables

pytestmark = pytest.mark.benchmark

FILES, ROWS, ROUNDS = 12, 500_000, 5
TIMES = 1.2  # less processor time for text conditions, a head and an aggregate
QUESTIONS: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "rows of a range": lambda rows: rows.filter(pl.col("id").is_between(1_200_000, 1_200_999)).sort("id"),
    "the end of a text": lambda rows: rows.filter(pl.col("text").str.ends_with("99")).select(pl.len()),
    "ten rows": lambda rows: rows.head(10).select(pl.len()),
    "a sum": lambda rows: rows.select(pl.col("x").sum().round(3)),
    "a mean by text": lambda rows: rows.group_by("text").agg(pl.col("x").mean().round(6)).sort("text"),
}


def test_polars_reads_files_by_itself_faster(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    (tmp_path / "t").mkdir()
    for at in range(FILES):
        texts = [f"u{number}" for number in rng.integers(0, 5000, ROWS)]
        rows = pa.table({"id": np.arange(at * ROWS, (at + 1) * ROWS), "text": texts, "x": rng.random(ROWS)})
        pq.write_table(rows, tmp_path / "t" / f"{at:02}.parquet", row_group_size=50_000)
    tables = LocalTables(None, lambda _: None)
    scan = tables.client.scan(tables.add(str(tmp_path / "t")))
    sides = {"by itself": scan.polars, "dataset": lambda: pl.scan_pyarrow_dataset(scan.dataset())}
    print(f"\n{FILES} files of {ROWS:,} rows; processor time (wall time) in milliseconds")
    ratios = {}
    for question, ask in QUESTIONS.items():
        least = dict.fromkeys(sides, (float("inf"), float("inf")))
        answers = {}
        for _ in range(ROUNDS):
            for side, frame in sides.items():
                cpu, wall = time.process_time(), time.perf_counter()
                answers[side] = ask(frame()).collect()
                took = 1000 * (time.process_time() - cpu), 1000 * (time.perf_counter() - wall)
                least[side] = min(least[side], took)
        assert_frame_equal(*answers.values())
        told = "   ".join(f"{side} {cpu:.0f} ({wall:.0f})" for side, (cpu, wall) in least.items())
        ratios[question] = least["dataset"][0] / least["by itself"][0]
        print(f"{question:<20}{told:<50}{ratios[question]:>6.1f} x")
    tables.close()
    assert all(ratios[question] >= TIMES for question in ("the end of a text", "ten rows", "a mean by text")), ratios
