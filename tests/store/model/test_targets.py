"""Targets in JSON: round trips, with expression keys of any bytes."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.model.errors import InvalidField
from store.model.targets import Target

TARGETS = st.one_of(
    st.just(Target.table()),
    st.integers(1, 2**63 - 1).map(Target.column),
    st.text(min_size=1).filter(lambda text: text.strip() and text.isprintable()).map(Target.file),
    st.tuples(st.sampled_from(["spark", "duckdb"]), st.binary(min_size=1), st.none() | st.just("4.0")).map(
        lambda parts: Target.expression(*parts)
    ),
    st.lists(st.integers(1, 1000), min_size=2, max_size=5, unique=True).map(Target.column_group),
)


@given(TARGETS)
def test_target_round_trips_through_json(target):
    read = Target.parse(json.loads(json.dumps(target.to_json())))
    assert read == target and read.storage_id == target.storage_id


def test_text_keys_are_json_strings_and_other_keys_are_base64():
    body = {"kind": "EXPRESSION", "engine_kind": "spark"}
    text, other = Target.expression("spark", b"a + 1"), Target.expression("spark", b"\xff\x00")
    assert text.to_json() == body | {"engine_expression_key": "a + 1"}
    assert other.to_json() == body | {"engine_expression_key_base64": "/wA="}
    given = Target.parse(body | {"engine_expression_key_base64": base64.b64encode(b"a + 1").decode()})
    assert given.storage_id == text.storage_id


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ({"engine_expression_key_base64": "no base64!"}, "not base64"),
        ({"engine_expression_key_base64": 5}, "not base64"),
        ({"engine_expression_key_base64": "YQ==", "engine_expression_key": "a"}, "given twice"),
        ({"engine_expression_key": 5}, "must be a string"),
        ({}, "missing"),
    ],
)
def test_error_names_the_invalid_expression_key(key, reason):
    with pytest.raises(InvalidField, match=reason) as refused:
        Target.parse({"kind": "EXPRESSION", "engine_kind": "spark"} | key)
    assert "engine_expression_key" in refused.value.field
