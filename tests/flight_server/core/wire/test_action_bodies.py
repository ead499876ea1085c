"""The `sampling` of a request: a method by name, or an object with a budget."""

import json

import pytest

from capture.spec import Budget, Sampling
from capture.spec_body import parse_spec
from flight_server.core.wire.action_bodies import CaptureBody, capture_items, parse_body
from store.model.errors import InvalidArgument


def parse_items(data):
    return capture_items(parse_body(data, CaptureBody))


def parse_sampling(sampling):
    (found,) = parse_items(json.dumps({"requests": [{"table": "a.b.c", "sampling": sampling}]}).encode())
    return found


@pytest.mark.parametrize(
    ("sampling", "method", "budget"),
    [
        (None, "NONE", None),
        ("METADATA_GUIDED", "METADATA_GUIDED", None),
        ({"method": "NONE"}, "NONE", None),
        ({"method": "RANDOM_ROW_GROUP"}, "RANDOM_ROW_GROUP", None),
        ({"method": "RANDOM_ROW_GROUP", "max_rows": 1, "max_bytes": None}, "RANDOM_ROW_GROUP", Budget(max_rows=1)),
        (
            {"method": "METADATA_GUIDED", "max_bytes": 2**40, "max_seconds": 0.5},
            "METADATA_GUIDED",
            Budget(None, 2**40, 0.5),
        ),
    ],
)
def test_sampling_is_a_method_with_an_optional_budget(sampling, method, budget):
    found = parse_sampling(sampling)
    assert (found.spec.sampling, found.spec.budget) == (Sampling(method), budget)
    assert parse_spec(found.spec.json) == found.spec


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ("SOME", "requests[0].sampling"),
        (5, "requests[0].sampling"),
        ([1], "requests[0].sampling"),
        ({}, "requests[0].sampling.method"),
        ({"method": "RANDOM_ROW_GROUP", "max_row": 1}, "max_row"),
        ({"method": "RANDOM_ROW_GROUP", "max_rows": 0}, "a whole number > 0"),
        ({"method": "RANDOM_ROW_GROUP", "max_rows": 1.5}, "a whole number > 0"),
        ({"method": "RANDOM_ROW_GROUP", "max_bytes": True}, "a whole number > 0"),
        ({"method": "RANDOM_ROW_GROUP", "max_seconds": "1"}, "a number of seconds > 0"),
        ({"method": "RANDOM_ROW_GROUP", "max_seconds": -1}, "a number of seconds > 0"),
        ({"method": "RANDOM_ROW_GROUP", "max_rows": 2**63}, "a whole number > 0"),
        ({"method": "NONE", "max_rows": 5}, "it reads everything"),
    ],
)
def test_invalid_sampling_is_rejected_with_its_field(sampling, reason):
    with pytest.raises(InvalidArgument) as raised:
        parse_sampling(sampling)
    assert reason in str(raised.value)


def parse_engine(**body):
    return parse_items(json.dumps({"requests": [{"table": "a.b.c"}, {"table": "a.b.d"}]} | body).encode())


@pytest.mark.parametrize("engine", [None, "auto", "spark", "local"])
def test_engine_is_that_of_all_requests(engine):
    items = parse_engine(engine=engine)
    assert [item.spec.engine for item in items] == [engine] * 2
    assert all(parse_spec(item.spec.json) == item.spec for item in items)


@pytest.mark.parametrize("engine", ["duck", "", "SPARK", 1, ["spark"]])
def test_another_engine_is_refused(engine):
    with pytest.raises(InvalidArgument, match="engine: "):
        parse_engine(engine=engine)


def test_engine_is_no_key_of_a_request():
    with pytest.raises(InvalidArgument, match='no key "engine"'):
        parse_items(b'{"requests": [{"table": "a.b.c", "engine": "spark"}]}')
