"""Drafts committed in one transaction: stored together, rejected one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flight_server.writes.drafts import Draft, store_drafts
from store.catalog.catalog import Catalog
from store.duckdb.layout import BY_SNAPSHOT
from store.history import validation
from store.model.errors import InvalidArgument
from store.model.schemas import FLIGHTS
from store.stats_store import DuckDBStatsStore, Put, PutMode
from tests.store.empty_store import empty_database


class DraftStore:
    def __init__(self) -> None:
        self.database = empty_database()
        self.catalog = Catalog(self.database)
        self.store = DuckDBStatsStore(self.database, self.catalog)
        self.puts: list[int] = []
        put_in = self.store.put_in

        def counted(connection: Any, puts: Any, *more: Any) -> Any:
            self.puts.append(sum(put.rows.num_rows for put in puts))
            return put_in(connection, puts, *more)

        self.store.put_in = counted  # type: ignore[method-assign]

    def table(self, name: str) -> Any:
        return self.database.write(lambda c: self.catalog.register(c, ("lake", "s", name), None, "parquet"))

    def count(self, table: Any) -> int:
        """Number of stored column records of the table."""
        physical = BY_SNAPSHOT["stats.columns"]
        return self.database.rows(f"SELECT count(*) FROM {physical} WHERE table_key = ?", table.table_key)[0][0]


@pytest.fixture
def draft_store():
    created = DraftStore()
    yield created
    created.database.close()


def draft(name: str, *columns: int, twice: bool = False) -> Draft:
    created = Draft()
    for number in (1, 2) if twice else (1,):
        rows = pa.Table.from_pylist([
            {"table_catalog": "lake", "table_schema": "s", "table_name": name, "snapshot_id": 1, "column_id": i,
             "row_count": number} for i in columns
        ])  # fmt: skip
        created.add(Put("stats.columns", validation.prepare(FLIGHTS["stats.columns"], rows), PutMode.CAPTURE), False)
    return created


def commit(draft_store: DraftStore, drafts: list[tuple[Draft, Any]]) -> None:
    """Stores drafts in one write."""
    draft_store.database.write(lambda connection: store_drafts(connection, draft_store.store, drafts))


def test_drafts_of_one_transaction_are_stored_by_one_put(draft_store):
    tables = [draft_store.table(f"t{n}") for n in range(4)]
    commit(draft_store, [(draft(t.table_name, 1, 2), t) for t in tables])
    assert draft_store.puts == [8]
    assert [draft_store.count(t) for t in tables] == [2] * 4


def test_conflicting_rows_of_one_draft_refuse_the_write(draft_store):
    tables = [draft_store.table(f"t{n}") for n in range(3)]
    drafts = [draft("t0", 1), draft("t1", 1, twice=True), draft("t2", 1)]  # two different rows for one target
    with pytest.raises(InvalidArgument, match="two different rows"):
        commit(draft_store, list(zip(drafts, tables, strict=True)))
    assert [draft_store.count(t) for t in tables] == [0, 0, 0]


def test_single_draft_is_stored(draft_store):
    table = draft_store.table("t")
    commit(draft_store, [(draft("t", 1, 2, 3), table)])
    assert (draft_store.puts, draft_store.count(table)) == ([3], 3)
