"""Spans: after any history, the rows that hold at each snapshot equal those chosen among all records."""

from __future__ import annotations

import contextlib
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.catalog.catalog import Catalog
from store.catalog.discovery import Discovery
from store.duckdb.layout import BY_SNAPSHOT, parts, stored_columns
from store.history import spans
from store.history.spans import holds_sql
from store.model import freshness
from store.model.catalog_entries import UNPLACED
from store.model.columns import COUNTS, DISTRIBUTION, THETA
from store.model.errors import Conflict
from store.model.puts import IDENTITY
from store.model.sketches import is_partial
from store.model.targets import Target
from store.stats_store import DuckDBStatsStore, Put, PutMode
from tests.store.contract import NAME, put, rows
from tests.store.empty_store import empty_database
from tests.store.model import freshness_model as model
from tests.store.model.freshness_model import At

LAKE = ("lake", "s", "t")
FLIGHTS_OF_STEPS = ("stats.columns", "stats.tables", "stats.sketches")
HASHES = st.sampled_from(["x", "y", None])


@pytest.fixture(scope="module")
def store():
    database = empty_database()
    yield DuckDBStatsStore(database, Catalog(database))
    database.close()


def expected_rows(store: DuckDBStatsStore, flight: str = "stats.columns") -> dict[Any, list[tuple[Any, ...]]]:
    """For each snapshot id, and None for each table's current one: (table key, target, snapshot, freshness,
    usable_for) of the rows that apply and are not STALE, of `stats.columns` also snapshot, freshness, ndv and width of
    the distribution; computed from all records."""
    places = {
        (k, s): (o, h if o != UNPLACED else None)
        for k, s, o, h in store.database.rows("SELECT table_key, snapshot_id, ordinal, schema_hash FROM snapshots")
    }
    tables = store.database.rows("SELECT table_key, current_snapshot_id, max_snapshots_behind FROM tables")
    limits = {key: most for key, _, most in tables}
    names = ("table_key", *IDENTITY[flight], "snapshot_id", *stored_columns(flight))
    records = [
        dict.fromkeys(freshness.USABLE_COLUMNS) | dict(zip(dict.fromkeys(names), values, strict=True))
        for values in store.database.rows(f"SELECT {', '.join(dict.fromkeys(names))} FROM {BY_SNAPSHOT[flight]}")
    ]
    requested: dict[Any, dict[int, int]] = {None: {key: id for key, id, _ in tables if id is not None}}
    for key, snapshot in places:
        requested.setdefault(snapshot, {})[key] = snapshot
    return {at: best_rows(flight, records, places, each, limits) for at, each in requested.items()}


def best_rows(flight: str, records: Any, places: Any, current: Any, limits: Any) -> list[tuple[Any, ...]]:
    identity = ("table_key", *IDENTITY[flight])
    best: dict[tuple[int, ...], tuple[Any, ...]] = {}
    distributions: dict[tuple[int, ...], tuple[Any, ...]] = {}
    for row in records:
        key = row["table_key"]
        if key not in current:
            continue
        ordinal, hash_ = places[key, row["snapshot_id"]]
        record = At(row["snapshot_id"], ordinal, (row.get("schema_hash") or hash_) if ordinal != UNPLACED else None)
        requested = At(current[key], *places[key, current[key]])
        if (label := model.freshness(record, requested)) in (None, "STALE"):
            continue
        rank = model.rank(record, requested)
        target = tuple(row[name] for name in identity)
        counted = flight != "stats.columns" or any(row[name] is not None for name in COUNTS)
        if flight == "stats.sketches":
            counted = not is_partial(row["params"])
        behind = sum(k == key and ordinal < o <= requested.ordinal for (k, _), (o, _) in places.items())
        is_old = label == "INHERITED" and limits[key] is not None and behind > limits[key]
        if is_old and flight == "stats.sketches":
            continue
        most = None if row.get("row_count") is None else row["row_count"] - (row.get("null_count") or 0)
        usable = None if flight == "stats.sketches" else freshness.usable_for(label, row)
        found = ((counted, *rank), row["snapshot_id"], label, usable, most)
        best[target] = max(best.get(target, found), found, key=lambda each: each[0])
        if is_old:
            continue
        if flight == "stats.columns" and any(row[name] is not None for name in DISTRIBUTION):
            order = (row["ndv"] is not None, *rank)
            shown = (order, row["snapshot_id"], label, row["ndv"], row["avg_width_bytes"])
            distributions[target] = max(distributions.get(target, shown), shown, key=lambda each: each[0])
    expected = []
    for target, (_, *values, most) in best.items():
        if flight == "stats.columns":
            shown = distributions.get(target, (None,) * 5)
            cut = None not in (shown[3], most) and shown[2] != "EXACT"
            values += [*shown[1:3], min(shown[3], most) if cut else shown[3], shown[4]]
        expected.append((*target, *values))
    return sorted(expected, key=repr)


def served_rows(store: DuckDBStatsStore, flight: str = "stats.columns") -> dict[Any, list[tuple[Any, ...]]]:
    """The same by the spans of stored rows."""
    current, history = parts(flight)
    label = "CASE WHEN r.snapshot_id = n.snapshot_id THEN 'EXACT' ELSE 'INHERITED' END"
    names = ", ".join(f"r.{name}" for name in ("table_key", *IDENTITY[flight], "snapshot_id"))
    usable = freshness.usable_for_sql("r.snapshot_id = n.snapshot_id", "r", stored_columns(flight))
    names += f", {label}, {'NULL' if flight == 'stats.sketches' else usable}"
    if flight == "stats.columns":
        names += (
            ", r.distribution_snapshot_id, CASE WHEN r.distribution_snapshot_id = n.snapshot_id THEN 'EXACT'"
            " WHEN r.distribution_snapshot_id IS NOT NULL THEN 'INHERITED' END, r.ndv, r.avg_width_bytes"
        )
    join = "JOIN snapshots n ON n.table_key = r.table_key"
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for at, *row in [
        *store.database.rows(
            f"SELECT NULL, {names} FROM {current} r {join} JOIN tables x"
            " ON x.table_key = r.table_key AND x.current_snapshot_id = n.snapshot_id"
        ),
        *store.database.rows(
            f"SELECT n.snapshot_id, {names} FROM (SELECT * FROM {current} UNION ALL"
            f" SELECT * FROM {history}) r {join} WHERE {holds_sql('r', 'n')}"
        ),
    ]:
        found.setdefault(at, []).append(tuple(row))
    return {at: sorted(each, key=repr) for at, each in found.items()}


def expected_listings(store: DuckDBStatsStore) -> list[tuple[Any, ...]]:
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for key, family, snapshot, ordinal, hash_, current, at, current_hash in store.database.rows(
        "SELECT f.table_key, f.family, f.snapshot_id, n.ordinal, n.schema_hash, c.snapshot_id, c.ordinal, c.schema_hash"
        " FROM file_snapshots f JOIN snapshots n USING (table_key, snapshot_id) JOIN snapshots c"
        " ON c.table_key = f.table_key"
    ):
        record, requested = (
            At(snapshot, ordinal, hash_ if ordinal != UNPLACED else None),
            At(current, at, current_hash if at != UNPLACED else None),
        )
        if model.freshness(record, requested) not in (None, "STALE"):
            this = (model.rank(record, requested), snapshot)
            found[key, current, family] = max(found.get((key, current, family), this), this)
    return sorted((*place, *this[1:]) for place, this in found.items())


def served_listings(store: DuckDBStatsStore) -> list[tuple[Any, ...]]:
    return store.database.rows(
        "SELECT n.table_key, n.snapshot_id, f.family, f.snapshot_id FROM file_snapshots f"
        " JOIN snapshots n ON n.table_key = f.table_key"
        f" WHERE {holds_sql('f', 'n')} ORDER BY ALL"
    )


ROW = st.fixed_dictionaries(
    {
        "column_id": st.integers(1, 3),
        "schema_hash": HASHES,
        "completeness": st.sampled_from(["COMPLETE", "PARTIAL"]),
        "row_count": st.sampled_from([None, 1, 2]),
        "logical_type": st.sampled_from(["INT", "DOUBLE"]),
        "ndv": st.sampled_from([None, None, 0.0, 1.0, 2.0]),
        "avg_width_bytes": st.sampled_from([None, None, 4.0]),
    }
).filter(lambda row: row["row_count"] is None or (row["ndv"] or 0) <= row["row_count"])
SKETCH = st.fixed_dictionaries(
    {
        "target_kind": st.just("COLUMN"),
        "column_id": st.integers(1, 3),
        "role": st.sampled_from(["NDV", "QUANTILES"]),
        "sketch_type": st.just(THETA),
        "data": st.sampled_from([b"x", b"y"]),
        "params": st.sampled_from([None, '{"completeness": "PARTIAL"}']),
    }
)
SKETCHES = st.lists(SKETCH, min_size=1, max_size=3, unique_by=lambda row: (row["column_id"], row["role"]))
TABLE = st.fixed_dictionaries({"schema_hash": HASHES, "row_count": st.integers(0, 2)})
CONTENT = st.lists(ROW, min_size=1, max_size=4, unique_by=lambda row: row["column_id"])
NAMES = st.sampled_from([NAME, LAKE])
MODES = st.sampled_from(["create", "upsert", "replace_snapshot", "fill", "capture"])
PART = st.one_of(
    st.tuples(st.just("stats.columns"), NAMES, st.integers(1, 4), CONTENT),
    st.tuples(st.just("stats.tables"), NAMES, st.integers(1, 4), st.lists(TABLE, min_size=1, max_size=1)),
    st.tuples(st.just("stats.sketches"), NAMES, st.integers(1, 4), SKETCHES),
)
STEP = st.one_of(
    st.tuples(
        st.just("put"), st.lists(PART, min_size=1, max_size=3, unique_by=lambda part: part[:3]), MODES, st.booleans()
    ),
    st.tuples(st.just("files"), NAMES, st.integers(1, 4), st.integers(0, 2)),
    st.tuples(
        st.just("look"),
        st.integers(1, 4),
        st.lists(st.tuples(st.integers(1, 5), HASHES), max_size=3, unique_by=lambda each: each[0]),
    ),
    st.tuples(st.just("limit"), st.sampled_from([None, 0, 1, 2])),
    st.tuples(st.just("delete"), NAMES, st.integers(0, 4), st.integers(0, 3)),
)


def discover(store: DuckDBStatsStore, current: int, snapshots: Any) -> None:
    """Stores a discovery of the lake's table, whose snapshots may have another order than their ids."""
    found = {
        "schema": "s",
        "name": "t",
        "table_id": "t",
        "location": "l",
        "schema_hash": "x",
        "schemas": {"x": []},
        "current_snapshot_id": current,
        "snapshots": [
            {
                "snapshot_id": s,
                "ordinal": 10 - s if s == 5 else s,
                "parent_snapshot_id": None,
                "sequence_number": None,
                "committed_at": None,
                "operation": None,
                "schema_hash": h,
            }
            for s, h in {current: "x", **dict(snapshots)}.items()
        ],
    }
    store.database.write(lambda c: Discovery(store.catalog).store(c, "lake", "iceberg", [found]))


def apply(store: DuckDBStatsStore, step: tuple[Any, ...]) -> None:
    match step:
        case "put", given, mode, together:
            puts = [
                Put(flight, rows(flight, *content, name=name, snapshot=s), PutMode(mode))
                for flight, name, s, content in given
            ]
            each = [puts] if together else [[part] for part in puts]  # in one transaction
            with contextlib.suppress(Conflict):
                store.database.write(lambda connection: [store.put_in(connection, some) for some in each])
        case "files", name, snapshot, count:
            given = [{"file_path": "f", "row_count": count}]
            put(store, "stats.files", rows("stats.files", *given, name=name, snapshot=snapshot), "upsert")
        case "look", current, snapshots:
            discover(store, current, snapshots)
        case "limit", most:
            if table := store.catalog.find(LAKE):
                store.database.write(lambda c: store.catalog.limit_inheritance(c, {table.table_key: most}))
        case "delete", name, snapshot, column:
            if table := store.catalog.find(name):
                store.delete(table, snapshot or None, Target.column(column) if column else None)


HISTORIES = st.lists(STEP, min_size=1, max_size=7)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=HISTORIES)
def test_spans_equal_a_full_query_after_any_history(store, steps):
    check_history(store, steps)


@pytest.mark.benchmark
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=HISTORIES)
def test_spans_equal_a_full_query_after_many_histories(store, steps):
    check_history(store, steps)


def check_history(store: DuckDBStatsStore, steps: Any) -> None:
    """Applies the steps to an empty store, and compares the current rows after each."""

    def clear(connection):
        for table in (*chain(*map(parts, FLIGHTS_OF_STEPS)), "stats_files", "file_snapshots", "snapshots", "tables"):
            connection.execute(f"DELETE FROM {table}")
        store.catalog.reload(connection)
        store.catalog.presence.load(connection)

    store.database.write(clear)
    for step in steps:
        apply(store, step)
        for flight in FLIGHTS_OF_STEPS:
            expected = {at: each for at, each in expected_rows(store, flight).items() if each}
            assert served_rows(store, flight) == expected, step
        assert served_listings(store) == expected_listings(store), step
        doubled = store.database.rows(
            "SELECT table_key, snapshot_id, column_id FROM stats_columns GROUP BY ALL HAVING count(*) > 1"
        )
        assert not doubled


def test_put_of_many_tables_updates_the_current_rows_of_each(store):
    given = [
        rows("stats.columns", {"column_id": 1, "row_count": n}, name=("many", "s", f"t{n}"), snapshot=s)
        for s in (1, 2)
        for n in range(40)
    ]
    store.put([Put("stats.columns", table) for table in given])
    assert served_rows(store)[None] == expected_rows(store)[None]
    assert sum(row[2] == 2 for row in served_rows(store)[None]) >= 40


def test_row_of_a_table_inherits_after_a_later_snapshot_in_its_transaction(store):
    name = ("later", "s", "t")
    steps = [
        ("stats.tables", {"row_count": 1}, 1),
        ("stats.tables", {"row_count": 2}, 2),
        ("stats.columns", {"column_id": 1}, 3),
    ]
    puts = [Put(flight, rows(flight, row | {"schema_hash": "h"}, name=name, snapshot=s)) for flight, row, s in steps]
    store.put(puts[:1])
    store.database.write(lambda connection: [store.put_in(connection, [each]) for each in puts[1:]])
    assert served_rows(store, "stats.tables")[None] == expected_rows(store, "stats.tables")[None]
    assert served_rows(store, "stats.tables")[None][-1][1:3] == (2, freshness.INHERITED)


def test_refused_put_keeps_the_served_rows(store):
    put(store, "stats.columns", rows("stats.columns", {"column_id": 1, "row_count": 1}, name=("r", "s", "t")))
    before = served_rows(store)
    with pytest.raises(Conflict):
        store.put(
            [
                Put("stats.columns", rows("stats.columns", {"column_id": 2}, name=("r", "s", "t"), snapshot=2)),
                Put("stats.columns", rows("stats.columns", {"column_id": 1, "row_count": 2}, name=("r", "s", "t"))),
            ]
        )
    assert served_rows(store) == before


def test_row_of_another_schema_yields_to_an_older_row_of_the_current_one(store):
    """The second row is exact at its snapshot, although the snapshot has another schema than the row."""
    name = ("odd", "s", "t")
    for snapshot, content in ((1, {6: "h"}), (2, {2: "h", 6: "g"}), (3, {4: "h"})):
        given = [{"column_id": column, "schema_hash": hash_} for column, hash_ in content.items()]
        put(store, "stats.columns", rows("stats.columns", *given, name=name, snapshot=snapshot))
        assert served_rows(store)[None] == expected_rows(store)[None]


def test_capture_without_distinct_counts_keeps_those_of_its_snapshot(store):
    name = ("kept", "s", "t")
    whole = {"column_id": 1, "row_count": 9, "null_count": 0, "ndv": 4.0, "mean": 2.5, "completeness": "COMPLETE"}
    put(store, "stats.columns", rows("stats.columns", whole, name=name), "capture")
    less = {"column_id": 1, "row_count": 9, "null_count": 0, "min": "1", "completeness": "COMPLETE"}
    put(store, "stats.columns", rows("stats.columns", less, name=name), "capture")
    row = store.get(store.catalog.get("kept.s.t"), 1, Target.column(1))
    assert (row["min"], row["ndv"], row["mean"]) == ("1", 4.0, 2.5)


def test_conflict_names_the_values_of_the_record_itself(store):
    """Not those of the distribution that its row is served with."""
    name = ("conflict", "s", "t")
    for snapshot, values in ((1, {"ndv": 4.0}), (2, {"avg_width_bytes": 8.0})):
        row = {"column_id": 1, "row_count": 9, "schema_hash": "x", **values}
        put(store, "stats.columns", rows("stats.columns", row, name=name, snapshot=snapshot), "upsert")
    again = rows(
        "stats.columns",
        {"column_id": 1, "row_count": 9, "schema_hash": "x", "avg_width_bytes": 7.0},
        name=name,
        snapshot=2,
    )
    with pytest.raises(Conflict) as refused:
        put(store, "stats.columns", again, "create")
    assert refused.value.params["field"] == "avg_width_bytes", refused.value


def test_record_that_replaces_the_only_one_of_its_target_is_written_in_place(store, monkeypatch):
    """With what it lacks: a distribution, or distinct counts."""
    whole = {"column_id": 1, "row_count": 9, "ndv": 4.0, "avg_width_bytes": 8.0}
    put(store, "stats.columns", rows("stats.columns", whole, name=("only", "s", "t")))
    with monkeypatch.context() as patched:
        patched.setattr(spans, "respan", lambda *_: pytest.fail("the spans of all rows are computed"))
        for values in ({"row_count": 8}, {"row_count": 7, "avg_width_bytes": 2.0}, {"row_count": 6}):
            again = rows("stats.columns", {"column_id": 1, **values}, name=("only", "s", "t"))
            put(store, "stats.columns", again, "upsert")
            assert served_rows(store)[None] == expected_rows(store)[None]
    put(store, "stats.columns", rows("stats.columns", whole, name=("only", "s", "t"), snapshot=2))
    put(store, "stats.columns", rows("stats.columns", {"column_id": 1}, name=("only", "s", "t"), snapshot=2), "upsert")
    assert served_rows(store)[None] == expected_rows(store)[None]


def test_record_keeps_its_own_distribution_when_it_moves(store):
    """Also when the record whose distribution is served has the same row id in the other table."""
    name = ("moved", "s", "t")
    first = {"column_id": 3, "row_count": 1, "ndv": 0.0, "logical_type": "INT"}
    second = {"column_id": 3, "row_count": 2, "avg_width_bytes": 4.0, "schema_hash": "y", "logical_type": "DOUBLE"}
    other = {"column_id": 2, "row_count": 2, "avg_width_bytes": 4.0, "schema_hash": "x", "logical_type": "INT"}
    puts = [
        Put("stats.columns", rows("stats.columns", *given, name=name, snapshot=snapshot))
        for snapshot, given in ((2, [first]), (3, [second, other]))
    ]
    store.database.write(lambda connection: [store.put_in(connection, [each]) for each in puts])
    for snapshot, schema in ((2, "y"), (4, "x")):
        table = rows("stats.tables", {"row_count": 0, "schema_hash": schema}, name=name, snapshot=snapshot)
        put(store, "stats.tables", table)
    assert store.get(store.catalog.get("moved.s.t"), 3, Target.column(3))["avg_width_bytes"] == 4.0
