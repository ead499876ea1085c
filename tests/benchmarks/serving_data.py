"""Synthetic statistics for the serving benchmarks, put through the store itself; kept between runs where asked."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

COLUMNS_PER_TABLE = 50
WIDE_COLUMNS = 1000
SNAPSHOT = 7
TABLES = 200


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


def _key(number: int, rows: int) -> dict[str, pa.Array]:
    names = dict(zip(("table_catalog", "table_schema", "table_name"), name_of(number), strict=True))
    key = {name: pa.repeat(value, rows) for name, value in names.items()}
    return key | {"snapshot_id": pa.array(np.full(rows, SNAPSHOT))}


def columns_rows(number: int, columns: int) -> pa.Table:
    ids = np.arange(1, columns + 1)
    named = {"column_id": pa.array(ids), "column_name": pa.array([f"column_{i}" for i in ids])}
    return pa.table(_key(number, columns) | named | _scalars(columns, number))


def file_columns_rows(number: int, files: int) -> pa.Table:
    rows = files * COLUMNS_PER_TABLE
    ids = np.tile(np.arange(1, COLUMNS_PER_TABLE + 1), files)
    paths = pa.array([f"s3://bucket/warehouse/table{number:05d}/data/part-{i:05d}.parquet" for i in range(files)])
    named = {
        "file_path": paths.take(pa.array(np.repeat(np.arange(files), COLUMNS_PER_TABLE))),
        "column_id": pa.array(ids),
        "column_name": pa.array([f"column_{i}" for i in range(COLUMNS_PER_TABLE + 1)]).take(pa.array(ids)),
    }
    return pa.table(_key(number, rows) | named | _scalars(rows, number))


def build(path: Path, file_rows: int) -> None:
    """A database of TABLES tables, the last one wide, with about `file_rows` rows of stats.file_columns."""
    from store import records
    from store.catalog_store import Catalog
    from store.database import Database
    from store.schemas import FLIGHTS
    from store.stats_store import DuckDBStatsStore, Put

    database = Database(path)
    store = DuckDBStatsStore(database, Catalog(database))
    files = max(1, file_rows // TABLES // COLUMNS_PER_TABLE)
    for number in range(TABLES):
        width = WIDE_COLUMNS if number == TABLES - 1 else COLUMNS_PER_TABLE
        for flight, rows in (
            ("stats.columns", columns_rows(number, width)),
            ("stats.file_columns", file_columns_rows(number, files)),
        ):
            store.put([Put(flight, records.prepare(FLIGHTS[flight], rows))])
    with database.reading() as cursor:
        cursor.execute("CHECKPOINT")
    database.close()


if __name__ == "__main__":
    build(Path(sys.argv[1]), int(sys.argv[2]))
