"""Column ids of puts that give names only."""

from __future__ import annotations

import pytest

from store.catalog.catalog import Catalog
from store.model.errors import InvalidField
from store.stats_store import DuckDBStatsStore, Put
from tests.store.catalog.test_catalog import ALIKE, discover
from tests.store.contract import rows
from tests.store.empty_store import empty_database


@pytest.fixture
def store():
    database = empty_database()
    yield DuckDBStatsStore(database, Catalog(database))
    database.close()


@pytest.mark.parametrize("tables", [1, 17])  # keys as literals, and as a table
def test_names_get_their_ids_and_ambiguous_ones_are_refused(store, tables):
    names = [("lake", "s", f"t{number}") for number in range(tables)]
    for _, _, name in names:
        discover(store.catalog, [name for *_, name in names], name=name, table_id=name, columns=ALIKE)

    def put(*columns: str) -> None:
        store.put(
            [
                Put("stats.columns", rows("stats.columns", *({"column_name": c} for c in columns), name=name))
                for name in names
            ]
        )

    put("a", "new")
    ids = store.database.rows("SELECT column_name, column_id, count(*) FROM stats_columns GROUP BY ALL ORDER BY ALL")
    assert ids == [("a", 1, tables), ("new", 4, tables)]
    with pytest.raises(InvalidField, match=r'is the name of several columns of "lake\.s\.t0"'):
        put("a", "a.b")
