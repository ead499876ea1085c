"""Columns whose statistics are computed together: each has those that it has alone, and fails alone."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from capture.compute import kernels
from capture.compute.kernels import Values
from capture.compute.shared_steps import Step, run
from store.model import logical_types

_KINDS = {
    "INT": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "DATE": (st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)), pa.date32()),
    "DOUBLE": (st.floats(), pa.float64()),
    "FLOAT": (st.floats(width=32), pa.float32()),
    "BOOLEAN": (st.booleans(), pa.bool_()),
    "DECIMAL(9,2)": (st.decimals(-1000, 1000, places=2), pa.decimal128(9, 2)),
    "DECIMAL(38,0)": (st.integers(-(10**37), 10**37).map(Decimal), pa.decimal128(38, 0)),
    "TIMESTAMP": (st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)), pa.timestamp("us")),
    "STRING": (st.text(max_size=20), pa.string()),
    "BINARY": (st.binary(max_size=20), pa.binary()),
}


@st.composite
def columns(draw):
    kind = draw(st.sampled_from(sorted(_KINDS)))
    of_kind, type = _KINDS[kind]
    few = draw(st.lists(of_kind, min_size=1, max_size=5))  # so that values repeat
    values = draw(st.lists(st.none() | st.sampled_from(few) | of_kind, max_size=12))
    array = pa.array(values, type)
    if kind == "STRING" and draw(st.booleans()):
        array = array.dictionary_encode()
    return Values(pa.chunked_array([array]), logical_types.parse(kind), draw(st.sampled_from([1, 3])))


@given(st.lists(columns(), max_size=8))
def test_columns_together_have_the_statistics_that_they_have_alone(some):
    together = kernels.summarise_each(some)
    assert list(map(repr, together)) == [repr(kernels.summarise(v, lt, times=times)) for v, lt, times in some]


def test_integers_of_other_widths_keep_their_values():
    types = [pa.int64(), pa.uint64(), pa.int32(), pa.uint8(), pa.int64()]
    some = [Values(pa.chunked_array([pa.array([1, 2, 2], type)]), logical_types.parse("INT")) for type in types]
    some.append(Values(pa.chunked_array([pa.array([2**63 - 1])]), logical_types.parse("INT")))
    found = kernels.summarise_each(some)
    assert len({part.theta for part in found[:5]}) == 1
    assert found[5].max == str(2**63 - 1)


def test_a_column_that_fails_leaves_the_others_as_they_are():
    not_utf8 = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    texts = [pa.array(["a", "b"]), not_utf8, pa.array(["c"])]
    first, failed, last = kernels.summarise_each(
        [Values(pa.chunked_array([array]), logical_types.parse("STRING")) for array in texts]
    )
    assert isinstance(failed, ValueError)
    assert (first.min, first.max, last.min) == ("a", "b", "c")


def test_a_shared_step_that_fails_is_done_for_each():
    def halves(rows):
        if (rows % 2).any():
            raise ValueError(f"{rows.tolist()} is odd")
        return rows // 2

    def kernel(*rows):
        half = yield Step(halves, np.array(rows), "halves")
        return half.tolist()

    first, failed, last = run([kernel(2, 4), kernel(3), kernel(6)])
    assert (first, str(failed), last) == ([1, 2], "[3] is odd", [3])


def test_equal_steps_run_once_over_all_rows():
    calls = []

    def twice(rows):
        calls.append(rows.tolist())
        return rows * 2

    def kernel(number):
        once = yield Step(twice, np.array([number]), "twice")
        again = yield Step(twice, once, "twice")
        return int(again[0])

    assert run([kernel(1), kernel(2)]) == [4, 8]
    assert calls == [[1, 2], [2, 4]]
