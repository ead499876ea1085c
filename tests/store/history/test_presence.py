"""Presence: tables that have rows, by flight."""

from __future__ import annotations

import pyarrow as pa
import pytest

from store.catalog.catalog import Catalog
from store.duckdb.database import Database
from store.history import validation
from store.history.presence import Presence
from store.model.errors import Conflict
from store.model.schemas import FLIGHTS
from store.stats_store import Counts, DuckDBStatsStore, Put, PutMode


def columns(name, snapshot_id=1, ndv=1.0, count=2):
    rows = pa.table({
        "table_catalog": pa.repeat("c", count), "table_schema": pa.repeat("s", count),
        "table_name": pa.repeat(name, count), "snapshot_id": pa.repeat(snapshot_id, count),
        "column_id": range(1, count + 1), "ndv": pa.repeat(ndv, count),
    })  # fmt: skip
    return Put("stats.columns", validation.prepare(FLIGHTS["stats.columns"], rows), PutMode.CREATE)


@pytest.fixture
def database(tmp_path):
    database = Database(tmp_path / "p.db")
    yield database
    database.close()


def test_presence_has_stored_tables_and_added_ones(database):
    store = DuckDBStatsStore(database, Catalog(database))
    store.put([columns("a"), columns("b")])
    presence = Presence(database.rows)
    assert presence.among("stats.columns", [3, 2, 1]) == [2, 1]
    assert not presence.is_any("stats.tables", [1, 2]) and not presence.is_any("stats.files", [1, 2])
    presence.add("stats.files", [2])
    assert presence.is_any("stats.files", [1, 2]) and presence.among("stats.files", [1, 2]) == [2]


def test_put_after_reopening_is_compared_with_stored_rows(tmp_path):
    for counts in (Counts(2, 2), Counts(2, 0, 2)):
        database = Database(tmp_path / "p.db")
        assert DuckDBStatsStore(database, Catalog(database)).put([columns("a")]) == counts
        database.close()


def test_counts_of_puts_after_a_refused_put_are_exact(database):
    store = DuckDBStatsStore(database, Catalog(database))
    store.put([columns("a")])
    with pytest.raises(Conflict):
        store.put([columns("b"), columns("a", ndv=2.0)])
    assert store.put([columns("b")]) == Counts(2, 2)
    assert store.put([columns("b", snapshot_id=2)]) == Counts(2, 2)
    assert store.put([columns("b")]) == Counts(2, 0, 2)
