"""Synthetic statistics for the serving benchmarks: many tables with several stored snapshots each.

They are put through the store itself. STATFLIGHT_BENCH_TABLES: number of tables (at least 2), the last one wide.
STATFLIGHT_BENCH_SNAPSHOTS: stored snapshots of each; columns change with each snapshot, and files are added.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

COLUMNS_PER_TABLE = 50
WIDE_COLUMNS = 1000
TABLES = int(os.environ.get("STATFLIGHT_BENCH_TABLES", "2000"))
SNAPSHOTS = int(os.environ.get("STATFLIGHT_BENCH_SNAPSHOTS", "5"))
_TABLES_IN_A_PUT = 250


def name_of(number: int) -> tuple[str, str, str]:
    return "bench", f"schema{number % 10}", f"table{number:05d}"


def _scalars(rows: int, seed: int) -> dict[str, pa.Array]:
    random = np.random.default_rng(seed)
    low = random.integers(0, 10**9, rows)
    return {
        "logical_type": pa.array(["INT", "INT", "DOUBLE", "INT", "INT"]).take(pa.array(np.arange(rows) % 2)),
        "row_count": pa.array(random.integers(10**6, 10**7, rows)),
        "null_count": pa.array(random.integers(0, 10**4, rows)),
        "ndv": pa.array(random.random(rows) * 9e5),
        "min": pa.array(low).cast(pa.string()),
        "max": pa.array(low + 10**9).cast(pa.string()),
        "avg_width_bytes": pa.array(np.full(rows, 8.0)),
        "producer": pa.array(["SOURCE_NATIVE"]).take(pa.array(np.zeros(rows, int))),
        "completeness": pa.array(["COMPLETE"]).take(pa.array(np.zeros(rows, int))),
        "engine_id": pa.array(["native"]).take(pa.array(np.zeros(rows, int))),
        "schema_hash": pa.array(["0123456789abcdef" * 4]).take(pa.array(np.zeros(rows, int))),
    }


def _key(number: int, rows: int, snapshot: int) -> dict[str, pa.Array]:
    names = dict(zip(("table_catalog", "table_schema", "table_name"), name_of(number), strict=True))
    key = {name: pa.repeat(value, rows) for name, value in names.items()}
    return key | {"snapshot_id": pa.array(np.full(rows, snapshot))}


def columns_rows(number: int, columns: int, snapshot: int = SNAPSHOTS) -> pa.Table:
    ids = np.arange(1, columns + 1)
    named = {"column_id": pa.array(ids), "column_name": pa.array([f"column_{i}" for i in ids])}
    return pa.table(_key(number, columns, snapshot) | named | _scalars(columns, number * SNAPSHOTS + snapshot))


def file_columns_rows(number: int, files: int, snapshot: int = SNAPSHOTS) -> pa.Table:
    """Rows of a table's first files, which are equal at every snapshot."""
    rows = files * COLUMNS_PER_TABLE
    ids = np.tile(np.arange(1, COLUMNS_PER_TABLE + 1), files)
    paths = pa.array([f"s3://bucket/warehouse/table{number:05d}/data/part-{i:05d}.parquet" for i in range(files)])
    named = {
        "file_path": paths.take(pa.array(np.repeat(np.arange(files), COLUMNS_PER_TABLE))),
        "column_id": pa.array(ids),
        "column_name": pa.array([f"column_{i}" for i in range(COLUMNS_PER_TABLE + 1)]).take(pa.array(ids)),
    }
    each = (pa.table(_scalars(COLUMNS_PER_TABLE, number * 1000 + file)) for file in range(files))
    scalars = pa.concat_tables(each).combine_chunks()
    return pa.table(_key(number, rows, snapshot) | named | dict(zip(scalars.column_names, scalars, strict=True)))


def build(path: Path, file_rows: int) -> None:
    """A database of TABLES tables of SNAPSHOTS snapshots, with about `file_rows` rows of stats.file_columns that are
    shown."""
    from store.catalog.catalog import Catalog
    from store.duckdb.database import Database
    from store.history import validation
    from store.model.schemas import FLIGHTS
    from store.stats_store import DuckDBStatsStore, Put

    database = Database(path)
    store = DuckDBStatsStore(database, Catalog(database))
    listed = SNAPSHOTS * (SNAPSHOTS + 1) // 2  # of a file at each snapshot, over all snapshots
    added = max(1, file_rows // TABLES // COLUMNS_PER_TABLE // listed)

    def width(number: int) -> int:
        return WIDE_COLUMNS if number == TABLES - 1 else COLUMNS_PER_TABLE

    for snapshot in range(1, SNAPSHOTS + 1):
        for first in range(0, TABLES, _TABLES_IN_A_PUT):
            numbers = range(first, min(first + _TABLES_IN_A_PUT, TABLES))
            for flight, rows in (
                ("stats.columns", [columns_rows(n, width(n), snapshot) for n in numbers]),
                ("stats.file_columns", [file_columns_rows(n, added * snapshot, snapshot) for n in numbers]),
            ):
                put = Put(flight, validation.prepare(FLIGHTS[flight], pa.concat_tables(rows)))
                store.put([put])
    with database.reading() as cursor:
        cursor.execute("CHECKPOINT")
    database.close()


if __name__ == "__main__":
    build(Path(sys.argv[1]), int(sys.argv[2]))
