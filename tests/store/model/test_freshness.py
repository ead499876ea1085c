"""Freshness and usable_for: the SQL form, the Arrow form and the form for one row agree."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.model import freshness
from tests.store.model import freshness_model as model
from tests.store.model.freshness_model import At

LABELS = st.sampled_from([freshness.EXACT, freshness.INHERITED, freshness.STALE, None])
ROWS = st.fixed_dictionaries(
    {
        "completeness": st.sampled_from(["COMPLETE", "PARTIAL", "UNAVAILABLE", None]),
        "confidence_level": st.sampled_from([None, 0.0, 0.5, 0.95, 1.0]),
        "row_groups_sampled": st.sampled_from([None, 0, 1, 7]),
        "logical_type": st.sampled_from(
            ["INT", "FLOAT", "DOUBLE", "STRING", "INTERVAL", "INTERVAL DAY TO SECOND(3)", None]
        ),
        "nan_count": st.sampled_from([None, 0, 3]),
        "min": st.sampled_from([None, "P1D"]),
        "max": st.sampled_from([None, "P2D"]),
    }
)
SCHEMA = pa.schema(
    [
        ("label", pa.string()),
        ("completeness", pa.string()),
        ("confidence_level", pa.float64()),
        ("row_groups_sampled", pa.int64()),
        ("logical_type", pa.string()),
        ("nan_count", pa.int64()),
        ("min", pa.string()),
        ("max", pa.string()),
    ]
)
LABEL_SCHEMA = pa.schema([(name, pa.bool_()) for name in ("is_own", "is_older", "is_inherited")])
OF_VALUES = ("logical_type", "nan_count", "min", "max")
PLACES = st.builds(At, st.integers(0, 3), st.integers(0, 3), st.sampled_from(["x", "y", None]))


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


@settings(deadline=None)
@given(labels=st.lists(st.tuples(LABELS, ROWS), min_size=1, max_size=8), scalar=st.booleans())
def test_usable_for_agrees_in_sql_arrow_and_for_one_row(connection, labels, scalar):
    names = [name for name in SCHEMA.names if scalar or name not in OF_VALUES]
    table = pa.Table.from_pylist([{"label": label} | row for label, row in labels], SCHEMA).select(names)
    plain = [freshness.usable_for(row["label"], row) for row in table.to_pylist()]
    assert freshness.usable_for_arrow(table["label"], table).to_pylist() == plain
    connection.register("given", table)
    usable = freshness.usable_for_sql("g.label = 'EXACT'", "g", names)
    found = connection.execute(f"SELECT {usable} FROM given g").fetchall()
    assert [value for (value,) in found] == plain
    for condition in (freshness.WHOLE, freshness.COUNTED):
        holds = [condition.holds(row) for row in table.to_pylist()]
        assert condition.arrow(table).to_pylist() == holds
        found = connection.execute(f"SELECT {condition.of('g')} FROM given g").fetchall()
        assert [value for (value,) in found] == holds
    if scalar:
        found = connection.execute(f"SELECT {freshness.prunes_sql('g')} FROM given g").fetchall()
        assert [value for (value,) in found] == freshness.prunes_arrow(table).to_pylist()


@settings(deadline=None)
@given(records=st.lists(PLACES, min_size=1, max_size=8), requested=PLACES)
def test_freshness_and_rank_agree_in_sql_and_for_one_row(connection, records, requested):
    rows = [
        {"at": at, "snapshot_id": r.snapshot_id, "ordinal": r.ordinal, "schema_hash": r.schema_hash}
        for at, r in enumerate(records)
    ]
    schema = pa.schema(
        [("at", pa.int64()), ("snapshot_id", pa.int64()), ("ordinal", pa.int64()), ("schema_hash", pa.string())]
    )
    connection.register("given", pa.Table.from_pylist(rows, schema))
    one = {"snapshot_id": requested.snapshot_id, "ordinal": requested.ordinal, "schema_hash": requested.schema_hash}
    connection.register("requested", pa.Table.from_pylist([one], schema.remove(0)))
    words = ("g", "g.schema_hash", "g.ordinal", "a")
    found = connection.execute(
        f"SELECT {freshness.freshness_sql(*words)} FROM given g, requested a ORDER BY g.at"
    ).fetchall()
    assert [label for (label,) in found] == [model.freshness(record, requested) for record in records]
    ordered = connection.execute(
        f"SELECT g.at FROM given g, requested a ORDER BY {freshness.rank_sql(*words)}, g.at"
    ).fetchall()
    plain = sorted(range(len(records)), key=lambda at: model.rank(records[at], requested), reverse=True)
    assert [at for (at,) in ordered] == plain


CONDITIONS = ("is_own", "is_older", "is_inherited")
WORDS = st.sampled_from([True, False, None])
CONSTANTS = st.dictionaries(st.sampled_from(CONDITIONS[1:]), st.booleans())


@settings(deadline=None)
@given(rows=st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=8), constants=CONSTANTS)
def test_the_label_agrees_in_sql_arrow_and_for_one_row(connection, rows, constants):
    declared = freshness._FRESHNESS
    given_rows = pa.table(dict(zip(CONDITIONS, map(list, zip(*rows, strict=True)), strict=True)), LABEL_SCHEMA)
    plain = [declared.of(**row | constants) for row in given_rows.to_pylist()]
    masks = {name: given_rows[name] for name in CONDITIONS} | constants
    assert declared.arrow(**masks).to_pylist() == plain
    connection.register("given", given_rows)
    words = {name: f"g.{name}" for name in CONDITIONS} | constants
    found = connection.execute(f"SELECT {declared.sql(**words)} FROM given g").fetchall()
    assert [label for (label,) in found] == plain


@settings(deadline=None)
@given(own=st.lists(WORDS, min_size=1, max_size=8))
def test_what_holds_is_exact_or_inherited_in_each_form(connection, own):
    table = pa.table({"own": pa.array(own, pa.bool_())})
    known = table["own"].is_valid()
    plain = [None if each is None else freshness.held(is_own=each) for each in own]
    assert freshness.held_arrow(table["own"], known).to_pylist() == plain
    assert set(plain) <= {"EXACT", "INHERITED", None}
    connection.register("given", table)
    found = connection.execute(f"SELECT {freshness.held_sql('own', 'own IS NOT NULL')} FROM given").fetchall()
    assert [label for (label,) in found] == plain


@settings(deadline=None)
@given(record=PLACES, requested=PLACES, oldest=st.one_of(st.none(), st.integers(0, 3)))
def test_a_distribution_beyond_the_age_limit_is_stale_where_its_record_is_inherited(
    connection, record, requested, oldest
):
    given_rows = {"snapshot_id": record.snapshot_id, "ordinal": record.ordinal, "schema_hash": record.schema_hash}
    one = {"snapshot_id": requested.snapshot_id, "ordinal": requested.ordinal, "schema_hash": requested.schema_hash}
    schema = pa.schema([("snapshot_id", pa.int64()), ("ordinal", pa.int64()), ("schema_hash", pa.string())])
    connection.register("given", pa.Table.from_pylist([given_rows], schema))
    connection.register("requested", pa.Table.from_pylist([one], schema))
    limit = "NULL::BIGINT" if oldest is None else str(oldest)
    sql = freshness.distribution_freshness_sql("g", "g.schema_hash", "g.ordinal", "a", limit)
    ((label,),) = connection.execute(f"SELECT {sql} FROM given g, requested a").fetchall()
    plain = model.freshness(record, requested)
    is_beyond = oldest is not None and record.ordinal < oldest
    assert label == ("STALE" if plain == "INHERITED" and is_beyond else plain)


@pytest.mark.parametrize(
    ("row", "use"),
    [
        ({}, "PRUNING"),
        ({"completeness": "PARTIAL"}, "PLANNING"),
        ({"row_groups_sampled": 1}, "PLANNING"),
        ({"logical_type": "DOUBLE"}, "PLANNING"),
        ({"logical_type": "FLOAT", "nan_count": 0}, "PRUNING"),
        ({"completeness": None}, "PLANNING"),
        ({"confidence_level": 0.0}, "PLANNING"),
        ({"logical_type": "INTERVAL"}, "PRUNING"),
        ({"logical_type": "INTERVAL YEAR TO MONTH", "max": "P1Y"}, "PLANNING"),
        ({"logical_type": "INTERVAL", "min": "P1D"}, "PLANNING"),
        ({"min": "1", "max": "2"}, "PRUNING"),
        ({"confidence_level": 0.5}, "PLANNING"),
        ({"confidence_level": 0.51}, "PRUNING"),
    ],
)
def test_only_complete_unsampled_rows_whose_bounds_readers_compare_allow_pruning(row, use):
    whole = {
        "completeness": "COMPLETE",
        "confidence_level": None,
        "row_groups_sampled": None,
        "logical_type": "INT",
        "nan_count": None,
        "min": None,
        "max": None,
    }
    assert freshness.usable_for("EXACT", whole | row) == use
    assert freshness.usable_for("INHERITED", whole | row) == "PLANNING"


def test_statistics_are_inherited_only_under_the_same_known_schema():
    requested = At(5, 5, "x")
    assert model.freshness(At(5, 9, "y"), requested) == "EXACT"
    assert model.freshness(At(4, 4, "x"), requested) == "INHERITED"
    assert model.freshness(At(4, 4, "y"), requested) == "STALE"
    assert model.freshness(At(4, 4, None), At(5, 5, None)) == "STALE"
    assert model.freshness(At(6, 6, "x"), requested) is None
