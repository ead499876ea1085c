"""Listings of files that continue one before: what they hold, and when they may not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from store import records
from store.catalog_store import Catalog, TableEntry
from store.database import Database
from store.errors import UpstreamError
from store.file_listings import Listing, can_continue, continue_listing, mark_listings
from store.file_spans import rows_of
from store.schemas import FLIGHTS
from store.stats_store import DuckDBStatsStore, Put, PutMode
from store.targets import Target

FIRST = Listing(1, "one")
NEXT = Listing(2, "two", 1, "one", ("b",))


class House:
    """A table whose snapshot 1 has the files a, b and c, put as one listing."""

    def __init__(self) -> None:
        self.database = Database(":memory:")
        self.catalog = Catalog(self.database)
        self.store = DuckDBStatsStore(self.database, self.catalog)
        self.table: TableEntry = self.database.write(lambda c: self.catalog.register(c, ("c", "s", "t"), "id"))
        self.put(FIRST, {"a": 1, "b": 2, "c": 3}, whole=True)

    def put(self, listing: Listing, files: dict[str, int], *, whole: bool = False) -> None:
        """As a capture is published."""

        def run(connection):
            if listing.base_snapshot_id is not None:
                continue_listing(connection, self.table.table_key, listing)
            self.store.put_in(connection, self.rows(listing.snapshot_id, files, whole))
            mark_listings(connection, [(self.table.table_key, listing)])

        self.database.write(run)

    def rows(self, snapshot_id: int, files: dict[str, int], whole: bool) -> list[Put]:
        modes = {"stats.files": PutMode.REPLACE_SNAPSHOT if whole else PutMode.UPSERT,
                 "stats.file_columns": PutMode.FILL}  # fmt: skip
        key = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": snapshot_id}
        puts = []
        for flight, mode in modes.items():
            more = {} if flight == "stats.files" else {"column_id": 1, "logical_type": "INT"}
            told = [key | more | {"file_path": path, "row_count": count} for path, count in files.items()]
            if told:
                puts.append(Put(flight, records.prepare(FLIGHTS[flight], pa.Table.from_pylist(told)), mode))
        return puts

    def held(self, snapshot_id: int) -> list[dict[str, int]]:
        """File → rows, of each of the two flights."""
        found = []
        for flight in ("stats.files", "stats.file_columns"):
            source, values = rows_of(flight, self.table, snapshot_id)
            found.append(dict(self.database.rows(f"SELECT t.file_path, t.row_count FROM {source}", *values)))
        return found

    def may(self, listing: Listing = NEXT) -> bool:
        with self.database.reading() as cursor:
            return can_continue(cursor, self.table.table_key, listing)


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.database.close()


def test_a_listing_holds_its_base_without_what_went_and_with_what_came(house):
    house.put(NEXT, {"d": 4})
    assert house.held(2) == [{"a": 1, "c": 3, "d": 4}] * 2
    assert house.held(1) == [{"a": 1, "b": 2, "c": 3}] * 2
    house.put(Listing(3, "three", 2, "two", ("a", "c", "d")), {"a": 9, "d": 4})  # changed, gone, and told again
    assert house.held(3) == [{"a": 9, "d": 4}] * 2
    assert house.held(2) == [{"a": 1, "c": 3, "d": 4}] * 2
    rows = house.database.rows("SELECT count(*) FROM stats_files")
    assert rows == [(5,)]  # a twice, b, c, and d once: it never went


def test_the_same_listing_again_writes_nothing(house):
    generation = house.database.rows("SELECT max(generation), count(*) FROM stats_files")
    house.put(Listing(1, "one", 1, "one"), {})
    assert house.held(1) == [{"a": 1, "b": 2, "c": 3}] * 2
    assert house.database.rows("SELECT max(generation), count(*) FROM stats_files") == generation
    assert house.may()


def test_only_the_marked_and_newest_listing_is_a_base(house):
    assert house.may()
    assert not house.may(replace(NEXT, base_mark="other"))
    assert not house.may(replace(NEXT, base_snapshot_id=7))
    house.put(NEXT, {})
    assert not house.may(replace(NEXT, snapshot_id=3))
    assert house.may(Listing(3, "x", 2, "two"))
    assert not house.may(Listing(1, "x", 2, "two"))  # has a listing


def test_what_is_deleted_or_replaced_is_no_base(house):
    house.store.delete(house.table, 1, Target.file("a"))
    assert not house.may()
    with pytest.raises(UpstreamError, match="changed by somebody else"):
        house.put(NEXT, {})
    house.put(FIRST, {"a": 1}, whole=True)
    assert house.may()
    house.store.put(house.rows(1, {"b": 2}, whole=True))
    assert not house.may()


def test_what_is_deleted_of_others_leaves_the_base(house):
    house.put(NEXT, {"d": 4})
    house.store.delete(house.table, 1)
    house.put(Listing(3, "three", 2, "two", ("d",)), {"e": 5})
    assert house.held(3) == [{"a": 1, "c": 3, "e": 5}] * 2


def test_a_listing_out_of_order_gets_no_mark(house):
    house.put(NEXT, {"d": 4})
    house.put(Listing(1, "again"), {"a": 1, "b": 2, "c": 3}, whole=True)
    assert not house.may(Listing(3, "x", 1, "again"))
