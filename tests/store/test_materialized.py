"""Values of tables: found until the commit that touches their table, and never one that is older than the rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.database import Connection, Database
from store.materialized import MaterializedSlices, Value
from tests.store.empty_store import empty_store
from tests.store.test_database import held_up


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(empty_store(tmp_path / "d.db"))
    yield database
    database.close()


@pytest.fixture
def packed(database: Database) -> Iterator[MaterializedSlices]:
    made = MaterializedSlices(database)
    yield made
    made.close()


def value(database: Database, key: int, data: bytes, flight: str = "f", snapshot: int = 1) -> Value:
    return Value(flight, key, snapshot, database.versions.generation(key), data)


def touching(database: Database, *keys: int, fails: bool = False) -> Any:
    def write(_: Connection) -> None:
        for key in keys:
            database.touch(key)
        if fails:
            raise ValueError("no")

    return write


def found(packed: MaterializedSlices, *keys: int) -> list[bytes | None]:
    return [packed.find("f", key, 1) for key in keys]


def test_a_value_is_found_by_flight_table_and_snapshot(database: Database, packed: MaterializedSlices):
    packed.put([value(database, 1, b"a"), value(database, 1, b"b", "g"), value(database, 2, b"\x00" * 9)])
    assert packed.find("f", 1, 1) == b"a"
    assert packed.find("g", 1, 1) == b"b"
    assert packed.find("f", 2, 1) == b"\x00" * 9
    assert packed.find("f", 1, 2) is packed.find("g", 2, 1) is packed.find("f", 3, 1) is None
    assert sorted(packed.of_tables([1, 3])) == [("f", 1, 1, b"a"), ("g", 1, 1, b"b")]


def test_a_value_takes_the_place_of_that_of_the_same_flight_and_table(database: Database, packed: MaterializedSlices):
    packed.put([value(database, 1, b"a"), value(database, 1, b"b", "g"), value(database, 2, b"c")])
    packed.put([value(database, 1, b"A", snapshot=2), value(database, 3, b"d")])
    assert sorted(packed.of_tables([1, 2, 3])) == [
        ("f", 1, 2, b"A"),
        ("f", 2, 1, b"c"),
        ("f", 3, 1, b"d"),
        ("g", 1, 1, b"b"),
    ]


def test_a_commit_takes_the_values_of_what_it_touches(database: Database, packed: MaterializedSlices):
    packed.put([value(database, key, b"%d" % key) for key in (1, 2, 3)])
    assert packed.take_changed() == set()
    database.write(touching(database, 2, 9))
    assert found(packed, 1, 2, 3) == [b"1", None, b"3"]
    assert packed.take_changed() == {2, 9}
    assert packed.take_changed() == set()


def test_a_write_that_fails_takes_none(database: Database, packed: MaterializedSlices):
    packed.put([value(database, 1, b"1")])
    with pytest.raises(ValueError, match="no"):
        database.write(touching(database, 1, fails=True))
    assert found(packed, 1) == [b"1"]


def test_what_was_made_before_a_commit_is_not_kept_after_it(database: Database, packed: MaterializedSlices):
    old = [value(database, 1, b"old"), value(database, 2, b"fine")]
    database.write(touching(database, 1))
    assert packed.take_changed() == {1}
    packed.put(old)
    assert found(packed, 1, 2) == [None, b"fine"]
    assert packed.take_changed() == {1}  # to be made again
    packed.put([value(database, 1, b"new")])
    assert found(packed, 1) == [b"new"]


@pytest.mark.parametrize("touched_first", [True, False])
def test_what_is_touched_in_the_same_group_is_not_kept(
    database: Database, packed: MaterializedSlices, touched_first: bool
):
    packed.put([value(database, 1, b"0")])
    old = [value(database, 1, b"old"), value(database, 2, b"fine")]
    release = held_up(database)
    writes = [touching(database, 1), lambda connection: packed._store(connection, old)]
    waiting = [database.submit(write) for write in (writes if touched_first else reversed(writes))]
    release.set()
    for future in waiting:
        future.result(10)
    assert found(packed, 1, 2) == [None, b"fine"]
    assert packed.take_changed() == {1}


def test_values_are_there_after_a_restart(tmp_path: Path):
    database = Database(tmp_path / "d.db")
    packed = MaterializedSlices(database)
    packed.put([value(database, 1, b"1"), value(database, 2, b"2")])
    assert found(packed, 1) == [b"1"]
    packed.close()
    database.close()
    database = Database(tmp_path / "d.db")
    packed = MaterializedSlices(database)
    assert found(packed, 1, 2) == [b"1", b"2"]
    database.write(touching(database, 2))
    assert found(packed, 1, 2) == [b"1", None]
    packed.close()
    database.close()
