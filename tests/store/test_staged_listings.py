"""Listings stored in pieces: puts of many rows, what others see meanwhile, and what is left of those that end early."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from store import staged_listings, stats_store
from store.history.file_listings import ListingChanged
from store.history.file_spans import rows_of
from store.invariants import check_file
from store.model.errors import Cancelled, Conflict, InvalidArgument
from store.stats_store import Counts, DuckDBStatsStore, Put, PutMode
from tests.store.contract import put, rows
from tests.store.empty_store import empty_store, place_for_database

FLIGHT = "stats.file_columns"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_store, "MANY_ROWS", 10)
    monkeypatch.setattr(staged_listings, "_PIECE_ROWS", 4)
    monkeypatch.setattr(staged_listings, "_TIDY_ROWS", 3)


@pytest.fixture
def store(small_pieces) -> Iterator[DuckDBStatsStore]:
    opened = DuckDBStatsStore.open(place_for_database())
    yield opened
    opened.close()


def many(value: int = 1, files: int = 6, snapshot: int = 1, columns: int = 2, name=("c", "s", "t")):
    """Rows of each file for each column."""
    each = (
        {"file_path": f"f{file}", "column_id": column, "null_count": value}
        for file in range(files)
        for column in range(1, columns + 1)
    )
    return rows(FLIGHT, *each, snapshot=snapshot, name=name)


def seen(store: DuckDBStatsStore, snapshot: int = 1) -> list[tuple[str, int, int]]:
    source, values = rows_of(FLIGHT, store.catalog.get("c.s.t"), snapshot)
    return store.database.rows(f"SELECT t.file_path, t.column_id, t.null_count FROM {source} ORDER BY ALL", *values)


def content(value: int = 1, files: int = 6, columns: int = 2) -> list[tuple[str, int, int]]:
    return [(f"f{file}", column, value) for file in range(files) for column in range(1, columns + 1)]


def staged(store: DuckDBStatsStore) -> list[tuple[int, ...]]:
    return store.database.rows("SELECT table_key, pos FROM staged_listings")


def begun(store: DuckDBStatsStore, table, mode: PutMode = PutMode.UPSERT, is_cancelled=None):
    listing = store.stage([Put(FLIGHT, table, mode)], is_cancelled=is_cancelled)
    assert listing is not None
    listing.add(table, mode)
    return listing


def test_put_of_many_rows_counts_and_replaces_as_one_of_few(store):
    assert put(store, FLIGHT, many()) == Counts(12, 12, 0, 0)
    assert put(store, FLIGHT, many(), key="k") == Counts(12, 0, 12, 0)
    assert put(store, FLIGHT, many(), key="k") == Counts(12, 0, 12, 0)
    assert put(store, FLIGHT, many(2, 7), "upsert") == Counts(14, 2, 0, 12)
    assert seen(store) == content(2, 7)
    with pytest.raises(Conflict, match="null_count is 2, in the put it is 3"):
        put(store, FLIGHT, many(3))
    assert put(store, FLIGHT, many(2, 5), "replace_snapshot") == Counts(10, 0, 10, 0)
    assert seen(store) == content(2, 5)
    assert put(store, FLIGHT, many(2, 6, snapshot=2)) == Counts(12, 12, 0, 0)
    assert (seen(store), seen(store, 2)) == (content(2, 5), content(2, 6))


def test_rows_of_a_file_may_come_in_several_pieces(store):
    """Columns of the same files in another order, and each target twice."""
    put(store, FLIGHT, many(1, 4, columns=3))
    table = many(1, 4, snapshot=2, columns=3)
    table = table.take([at for column in (2, 0, 1) for at in range(column, 12, 3)] * 2)
    assert put(store, FLIGHT, table) == Counts(24, 12, 0, 0)
    assert seen(store, 2) == content(1, 4, 3)
    assert store.database.rows("SELECT count(*) FROM stats_file_columns") == [(12,)], "equal rows are stored once"


def test_rows_that_are_absent_are_ended_by_file_and_by_column(store):
    put(store, FLIGHT, many(1, 5, columns=3))
    put(store, FLIGHT, many(1, 7, snapshot=2))
    table = many(1, 6, snapshot=3)
    put(store, FLIGHT, table.filter(pc.less(table["file_path"], "f5")), "replace_snapshot")
    assert (seen(store), seen(store, 2), seen(store, 3)) == (content(1, 5, 3), content(1, 7), content(1, 5))
    assert store.database.rows("SELECT count(*) FROM stats_file_columns") == [(15 + 4,)]


def test_different_rows_for_a_target_in_two_pieces_are_refused(store):
    table = many()
    with pytest.raises(InvalidArgument, match="two different rows for one target"):
        store.put([Put(FLIGHT, pa.concat_tables([table, many(2, 1)]))])
    assert store.find(("c", "s", "t")) is None
    put(store, FLIGHT, table)
    assert seen(store) == content()


def test_nothing_is_seen_before_the_commit_and_nothing_is_left_of_it(store):
    put(store, FLIGHT, many())
    before = store.database.versions.generation(1)
    listing = begun(store, many(2, 5, snapshot=2))
    listing.settle()
    assert seen(store) == content()
    assert seen(store, 2) == []
    assert store.captured_snapshots(store.catalog.get("c.s.t")) == {1}
    assert store.database.versions.generation(1) == before, "cached slices stay valid"
    staged_listings.unstage(store.database, FLIGHT, 1)
    assert staged(store) == []
    assert store.database.rows("SELECT count(*), min(to_pos) = max(to_pos) FROM stats_file_columns") == [(12, True)]
    with pytest.raises(ListingChanged):
        store.database.write(lambda connection: store.put_in(connection, [], staged=[listing]))


@pytest.mark.parametrize("other", ["put", "delete", "snapshot"])
def test_another_write_to_the_table_ends_what_is_staged(store, other):
    put(store, FLIGHT, many())
    listing = begun(store, many(2, snapshot=2))
    if other == "put":
        put(store, FLIGHT, many(3, 1, snapshot=3), "upsert")
    else:
        store.delete(store.catalog.get("c.s.t"), 1 if other == "snapshot" else None)
    assert staged(store) == []
    with pytest.raises(ListingChanged):
        listing.add(many(2, 7, snapshot=2), PutMode.UPSERT)
    assert seen(store) == (content() if other == "put" else [])
    assert seen(store, 3) == (content(3, 1) if other == "put" else [])


def test_put_whose_pieces_are_ended_by_another_is_stored_by_one_transaction(store, monkeypatch):
    put(store, FLIGHT, many())
    settle = staged_listings.StagedListing.settle

    def ended(listing) -> None:
        monkeypatch.setattr(staged_listings.StagedListing, "settle", settle)
        put(store, FLIGHT, many(5, 1), "upsert")
        listing.settle()

    monkeypatch.setattr(staged_listings.StagedListing, "settle", ended)
    assert put(store, FLIGHT, many(2), "upsert") == Counts(12, 0, 0, 12)
    assert seen(store) == content(2)


def test_unwanted_rows_are_not_begun(store):
    put(store, FLIGHT, many())
    unwanted = threading.Event()
    listing = begun(store, many(2, 5, snapshot=2), is_cancelled=unwanted.is_set)
    unwanted.set()
    for step in (listing.settle, lambda: listing.add(many(3, 9, snapshot=2), PutMode.UPSERT)):
        with pytest.raises(Cancelled):
            step()


@pytest.mark.parametrize("snapshot", [1, 2])
def test_what_a_killed_server_leaves_is_whole_and_removed_by_the_next(small_pieces, tmp_path, snapshot):
    path = empty_store(tmp_path / "s.db")
    store = DuckDBStatsStore.open(path)
    put(store, FLIGHT, many())
    begun(store, many(2, 5, snapshot=snapshot))
    begun(store, many(2, name=("c", "s", "new")))
    store.close()
    assert list(check_file(path)) == []
    again = DuckDBStatsStore.open(path)
    try:
        assert seen(again) == content()
        put(again, "stats.tables", rows("stats.tables", {"row_count": 1}, name=("c", "s", "other")))
        assert again.catalog.get("c.s.other").table_key == 3, "a key whose rows are still there is not used again"
        for family, key, generation in again.database.rows("SELECT family, table_key, generation FROM staged_listings"):
            staged_listings.unstage(again.database, family, key, generation)
        assert seen(again) == content()
        assert again.database.rows("SELECT count(*), min(to_pos) = max(to_pos) FROM stats_file_columns") == [(12, True)]
    finally:
        again.close()
    assert list(check_file(path)) == []


def test_replaced_rows_of_a_listing_are_removed_after_the_commit(store):
    put(store, FLIGHT, many())
    put(store, FLIGHT, many(2), "upsert")
    staged_listings.unstage(store.database, FLIGHT, 1)
    assert staged(store) == []
    assert store.database.rows("SELECT count(*), min(null_count) FROM stats_file_columns") == [(12, 2)]


def test_rows_that_pieces_cannot_store_are_stored_by_one_transaction(store):
    put(store, FLIGHT, many())
    put(store, FLIGHT, many(snapshot=2))
    assert put(store, FLIGHT, many(2), "upsert") == Counts(12, 0, 0, 12), "the snapshot's listing is not the newest"
    two = pa.concat_tables([many(snapshot=3), many(snapshot=4)])
    assert put(store, FLIGHT, two) == Counts(24, 24, 0, 0)
    assert (seen(store), seen(store, 2), seen(store, 4)) == (content(2), content(), content())
