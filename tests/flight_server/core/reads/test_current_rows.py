"""Rows of one table by prepared statements equal those of a query, and are never older than a commit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_server.core.reads.query import in_order, order_of
from flight_server.core.reads.stats_sources import IN_PARTS
from store.model.schemas import FLIGHTS
from tests.flight_server.serving import app_in, command, put, read, rows

OTHERS = {
    "stats.tables": {"row_count": 9, "data_file_count": 2},
    "stats.expressions": {"engine_kind": "spark", "engine_expression_key": b"k", "row_count": 9, "ndv": 3.0},
    "stats.column_groups": {"column_ids": [2, 3], "row_count": 9, "ndv": 3.0},
}


@pytest.fixture(scope="module")
def app():
    with app_in() as app:
        names = {"table_catalog": "lake", "table_schema": "s", "table_name": "it's"}
        for snapshot in (1, 2):
            found = rows("it's", snapshot, range(3, 0, -1), schema_hash="x", captured_at=1_700_000_000_123_456)
            put(app, found if snapshot == 1 else found[:2])
            for flight, values in OTHERS.items():
                put(app, [names | {"snapshot_id": snapshot} | values], flight)
        put(app, [names | {"snapshot_id": 2, "column_ids": [1, 2], "row_count": 9}], "stats.column_groups")
        yield app


@pytest.mark.parametrize("name", IN_PARTS)
def test_rows_equal_those_of_a_query(app, name):
    flight, table = FLIGHTS[name], app.catalog.get('lake.s."it\'s"')
    found = app.scanner.rows.current_rows.read(flight, table, 2)
    expected = app.scanner.rows.load(flight, table, 2, False, 1 << 30)
    assert found.num_rows and found.schema == flight.schema
    assert in_order(found, order_of(flight)).equals(expected)


def test_other_snapshots_and_flights_are_left_to_a_query(app):
    table = app.catalog.get('lake.s."it\'s"')
    assert app.scanner.rows.current_rows.read(FLIGHTS["stats.columns"], table, 1) is None
    assert app.scanner.rows.current_rows.read(FLIGHTS["stats.files"], table, 2) is None


def test_rows_read_across_a_commit_are_not_used(app, monkeypatch):
    put(app, rows("moving", 1, [1]))
    table, versions = app.catalog.get("lake.s.moving"), app.versions
    settled = versions.settled

    def commit_first(key: int) -> int | None:
        monkeypatch.setattr(versions, "settled", settled)
        before = settled(key)
        put(app, rows("moving", 1, [1, 2]))
        return before

    monkeypatch.setattr(versions, "settled", commit_first)
    assert app.scanner.rows.current_rows.read(FLIGHTS["stats.columns"], table, 1) is None
    assert read(app, command("moving", snapshot="current")).num_rows == 2


def test_table_without_rows_has_an_empty_batch(app):
    put(app, rows("empty", 1, [1]))
    found = app.scanner.rows.current_rows.read(FLIGHTS["stats.expressions"], app.catalog.get("lake.s.empty"), 1)
    assert found.equals(pa.RecordBatch.from_pylist([], FLIGHTS["stats.expressions"].schema))
