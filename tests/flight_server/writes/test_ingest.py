"""Put streams: rows in their order, or the first error; large batches are checked in parallel."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from flight_server.auth.principal import ANONYMOUS
from flight_server.writes.ingest import PutRequest, read_rows
from store.bounds import REFUSE
from store.errors import Cancelled, InvalidField
from store.schemas import FLIGHTS

SIZES = (10_000, 7, 5000, 4096, 1, 20_000, 4095, 6000)


class Stream:
    """Batches as Flight's reader gives them."""

    def __init__(self, batches: list[pa.RecordBatch]):
        self.schema = batches[0].schema
        self._left = iter(batches)

    def read_chunk(self):
        return SimpleNamespace(data=next(self._left))


def batches(wrong: dict[int, int] | None = None) -> list[pa.RecordBatch]:
    """Columns 1, 2, … of one table, the counts of some rows (from 1) replaced."""
    total = sum(SIZES)
    counts = list(range(1, total + 1))
    for row, count in (wrong or {}).items():
        counts[row - 1] = count
    rows = pa.table({
        "table_catalog": ["c"] * total, "table_schema": ["s"] * total, "table_name": ["t"] * total,
        "snapshot_id": [1] * total, "column_id": range(1, total + 1), "row_count": counts,
    })  # fmt: skip
    starts = [sum(SIZES[:at]) for at in range(len(SIZES))]
    return [rows.slice(start, size).combine_chunks().to_batches()[0] for start, size in zip(starts, SIZES, strict=True)]


def read(given: list[pa.RecordBatch], is_cancelled=lambda: False) -> pa.Table:
    return read_rows(PutRequest(FLIGHTS["stats.columns"]), Stream(given), ANONYMOUS, REFUSE, is_cancelled)


def test_rows_come_in_their_order():
    rows = read(batches())
    assert rows["column_id"].to_pylist() == rows["row_count"].to_pylist() == list(range(1, sum(SIZES) + 1))


@pytest.mark.parametrize("rows", [(10_004, 3), (10_003, 14_000), (15_008, 40_000, 49_000), (49_190,)])
def test_the_first_mistake_is_told(rows):
    with pytest.raises(InvalidField, match=rf"row {min(rows)}\b.*row_count.*negative|row_count.*row {min(rows)}\b"):
        read(batches(dict.fromkeys(rows, -1)))


def test_a_stream_that_was_cancelled_is_no_put():
    with pytest.raises(Cancelled):
        read(batches(), lambda: True)
