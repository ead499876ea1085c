"""Answers out of the cache are those of DuckDB, and never older than what was acknowledged."""

from __future__ import annotations

import json
import threading
from dataclasses import fields

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flight_server.auth.principal import ALL_SCOPES, Principal
from flight_server.conditions.one_table import plan
from flight_server.reads.scanner import Scanner
from flight_server.reads.slice_cache import Slice, SliceCache
from store.lru import LruCache
from store.predicates import tree as predicate
from store.schemas import FLIGHTS
from tests.flight_server.serving import CATALOG, app_in, command, put, read, rows

SCHEMA = FLIGHTS["stats.columns"].schema


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with app_in(tmp_path_factory.mktemp("cache")) as made:
        for snapshot in (1, 2, 4):
            put(made, rows("a", snapshot, range(1, 9), schema_hash="x" if snapshot < 4 else "y"))
        put(made, rows("b", 1, range(1, 4)))
        yield made


@pytest.fixture(scope="module")
def uncached(app):
    scanner = Scanner(app.database, app.catalog, app.versions, SliceCache(0), app.streams)
    scanner.queries.arrow_sources = app.scanner.queries.arrow_sources
    return scanner


LITERALS = st.one_of(
    st.integers(-3, 12), st.sampled_from(["c1", "c2", "c9", "", "101", "4.5", "a", "b", "EXACT"]), st.none(),
    st.booleans(),
    st.floats(allow_nan=True, width=32),
)  # fmt: skip
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


def plain(table: pa.Table) -> str:
    return json.dumps(table.to_pylist(), default=str)  # NaN is NaN


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tree=st.none() | TREES, table=st.sampled_from(["a", "b", "gone"]), columns=PROJECTIONS,
    snapshot=st.sampled_from([None, "current", 1, 2, 3, 4]), stale=st.booleans(), limit=st.none() | st.integers(0, 5),
    replaced=st.none() | st.integers(1, 10),
)  # fmt: skip
def test_the_cache_answers_as_duckdb_does(app, uncached, tree, table, columns, snapshot, stale, limit, replaced):
    body = json.loads(command(table)) | {"columns": columns, "filter": tree, "snapshot": snapshot, "limit": limit}
    data = json.dumps(body | {"allow_stale": stale}).encode()
    request = _request(data)
    for turn in range(4):  # the first is not kept, the second loads, the third is served, the fourth remembered
        if turn == 3 and replaced is not None:
            put(app, rows("a", 4, [replaced], max_width_bytes=replaced, schema_hash="y", row_count=200 + replaced))
        expected = uncached.table(request, ANYBODY)
        assert plain(app.scanner.table(_request(data), ANYBODY)) == plain(expected)
        for _ in range(3):  # the last one by its command's bytes
            again = app.scanner.read(_request(data), ANYBODY, command=data)
            assert plain(again if isinstance(again, pa.Table) else pa.Table.from_batches(again)) == plain(expected)
        for command_ in (None, data, data):  # the last one by its command's bytes
            answer = app.scanner.message(_request(data), ANYBODY, command=command_)
            message = pa.ipc.open_stream(answer).read_all()
            assert plain(message) == plain(expected)
            assert message.schema == request.schema


ANYBODY = Principal("anybody", ALL_SCOPES)


def _request(data):
    from flight_server.wire import tickets

    return tickets.of_ticket(data)


@pytest.mark.parametrize("puts", [10, pytest.param(200, marks=pytest.mark.benchmark)])
def test_a_put_is_seen_by_whoever_asks_after_its_acknowledgement(app, puts):
    data = command("hammered", columns=["row_count"], snapshot="current")
    put(app, rows("hammered", 1, [1]))
    seen: list[int] = []
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            seen.append(read(app, data)["row_count"][0].as_py())

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200, 200 + puts):
        put(app, rows("hammered", 1, [1], row_count=number, null_count=0, ndv=None))
        assert read(app, data)["row_count"].to_pylist() == [number]
    stop.set()
    for thread in threads:
        thread.join()
    assert seen


def test_deleted_rows_are_gone(app):
    put(app, rows("deleted", 1, range(1, 4)))
    data = command("deleted")
    assert [read(app, data).num_rows for _ in range(3)] == [3, 3, 3]
    app.store.delete(app.catalog.find((CATALOG, "s", "deleted")), 1)
    assert read(app, data).num_rows == 0


def test_a_new_snapshot_is_current_at_once(app):
    data = command("moving", columns=["snapshot_id", "freshness"], snapshot="current")
    for snapshot in (3, 5, 9):
        put(app, rows("moving", snapshot, [1]))
        for _ in range(3):
            assert read(app, data).to_pylist() == [{"snapshot_id": snapshot, "freshness": "EXACT"}]


def test_a_renamed_table_answers_to_its_new_name_alone(app):
    put(app, rows("old", 1, [1]))
    assert [read(app, command("old")).num_rows for _ in range(3)] == [1, 1, 1]
    entry = app.catalog.find((CATALOG, "s", "old"))
    app.database.write(lambda connection: app.catalog.change(connection, entry, table_name="new"))
    assert read(app, command("old")).num_rows == 0
    assert [read(app, command("new"))["table_name"].to_pylist() for _ in range(3)] == [["new"]] * 3


def test_what_a_caller_may_not_see_is_not_remembered_for_it(app):
    data = command("a", snapshot=4)
    assert {read(app, data).num_rows for _ in range(4)} != {0}
    nobody = Principal("nobody", ALL_SCOPES, ("lake.s.b",))
    assert read(app, data, nobody).num_rows == 0
    everybody = app.scanner.message(_request(data), ANYBODY, command=data)
    assert pa.ipc.open_stream(everybody).read_all().num_rows > 0
    answer = app.scanner.message(_request(data), nobody, command=data)
    assert pa.ipc.open_stream(answer).read_all().num_rows == 0


def test_slices_stay_within_their_budget():
    batch = pa.RecordBatch.from_pydict({"column_id": list(range(1000))})
    size = Slice.of(batch, 0).size
    cache = SliceCache(4 * size)
    for key in range(20):
        for _ in range(2):
            cache.get(("stats.columns", key, None, False), lambda: 0, lambda most: batch)
        assert cache.used <= 4 * size
    assert cache.used > 0


def test_a_slice_too_large_is_left_to_duckdb():
    cache, asked = SliceCache(4000), []
    for _ in range(4):
        assert cache.get(("stats.columns", 1, None, False), lambda: 0, lambda most: asked.append(most)) is None
    assert asked == [1000]  # once, and not again soon


def test_a_slice_loaded_across_a_commit_is_not_kept():
    generation = [0]

    def load(most):
        generation[0] += 1  # a commit while it is read
        return pa.RecordBatch.from_pydict({"column_id": [generation[0]]})

    cache = SliceCache(1 << 20)
    key = ("stats.columns", 1, None, False)
    found = [cache.get(key, lambda: generation[0], load) for _ in range(4)]
    assert found[0] is None
    assert [each.batch["column_id"].to_pylist() for each in found[1:]] == [[1], [2], [3]]


def test_bounded_forgets_what_was_not_used_for_longest():
    kept: LruCache[str, int] = LruCache(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c"), len(kept)) == (1, None, 3, 2)


def leaf(column, *values, op="EQ"):
    return predicate.Leaf(column, predicate.Op(op), values)


def test_a_plan_takes_the_name_and_the_index_out_of_a_condition():
    name = predicate.And((leaf("table_catalog", "x"), leaf("Table_Schema", "y"), leaf("table_name", "z")))
    other = leaf("ndv", 3, op="GT")
    made = plan(predicate.And((name, leaf("column_id", "7", None, op="IN"), other)), SCHEMA)
    assert (made.name, made.column, made.values) == (("x", "y", "z"), "column_id", (7,))
    assert made.kept(pa.RecordBatch.from_pylist([{"ndv": ndv} for ndv in (1, 4, None, 5)])).to_pylist() == [1, 3]
    assert plan(predicate.Not(name), SCHEMA).name is None
    assert plan(predicate.Or((name, other)), SCHEMA).name is None
    assert plan(None, SCHEMA).name is None


def test_a_slice_keeps_its_own_rows_alone():
    before = pa.total_allocated_bytes()
    large = pa.RecordBatch.from_pydict({
        "text": [f"a text of row {i}" for i in range(100_000)],
        "number": pa.array(range(100_000)),
        "rarely": [None if i % 3 else i for i in range(100_000)],
    })  # fmt: skip
    wanted = large.slice(500, 3).to_pylist()
    made = Slice.of(large.slice(500, 3), 0)
    del large
    assert made.batch.to_pylist() == wanted
    assert pa.total_allocated_bytes() - before < 2000


def test_a_repeated_read_action_is_answered_by_its_bytes_until_a_commit(app):
    put(app, rows("repeated", 1, [1]))
    data = command("repeated", columns=["row_count"], snapshot="current")

    def ask():
        answer = app.scanner.message(_request(data), ANYBODY, command=data)
        return answer, pa.ipc.open_stream(answer).read_all()["row_count"].to_pylist()

    for _ in range(2):  # the slice is loaded on the second read
        ask()
    first, _ = ask()
    assert ask()[0] is first
    put(app, rows("repeated", 1, [1], row_count=321, null_count=0, ndv=None))
    assert ask()[1] == [321]


def test_a_row_that_is_asked_for_again_is_kept_until_a_commit(app):
    put(app, rows("kept", 1, [1, 2]))
    second = {"column": "column_id", "op": "EQ", "values": [2]}
    data = command("kept", columns=["row_count"], snapshot="current", filter=second)
    nobody = Principal("nobody", ALL_SCOPES, ("lake.s.b",))

    def ask(principal=ANYBODY):
        return app.scanner.read(_request(data), principal, command=data)

    for _ in range(4):  # loaded on the second read, noted on the third at the latest, then kept
        ask()
    first = ask()
    assert ask() is first
    assert first["row_count"].to_pylist() == [102]
    assert first.nbytes < 200  # a copy, not a view of the slice
    assert ask(nobody).num_rows == 0
    put(app, rows("kept", 1, [2], row_count=321, null_count=0, ndv=None))
    assert [ask()["row_count"].to_pylist() for _ in range(4)] == [[321]] * 4


def test_a_request_is_not_changed_by_being_answered(app):
    request = _request(command("a", columns=["ndv"], snapshot="current"))
    for _ in range(4):
        app.scanner.message(request, ANYBODY, command=b"another")
        app.scanner.table(request, ANYBODY)
    derived = {"names", "schema", "head", "plan"}
    assert set(vars(request)) - {field.name for field in fields(request)} <= derived
