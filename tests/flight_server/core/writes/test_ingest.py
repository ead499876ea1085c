"""Put streams: rows in order, or the first error; large batches are checked in parallel."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.writes.ingest import PutRequest, freed_if_refused, read_rows
from store.model import sketches
from store.model.bounds import REFUSE
from store.model.columns import FREQUENT_ITEMS, KLL, THETA
from store.model.errors import Cancelled, InvalidField
from store.model.schemas import FLIGHTS

SIZES = (10_000, 7, 5000, 4096, 1, 20_000, 4095, 6000)


class Stream:
    """Yields batches like the reader of Flight."""

    def __init__(self, batches: list[pa.RecordBatch]):
        self.schema = batches[0].schema
        self._left = iter(batches)

    def read_chunk(self):
        return SimpleNamespace(data=next(self._left))


def batches(wrong: dict[int, int] | None = None) -> list[pa.RecordBatch]:
    """Columns 1, 2, … of one table, with the counts of some rows (from 1) replaced."""
    total = sum(SIZES)
    counts = list(range(1, total + 1))
    for row, count in (wrong or {}).items():
        counts[row - 1] = count
    rows = pa.table(
        {
            "table_catalog": ["c"] * total,
            "table_schema": ["s"] * total,
            "table_name": ["t"] * total,
            "snapshot_id": [1] * total,
            "column_id": range(1, total + 1),
            "row_count": counts,
        }
    )
    starts = [sum(SIZES[:at]) for at in range(len(SIZES))]
    return [rows.slice(start, size).combine_chunks().to_batches()[0] for start, size in zip(starts, SIZES, strict=True)]


def read(given: list[pa.RecordBatch], is_cancelled=lambda: False) -> pa.Table:
    return read_rows(PutRequest(FLIGHTS["stats.columns"]), Stream(given), ANONYMOUS, REFUSE, is_cancelled)


@pytest.mark.parametrize(("is_own", "checked"), [(True, True), (True, False), (False, True)])
def test_values_of_checked_rows_of_the_own_worker_are_not_checked(is_own, checked):
    caller = replace(ANONYMOUS, is_own=is_own)
    request = PutRequest(FLIGHTS["stats.columns"], draft="token", checked=checked)
    given = Stream(batches({3: -1}))
    if is_own and checked:
        assert read_rows(request, given, caller, REFUSE, lambda: False)["row_count"][2].as_py() == -1
        wrong = Stream([pa.record_batch({"table_name": ["t"]})])
        with pytest.raises(InvalidField, match="is missing"):  # columns are
            read_rows(request, wrong, caller, REFUSE, lambda: False)
    else:
        with pytest.raises(InvalidField, match="row 3"):
            read_rows(request, given, caller, REFUSE, lambda: False)


def test_rows_keep_their_order():
    rows = read(batches())
    assert rows["column_id"].to_pylist() == rows["row_count"].to_pylist() == list(range(1, sum(SIZES) + 1))


@pytest.mark.parametrize("rows", [(10_004, 3), (10_003, 14_000), (15_008, 40_000, 49_000), (49_190,)])
def test_error_names_the_first_invalid_row(rows):
    with pytest.raises(InvalidField, match=rf"row {min(rows)}\b.*row_count.*negative|row_count.*row {min(rows)}\b"):
        read(batches(dict.fromkeys(rows, -1)))


def test_cancelled_stream_is_not_stored():
    with pytest.raises(Cancelled):
        read(batches(), lambda: True)


@pytest.mark.parametrize("rows", [100, 10_000])
def test_refused_put_holds_no_memory_while_its_exception_is_handled(rows: int):
    def put() -> None:
        texts = pa.array(["x" * (20_000_000 // rows)] * rows)
        given = pa.table(
            {
                "table_catalog": pa.repeat("c", rows),
                "table_schema": pa.repeat("s", rows),
                "table_name": pa.repeat("t", rows),
                "snapshot_id": pa.repeat(1, rows),
                "column_id": pa.repeat(-1, rows),
                "column_name": texts,
            }
        )
        read(given.to_batches())

    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidField, match="not positive") as refusal, freed_if_refused():
        put()
    assert refusal.value.__traceback__ is not None
    assert pa.total_allocated_bytes() - before < 1_000_000


GOOD = {
    THETA: sketches.theta(np.array([1, 2], np.uint64)),
    KLL: sketches.kll(np.array([1.0, 2.0])),
    FREQUENT_ITEMS: sketches.frequent([b"a"], [2], 2, 0),
}
# minimum above maximum
REVERSED_BOUNDS = sketches.kll(np.array([1.0, 2.0]))[:-32] + struct.pack("<dddd", 9.0, 8.0, 1.0, 2.0)


def put_sketches(*given: tuple[str, bytes]) -> pa.Table:
    key = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "target_kind": "COLUMN"}
    rows = [key | {"column_id": i, "role": "NDV", "sketch_type": t, "data": d} for i, (t, d) in enumerate(given, 1)]
    schema = pa.schema([FLIGHTS["stats.sketches"].schema.field(name) for name in rows[0]])
    batch = pa.RecordBatch.from_pylist(rows, schema)
    return read_rows(PutRequest(FLIGHTS["stats.sketches"]), Stream([batch]), ANONYMOUS, REFUSE, lambda: False)


@pytest.mark.parametrize(
    ("type", "data", "reason"),
    [
        *((type, data, "sketch") for type in GOOD for data in (b"", b"garbage", GOOD[type][:-1])),
        (KLL, REVERSED_BOUNDS, "between its minimum"),
        (THETA, GOOD[KLL], "theta"),
    ],
)
def test_invalid_sketch_is_rejected_with_its_row(type, data, reason):
    with pytest.raises(InvalidField, match=rf"(?s)data.*{reason}.*row 5") as raised:
        put_sketches(*GOOD.items(), ("of another library", b"garbage"), (type, data))
    assert type in str(raised.value)


def test_valid_and_unknown_sketches_are_accepted():
    assert put_sketches(*GOOD.items(), ("of another library", b"garbage")).num_rows == 4
