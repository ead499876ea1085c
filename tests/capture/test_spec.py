"""`CaptureSpec`: JSON round trip, and errors that name the field."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.spec import Budget, CaptureSpec, Engine, Sampling
from capture.spec_body import StoredSpec, parse_spec
from store.model.columns import KINDS
from store.model.errors import InvalidArgument
from store.model.targets import Target

BUDGETS = st.builds(
    Budget,
    max_rows=st.none() | st.integers(1, 2**40),
    max_bytes=st.none() | st.integers(1, 2**40),
    max_seconds=st.floats(0.001, 1e6),
)
SPECS = st.one_of(
    st.builds(
        CaptureSpec,
        target=st.integers(1, 100).map(Target.column) | st.just(Target.table()),
        kinds=st.frozensets(st.sampled_from(KINDS)),
        column_selectors=st.lists(st.sampled_from(["#1", "a", "b.c"]), unique=True).map(sorted).map(tuple),
        partitions=st.just(()) | st.just(((("day", "1"), ("region", None)),)),
        latency_budget_ms=st.none() | st.integers(0, 2**31 - 1),
        engine=st.none() | st.sampled_from(Engine),
    ),
    st.builds(
        CaptureSpec,
        target=st.integers(1, 100).map(Target.column),
        sampling=st.sampled_from([Sampling.RANDOM_ROW_GROUP, Sampling.METADATA_GUIDED]),
        budget=st.none() | BUDGETS,
    ),
)


@given(SPECS)
def test_spec_round_trips_through_json(spec):
    read = parse_spec(json.loads(json.dumps(spec.json)))
    assert read == spec and read.latency_budget_ms == spec.latency_budget_ms and read.json == spec.json


@given(SPECS)
def test_specs_are_equal_whatever_their_latency_budget(spec):
    assert replace(spec, latency_budget_ms=7) == spec


def test_every_field_is_in_the_json():
    assert set(StoredSpec.__struct_fields__) == {field.name for field in fields(CaptureSpec)}


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"kinds": ["NDW"]}, "request.kinds: unknown kind: expected ROW_COUNT | "),
        ({"kinds": ["NDW"]}, 'got "NDW"; did you mean "NDV"?'),
        ({"kinds": "NDV"}, "request.kinds: must be a list"),
        ({"column_selectors": [1]}, "request.column_selectors"),
        ({"latency_budget_ms": -1}, "request.latency_budget_ms: must be milliseconds"),
        ({"latency_budget_ms": True}, "request.latency_budget_ms"),
        ({"sampling": "SOME"}, "request.sampling: is unknown"),
        ({"sampling": {"method": "NONE", "max_rows": 1}}, "has no budget"),
        ({"partitions": []}, "request.partitions: must be a list"),
        ({"partitions": [{"a": 1}], "target": {"kind": "FILE", "file_path": "f"}}, "request.target: has no partitions"),
        ({"partitions": [{"a": 1}], "sampling": "RANDOM_ROW_GROUP"}, "request.sampling: is not for partitions"),
    ],
)
def test_error_names_the_invalid_field(body, where):
    with pytest.raises(InvalidArgument, match=where):
        parse_spec(body)
