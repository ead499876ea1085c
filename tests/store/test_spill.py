"""Rows on their way into the store: the same table, whether it went through a file or not."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from store.errors import ResourceExhausted
from store.spill import Spool

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])


def part(start: int) -> pa.Table:
    return pa.table({"x": range(start, start + 100), "s": [str(i) for i in range(start, start + 100)]}, SCHEMA)


@pytest.mark.parametrize("spill_bytes", [1, 4000, 10**9])
@pytest.mark.parametrize("parts", [0, 1, 7])
def test_rows_come_back_in_their_order(tmp_path, spill_bytes, parts):
    tables = [part(100 * i) for i in range(parts)]
    spool = Spool(SCHEMA, tmp_path, spill_bytes)
    for table in tables:
        spool.add(table)
    found = spool.table()
    del spool
    gc.collect()
    assert found.equals(pa.concat_tables([SCHEMA.empty_table(), *tables])), "the table outlives the spool"
    found.validate(full=True)


def test_many_rows_are_not_held_in_memory(tmp_path):
    gc.collect()
    before = pa.total_allocated_bytes()
    spool = Spool(SCHEMA, tmp_path, 10_000)
    for i in range(200):
        spool.add(part(100 * i))
    assert not list(tmp_path.iterdir()), "the file has no name, so a kill leaves nothing"
    table = spool.table()
    assert table.num_rows == 20_000
    assert pa.total_allocated_bytes() - before < table.nbytes / 4


def test_without_a_directory_all_stays_in_memory():
    spool = Spool(SCHEMA, None, 1)
    spool.add(part(0))
    assert spool.table().num_rows == 100


def test_no_room_is_said_so(tmp_path):
    spool = Spool(SCHEMA, tmp_path / "missing", 1)
    with pytest.raises(ResourceExhausted, match="cannot be held"):
        spool.add(part(0))
