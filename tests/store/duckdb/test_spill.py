"""Spill buffer: one table, whether the rows were spilled to a file or kept in memory."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from store.duckdb.spill import SpillBuffer
from store.model.errors import ResourceExhausted

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])


def part(start: int) -> pa.Table:
    return pa.table({"x": range(start, start + 100), "s": [str(i) for i in range(start, start + 100)]}, SCHEMA)


@pytest.mark.parametrize("spill_bytes", [1, 4000, 10**9])
@pytest.mark.parametrize("parts", [0, 1, 7])
def test_table_keeps_the_row_order_at_any_spill_size(tmp_path, spill_bytes, parts):
    tables = [part(100 * i) for i in range(parts)]
    buffer = SpillBuffer(SCHEMA, tmp_path, spill_bytes)
    for table in tables:
        buffer.add(table)
    found = buffer.table()
    del buffer
    gc.collect(1)  # the generations that hold the buffer
    assert found.equals(pa.concat_tables([SCHEMA.empty_table(), *tables])), "the table outlives the buffer"
    found.validate(full=True)


def test_spilled_rows_use_little_memory_and_an_unnamed_file(tmp_path):
    gc.collect()
    before = pa.total_allocated_bytes()
    buffer = SpillBuffer(SCHEMA, tmp_path, 10_000)
    for i in range(200):
        buffer.add(part(100 * i))
    assert not list(tmp_path.iterdir()), "the file has no name, so a kill leaves nothing"
    table = buffer.table()
    assert table.num_rows == 20_000
    assert pa.total_allocated_bytes() - before < table.nbytes / 4


def test_without_a_directory_all_rows_stay_in_memory():
    buffer = SpillBuffer(SCHEMA, None, 1)
    buffer.add(part(0))
    assert buffer.table().num_rows == 100


def test_failed_spill_write_raises_resource_exhausted(tmp_path):
    buffer = SpillBuffer(SCHEMA, tmp_path / "missing", 1)
    with pytest.raises(ResourceExhausted, match="cannot be written to the spill file"):
        buffer.add(part(0))
