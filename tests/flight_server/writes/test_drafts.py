"""Drafts that one transaction publishes: stored together, refused one by one."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from flight_server.writes.drafts import Draft, DraftGroup
from store import records
from store.catalog_store import Catalog
from store.database import Database
from store.errors import InvalidArgument
from store.layout import BY_SNAPSHOT
from store.schemas import FLIGHTS
from store.stats_store import DuckDBStatsStore, Put, PutMode


class House:
    def __init__(self) -> None:
        self.database = Database(":memory:")
        self.catalog = Catalog(self.database)
        self.store = DuckDBStatsStore(self.database, self.catalog)
        self.group = DraftGroup(self.store)
        self.puts: list[int] = []
        put_in = self.store.put_in

        def counted(connection: Any, puts: Any, *more: Any) -> Any:
            self.puts.append(sum(put.rows.num_rows for put in puts))
            return put_in(connection, puts, *more)

        self.store.put_in = counted  # type: ignore[method-assign]

    def table(self, name: str) -> Any:
        return self.database.write(lambda c: self.catalog.register(c, ("lake", "s", name), None, "parquet"))

    def count(self, table: Any) -> int:
        """Stored records of columns."""
        physical = BY_SNAPSHOT["stats.columns"]
        return self.database.rows(f"SELECT count(*) FROM {physical} WHERE table_key = ?", table.table_key)[0][0]


@pytest.fixture
def house():
    made = House()
    yield made
    made.database.close()


def draft(name: str, *columns: int, twice: bool = False) -> Draft:
    made = Draft()
    for number in (1, 2) if twice else (1,):
        rows = pa.Table.from_pylist([
            {"table_catalog": "lake", "table_schema": "s", "table_name": name, "snapshot_id": 1, "column_id": i,
             "row_count": number} for i in columns
        ])  # fmt: skip
        made.add(Put("stats.columns", records.prepare(FLIGHTS["stats.columns"], rows), PutMode.CAPTURE), False)
    return made


def publish(house: House, drafts: list[tuple[Draft, Any]]) -> list[Any]:
    """Publishes each in a write of its own; the first holds the writer until all are queued, so that they are one
    transaction."""
    ready = threading.Event()
    first = house.database.submit(lambda _: ready.wait(60))
    futures = [house.database.submit(lambda c, d=d, t=t: house.group.publish(c, d, t)) for d, t in drafts]
    ready.set()
    first.result(10)
    return [future.exception(30) for future in futures]


def test_drafts_of_one_transaction_are_one_put(house):
    tables = [house.table(f"t{n}") for n in range(4)]
    troubles = publish(house, [(draft(t.table_name, 1, 2), t) for t in tables])
    assert troubles == [None] * 4
    assert house.puts == [8]
    assert [house.count(t) for t in tables] == [2] * 4


def test_a_draft_that_is_refused_leaves_the_others(house):
    tables = [house.table(f"t{n}") for n in range(3)]
    drafts = [draft("t0", 1), draft("t1", 1, twice=True), draft("t2", 1)]  # two different rows for one target
    troubles = publish(house, list(zip(drafts, tables, strict=True)))
    assert [type(trouble) for trouble in troubles] == [type(None), InvalidArgument, type(None)]
    assert [house.count(t) for t in tables] == [1, 0, 1]


def test_one_draft_is_stored_as_ever(house):
    table = house.table("t")
    assert publish(house, [(draft("t", 1, 2, 3), table)]) == [None]
    assert (house.puts, house.count(table)) == ([3], 3)
