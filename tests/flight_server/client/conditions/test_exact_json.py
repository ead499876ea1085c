"""JSON of commands: numbers keep their digits on the way to the server."""

import json
import math
from decimal import Decimal

import pytest

from flight_server.client.conditions.exact_json import dumps, loads

SAME = [
    0.1,
    -2.5,
    1e300,
    2**70,
    Decimal("0.10000000000000000001"),
    Decimal("1E+400"),
    Decimal("-12345678901234567.89"),
    math.inf,
    True,
    None,
    "é\n",
    [],
    {"a": [Decimal("1E-400"), {"b": "x"}]},
]


@pytest.mark.parametrize("value", SAME, ids=str)
def test_numbers_are_read_as_they_were_written(value):
    read = loads(dumps({"values": [value]}))["values"][0]
    assert read == value and type(read) is type(value)


def test_a_fraction_is_a_float_wherever_one_represents_it():
    assert loads("[0.10, 1.50e1, 1e999999999999999999999]") == [0.1, 15.0, math.inf]
    assert [type(number) for number in loads("[0.10, 0.1000000000000000055]")] == [float, Decimal]


def test_other_objects_are_refused_as_by_json():
    for value in (object(), [Decimal(1), object()], Decimal("NaN")):
        with pytest.raises(TypeError):
            dumps(value)
    assert dumps({"a": 1}) == json.dumps({"a": 1})
