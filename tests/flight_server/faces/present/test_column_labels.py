"""Labels of columns with the same name, with no name, and with a unique name."""

from __future__ import annotations

from flight_server.faces.present.column_labels import labels, references

ROWS = [{"column_id": i, "column_name": name} for i, name in ((1, "st.x"), (2, "k"), (3, "st.x"), (4, None))]


def test_ambiguous_names_are_labelled_and_referenced_by_id():
    assert references(ROWS) == {1: "#1", 2: "k", 3: "#3", 4: "#4"}
    assert labels(ROWS) == {1: "st.x #1", 2: "k", 3: "st.x #3", 4: "#4"}
