"""Pruning of a table's file rows by bounds: texts read in the query, as the store does, beside stored sort keys.

Both sides are interleaved in one run: rows kept by `min <= x AND max >= x`, size of the file, time of the insert.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from store.model import bounds, logical_types
from store.model.predicates.bounds import KEYS
from store.model.predicates.sql import to_sql
from store.model.predicates.tree import And, Leaf, Op

pytestmark = pytest.mark.benchmark

TYPES = {
    "INT": pa.int64(),
    "DOUBLE": pa.float64(),
    "DECIMAL(18,2)": pa.decimal128(18, 2),
    "DATE": pa.date32(),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "STRING": pa.string(),
}
SCHEMA = pa.schema({"logical_type": pa.string(), "min": pa.string(), "max": pa.string()})
MOST_MS = {10_000: 10, 1_000_000: 150}
ROUNDS = 7


def texts(name: str, numbers: np.ndarray) -> pa.Array:
    values = {
        "INT": lambda: pa.array(numbers - 3_000_000),
        "DOUBLE": lambda: pa.array(numbers / 7 - 3000),
        "DECIMAL(18,2)": lambda: pa.array(numbers - 3_000_000).cast(pa.decimal128(38, 2)),
        "DATE": lambda: pa.array((numbers // 400).astype(np.int32)).cast(pa.date32()),
        "TIMESTAMPTZ": lambda: pa.array(numbers * 400_000_000).cast(pa.timestamp("us", "UTC")),
        "STRING": lambda: pc.binary_join_element_wise("customer-", pa.array(numbers).cast(pa.string()), ""),
    }[name]()
    return bounds.encode_array(values, logical_types.parse(name))


def sort_keys(name: str, bound_texts: pa.Array) -> pa.Array:
    """Keys of one type, whose order as bytes is that of the values."""
    keys = bounds.sort_keys(bound_texts, logical_types.parse(name))
    if pa.types.is_int64(keys.type):
        octets = (keys.to_numpy().view(np.uint64) ^ np.uint64(1 << 63)).astype(">u8")
        return pa.Array.from_buffers(pa.binary(8), len(keys), [None, pa.py_buffer(octets.tobytes())]).cast(pa.binary())
    if pa.types.is_decimal(keys.type):
        keys = KEYS[logical_types.Kind.DECIMAL].of(bound_texts)
    return keys.cast(pa.binary())


def best_ms(sides: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(ROUNDS):
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - began) * 1000)
    return best


@pytest.mark.parametrize("rows", MOST_MS)
@pytest.mark.parametrize("name", TYPES)
def test_file_rows_are_pruned_by_texts_in_time(tmp_path: Path, name: str, rows: int) -> None:
    numbers = np.arange(rows) * 7
    low, high = texts(name, numbers), texts(name, numbers + 6)
    paths = pc.binary_join_element_wise("part-", pa.array(np.arange(rows)).cast(pa.string()), "")
    plain = {"file_path": paths, "logical_type": pa.repeat(name, rows), "min": low, "max": high}
    sides = {"texts": pa.table(plain)}
    sides["keys"] = pa.table(plain | {"min_key": sort_keys(name, low), "max_key": sort_keys(name, high)})
    x = low[rows // 2].as_py()
    key = sort_keys(name, low.slice(rows // 2, 1))[0].as_py()
    node = And((Leaf("min", Op.LTE, (x,)), Leaf("max", Op.GTE, (x,))))
    where = {
        "texts": to_sql(node, SCHEMA, lambda column: f'"{column}"'),
        "keys": ("min_key <= ?::BLOB AND max_key >= ?::BLOB", [key, key]),
    }
    queries, written, sizes, kept = {}, {}, {}, {}
    for side, table in sides.items():
        connection = duckdb.connect(str(tmp_path / f"{side}.duckdb"))
        connection.register("new_rows", table)
        began = time.perf_counter()
        connection.execute("CREATE TABLE f AS FROM new_rows")
        connection.execute("CHECKPOINT")
        written[side] = (time.perf_counter() - began) * 1000
        sizes[side] = (tmp_path / f"{side}.duckdb").stat().st_size
        condition, parameters = where[side]
        queries[side] = partial(connection.execute, f"SELECT file_path FROM f WHERE {condition}", parameters)
        kept[side] = queries[side]().fetchall()
    assert kept["texts"] == kept["keys"] and 1 <= len(kept["texts"]) <= 400
    took = best_ms({side: (lambda run=run: run().fetchall()) for side, run in queries.items()})
    print(
        f"\n{name:13} {rows:9,} rows: {took['texts']:6.1f} ms by texts, {took['keys']:5.1f} by keys"
        f" ({took['texts'] / took['keys']:.1f} x); the keys make the insert {written['keys'] / written['texts']:.2f} x"
        f" as long, the file {sizes['keys'] / sizes['texts']:.2f} x as large"
    )
    assert took["texts"] <= MOST_MS[rows], took
