"""The choice of distinct counts that become entries of a table's metadata."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flight_server.faces.iceberg_rest.distinct_counts import NEWEST, Countable, Place, entries, leaves, of_metadata
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
WHOLE = {"completeness": "COMPLETE", "row_count": 100, "null_count": 10, "logical_type": "INT"}
FIELDS = {1: 1, 2: 20}


def column(snapshot: int, id: int, ndv: float, **more: Any) -> dict[str, Any]:
    nothing = {"row_groups_sampled": None, "confidence_level": None, "producer": None}
    return (
        KEY | WHOLE | nothing | {"snapshot_id": snapshot, "column_id": id, "column_name": f"c{id}", "ndv": ndv} | more
    )


def counts(*rows: dict[str, Any], own: list | None = None, deletes: bool = False, snapshots: int = 1) -> dict:
    """Snapshot → field → distinct count."""
    with app_in() as app:
        put(app, list(rows))
        places = [Place(id, id + 1, 7, not deletes) for id in range(snapshots, 0, -1)]
        found = entries(app.database, app.catalog.get("lake.s.t"), Countable(own, places, FIELDS))
    assert [entry["snapshot-id"] for entry in found] == sorted((e["snapshot-id"] for e in found), reverse=True)
    assert all(blob["sequence-number"] == 7 for entry in found for blob in entry["blob-metadata"])
    return {
        entry["snapshot-id"]: {blob["fields"][0]: blob["properties"]["ndv"] for blob in entry["blob-metadata"]}
        for entry in found
    }


def test_counts_are_integers():
    assert counts(column(1, 1, 33.4), column(1, 2, 89.6)) == {2: {1: "33", 20: "90"}}


@pytest.mark.parametrize(
    "doubt",
    [
        {"completeness": "PARTIAL"},
        {"row_groups_sampled": 3},
        {"confidence_level": 0.0},
        {"column_id": 3, "column_name": "dropped"},
    ],
)
def test_what_is_not_whole_is_left_out(doubt):
    assert counts(column(1, 1, 5.0), column(1, 2, 6.0, **doubt)) == {2: {1: "5"}}
    assert counts(column(1, 2, 6.0, **doubt)) == {}


def test_doubts_in_bounds_do_not_concern_counts():
    assert counts(column(1, 1, 5.0, confidence_level=0.5)) == {2: {1: "5"}}


def test_with_deletes_only_counts_of_live_rows_are_told():
    rows = column(1, 1, 5.0), column(1, 2, 6.0, producer="ENGINE_COMPUTED")
    assert counts(*rows) == {2: {1: "5", 20: "6"}}
    assert counts(*rows, deletes=True) == {2: {20: "6"}}


def test_each_snapshot_has_its_own_counts():
    """Column 2 is inherited at the second one, so it is not told there; of the third nothing is known."""
    rows = column(1, 1, 5.0), column(1, 2, 6.0), column(2, 1, 7.0)
    assert counts(*rows, snapshots=3) == {3: {1: "7"}, 2: {1: "5", 20: "6"}}
    assert counts(*rows, snapshots=3, own=[{"snapshot-id": 3}]) == {2: {1: "5", 20: "6"}}


def test_the_newest_snapshots_have_entries():
    rows = [column(id, 1, float(id)) for id in range(1, NEWEST + 3)]
    assert sorted(counts(*rows, snapshots=NEWEST + 2)) == list(range(4, NEWEST + 4))


SCHEMA = {
    "schema-id": 1,
    "fields": [
        {"id": 1, "name": "a", "type": "long"},
        {"id": 2, "name": "s", "type": {"type": "struct", "fields": [{"id": 3, "name": "x", "type": "double"}]}},
        {"id": 4, "name": "l", "type": {"type": "list", "element-id": 5, "element": "long"}},
    ],
}


def snapshot(id: int, sequence_number: int, **summary: str) -> dict[str, Any]:
    told = {name.replace("_", "-"): value for name, value in summary.items()}
    return {"snapshot-id": id, "sequence-number": sequence_number, "timestamp-ms": 5, "summary": told}


def test_columns_are_the_leaves_of_structs():
    assert dict(leaves(SCHEMA)) == {("a",): 1, ("s", "x"): 3}


def test_metadata_of_the_second_format_version():
    found = of_metadata(
        {
            "format-version": 2,
            "current-schema-id": 1,
            "schemas": [{"schema-id": 0, "fields": []}, SCHEMA],
            "snapshots": [
                snapshot(8, 1, total_delete_files="0"),
                snapshot(3, 4),
                snapshot(5, 2, total_delete_files="1"),
                snapshot(9, 3, total_delete_files="0", total_position_deletes="1"),
            ],
            "statistics": [{"snapshot-id": 5}],
        }
    )
    assert found.own == [{"snapshot-id": 5}] and found.fields == {1: 1, 3: 3}
    free = {place.shown: place.is_free_of_deletes for place in found.places}
    assert list(free) == [3, 9, 5, 8] and [id for id, is_free in free.items() if is_free] == [8]


def test_metadata_of_the_first_format_version_has_no_deletes():
    old = {"snapshot-id": 1, "timestamp-ms": 1}
    found = of_metadata(
        {"format-version": 1, "schema": SCHEMA, "snapshots": [old, {"snapshot-id": 2, "timestamp-ms": 2}]}
    )
    assert [(place.shown, place.sequence_number, place.is_free_of_deletes) for place in found.places] == [
        (2, 0, True),
        (1, 0, True),
    ]
    assert set(found.fields) == {1, 3} and found.own is None


def test_entries_join_those_of_the_table():
    ours, own = {"snapshot-id": 1}, {"snapshot-id": 2}
    assert Countable().statistics([]) == ""
    assert json.loads("{" + Countable([own]).statistics([ours])[2:] + "}") == {"statistics": [own, ours]}
    assert json.loads("{" + Countable([]).statistics([])[2:] + "}") == {"statistics": []}
