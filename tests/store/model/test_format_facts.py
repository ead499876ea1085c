"""Facts about formats: as a property and back, and what is assumed where they are not stored."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.model.catalog_entries import EXTERNAL
from store.model.format_facts import FACTS, OF_PUTS, UNKNOWN, FormatFacts, facts_in

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.builds(FormatFacts))
def test_facts_come_back_from_the_property(facts):
    assert facts_in("f", json.dumps({"other": "x"} | facts.as_property)) == facts


@given(st.dictionaries(st.sampled_from(sorted(FormatFacts.__dataclass_fields__)), JSON))
def test_facts_of_a_wrong_type_say_the_least(stored):
    found = facts_in("f", json.dumps({FACTS: json.dumps(stored)}))
    for name, default in ((field, getattr(UNKNOWN, field)) for field in FormatFacts.__dataclass_fields__):
        right = isinstance(stored.get(name), str if name == "platform" else bool)
        assert getattr(found, name) == (stored[name] if right else default)


@pytest.mark.parametrize(
    "properties", [None, "", "{}", "[1]", "no JSON", json.dumps({FACTS: 5}), json.dumps({FACTS: "[]"})]
)
def test_a_table_without_facts_has_those_that_say_the_least(properties):
    assert facts_in("f", properties) == UNKNOWN == FormatFacts()


def test_facts_of_a_newer_server_are_ignored():
    stored = json.loads(OF_PUTS.as_property[FACTS]) | {"new": True}
    assert facts_in("f", json.dumps({FACTS: json.dumps(stored)})) == OF_PUTS


def test_tables_of_puts_are_what_their_rows_say():
    assert facts_in(EXTERNAL, None) == facts_in(EXTERNAL, json.dumps(UNKNOWN.as_property)) == OF_PUTS
