"""Synthetic statistics for the store's benchmarks: paths, names and bounds as long and as varied as real ones."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.duckdb.layout import OPEN_END, stored_columns
from store.model import bounds, logical_types
from store.model.sketches.theta import theta

COLUMNS = 20
_TYPES = ("INT", "DOUBLE", "STRING", "TIMESTAMP", "DATE")
_MICROS_OF_A_DAY = 86_400_000_000


def _constant(value: str, rows: int) -> pa.Array:
    return pa.array([value]).take(pa.array(np.zeros(rows, np.int64)))


def _bound(numbers: np.ndarray, kinds: np.ndarray) -> pa.Array:
    values = {
        "INT": pa.array(numbers),
        "DOUBLE": pa.array(numbers / 1000),
        "STRING": pc.binary_join_element_wise("customer-", pa.array(numbers).cast(pa.string()), ""),
        "TIMESTAMP": pa.array(numbers % (20_000 * _MICROS_OF_A_DAY)).cast(pa.timestamp("us")),
        "DATE": pa.array((numbers % 20_000).astype(np.int32)).cast(pa.date32()),
    }
    texts = [bounds.encode_array(values[name], logical_types.parse(name)) for name in _TYPES]
    return pc.choose(pa.array(kinds), *texts)


def _scalars(rows: int, seed: int) -> dict[str, pa.Array]:
    random = np.random.default_rng(seed)
    kinds = np.arange(rows) % len(_TYPES)
    low = _bound(random.integers(0, 10**9, rows), kinds)
    count = random.integers(10**3, 10**6, rows)
    return {
        "logical_type": pa.array(_TYPES).take(pa.array(kinds)),
        "row_count": pa.array(count),
        "null_count": pa.array(count // 10),
        "ndv": pa.array(random.integers(1, 901, rows).astype(float)),  # at most the rows without nulls
        "ndv_exact": pa.array(np.zeros(rows, np.bool_)),
        "min": low,
        "max": low,
        "min_is_exact": pa.array(np.ones(rows, np.bool_)),
        "max_is_exact": pa.array(np.ones(rows, np.bool_)),
        "avg_width_bytes": pa.array(np.full(rows, 8.0)),
        "producer": _constant("SOURCE_NATIVE", rows),
        "completeness": _constant("COMPLETE", rows),
        "engine_id": _constant("native", rows),
        "capture_mode": _constant("SYNC", rows),
        "rows_scanned": pa.array(count),
        "schema_hash": _constant("0123456789abcdef" * 4, rows),
    }


def key(table: int, rows: int, snapshot: int = 1) -> dict[str, pa.Array]:
    return {
        "table_catalog": _constant("lake", rows),
        "table_schema": _constant("sales", rows),
        "table_name": _constant(f"table_{table:05d}", rows),
        "snapshot_id": pa.array(np.full(rows, snapshot)),
    }


def paths(table: int, files: np.ndarray) -> pa.Array:
    return pa.array(
        [
            f"s3://bucket/warehouse/sales/table_{table:05d}/data/part-{i:08d}-{i * 2654435761 % 2**40:010x}.parquet"
            for i in files.tolist()
        ]
    )


def file_columns(table: int, files: int, snapshot: int = 1, seed: int = 0, first: int = 0) -> pa.Table:
    """One row for each of 20 columns of each file."""
    rows = files * COLUMNS
    ids = np.tile(np.arange(1, COLUMNS + 1), files)
    named = {
        "file_path": paths(table, np.arange(first, first + files)).take(pa.array(np.repeat(np.arange(files), COLUMNS))),
        "column_id": pa.array(ids),
        "column_name": pa.array([f"column_{i}" for i in range(COLUMNS + 1)]).take(pa.array(ids)),
    }
    return pa.table(key(table, rows, snapshot) | named | _scalars(rows, table * 1000 + seed))


def columns(table: int, snapshots: range) -> pa.Table:
    """One row for each of 20 columns at each snapshot."""
    rows = len(snapshots) * COLUMNS
    ids = np.tile(np.arange(1, COLUMNS + 1), len(snapshots))
    more = key(table, rows) | {
        "snapshot_id": pa.array(np.repeat(np.array(snapshots), COLUMNS)),
        "column_id": pa.array(ids),
        "column_name": pa.array([f"column_{i}" for i in range(COLUMNS + 1)]).take(pa.array(ids)),
    }
    return pa.table(more | _scalars(rows, table))


def sketches(table: int, snapshots: range) -> pa.Table:
    """A theta sketch of 126 random hashes, 1024 bytes, for each of 20 columns at each snapshot."""
    rows = len(snapshots) * COLUMNS
    hashes = np.random.default_rng(table).integers(1, 1 << 62, (rows, 126), np.uint64)
    more = key(table, rows) | {
        "snapshot_id": pa.array(np.repeat(np.array(snapshots), COLUMNS)),
        "target_kind": _constant("COLUMN", rows),
        "column_id": pa.array(np.tile(np.arange(1, COLUMNS + 1), len(snapshots))),
        "role": _constant("NDV", rows),
        "sketch_type": _constant("apache-datasketches-theta-v1", rows),
        "data": pa.array([theta(each) for each in hashes], pa.binary()),
    }
    return pa.table(more)


def physical(rows: pa.Table, table_key: int) -> pa.Table:
    """The rows of `file_columns` in the form of the physical table, without created_at."""
    size = rows.num_rows
    leading = {
        "table_key": pa.array(np.full(size, table_key)),
        "from_pos": pa.array(np.zeros(size, np.int64)),
        "to_pos": pa.array(np.full(size, OPEN_END)),
    }
    stored = {
        name: rows[name] if name in rows.column_names else pa.nulls(size, type)
        for name, type in stored_columns("stats.file_columns").items()
    }
    return pa.table(leading | stored | {"generation": pa.array(np.ones(size, np.int64))})
