"""Capture facts: stored facts that a worker gets about many tables at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from store.catalog import capture_facts
from store.catalog.catalog import Catalog
from store.history import validation
from store.model.schemas import FLIGHTS
from store.stats_store import DuckDBStatsStore, Put, PutMode
from tests.store.empty_store import empty_database


@pytest.fixture
def store():
    database = empty_database()
    yield DuckDBStatsStore(database, Catalog(database))
    database.close()


def put(store: DuckDBStatsStore, flight: str, table: str, **more: object) -> int:
    (key,) = put_each(store, flight, [table], **more)
    return key


def put_each(store: DuckDBStatsStore, flight: str, tables: list[str], **more: object) -> list[int]:
    """Puts a row for each table, and returns their keys."""
    rows = [
        {"table_catalog": "c", "table_schema": "s", "table_name": table, "snapshot_id": 1} | more for table in tables
    ]
    store.put([Put(flight, validation.prepare(FLIGHTS[flight], pa.Table.from_pylist(rows)), PutMode.UPSERT)])
    entries = [store.catalog.find(("c", "s", table)) for table in tables]
    return [entry.table_key for entry in entries if entry is not None]


def test_with_statistics_excludes_tables_that_have_a_row_count_only(store):
    counted = put(store, "stats.tables", "counted", row_count=1)
    columns = put(store, "stats.columns", "columns", column_name="a", ndv=1.0)
    files = put(store, "stats.files", "files", file_path="f", row_count=1)
    assert capture_facts.with_statistics(store.catalog.presence, [counted, columns, files]) == {columns, files}
    assert capture_facts.with_statistics(store.catalog.presence, [counted]) == set()
    assert capture_facts.with_statistics(store.catalog.presence, []) == set()


def test_column_ids_agree_with_those_of_the_catalog(store):
    first = put(store, "stats.columns", "first", column_name="a", ndv=1.0)
    other = put(store, "stats.columns", "other", column_name='"x.y"', ndv=1.0)
    bare = put(store, "stats.tables", "bare", row_count=1)
    assert capture_facts.column_ids(store.database, [first, other, bare]) == {
        entry.table_key: store.catalog.column_ids(entry) for entry in store.catalog.tables()
    }


def test_columns_of_unknown_snapshots_are_absent(store):
    first = put(store, "stats.columns", "first", column_name="a", ndv=1.0)
    assert capture_facts.snapshot_columns(store.database, [(first, 1), (first, 77)]) == {}
    store.database.write(
        lambda c: c.execute("INSERT INTO schemas VALUES (?, 'h', '[[\"a\", \"INT\", true, null]]')", [first])
    )
    store.database.write(lambda c: c.execute("UPDATE snapshots SET schema_hash = 'h'"))
    found = capture_facts.snapshot_columns(store.database, [(first, 1), (first, 77)])
    assert found == {(first, 1): [["a", "INT", True, None]]}
    assert capture_facts.snapshot_columns(store.database, []) == {}


@pytest.mark.parametrize("tables", [1, 17])  # keys as literals, and as a table
def test_facts_are_those_of_the_tables_asked_for(store, tables):
    names = [f"t{number}" for number in range(tables + 1)]
    keys = put_each(store, "stats.columns", names, column_name="a", ndv=1.0, schema_hash="h")
    for snapshot_id in (2, 3):
        put(store, "stats.tables", "t0", snapshot_id=snapshot_id, schema_hash="h")
    store.database.write(
        lambda c: c.execute("INSERT INTO schemas SELECT table_key, 'h', '[[\"a\", \"INT\", true, null]]' FROM tables")
    )
    wanted = keys[:tables]
    assert capture_facts.column_ids(store.database, wanted).keys() == {*wanted}
    found = capture_facts.snapshot_ids(store.database, wanted)
    assert {key: sorted(ids) for key, ids in found.items()} == {key: [1] for key in wanted} | {keys[0]: [1, 2, 3]}
    assert capture_facts.snapshot_ids(store.database, []) == capture_facts.column_ids(store.database, []) == {}
    pinned = [(key, 1) for key in wanted[1:]] + [(keys[0], 2)]
    assert capture_facts.snapshot_columns(store.database, pinned) == {
        place: [["a", "INT", True, None]] for place in pinned
    }
