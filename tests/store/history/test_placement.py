"""New listings of files: stored together, and before they are read."""

import duckdb
import pytest

from store.duckdb.layout import prepare
from store.history.placement import NewListings


@pytest.fixture
def connection():
    connection = duckdb.connect()
    prepare(connection, "memory")
    yield connection
    connection.close()


def stored(connection):
    return connection.execute("SELECT family, snapshot_id, pos, mark FROM file_snapshots ORDER BY ALL").fetchall()


def test_listings_of_all_families_are_stored_together(connection):
    listings = NewListings()
    listings.add(1, "stats.files", 7, 0, ("5", 0, 9, "mark"))
    listings.add(1, "file_sketches", 7, 0, ("5", 0, 9, None))
    listings.store(connection, "stats.file_columns")
    assert stored(connection) == []
    listings.store(connection, "stats.files")
    assert stored(connection) == [("file_sketches", 7, 0, None), ("stats.files", 7, 0, "mark")]
    listings.store(connection)
    assert len(stored(connection)) == 2
