"""Snapshots that get another schema: their records follow the ids of columns, and those that cannot are deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import invariants
from store.catalog.catalog import Catalog
from store.catalog.discovery import Discovery
from store.catalog.schema_changes import SchemaChange
from store.history.file_spans import rows_of
from store.model.columns import FILE_NAMES
from store.stats_store import DuckDBStatsStore
from tests.store.catalog.test_catalog import discover, found, store_of, write
from tests.store.contract import put, rows, sketch
from tests.store.empty_store import empty_database

IDS = range(1, 5)
LIVE = {"live_snapshot_ids": [1, 2]}


@pytest.fixture
def catalog():
    database = empty_database()
    yield DuckDBStatsStore(database, Catalog(database)).catalog
    database.close()


def column(id: int, name: str, type: str = "INT") -> list[Any]:
    return [name, type, True, id, name.split("/")]


def schema(*columns: tuple[Any, ...]) -> dict[str, Any]:
    """A schema by its columns (id, name, type), and its hash, as arguments of `discover`."""
    listed = [column(*each) for each in columns]
    return {"columns": listed, "schema_hash": json.dumps(listed)}


def capture(catalog: Catalog, entry, ids, snapshot: int, of: dict[str, Any], files=("f",)) -> None:
    """Stores a record of each kind for the columns of a schema."""
    store, hash_ = store_of(catalog), of["schema_hash"]
    names = {each[3]: each[0] for each in of["columns"]}
    about = {"name": entry.name, "snapshot": snapshot}
    scalar = {"row_count": 10, "schema_hash": hash_, "completeness": "COMPLETE"}
    columns = [{"column_id": i, "column_name": names[i], "min": str(i), **scalar} for i in ids]
    columns = [row | {"logical_type": "INT"} for row in columns]
    put(store, "stats.tables", rows("stats.tables", {"row_count": 10, "schema_hash": hash_}, **about), "upsert")
    put(store, "stats.columns", rows("stats.columns", *columns, **about), "upsert")
    put(store, "stats.sketches", rows("stats.sketches", *(sketch(i) for i in ids), **about), "upsert")
    of_files = [{"file_path": file} | row for file in files for row in columns]
    put(store, "stats.file_columns", rows("stats.file_columns", *of_files, **about), "replace_snapshot")
    of_files = [{"file_path": file, "row_count": 10} for file in files]
    put(store, "stats.files", rows("stats.files", *of_files, **about), "replace_snapshot")


def read(catalog: Catalog, flight: str, snapshot: int, *columns: str) -> list[tuple[Any, ...]]:
    source, values = rows_of(flight, catalog.get("lake.s.t"), snapshot)
    names = ", ".join(f"t.{name}" for name in columns)
    return sorted(catalog.database.rows(f"SELECT {names} FROM {source}", *values))


def sound(catalog: Catalog) -> None:
    with catalog.database.reading() as cursor:
        assert list(invariants.violations(cursor)) == []


def test_renamed_columns_take_their_records_along(catalog):
    before, after = schema((1, "a"), (2, "b"), (3, "s/x")), schema((1, "b"), (2, "a"), (3, "s/y"), (4, "c"))
    entry = discover(catalog, **before)
    capture(catalog, entry, (1, 2, 3), 1, before)
    discover(catalog, **after, live_snapshot_ids=[1])
    named = [(1, "b", "1"), (2, "a", "2"), (3, "s/y", "3")]
    assert read(catalog, "stats.columns", 1, "column_id", "column_name", "min") == named
    assert read(catalog, "stats.file_columns", 1, "column_id", "column_name", "min") == named
    assert len(read(catalog, "stats.sketches", 1, "storage_id")) == 3
    assert read(catalog, "stats.tables", 1, "row_count") == [(10,)]
    sound(catalog)


def test_a_column_of_another_type_keeps_nothing(catalog):
    before, after = schema((1, "a"), (2, "b")), schema((1, "a", "STRING"), (2, "b"))
    entry = discover(catalog, **before)
    capture(catalog, entry, (1, 2), 1, before)
    discover(catalog, **after, live_snapshot_ids=[1])
    for flight in ("stats.columns", "stats.file_columns"):
        assert read(catalog, flight, 1, "column_id") == [(2,)]
    assert len(read(catalog, "stats.sketches", 1, "storage_id")) == 1
    sound(catalog)


def test_groups_and_expressions_stay_unless_the_change_touches_them(catalog):
    before, after = schema((1, "a"), (2, "b"), (3, "d")), schema((1, "a"), (2, "c"), (4, "e"))
    entry = discover(catalog, **before)
    store, about = store_of(catalog), {"name": entry.name, "snapshot": 1}
    groups = [{"column_ids": ids, "row_count": 10} for ids in ([1, 2], [1, 3])]
    put(store, "stats.column_groups", rows("stats.column_groups", *groups, **about))
    texts = ("a + 1", "b + 1", "hash(*)", "a * 2", "E")
    expressions = [{"engine_kind": "spark", "engine_expression_key": text.encode(), "row_count": 10} for text in texts]
    put(store, "stats.expressions", rows("stats.expressions", *expressions, **about))
    discover(catalog, **after, live_snapshot_ids=[1])
    assert read(catalog, "stats.column_groups", 1, "column_ids", "column_names") == [([1, 2], ["a", "c"])]
    assert read(catalog, "stats.expressions", 1, "engine_expression_key") == [(b"a * 2",), (b"a + 1",)]
    sound(catalog)


def test_a_snapshot_that_is_no_longer_current_gets_its_own_names_back(catalog):
    """Another listing has the same rows about files, under the names of its own schema."""
    own, swapped = schema((1, "a"), (2, "b")), schema((1, "b"), (2, "a"), (3, "c"))
    entry = discover(catalog, **own)
    discover(catalog, **swapped, live_snapshot_ids=[1])
    capture(catalog, entry, (1, 2, 3), 1, swapped)
    discover(catalog, **swapped, snapshots=(2,), **LIVE)
    capture(catalog, entry, (1, 2, 3), 2, swapped, files=("f", "g"))
    again = found(**swapped, snapshots=(1,), **LIVE) | {"current_snapshot_id": 2}
    again["snapshots"][0]["schema_hash"] = own["schema_hash"]
    again["schemas"][own["schema_hash"]] = own["columns"]
    write(catalog, Discovery(catalog).store, "lake", "iceberg", [again], {("s", "t")})
    for flight in ("stats.columns", "stats.file_columns"):
        assert read(catalog, flight, 1, "column_id", "column_name") == [(1, "a"), (2, "b")]
        assert {*read(catalog, flight, 2, "column_id", "column_name")} == {(1, "b"), (2, "a"), (3, "c")}
    sound(catalog)


def test_what_is_read_by_name_is_deleted_where_a_name_is_another_column(catalog):
    def mapped(*fields: tuple[int, list[str]]) -> dict[str, Any]:
        text = json.dumps([{"field-id": i, "names": names} for i, names in fields])
        return {"properties": {FILE_NAMES: text}, "live_snapshot_ids": [1]}

    first, more, moved = (
        schema((1, "a"), (2, "name")),
        schema((1, "a"), (2, "title")),
        schema((1, "a"), (2, "title"), (3, "name")),
    )
    entry = discover(catalog, **first, **mapped((1, ["a"]), (2, ["name"])))
    capture(catalog, entry, (1, 2), 1, first)
    discover(catalog, **more, **mapped((1, ["a"]), (2, ["name", "title"])))
    assert read(catalog, "stats.columns", 1, "column_name") == [("a",), ("title",)]
    discover(catalog, **moved, **mapped((1, ["a"]), (2, ["title"]), (3, ["name"])))
    for flight in ("stats.columns", "stats.file_columns", "stats.sketches", "stats.tables"):
        assert read(catalog, flight, 1, "snapshot_id" if flight == "stats.columns" else "table_key") == []


_SCHEMAS = st.dictionaries(
    st.sampled_from(IDS),
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["INT", "STRING"])),
    min_size=1,
).filter(lambda of: len({name for name, _ in of.values()}) == len(of))


@given(_SCHEMAS, st.lists(_SCHEMAS, min_size=1, max_size=5))
def test_a_change_keeps_what_no_step_touched(first, others):
    """The names after all steps are those of the last schema; an id that was away or had another type is lost."""
    steps = [first, *others]
    kept = dict.fromkeys(first)
    for before, after in zip(steps, others, strict=False):
        given = ([column(i, *of) for i, of in each.items()] for each in (before, after))
        change = SchemaChange.of("h", *given)
        assert change is not None
        kept = {i: change.names[i] for i in kept if i in change.names}
        assert change.renamed == {i for i in change.names if before[i][0] != after[i][0]}
    expected = {i: steps[-1][i][0] for i in first if len({of[i][1] if i in of else None for of in steps}) == 1}
    assert kept == expected


def test_columns_without_ids_cannot_be_followed():
    assert SchemaChange.of("h", [["a", "INT", True, None]], [["b", "INT", True, 1]]) is None
    assert SchemaChange.of("h", [], [["b", "INT", True, 1]]) is None
