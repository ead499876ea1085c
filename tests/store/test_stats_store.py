"""Stats stores: the contract on both; reopening, expiry and file spans of the DuckDB store."""

from __future__ import annotations

import dataclasses
import random
import threading
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store import plugins, segment_listings, segment_merging, staged_listings, stats_store, stores
from store.duckdb.layout import OPEN_END, parts
from store.history import staged
from store.history.file_listings import ListingChanged
from store.history.file_spans import rows_of
from store.invariants import checks, violations
from store.model.columns import THETA
from store.model.errors import Conflict, InvalidArgument, NotFound, StatflightError
from store.model.freshness import CONTRADICTED, UNCONFIRMED
from store.model.targets import Target, TargetKind
from store.segment_listings import SegmentListing
from store.staged_listings import StagedListing, unstage
from store.stats_store import Counts, DuckDBStatsStore, Put, PutMode
from tests.flight_server.live_server import eventually
from tests.store.contract import NAME, StatsStoreContract, columns, put, rows, sketch
from tests.store.empty_store import empty_store, place_for_database
from tests.store.reference_store import MemoryStatsStore


def open_store(path: Any) -> DuckDBStatsStore:
    return DuckDBStatsStore.open(path)


@pytest.fixture
def duck():
    store = open_store(place_for_database())
    yield store
    store.close()


class TestDuckDBStatsStore(StatsStoreContract):
    @pytest.fixture
    def store(self, duck):
        return duck

    def open(self, path):
        return stores.open_store("duckdb", path if path.exists() else empty_store(path))


class TestMemoryStatsStore(StatsStoreContract):
    lasts = False

    def open(self, path):
        return MemoryStatsStore()


class TestSqliteStatsStore(StatsStoreContract):
    """A store of another package, by its entry point."""

    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch):
        install(monkeypatch)

    def open(self, path):
        return stores.open_store("sqlite", path)


def install(monkeypatch):
    plug_in(monkeypatch, EntryPoint("sqlite", "tests.store.sqlite_store:SqliteStatsStore", stores.STORES.group))


def plug_in(monkeypatch, point):
    """Lets a point be the only one of stores that is installed."""
    monkeypatch.setattr(plugins, "_read", lambda _: EntryPoints([point]))
    monkeypatch.setattr(stores, "STORES", dataclasses.replace(stores.STORES))


def test_unknown_store_is_refused_with_the_nearest_name(monkeypatch):
    install(monkeypatch)
    with pytest.raises(
        InvalidArgument, match=r'"sqlit" is not a store; expected one of duckdb, postgres, postgresql, sqlite'
    ) as refused:
        stores.open_store("sqlit", "x")
    assert "sqlite" in refused.value.hint
    plug_in(monkeypatch, EntryPoint("gone", "no.such.module:open", stores.STORES.group))
    with pytest.raises(InvalidArgument, match=r'the store "gone" of .* cannot be loaded: ModuleNotFoundError'):
        stores.open_store("gone", "x")


@pytest.mark.parametrize("kind", ["duckdb", "memory"])
def test_require_registered_tables_refuses_unknown_tables(kind, request):
    store = MemoryStatsStore(require_registered_tables=True)
    if kind == "duckdb":
        duck = request.getfixturevalue("duck")
        store = DuckDBStatsStore(duck.database, duck.catalog, require_registered_tables=True)
    with pytest.raises(NotFound, match=r'no table "c\.s\.t"'):
        put(store, "stats.columns", columns((1, 1)))


@pytest.mark.parametrize("many", [1, 3])
def test_rows_of_another_table_of_the_name_are_refused(duck, many, monkeypatch):
    monkeypatch.setattr(stats_store, "MANY_ROWS", many)  # 1: stored in pieces
    put(duck, "stats.columns", columns((1, 1)))
    old = duck.catalog.get("c.s.t")
    changes = {old.table_key: {"format": "delta", "table_id": "new"}}
    (new,) = duck.database.write(lambda c: duck.catalog.change(c, changes))

    def files(*ids: str | None) -> pa.Table:
        named = rows("stats.files", *({"file_path": f"f{i}", "row_count": 1} for i in range(len(ids))))
        return named.append_column("table_id", pa.array(ids, pa.string()))

    for ids in ([old.table_id], [None, old.table_id], ["new", old.table_id]):
        with pytest.raises(Conflict, match=f'table_id: "c.s.t" is another table; expected new, got {old.table_id}'):
            put(duck, "stats.files", files(*ids))
    assert duck.count(new, 1, TargetKind.FILE) == 0
    put(duck, "stats.files", files("new", None, ""))
    assert duck.count(new, 1, TargetKind.FILE) == 3


@pytest.mark.parametrize("kind", [None, StagedListing, SegmentListing])
def test_fill_replaces_what_its_engine_doubts_now_or_no_more(duck, kind):
    duck.database.segments.cells = 1 if kind is SegmentListing else None

    def fill(**given: tuple[str, float | None]) -> None:
        named = (
            {"file_path": file, "engine_id": engine, "confidence_level": at} for file, (engine, at) in given.items()
        )
        table = rows(
            "stats.file_columns", *({"column_id": 1, "min": "1", "logical_type": "INT"} | row for row in named)
        )
        each = Put("stats.file_columns", table, PutMode.FILL)
        if kind is None:
            duck.put([each])
            return
        listing = duck.stage([each], kind=kind)
        listing.add(table, PutMode.FILL)
        listing.settle()
        duck.database.write(lambda connection: duck.put_in(connection, (), staged=[listing]))

    fill(
        doubted=("native", UNCONFIRMED), known=("native", None), scanned=("local", None), wrong=("native", CONTRADICTED)
    )
    fill(
        doubted=("native", None), known=("native", UNCONFIRMED), scanned=("native", UNCONFIRMED), wrong=("native", None)
    )
    found = duck.rows(duck.catalog.get("c.s.t"), 1, "stats.file_columns").to_pylist()
    assert {row["file_path"]: (row["engine_id"], row["confidence_level"]) for row in found} == {
        "doubted": ("native", None),
        "known": ("native", UNCONFIRMED),
        "scanned": ("local", None),
        "wrong": ("native", CONTRADICTED),
    }


def test_no_table_is_registered_with_the_key_of_one_that_was_dropped_during_a_put(duck):
    given = rows("stats.files", {"file_path": "a", "row_count": 1})
    put(duck, "stats.files", given)
    listing = duck.stage([Put("stats.files", given)])
    listing.add(given, PutMode.CREATE)
    listing.settle()
    old = duck.catalog.get("c.s.t")
    duck.database.write(lambda c: duck.catalog.change(c, {old.table_key: {"dropped": True}}))
    with pytest.raises(ListingChanged):
        duck.database.write(lambda c: duck.put_in(c, (), staged=[listing]))
    put(duck, "stats.files", given)
    keys = [key for (key,) in duck.database.rows("SELECT table_key FROM tables ORDER BY ALL")]
    assert len(keys) == 2 and keys[0] == old.table_key < keys[1]


def test_a_put_is_not_committed_while_another_one_removes_its_rows(duck, monkeypatch):
    monkeypatch.setattr(staged_listings, "_TIDY_ROWS", 2)
    old, new = (rows("stats.files", *({"file_path": f"{n}{i}", "row_count": 1} for i in range(5))) for n in "ab")
    put(duck, "stats.files", old)
    listing = duck.stage([Put("stats.files", new, PutMode.REPLACE_SNAPSHOT)])
    listing.add(new, PutMode.REPLACE_SNAPSHOT)
    listing.settle()
    turns = []

    class Turn:
        """Before each piece of the removal but the first, the put tries to commit."""

        def __enter__(self) -> None:
            turns.append(self)
            if len(turns) > 2:  # the first turn only looks
                with pytest.raises(ListingChanged):
                    duck.database.write(lambda c: duck.put_in(c, (), staged=[listing]))

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(duck.database, "turn", Turn())
    unstage(duck.database, "stats.files", listing.table_key)
    assert len(turns) > 3 and not duck.database.rows("FROM staged_listings")
    files = duck.rows(duck.catalog.get("c.s.t"), 1, "stats.files")["file_path"].to_pylist()
    assert sorted(files) == old["file_path"].to_pylist()


def test_a_removal_that_was_interrupted_goes_on_at_the_next_start(duck, monkeypatch):
    given = rows("stats.files", *({"file_path": f"{i}", "row_count": 1} for i in range(5)))
    listing = duck.stage([Put("stats.files", given)])
    listing.add(given, PutMode.CREATE)
    listing.settle()
    duck.database.write(lambda c: c.execute("UPDATE staged_listings SET generation = -generation"))
    staged_listings.unstage_all(duck.database)
    eventually(lambda: not duck.database.rows("FROM staged_listings"))
    assert not duck.database.rows("FROM stats_files")


def test_snapshots_that_puts_stored_are_not_looked_up_again(duck):
    """Also if no put had their schema, which is stored once one has it."""
    put(duck, "stats.columns", columns((1, 10)))
    with duck.database.reading() as cursor:
        cursor.execute("CALL enable_logging('QueryLog')")
        try:
            for snapshot, count in ((1, 11), (2, 12), (2, 13)):
                put(duck, "stats.columns", columns((1, count), snapshot=snapshot), "upsert")
            ran = [text for (text,) in cursor.execute("SELECT message FROM duckdb_logs").fetchall()]
        finally:
            cursor.execute("CALL disable_logging()")
            cursor.execute("CALL truncate_duckdb_logs()")
    lookups = [text for text in ran if text.startswith("SELECT") and "FROM snapshots" in text]  # not those of `WITH`
    assert "COMMIT" in ran and lookups == []
    put(duck, "stats.columns", rows("stats.columns", {"column_id": 2, "schema_hash": "h"}, snapshot=2))
    assert duck.database.rows("SELECT snapshot_id, schema_hash FROM snapshots ORDER BY 1") == [(1, None), (2, "h")]


def test_old_idempotency_keys_are_removed(duck):
    put(duck, "stats.columns", columns((1, 10)), key="old")
    duck.database.write(lambda c: c.execute("UPDATE idempotency SET stored_at = stored_at - INTERVAL 2 DAY"))
    put(duck, "stats.columns", columns((2, 10)), key="new")
    assert duck.database.rows("SELECT key FROM idempotency") == [("new",)]


def test_expire_deletes_the_snapshots_that_are_no_longer_live(duck):
    for snapshot in (1, 2, 3):
        put(duck, "stats.columns", columns((1, snapshot), snapshot=snapshot))
        put(duck, "stats.files", rows("stats.files", {"file_path": f"f{snapshot}"}, snapshot=snapshot))
    table = duck.catalog.get("c.s.t")
    assert duck.expirable([table]) == {}, "the live snapshots of an external table are unknown"
    changes = {table.table_key: {"format": "iceberg"}}
    (discovered,) = duck.database.write(lambda c: duck.catalog.change(c, changes))
    duck.database.write(lambda c: c.execute("UPDATE snapshots SET is_live = false WHERE snapshot_id IN (1, 2)"))
    assert duck.expirable([discovered]) == {discovered.table_key: [1, 2]}
    put(duck, "stats.columns", columns((1, 9), snapshot=9))
    assert duck.expirable([discovered]) == {discovered.table_key: [1, 2]}, (
        "records of a snapshot that is not discovered yet are kept"
    )
    assert duck.expire([discovered]) == {discovered.table_key: [1, 2]}
    assert duck.captured_snapshots(discovered) == {3, 9}
    assert duck.expirable([discovered]) == {} and duck.expire([discovered]) == {}
    assert duck.database.rows("SELECT file_path FROM stats_files") == [("f3",)]


def test_put_larger_than_a_piece_is_stored_in_full(duck, monkeypatch):
    monkeypatch.setattr(staged, "_PIECE_BYTES", 2000)
    for mode, factor in (("create", 1), ("upsert", 2)):
        put(duck, "stats.columns", columns(*((i, i * factor) for i in range(1, 500))), mode)
        found = duck.database.rows("SELECT column_id, row_count FROM stats_columns ORDER BY ALL")
        assert found == [(i, i * factor) for i in range(1, 500)]


def test_concurrent_puts_are_stored_beside_refused_ones(duck):
    """Many writers share group commits: a refused put has no effect on the others."""
    put(duck, "stats.columns", columns((1, 0), snapshot=0))
    outcomes: dict[int, Any] = {}

    def write(number: int) -> None:
        try:
            wrong = columns((1, 99), snapshot=0) if number % 4 == 0 else columns((1, number), snapshot=number)
            outcomes[number] = put(duck, "stats.columns", wrong)
        except StatflightError as refusal:
            outcomes[number] = refusal

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n for n, o in outcomes.items() if isinstance(o, Conflict)} == {n for n in range(1, 13) if n % 4 == 0}
    stored = {s for (s,) in duck.database.rows("SELECT snapshot_id FROM stats_columns")}
    assert stored == {0} | {n for n in range(1, 13) if n % 4}


# Spans.


def test_file_rows_grow_with_the_changes_of_snapshots(duck):
    """A hundred files in ten snapshots, each of which adds one file and drops one."""
    for snapshot in range(10):
        files = ({"file_path": f"f{i}", "row_count": i} for i in range(snapshot, snapshot + 100))
        done = put(duck, "stats.files", rows("stats.files", *files, snapshot=snapshot))
        assert done == Counts(100, 100, 0, 0)
    assert duck.database.rows("SELECT count(*), count(*) FILTER (to_pos = ?) FROM stats_files", OPEN_END) == [
        (109, 100)
    ]
    table = duck.catalog.get("c.s.t")
    assert [duck.count(table, s, TargetKind.FILE) for s in (0, 5, 9)] == [100] * 3


def test_listing_in_several_puts_stores_each_file_once(duck):
    files = [
        rows("stats.files", *({"file_path": f"f{i}"} for i in range(start, start + 10)), snapshot=snapshot)
        for snapshot in (1, 2)
        for start in (0, 10, 20)
    ]
    for table in files:
        put(duck, "stats.files", table)
    assert duck.database.rows("SELECT count(*), min(to_pos) FROM stats_files") == [(30, OPEN_END)]


_CONTENT = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2), min_size=1)
_MODE = st.sampled_from(["create", "upsert", "replace_snapshot", "fill"])
_PUT = st.tuples(st.just("put"), st.integers(1, 4), _CONTENT, _MODE)
_BETWEEN = st.one_of(_PUT, st.tuples(st.just("drop"), st.integers(1, 4)))
FILE_STEP = st.one_of(
    _PUT,
    st.tuples(
        st.just("stage"),
        st.integers(1, 4),
        _CONTENT,
        st.sampled_from([*PutMode]),
        st.sampled_from(["committed", "cancelled", "killed"]),
        st.none() | _BETWEEN,
    ),
    st.tuples(st.just("drop"), st.integers(1, 4)),
    st.tuples(st.just("merge"), st.sampled_from([0, 900])),
    st.tuples(st.just("remove"), st.integers(0, 4), st.sampled_from("abcd")),
    st.tuples(st.just("sketch"), st.integers(1, 4), _CONTENT, st.sampled_from(["upsert", "replace_snapshot"])),
)


def _puts(snapshot: int, content: dict[str, int], mode: str) -> list[Put]:
    files = ({"file_path": f, "row_count": n} for f, n in content.items())
    per_column = ({"file_path": f, "column_id": 1, "null_count": n} for f, n in content.items())
    tables = {"stats.files": files, "stats.file_columns": per_column}
    return [Put(name, rows(name, *of, snapshot=snapshot), PutMode(mode)) for name, of in tables.items()]


def stage(store: DuckDBStatsStore, table: Any, step: tuple[Any, ...], between: Any) -> Any:
    """Stores a put in pieces of two rows. Returns its counts; "conflict" if it was refused; and None if nothing of it
    is to be seen, because it is ended, its server is killed, or another write came between."""
    _, snapshot, content, mode, end, _ = step
    staged, rest, counts = [], [], Counts()
    try:
        for each in _puts(snapshot, content, mode):
            is_segmented = store.database.segments.cells is not None and each.mode is not PutMode.CREATE
            kind = SegmentListing if is_segmented else StagedListing
            if (listing := store.stage([each], kind=kind)) is None:
                rest.append(each)
                continue
            if isinstance(listing, SegmentListing):
                listing.few_rows = snapshot % 2
            staged.append(listing)
            listing.add(each.rows, each.mode)
        between()
        if end == "killed":
            return None
        if end == "cancelled":
            for listing in staged:
                unstage(store.database, listing.family, table.table_key)
            return None
        for listing in staged:
            listing.settle()
            counts += listing.counts
        return store.database.write(lambda c: store.put_in(c, rest, staged=staged, counts=counts))
    except ListingChanged:
        return None


def apply_to_files(store: Any, table: Any, step: tuple[Any, ...]) -> Any:
    """Applies one step. Returns its result, or "conflict" if the put was refused."""
    try:
        match step:
            case "put", snapshot, content, mode:
                return store.put(_puts(snapshot, content, mode))
            case "drop", snapshot:
                return store.delete(table, snapshot)
            case "merge", grace_seconds:
                if isinstance(store, DuckDBStatsStore):
                    segment_merging.merge(store.database)
                    segment_merging.collect(store.database, grace_seconds)
                return None
            case "remove", snapshot, path:
                return store.delete(table, snapshot or None, Target.file(path))
            case "sketch", snapshot, content, mode:
                sketches = (
                    {
                        "target_kind": "FILE",
                        "file_path": f,
                        "column_id": 1,
                        "role": "NDV",
                        "sketch_type": THETA,
                        "data": bytes([n]),
                    }
                    for f, n in content.items()
                )
                return put(store, "stats.sketches", rows("stats.sketches", *sketches, snapshot=snapshot), mode)
    except Conflict:
        return "conflict"


_PLACES = ("stats_files", "stats_file_columns", "file_s", "staged")  # of the checks of spans
_VALUE = {"stats.files": "row_count", "stats.file_columns": "null_count", "file_sketches": "data"}


@pytest.fixture(scope="module", params=[None, 1, 2], ids=["pieces", "segments of one row", "segments of two"])
def shared(request):
    store = open_store(place_for_database())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.database.segments, "cells", request.param)
        patch.setattr(segment_listings, "ROWS", request.param)
        patch.setattr(segment_merging, "MANY_SMALL", 3)
        patch.setattr(segment_merging, "FILE_ROWS", 3)
        patch.setattr(staged_listings, "_PIECE_ROWS", 2)
        patch.setattr(staged_listings, "_TIDY_ROWS", 2)
        yield store
    store.database.close()


_HISTORIES = st.lists(FILE_STEP, min_size=1, max_size=9)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_HISTORIES)
def test_file_spans_agree_with_full_copies(shared, steps):
    """Any history of puts, drops and removals in any order: each snapshot reads as if it was stored in full."""
    compare_with_full_copies(shared, steps)


@pytest.mark.parametrize(("dropped", "replaced"), [(2, 1), (1, 2)])
def test_no_row_is_left_for_a_listing_that_was_deleted(shared, dropped, replaced):
    same = [("put", snapshot, {"a": 0, "b": snapshot}, "create") for snapshot in (1, 2)]
    after = ("put", 3, {"a": 1, "b": 3}, "create")
    compare_with_full_copies(shared, [*same, after, ("drop", dropped), ("put", replaced, {"a": 2}, "upsert")])


@pytest.mark.benchmark
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_HISTORIES)
def test_file_spans_of_many_histories_agree_with_full_copies(shared, steps):
    compare_with_full_copies(shared, steps)


def compare_with_full_copies(shared, steps):
    model = MemoryStatsStore()
    put(shared, "stats.tables", rows("stats.tables", {"row_count": 0}, snapshot=0), "upsert")
    put(model, "stats.tables", rows("stats.tables", {"row_count": 0}, snapshot=0))
    table, plain = shared.catalog.get("c.s.t"), model.find(NAME)
    shared.delete(table)
    model.delete(plain)
    for step in steps:
        if step[0] == "stage":
            outcomes = []

            def between(step=step, outcomes=outcomes):
                outcomes.append(
                    step[5] and (apply_to_files(shared, table, step[5]), apply_to_files(model, plain, step[5]))
                )

            try:
                done = stage(shared, table, step, between)
            except Conflict:
                done = "conflict"
                if not outcomes:
                    between()
            assert outcomes in ([None], []) or outcomes[0][0] == outcomes[0][1]
            if done is None:
                assert step[4] != "committed" or step[5] is not None
            else:
                assert done == apply_to_files(model, plain, ("put", *step[1:4]))
        else:
            assert apply_to_files(shared, table, step) == apply_to_files(model, plain, step)
        with shared.database.reading() as cursor:
            assert not list(violations(cursor, [check for check in checks() if check.name.startswith(_PLACES)]))
        for flight, value in _VALUE.items():
            name = "storage_id" if flight == "file_sketches" else "file_path"
            for snapshot in range(1, 5):
                source, parameters = rows_of(flight, table, snapshot)
                with shared.database.reading() as cursor:
                    shared.database.segments.attach(cursor)
                    sql = f"SELECT t.{name}, t.{value} FROM {source} ORDER BY ALL"
                    found = cursor.execute(sql, parameters).fetchall()
                expected = sorted((row[name], row[value]) for row in model.rows(plain, snapshot, flight).to_pylist())
                assert found == expected, (flight, snapshot)


@pytest.mark.parametrize("first", ["files", "sketches"])
@pytest.mark.parametrize(("extra", "stored"), [((), 0), ((), 1), (("gone",), 0), (("gone",), 1)])
def test_sketches_of_files_that_a_whole_listing_lacks_go_in_the_same_put(duck, first, extra, stored):
    def sketches(*paths: str) -> Put:
        each = [
            {
                "target_kind": "FILE",
                "file_path": path,
                "column_id": 1,
                "role": "NDV",
                "sketch_type": THETA,
                "data": b"x",
            }
            for path in paths
        ]
        return Put("stats.sketches", rows("stats.sketches", *each), PutMode.UPSERT)

    if stored:
        duck.put([sketches("former", "a")])
    listing = rows("stats.files", *({"file_path": path, "row_count": 1} for path in ("a", "b")))
    files, of_files = Put("stats.files", listing, PutMode.REPLACE_SNAPSHOT), sketches("a", "b", *extra)
    duck.put([files, of_files] if first == "files" else [of_files, files])
    assert duck.database.rows("SELECT file_path FROM file_sketches ORDER BY ALL") == [("a",), ("b",)]
    with duck.database.reading() as cursor:
        assert not list(violations(cursor))


@pytest.mark.parametrize("is_older", [False, True], ids=["new", "older"])
def test_sketches_that_resemble_each_other_take_little_room(tmp_path, is_older):
    path = tmp_path / "s.db"
    store = open_store(path)
    if is_older:  # a file of before sketches of tables and columns were compressed
        for part in parts("stats.sketches"):
            ddl = store.database.rows("SELECT sql FROM duckdb_tables() WHERE table_name = ?", part)[0][0]
            assert "ZSTD" in ddl
            store.database.write(lambda connection, part=part: connection.execute(f"DROP TABLE {part}"))
            older = ddl.replace("ZSTD", "UNCOMPRESSED")
            store.database.write(lambda connection, older=older: connection.execute(older))
    data = [random.Random(column).randbytes(32_000) for column in range(20)]
    for snapshot in range(1, 21):
        given = [sketch(column, data=each) for column, each in enumerate(data, 1)]
        put(store, "stats.sketches", rows("stats.sketches", *given, snapshot=snapshot), "upsert")
    store.close()
    put_bytes = 20 * sum(map(len, data))
    size = path.stat().st_size
    assert size > put_bytes if is_older else size < put_bytes / 2
    store = open_store(path)
    table = store.find(NAME)
    assert table is not None
    for snapshot in (1, 20):
        found = store.rows(table, snapshot, "stats.sketches").to_pylist()
        assert {row["column_id"]: row["data"] for row in found} == dict(enumerate(data, 1))
    store.close()
