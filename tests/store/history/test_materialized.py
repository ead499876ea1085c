"""Materialized slices: found until a commit touches their table, never older than its rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.duckdb.database import Connection, Database
from store.history.materialized import MaterializedSlices, Value
from tests.store.duckdb.test_database import hold_writer
from tests.store.empty_store import empty_store


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(empty_store(tmp_path / "d.db"))
    yield database
    database.close()


@pytest.fixture
def slices(database: Database) -> Iterator[MaterializedSlices]:
    opened = MaterializedSlices(database)
    yield opened
    opened.close()


def value(database: Database, key: int, data: bytes, flight: str = "f", snapshot: int = 1) -> Value:
    return Value(flight, key, snapshot, database.versions.generation(key), data)


def touching(database: Database, *keys: int, fails: bool = False) -> Any:
    def write(_: Connection) -> None:
        for key in keys:
            database.touch(key)
        if fails:
            raise ValueError("no")

    return write


def found(slices: MaterializedSlices, *keys: int) -> list[bytes | None]:
    return [slices.find("f", key, 1) for key in keys]


def test_a_value_is_found_by_flight_table_and_snapshot(database: Database, slices: MaterializedSlices):
    slices.put([value(database, 1, b"a"), value(database, 1, b"b", "g"), value(database, 2, b"\x00" * 9)])
    assert slices.find("f", 1, 1) == b"a"
    assert slices.find("g", 1, 1) == b"b"
    assert slices.find("f", 2, 1) == b"\x00" * 9
    assert slices.find("f", 1, 2) is slices.find("g", 2, 1) is slices.find("f", 3, 1) is None
    assert sorted(slices.of_tables([1, 3])) == [("f", 1, 1, b"a"), ("g", 1, 1, b"b")]


def test_new_value_replaces_that_of_its_flight_and_table(database: Database, slices: MaterializedSlices):
    slices.put([value(database, 1, b"a"), value(database, 1, b"b", "g"), value(database, 2, b"c")])
    slices.put([value(database, 1, b"A", snapshot=2), value(database, 3, b"d")])
    assert sorted(slices.of_tables([1, 2, 3])) == [
        ("f", 1, 2, b"A"),
        ("f", 2, 1, b"c"),
        ("f", 3, 1, b"d"),
        ("g", 1, 1, b"b"),
    ]


def test_commit_removes_the_values_of_the_tables_it_touches(database: Database, slices: MaterializedSlices):
    slices.put([value(database, key, b"%d" % key) for key in (1, 2, 3)])
    assert slices.take_changed() == set()
    database.write(touching(database, 2, 9))
    assert found(slices, 1, 2, 3) == [b"1", None, b"3"]
    assert slices.take_changed() == {2, 9}
    assert slices.take_changed() == set()


def test_look_during_a_commit_does_not_forget_its_tables(database: Database, slices: MaterializedSlices):
    during: list[object] = []
    database.phases["derived"].append(lambda *_: during.append(slices.take_changed()))
    database.write(touching(database, 2))
    assert during == [set()], "its rows are not visible yet"
    assert slices.take_changed() == {2}


def test_failed_write_removes_no_values(database: Database, slices: MaterializedSlices):
    slices.put([value(database, 1, b"1")])
    with pytest.raises(ValueError, match="no"):
        database.write(touching(database, 1, fails=True))
    assert found(slices, 1) == [b"1"]


def test_value_computed_before_a_commit_is_not_stored_after_it(database: Database, slices: MaterializedSlices):
    old = [value(database, 1, b"old"), value(database, 2, b"fine")]
    database.write(touching(database, 1))
    assert slices.take_changed() == {1}
    slices.put(old)
    assert found(slices, 1, 2) == [None, b"fine"]
    assert slices.take_changed() == {1}  # to be computed again
    slices.put([value(database, 1, b"new")])
    assert found(slices, 1) == [b"new"]


@pytest.mark.parametrize("touched_first", [True, False])
def test_value_of_a_table_touched_in_the_same_group_is_not_stored(
    database: Database, slices: MaterializedSlices, touched_first: bool
):
    slices.put([value(database, 1, b"0")])
    old = [value(database, 1, b"old"), value(database, 2, b"fine")]
    release = hold_writer(database)
    writes = [touching(database, 1), lambda connection: slices._store(connection, old)]
    waiting = [database.submit(write) for write in (writes if touched_first else reversed(writes))]
    release.set()
    for future in waiting:
        future.result(10)
    assert found(slices, 1, 2) == [None, b"fine"]
    assert slices.take_changed() == {1}


def test_values_survive_a_restart(tmp_path: Path):
    database = Database(tmp_path / "d.db")
    slices = MaterializedSlices(database)
    slices.put([value(database, 1, b"1"), value(database, 2, b"2")])
    assert found(slices, 1) == [b"1"]
    slices.close()
    database.close()
    database = Database(tmp_path / "d.db")
    slices = MaterializedSlices(database)
    assert found(slices, 1, 2) == [b"1", b"2"]
    database.write(touching(database, 2))
    assert found(slices, 1, 2) == [b"1", None]
    slices.close()
    database.close()
