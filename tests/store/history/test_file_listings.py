"""File listings that continue an earlier one: their files, and the bases that they accept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from store.catalog.catalog import Catalog
from store.history import validation
from store.history.file_listings import FAMILIES, can_continue, continue_listings
from store.history.file_spans import rows_of
from store.model.catalog_entries import TableEntry
from store.model.errors import UpstreamError
from store.model.puts import Listing
from store.model.schemas import FLIGHTS
from store.model.targets import Target
from store.stats_store import DuckDBStatsStore, Put, PutMode
from tests.store.empty_store import empty_database

FIRST = Listing(1, "one")
NEXT = Listing(2, "two", 1, "one", ("b",))


class ListedTable:
    """A table whose snapshot 1 has the files a, b and c, put as one listing."""

    def __init__(self) -> None:
        self.database = empty_database()
        self.catalog = Catalog(self.database)
        self.store = DuckDBStatsStore(self.database, self.catalog)
        self.table: TableEntry = self.database.write(lambda c: self.catalog.register(c, ("c", "s", "t"), "id"))
        self.put(FIRST, {"a": 1, "b": 2, "c": 3}, whole=True)

    def put(self, listing: Listing, files: dict[str, int], *, whole: bool = False) -> None:
        """Publishes a capture that has this listing."""

        def run(connection):
            if listing.base_snapshot_id is not None:
                continue_listings(connection, self.store.database.segments, [(self.table.table_key, listing, FAMILIES)])
            marks = {(self.table.table_key, listing.snapshot_id): listing.mark}
            self.store.put_in(connection, self.rows(listing.snapshot_id, files, whole), marks=marks)

        self.database.write(run)

    def rows(self, snapshot_id: int, files: dict[str, int], whole: bool) -> list[Put]:
        modes = {
            "stats.files": PutMode.REPLACE_SNAPSHOT if whole else PutMode.UPSERT,
            "stats.file_columns": PutMode.FILL,
        }
        key = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": snapshot_id}
        puts = []
        for flight, mode in modes.items():
            more = {} if flight == "stats.files" else {"column_id": 1, "logical_type": "INT"}
            given = [key | more | {"file_path": path, "row_count": count} for path, count in files.items()]
            if given:
                puts.append(Put(flight, validation.prepare(FLIGHTS[flight], pa.Table.from_pylist(given)), mode))
        return puts

    def files(self, snapshot_id: int) -> list[dict[str, int]]:
        """Row count by file path, once for each of the two flights."""
        found = []
        for flight in ("stats.files", "stats.file_columns"):
            source, values = rows_of(flight, self.table, snapshot_id)
            found.append(dict(self.database.rows(f"SELECT t.file_path, t.row_count FROM {source}", *values)))
        return found

    def can_continue(self, listing: Listing = NEXT) -> bool:
        with self.database.reading() as cursor:
            return can_continue(cursor, self.table.table_key, listing)


@pytest.fixture
def listed() -> Iterator[ListedTable]:
    listed = ListedTable()
    yield listed
    listed.database.close()


def test_listing_is_its_base_without_removed_and_with_added_files(listed):
    listed.put(NEXT, {"d": 4})
    assert listed.files(2) == [{"a": 1, "c": 3, "d": 4}] * 2
    assert listed.files(1) == [{"a": 1, "b": 2, "c": 3}] * 2
    listed.put(Listing(3, "three", 2, "two", ("a", "c", "d")), {"a": 9, "d": 4})  # changed, removed, and listed again
    assert listed.files(3) == [{"a": 9, "d": 4}] * 2
    assert listed.files(2) == [{"a": 1, "c": 3, "d": 4}] * 2
    rows = listed.database.rows("SELECT count(*) FROM stats_files")
    assert rows == [(5,)]  # a twice, b, c, and d once: d was never removed


def test_listings_at_once_continue_each_other(listed):
    both = [NEXT, Listing(3, "three", 2, "two", ("b", "c"))]
    listed.database.write(
        lambda connection: continue_listings(
            connection, listed.store.database.segments, [(listed.table.table_key, each, FAMILIES) for each in both]
        )
    )
    assert [listed.files(snapshot) for snapshot in (1, 2, 3)] == [
        [{"a": 1, "b": 2, "c": 3}] * 2,
        [{"a": 1, "c": 3}] * 2,
        [{"a": 1}] * 2,
    ]
    with pytest.raises(UpstreamError, match="changed by somebody else"):
        listed.put(NEXT, {})


def test_repeated_listing_writes_nothing(listed):
    generation = listed.database.rows("SELECT max(generation), count(*) FROM stats_files")
    listed.put(Listing(1, "one", 1, "one"), {})
    assert listed.files(1) == [{"a": 1, "b": 2, "c": 3}] * 2
    assert listed.database.rows("SELECT max(generation), count(*) FROM stats_files") == generation
    assert listed.can_continue()


def test_base_must_be_the_newest_listing_and_have_the_mark(listed):
    assert listed.can_continue()
    assert not listed.can_continue(replace(NEXT, base_mark="other"))
    assert not listed.can_continue(replace(NEXT, base_snapshot_id=7))
    listed.put(NEXT, {})
    assert not listed.can_continue(replace(NEXT, snapshot_id=3))
    assert listed.can_continue(Listing(3, "x", 2, "two"))
    assert not listed.can_continue(Listing(1, "x", 2, "two"))  # snapshot 1 has a listing already


def test_listing_changed_by_a_delete_or_a_put_is_not_a_base(listed):
    listed.store.delete(listed.table, 1, Target.file("a"))
    assert not listed.can_continue()
    with pytest.raises(UpstreamError, match="changed by somebody else"):
        listed.put(NEXT, {})
    listed.put(FIRST, {"a": 1}, whole=True)
    assert listed.can_continue()
    listed.store.put(listed.rows(1, {"b": 2}, whole=True))
    assert not listed.can_continue()


def test_deleting_another_snapshot_keeps_the_base(listed):
    listed.put(NEXT, {"d": 4})
    listed.store.delete(listed.table, 1)
    listed.put(Listing(3, "three", 2, "two", ("d",)), {"e": 5})
    assert listed.files(3) == [{"a": 1, "c": 3, "e": 5}] * 2


def test_a_listing_out_of_order_gets_no_mark(listed):
    listed.put(NEXT, {"d": 4})
    listed.put(Listing(1, "again"), {"a": 1, "b": 2, "c": 3}, whole=True)
    assert not listed.can_continue(Listing(3, "x", 1, "again"))
