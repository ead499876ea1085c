"""Cached reads equal those of DuckDB and are never older than an acknowledged put."""

from __future__ import annotations

import json
import threading
from dataclasses import fields

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.client.conditions.one_table import plan
from flight_server.core.auth.principal import ALL_SCOPES, Principal
from flight_server.core.reads.scanner import Scanner
from flight_server.core.reads.slice_cache import Slice, SliceCache
from store.duckdb.lru import LruCache
from store.model.predicates import tree as predicate
from store.model.schemas import FLIGHTS
from tests.flight_server.serving import CATALOG, app_in, command, put, read, rows

SCHEMA = FLIGHTS["stats.columns"].schema


@pytest.fixture(scope="module")
def app():
    with app_in() as app:
        for snapshot in (1, 2, 4):
            put(app, rows("a", snapshot, range(1, 9), schema_hash="x" if snapshot < 4 else "y"))
        put(app, rows("b", 1, range(1, 4)))
        yield app


@pytest.fixture(scope="module")
def uncached(app):
    scanner = Scanner(app.database, app.catalog, SliceCache(0), app.streams)
    scanner.queries.arrow_sources = app.scanner.queries.arrow_sources
    return scanner


LITERALS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from(["c1", "c2", "c9", "", "101", "4.5", "a", "b", "EXACT"]),
    st.none(),
    st.booleans(),
    st.floats(allow_nan=True, width=32),
)
COLUMNS = st.sampled_from(
    ["column_id", "column_name", "row_count", "null_count", "ndv", "freshness", "Table_Name", "none"]
)


def _leaf(column, op, values):
    count = {"BETWEEN": 2, "IS_NULL": 0, "IS_NOT_NULL": 0}.get(op, 1)
    return {"column": column, "op": op, "values": values if op == "IN" else (values * 2)[:count]}


LEAVES = st.builds(
    _leaf, COLUMNS, st.sampled_from(list(map(str, predicate.Op))), st.lists(LITERALS, min_size=1, max_size=3)
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"and": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"or": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda part: {"not": part}, inner),
    ),
    max_leaves=6,
)
PROJECTIONS = st.none() | st.lists(
    st.sampled_from(["ndv", "column_name", "snapshot_id", "freshness", "no"]), min_size=1
)


def as_json(table: pa.Table) -> str:
    return json.dumps(table.to_pylist(), default=str)  # as text, NaN equals NaN


@settings(max_examples=settings.default.max_examples // 4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tree=st.none() | TREES,
    table=st.sampled_from(["a", "b", "gone"]),
    columns=PROJECTIONS,
    snapshot=st.sampled_from([None, "current", 1, 2, 4]),
    stale=st.booleans(),
    limit=st.none() | st.integers(0, 5),
    replaced=st.none() | st.integers(1, 10),
)
def test_cached_reads_equal_those_of_duckdb(app, uncached, tree, table, columns, snapshot, stale, limit, replaced):
    body = json.loads(command(table)) | {"columns": columns, "filter": tree, "snapshot": snapshot, "limit": limit}
    data = json.dumps(body | {"allow_stale": stale}).encode()
    request = _request(data)
    for turn in range(4):  # not cached, loaded, served from the slice, changed
        if turn == 3 and replaced is not None:
            put(app, rows("a", 4, [replaced], max_width_bytes=replaced, schema_hash="y", row_count=200 + replaced))
        expected = uncached.table(request, ALL_TABLES)
        assert as_json(app.scanner.table(_request(data), ALL_TABLES)) == as_json(expected)
        for key in (None, data, data):
            message = pa.ipc.open_stream(app.scanner.message(_request(data), ALL_TABLES, command=key)).read_all()
            assert as_json(message) == as_json(expected)
            assert message.schema == request.schema


ALL_TABLES = Principal("anybody", ALL_SCOPES)


def _request(data):
    from flight_server.core.wire import tickets

    return tickets.of_ticket(data)


@pytest.mark.parametrize("puts", [4, pytest.param(200, marks=pytest.mark.benchmark)])
def test_acknowledged_put_is_visible_beside_concurrent_readers(app, puts):
    data = command("hammered", columns=["row_count"], snapshot="current")
    put(app, rows("hammered", 1, [1]))
    seen: list[int] = []
    stop = threading.Event()

    def read_repeatedly():
        while not stop.is_set():
            seen.append(read(app, data)["row_count"][0].as_py())

    threads = [threading.Thread(target=read_repeatedly) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200, 200 + puts):
        put(app, rows("hammered", 1, [1], row_count=number, null_count=0, ndv=None))
        assert read(app, data)["row_count"].to_pylist() == [number]
    stop.set()
    for thread in threads:
        thread.join()
    assert seen


def test_deleted_rows_are_not_served_from_the_cache(app):
    put(app, rows("deleted", 1, range(1, 4)))
    data = command("deleted")
    assert [read(app, data).num_rows for _ in range(3)] == [3, 3, 3]
    app.store.delete(app.catalog.find((CATALOG, "s", "deleted")), 1)
    assert read(app, data).num_rows == 0


def test_new_snapshot_is_current_at_once(app):
    data = command("moving", columns=["snapshot_id", "freshness"], snapshot="current")
    for snapshot in (3, 5, 9):
        put(app, rows("moving", snapshot, [1]))
        for _ in range(3):
            assert read(app, data).to_pylist() == [{"snapshot_id": snapshot, "freshness": "EXACT"}]


def test_renamed_table_is_found_by_its_new_name_only(app):
    put(app, rows("old", 1, [1]))
    assert [read(app, command("old")).num_rows for _ in range(3)] == [1, 1, 1]
    entry = app.catalog.find((CATALOG, "s", "old"))
    app.database.write(lambda connection: app.catalog.change(connection, {entry.table_key: {"table_name": "new"}}))
    assert read(app, command("old")).num_rows == 0
    assert [read(app, command("new"))["table_name"].to_pylist() for _ in range(3)] == [["new"]] * 3


def test_cached_results_are_not_served_to_callers_without_access(app):
    data = command("a", snapshot=4)
    assert {read(app, data).num_rows for _ in range(4)} != {0}
    limited = Principal("nobody", ALL_SCOPES, ("lake.s.b",))
    assert read(app, data, limited).num_rows == 0
    unlimited = app.scanner.message(_request(data), ALL_TABLES, command=data)
    assert pa.ipc.open_stream(unlimited).read_all().num_rows > 0
    response = app.scanner.message(_request(data), limited, command=data)
    assert pa.ipc.open_stream(response).read_all().num_rows == 0
    assert app.scanner.table(_request(data), ALL_TABLES).num_rows > 0
    assert app.scanner.table(_request(data), limited).num_rows == 0


def test_slice_cache_stays_within_its_budget():
    batch = pa.RecordBatch.from_pydict({"column_id": list(range(1000))})
    size = Slice(batch, 0).size
    cache = SliceCache(4 * size)
    for key in range(20):
        cache.load(("stats.columns", key, None, False), 0, lambda most: batch)
        assert cache.used <= 4 * size
    assert cache.used > 0


def test_slice_is_worth_loading_at_its_second_read():
    key = ("stats.columns", 1, None, False)
    assert [SliceCache(0).is_worth_loading(key) for _ in range(2)] == [False, False]
    cache = SliceCache(1 << 20)
    assert [cache.is_worth_loading(key) for _ in range(3)] == [False, True, True]


def test_oversized_slice_is_not_cached_and_not_worth_loading_again():
    cache, key = SliceCache(4000), ("stats.columns", 1, None, False)
    assert not cache.is_worth_loading(key) and cache.is_worth_loading(key)
    assert cache.load(key, 0, lambda most: pa.RecordBatch.from_pydict({"column_id": range(most)})) is None
    assert cache.find(key, 0) is None and not cache.is_worth_loading(key)


def test_slice_loaded_across_a_commit_is_not_served_again():
    cache, key = SliceCache(1 << 20), ("stats.columns", 1, None, False)
    found = cache.load(key, 0, lambda most: pa.RecordBatch.from_pydict({"column_id": [1]}))
    assert found is not None and cache.find(key, 0) is found
    assert cache.find(key, 1) is None


def test_lru_cache_evicts_the_least_recently_used_entry():
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)


def leaf(column, *values, op="EQ"):
    return predicate.Leaf(column, predicate.Op(op), values)


def test_plan_extracts_table_name_and_column_ids_from_a_condition():
    name = predicate.And((leaf("table_catalog", "x"), leaf("Table_Schema", "y"), leaf("table_name", "z")))
    other = leaf("ndv", 3, op="GT")
    planned = plan(predicate.And((name, leaf("column_id", "7", None, op="IN"), other)), SCHEMA)
    assert (planned.name, planned.column, planned.values) == (("x", "y", "z"), "column_id", (7,))
    assert planned.kept(pa.RecordBatch.from_pylist([{"ndv": ndv} for ndv in (1, 4, None, 5)])).to_pylist() == [1, 3]
    assert plan(predicate.Not(name), SCHEMA).name is None
    assert plan(predicate.Or((name, other)), SCHEMA).name is None
    assert plan(None, SCHEMA).name is None


def test_slice_copies_its_own_rows_only():
    before = pa.total_allocated_bytes()
    large = pa.RecordBatch.from_pydict(
        {
            "text": [f"a text of row {i}" for i in range(100_000)],
            "number": pa.array(range(100_000)),
            "rarely": [None if i % 3 else i for i in range(100_000)],
        }
    )
    expected = large.slice(500, 3).to_pylist()
    copied = Slice(large.slice(500, 3), 0)
    del large
    assert copied.batch.to_pylist() == expected
    assert pa.total_allocated_bytes() - before < 2000


def test_reads_set_only_derived_attributes_of_the_request(app):
    request = _request(command("a", columns=["ndv"], snapshot="current"))
    for _ in range(4):
        app.scanner.message(request, ALL_TABLES)
        app.scanner.table(request, ALL_TABLES)
    derived = {"names", "schema", "head", "plan"}
    assert set(vars(request)) - {field.name for field in fields(request)} <= derived
