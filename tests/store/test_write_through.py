"""A store behind the database has the same records as the database after anything that may happen to these."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.duckdb.arrow_sql import query
from store.model.errors import InvalidArgument, UpstreamError
from store.model.puts import IDENTITY, Put, PutMode
from store.records import select_rows
from store.stats_store import DuckDBStatsStore
from store.write_through import WriteThrough, forget_store
from tests.store.catalog import test_catalog
from tests.store.catalog import test_schema_changes as schema_changes
from tests.store.contract import columns, ordered, put, rows, sketch
from tests.store.empty_store import empty_store, place_for_database
from tests.store.history import test_spans
from tests.store.reference_store import MemoryStatsStore
from tests.store.sqlite_store import SqliteStatsStore
from tests.store.test_stats_store import FILE_STEP, apply_to_files, stage

NAME = "sqlite s.db"


@contextlib.contextmanager
def opened(path: Path | str, behind: Any, name: str = NAME) -> Any:
    through = WriteThrough(behind, name)
    store = DuckDBStatsStore.open(path, through)
    try:
        through.join(store)
        yield store
    finally:
        store.close()


def records(store: Any) -> dict[str, list[dict[str, Any]]]:
    """Flight → all records in order, without the table's id, which a lake may give it later."""
    if isinstance(store, DuckDBStatsStore):  # at once, for each query takes some milliseconds
        with store.database.reading() as cursor:
            places = query(cursor, "FROM snapshots SEMI JOIN (FROM tables WHERE NOT dropped) USING (table_key)")
            found = {flight: query(cursor, select_rows(flight), places=places) for flight in IDENTITY}
    else:
        each = [(table, snapshot) for table in store.tables() for snapshot in store.captured_snapshots(table)]
        found = {
            flight: pa.concat_tables(store.rows(*place, flight) for place in each) if each else pa.table({})
            for flight in IDENTITY
        }
    return {flight: ordered(table.drop_columns("table_id")) for flight, table in found.items() if table.num_rows}


def check_same(local: DuckDBStatsStore, behind: Any) -> None:
    assert records(behind) == records(local)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=test_spans.HISTORIES)
def test_store_has_the_records_of_the_database_after_any_history(steps):
    check_histories(test_spans.apply, steps)


@pytest.mark.benchmark
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=test_spans.HISTORIES)
def test_store_has_the_records_of_the_database_after_many_histories(steps):
    check_histories(test_spans.apply, steps)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(FILE_STEP, min_size=1, max_size=6))
def test_store_has_the_listings_of_the_database_after_any_history(steps):
    check_histories(apply_file_step, steps)


@pytest.mark.benchmark
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(FILE_STEP, min_size=1, max_size=6))
def test_store_has_the_listings_of_the_database_after_many_histories(steps):
    check_histories(apply_file_step, steps)


def check_histories(apply: Any, steps: Any) -> None:
    behind = MemoryStatsStore()
    with opened(place_for_database(), behind) as local:
        put(local, "stats.tables", rows("stats.tables", {"row_count": 0}, snapshot=9))
        for step in steps:
            apply(local, step)
            check_same(local, behind)
        with opened(place_for_database(), behind) as again:
            check_same(again, behind)


def apply_file_step(local: DuckDBStatsStore, step: tuple[Any, ...]) -> None:
    table = local.catalog.get("c.s.t")
    if step[0] == "stage":
        with contextlib.suppress(Exception):
            stage(local, table, step, lambda: step[5] and apply_to_files(local, table, step[5]))
    else:
        apply_to_files(local, table, step)


def test_records_that_follow_another_schema_are_the_same_in_the_store():
    """A column is renamed, one is dropped and one added, without a new snapshot."""
    behind = MemoryStatsStore()
    before = schema_changes.schema((1, "a"), (2, "b"), (3, "d"))
    after = schema_changes.schema((1, "b"), (2, "a"), (4, "d"))
    with opened(place_for_database(), behind) as local:
        entry = test_catalog.discover(local.catalog, **before, live_snapshot_ids=[1])
        schema_changes.capture(local.catalog, entry, (1, 2, 3), 1, before)
        test_catalog.discover(local.catalog, **after, live_snapshot_ids=[1])
        check_same(local, behind)
        assert {row["column_name"] for row in records(local)["stats.columns"]} == {"a", "b"}
        assert len(records(local)["stats.sketches"]) == 2


def test_expired_snapshots_are_deleted_in_the_store():
    behind = MemoryStatsStore()
    with opened(place_for_database(), behind) as local:
        for snapshot in (1, 2):
            put(local, "stats.columns", columns((1, snapshot), snapshot=snapshot))
            put(local, "stats.files", rows("stats.files", {"file_path": f"f{snapshot}"}, snapshot=snapshot))
        changes = {local.catalog.get("c.s.t").table_key: {"format": "iceberg"}}
        (table,) = local.database.write(lambda c: local.catalog.change(c, changes))
        local.database.write(lambda c: c.execute("UPDATE snapshots SET is_live = false WHERE snapshot_id = 1"))
        local.expire([table])
        assert local.captured_snapshots(table) == {2}
        check_same(local, behind)


def test_table_created_again_under_its_name_has_nothing_of_the_former():
    behind = MemoryStatsStore()
    with opened(place_for_database(), behind) as local:
        put(local, "stats.columns", columns((1, 10), (2, 20)))
        former = local.catalog.get("c.s.t")
        local.database.write(lambda c: local.catalog.change(c, {former.table_key: {"dropped": True}}))
        put(local, "stats.columns", columns((1, 11)))
        check_same(local, behind)
        local.delete(former)
        check_same(local, behind)


def test_what_the_store_refuses_is_not_stored():
    class Broken(MemoryStatsStore):
        is_broken = False

        def put(self, puts, *, idempotency_key=None):
            if self.is_broken:
                raise OSError("no route to host")
            return super().put(puts, idempotency_key=idempotency_key)

    behind = Broken()
    with opened(place_for_database(), behind) as local:
        put(local, "stats.columns", columns((1, 10)))
        before = records(local)
        behind.is_broken = True
        with pytest.raises(UpstreamError, match=rf"the store {NAME} failed: no route to host") as refused:
            put(local, "stats.columns", columns((2, 20)))
        assert refused.value.retryable
        assert records(local) == before
        behind.is_broken = False
        put(local, "stats.columns", columns((2, 20)))
        check_same(local, behind)


def test_new_database_is_filled_from_the_store(tmp_path):
    behind = SqliteStatsStore(tmp_path / "s.db")
    with opened(tmp_path / "first.duckdb", behind) as local:
        local.put([Put("stats.columns", columns((1, 10))), Put("stats.sketches", rows("stats.sketches", sketch(1)))])
        put(local, "stats.files", rows("stats.files", {"file_path": "a", "row_count": 1}, snapshot=2))
        before, table_id = records(local), local.catalog.get("c.s.t").table_id
    behind.close()
    behind = SqliteStatsStore(tmp_path / "s.db")
    with opened(empty_store(tmp_path / "second.duckdb"), behind) as local:
        assert records(local) == before
        assert local.catalog.get("c.s.t").table_id == table_id
        put(local, "stats.columns", columns((1, 11)), PutMode.UPSERT)
        check_same(local, behind)
    with opened(tmp_path / "second.duckdb", behind) as local:
        check_same(local, behind)
    behind.close()


def test_empty_store_gets_the_records_of_the_database(tmp_path):
    path = empty_store(tmp_path / "s.duckdb")
    local = DuckDBStatsStore.open(path)
    put(local, "stats.columns", columns((1, 10)))
    put(local, "stats.files", rows("stats.files", {"file_path": "a"}, {"file_path": "b"}, snapshot=2))
    local.close()
    behind = MemoryStatsStore()
    with opened(path, behind) as local:
        check_same(local, behind)


def test_database_and_store_that_may_differ_are_refused(tmp_path):
    path, behind = empty_store(tmp_path / "s.duckdb"), MemoryStatsStore()
    with opened(path, behind) as local:
        put(local, "stats.columns", columns((1, 10)))
    other = MemoryStatsStore()
    put(other, "stats.columns", columns((1, 11)))
    with (
        pytest.raises(InvalidArgument, match="the database and the store other both have statistics"),
        opened(path, other, "other"),
    ):
        pass
    local = DuckDBStatsStore.open(path)
    forget_store(local.database)  # as a server without the store does, before it writes
    local.close()
    with pytest.raises(InvalidArgument, match=f"the store {NAME} both have statistics"), opened(path, behind):
        pass
