"""Retention of sketches: which snapshots keep theirs, and what readers see of the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from store.catalog.catalog import Catalog
from store.catalog.sketch_retention import SketchRetention, superseded, thin
from store.invariants import violations
from store.stats_store import DuckDBStatsStore
from tests.store.contract import put, rows, sketch
from tests.store.empty_store import empty_database

NOW = datetime.now(UTC)


@pytest.fixture
def store():
    database = empty_database()
    yield DuckDBStatsStore(database, Catalog(database))
    database.close()


def capture(store, snapshot, age: timedelta, column=1):
    """A record and a sketch of a column at a snapshot of this age."""
    at = NOW - age
    record = {"column_id": column, "row_count": snapshot, "schema_hash": "x"}
    put(store, "stats.columns", rows("stats.columns", record, snapshot=snapshot))
    put(store, "stats.sketches", rows("stats.sketches", sketch(column) | {"captured_at": at}, snapshot=snapshot))


def thinned(store, keep):
    tables = store.catalog.tables()
    doomed = superseded(store.database, tables, keep)
    count = store.database.write(lambda connection: thin(connection, store.catalog, tables, keep))
    assert count == sum(map(len, doomed.values()))
    with store.database.reading() as cursor:
        assert list(violations(cursor)) == []
    return [id for ids in doomed.values() for id in ids]


def kept(store):
    return [id for (id,) in store.database.rows("SELECT DISTINCT snapshot_id FROM stats_sketches ORDER BY 1")]


def test_the_newest_snapshots_keep_theirs_and_of_older_ones_one_a_day_then_one_a_week(store):
    day = NOW.replace(hour=12)
    monday = day - timedelta(days=day.weekday())
    ages = [monday - timedelta(days=days, hours=hours) for days in (101, 100, 99, 2) for hours in (2, 1)]
    for snapshot, at in enumerate([*ages, day, day], 1):
        capture(store, snapshot, NOW - at)
    gone = thinned(store, SketchRetention(newest=2, days=30))
    # the days of snapshots 1 to 4 are one week, and 5 and 6 are of the same or the next one
    assert set(gone) >= {1, 2, 3, 5, 7}
    assert {8, 9, 10} <= set(kept(store))
    assert set(kept(store)) | set(gone) == set(range(1, 11))
    assert thinned(store, SketchRetention(newest=2, days=30)) == []


def test_records_stay_and_the_sketch_before_holds(store):
    for snapshot in range(1, 5):
        capture(store, snapshot, timedelta(minutes=10 - snapshot))
    before = store.database.rows("SELECT snapshot_id, row_count FROM stats_columns ORDER BY ALL")
    gone = thinned(store, SketchRetention(newest=1))
    assert set(gone) >= {1, 2} and 4 not in gone
    assert store.database.rows("SELECT snapshot_id, row_count FROM stats_columns ORDER BY ALL") == before


def test_a_sketch_that_holds_at_the_current_snapshot_stays_however_old(store):
    capture(store, 1, timedelta(days=300, hours=1))
    capture(store, 1, timedelta(days=300, hours=1), column=2)
    for snapshot in range(2, 6):
        capture(store, snapshot, timedelta(days=300, minutes=10 - snapshot))
    thinned(store, SketchRetention(newest=1))
    left = store.database.rows("SELECT snapshot_id, column_id FROM stats_sketches ORDER BY ALL")
    assert (1, 2) in left
    assert (5, 1) in left


def test_zero_keeps_all(store):
    for snapshot in range(1, 5):
        capture(store, snapshot, timedelta(days=300))
    assert thinned(store, SketchRetention(newest=0)) == []
    assert kept(store) == [1, 2, 3, 4]
