"""Batches of a few bytes that stand for gigabytes are refused before they are cast."""

import pyarrow as pa
import pytest

from store.history import validation
from store.history.decoded_sizes import decoded_bytes
from store.model.errors import InvalidArgument
from store.model.schemas import FLIGHTS
from tests.store.record_tables import KEY

MANY = 1 << 40


def nulls(rows: int) -> pa.Array:
    return pa.Array.from_buffers(pa.null(), rows, [None])


def views(text: bytes, rows: int) -> pa.Array:
    """The same text in each row, stored once."""
    view = len(text).to_bytes(4, "little") + text[:4] + bytes(8)
    return pa.Array.from_buffers(pa.string_view(), rows, [None, pa.py_buffer(view * rows), pa.py_buffer(text)])


LARGE = {
    "nulls": nulls(MANY),
    "a dictionary": pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 1_000_000])),
    "a dictionary of views": pa.DictionaryArray.from_arrays(pa.array([0] * 2000), views(b"x" * 1_000_000, 1)),
    "a dictionary of lists": pa.DictionaryArray.from_arrays(pa.array([0] * 2000), pa.array([[0] * 100_000])),
    "views": views(b"x" * 1_000_000, 2000),
    "lists of nulls": pa.LargeListArray.from_arrays([0, MANY], nulls(MANY)),
    "wide lists of nulls": pa.FixedSizeListArray.from_arrays(nulls(1 << 30), 1 << 30),
    "structs of nulls": pa.StructArray.from_arrays([nulls(MANY)], ["a"]),
}


@pytest.mark.parametrize("array", LARGE.values(), ids=LARGE)
def test_size_of_plain_values_is_estimated(array: pa.Array):
    array.validate(full=True)
    assert array.get_total_buffer_size() < 4 << 20
    assert decoded_bytes(array) > validation.MAX_BATCH_BYTES


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["ab", None, "c"], pa.string_view()),
        pa.array(["long enough for a view", None], pa.binary_view()),
        pa.array([], pa.string_view()),
        pa.array(["ab", None, "ab"]).dictionary_encode(),
        pa.nulls(3),
        pa.array([1, None]).dictionary_encode(),
        pa.array([[1, 2], None, []], pa.list_(pa.int8())),
        pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
        pa.array([], pa.list_(pa.string())),
        pa.array([{"a": 1}, None]),
        pa.array([None, None], pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=lambda array: str(array.type),
)
def test_estimates_of_ordinary_columns_are_small(array: pa.Array):
    assert 0 <= decoded_bytes(array) < 200
    assert decoded_bytes(array.slice(1)) <= decoded_bytes(array)


@pytest.mark.parametrize("name", ["nulls", "a dictionary", "views"])
def test_batch_that_decodes_to_gigabytes_is_refused(name: str):
    array = LARGE[name]
    rows = len(array)
    key = nulls(rows) if rows == MANY else pa.nulls(rows)
    names = [*KEY, "column_id", "column_name"]
    batch = pa.RecordBatch.from_arrays([key] * 5 + [array], names)
    with pytest.raises(InvalidArgument, match=r"a batch takes \d+ bytes of memory; .*smaller batches"):
        validation.prepare(FLIGHTS["stats.columns"], batch)
