"""Zeroing of the value slots of NULLs."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from flight_server.core.reads.null_slots import zeroed

WIDTHS = {
    pa.int8(): 1,
    pa.int32(): 4,
    pa.int64(): 8,
    pa.float64(): 8,
    pa.date32(): 4,
    pa.timestamp("us", "UTC"): 8,
    pa.decimal128(20, 3): 16,
    pa.binary(16): 16,
}


def with_residue(type_: pa.DataType, rows: int = 40) -> pa.Array:
    """An array in which every slot holds text, and every third is NULL."""
    valid = np.packbits(np.arange(rows) % 3 > 0, bitorder="little")
    data = (b"hidden_t" * 2 * rows)[: WIDTHS[type_] * rows]
    return pa.Array.from_buffers(type_, rows, [pa.py_buffer(valid), pa.py_buffer(data)])


def under_nulls(column: pa.Array) -> bytes:
    """The bytes in the slots of NULLs."""
    width = WIDTHS[column.type]
    slots = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
    return slots.reshape(-1, width)[column.is_null().to_numpy(zero_copy_only=False)].tobytes()


@pytest.mark.parametrize("type_", WIDTHS, ids=str)
def test_null_slots_are_zeroed_and_values_unchanged(type_):
    for start in (0, 3, 8, 13):
        column = with_residue(type_).slice(start)
        assert under_nulls(column).strip(b"\0")
        (cleared,) = zeroed(pa.record_batch([column], ["c"])).columns
        assert cleared.type == type_
        assert not under_nulls(cleared).strip(b"\0"), start
        assert cleared.equals(column), start


def test_null_slots_of_list_values_are_zeroed():
    inner = with_residue(pa.int64())
    lists = pa.ListArray.from_arrays(pa.array(range(0, 41, 4)), inner)
    (cleared,) = zeroed(pa.record_batch([lists], ["c"])).columns
    assert cleared.equals(lists)
    assert not under_nulls(cleared.values).strip(b"\0")


def test_batch_of_other_types_is_equal_and_null_free_columns_not_copied():
    rows = {
        "text": ["a", None, "b"],
        "flag": [True, None, False],
        "no_null": [1, 2, 3],
        "nothing": [None] * 3,
        "at": [datetime(2024, 5, 17, tzinfo=UTC), None, None],
        "exact": [Decimal("1.5"), None, None],
        "structs": [{"x": 1}, None, {"x": None}],
    }
    batch = pa.RecordBatch.from_pydict(rows)
    cleared = zeroed(batch)
    assert cleared.equals(batch)
    assert cleared.schema.equals(batch.schema)
    assert cleared.column("no_null").buffers()[1].address == batch.column("no_null").buffers()[1].address


def test_batch_without_columns_keeps_its_row_count():
    assert zeroed(pa.record_batch({"a": [1, 2]}).select([])).num_rows == 2
