"""Results of checks: stored for each snapshot, with the changes of their states."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from store.catalog import checks as check_store
from store.catalog.checks import CheckRow, CheckStore
from tests.store.empty_store import empty_database

START = datetime(2026, 1, 1, tzinfo=UTC)
ROW = CheckRow("id", "ndv > 1", "ndv", "fail", "PASSED", 5.0, "")


@pytest.fixture
def database():
    opened = empty_database()
    yield opened
    opened.close()


def test_put_returns_the_changes_of_state_since_the_newest_snapshot(database):
    store = CheckStore(database)

    def put(snapshot, state, **more):
        at = START + timedelta(hours=snapshot)
        return [
            (change.before, change.row.state)
            for change in store.put([(7, snapshot, [replace(ROW, state=state, **more)])], at)[0]
        ]

    assert put(1, "PASSED") == [(None, "PASSED")]
    assert put(2, "PASSED", value=None) == []
    assert put(3, "FAILED") == [("PASSED", "FAILED")]
    assert put(3, "FAILED") == []
    assert put(4, "PASSED", column_name=None) == [(None, "PASSED")]  # a rule of the table has a state of its own
    rows = database.rows("SELECT snapshot_id, state, changed_at FROM checks WHERE column_name = 'id' ORDER BY 1")
    assert [(row[0], row[1], row[2].astimezone(UTC).hour) for row in rows] == [
        (1, "PASSED", 1),
        (2, "PASSED", 1),
        (3, "FAILED", 3),
    ]


def test_results_of_old_snapshots_are_deleted(database, monkeypatch):
    monkeypatch.setattr(check_store, "SNAPSHOTS_KEPT", 5)
    store = CheckStore(database)
    for snapshot in range(5 + 3):
        store.put([(7, snapshot, [ROW]), (9, snapshot, [ROW])], START + timedelta(hours=snapshot))
    store.put([(8, 0, [ROW])], START)
    assert database.rows("SELECT table_key, count(*), min(snapshot_id) FROM checks GROUP BY 1 ORDER BY 1") == [
        (7, 5, 3),
        (8, 1, 0),
        (9, 5, 3),
    ]
