"""Values of parameters that a client sends."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_server.sql import parameters, plan
from store.model.errors import InvalidArgument


@pytest.mark.parametrize(
    "column",
    [
        pa.array([10**13]).cast(pa.timestamp("s")),
        pa.array([-62_135_596_800]).cast(pa.timestamp("s", "America/New_York")),
        pa.array([0]).cast(pa.timestamp("us", "No/Where")),
        pa.array([2**62]).cast(pa.duration("s")),
        pa.array([b"\xff"]).view(pa.utf8()),
        pa.array([1_500], pa.timestamp("ns")),
        pa.array([1_500], pa.time64("ns")),
    ],
    ids=["year 300000", "before year 1", "zone", "duration", "text", "nanoseconds", "time"],
)
def test_value_that_cannot_be_read_is_refused_by_its_number(column):
    batch = pa.record_batch([pa.array(["a"]), column], names=["a", "b"])
    with pytest.raises(InvalidArgument, match="parameter 2 cannot be read"):
        parameters.read([batch], plan.make("SELECT ?, ?"))


def test_nanoseconds_of_whole_microseconds_are_read():
    batch = pa.record_batch(
        [pa.array([1_000], pa.timestamp("ns", "UTC")), pa.array([1_000], pa.time64("ns"))], ["a", "b"]
    )
    _, (instant, time) = parameters.read([batch], plan.make("SELECT ?, ?"))
    assert instant.microsecond == time.microsecond == 1
