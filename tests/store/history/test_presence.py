"""The tables that may have rows: known for a file opened again, and after a rollback never too few."""

from __future__ import annotations

import pyarrow as pa
import pytest

from store.history import validation
from store.model.schemas import FLIGHTS
from store.stats_store import Counts, DuckDBStatsStore, Put, PutMode
from tests.store.empty_store import empty_store, place_for_database

FAMILIES = ("stats.columns", "stats.file_columns", "stats.sketches", "file_sketches")


def columns(null_count: int) -> Put:
    rows = pa.table(
        {
            "table_catalog": ["c"],
            "table_schema": ["s"],
            "table_name": ["t"],
            "snapshot_id": [1],
            "column_id": [1],
            "null_count": [null_count],
        }
    )
    return Put("stats.columns", validation.prepare(FLIGHTS["stats.columns"], rows), PutMode.UPSERT)


def file_columns() -> Put:
    rows = pa.table(
        {
            "table_catalog": ["c"],
            "table_schema": ["s"],
            "table_name": ["t"],
            "snapshot_id": [1],
            "column_id": [1],
            "file_path": ["a"],
            "null_count": [3],
        }
    )
    return Put("stats.file_columns", validation.prepare(FLIGHTS["stats.file_columns"], rows), PutMode.UPSERT)


def test_a_file_opened_again_has_the_tables_of_its_rows(tmp_path):
    store = DuckDBStatsStore.open(empty_store(tmp_path / "stats.duckdb"))
    store.put([columns(1), file_columns()])
    store.close()
    store = DuckDBStatsStore.open(tmp_path / "stats.duckdb")
    key = store.catalog.get("c.s.t").table_key
    presence = store.catalog.presence
    assert [family for family in FAMILIES if presence.has_any(family, [key, 99])] == list(FAMILIES[:2])
    assert not any(presence.has_any(family, [99]) for family in FAMILIES)
    assert store.put([columns(1)]) == Counts(1, 0, 1, 0)
    assert store.put([columns(2), file_columns()]) == Counts(2, 0, 1, 1)
    store.close()


def test_rows_that_were_rolled_back_are_stored_by_the_next_put():
    store = DuckDBStatsStore.open(place_for_database())

    def fail(connection):
        store.put_in(connection, [columns(1)])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.database.write(fail)
    assert store.put([columns(1)]) == Counts(1, 1, 0, 0)
    assert store.put([columns(1)]) == Counts(1, 0, 1, 0)
    store.close()
