"""Columns that are written alike, a nameless one, and one of a name of its own."""

from __future__ import annotations

from flight_server.present.column_labels import labels, references

ROWS = [{"column_id": i, "column_name": name} for i, name in ((1, "st.x"), (2, "k"), (3, "st.x"), (4, None))]


def test_what_is_ambiguous_is_referred_to_by_its_id():
    assert references(ROWS) == {1: "#1", 2: "k", 3: "#3", 4: "#4"}
    assert labels(ROWS) == {1: "st.x #1", 2: "k", 3: "st.x #3", 4: "#4"}
