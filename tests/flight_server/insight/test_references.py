"""Rules about other tables, most common values, changes, and SELECTs, against stored statistics."""

from __future__ import annotations

import numpy as np
import pytest

from flight_server.client.table_names import join_name
from flight_server.core.auth.principal import ANONYMOUS, Principal
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.views import table_summary
from flight_server.insight import rules
from flight_server.insight.evaluate import check, compare
from flight_server.insight.references import may_see
from flight_server.insight.results import State
from store.model.columns import FREQUENT_ITEMS, KLL, THETA
from store.model.sketches import frequent, kll, theta
from store.model.sketches.murmur3 import hash_longs
from store.model.target_ids import of_column
from tests.flight_server.serving import app_in, put

PASSED, UNKNOWN, FAILED = State.PASSED, State.UNKNOWN, State.FAILED
TABLES = {  # values of the column `id`, by table
    "few": np.arange(1, 51),
    "all": np.arange(1, 101),
    "strangers": np.arange(91, 141),
    "many": np.arange(1, 100_001),
    "most": np.arange(1, 200_001),
    "shifted": np.arange(1000, 101_000),
    "all.v2": np.arange(1, 101),
}


@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        ("id in other.id", True),
        ("99% of id in s.other.id", True),
        ("id in lake.s.other.id", True),
        ("id in lake.hr.people.id", False),
        ("id in hr.people.id", False),
        ('id in "lake".hr."people".id', False),
        ("id in lake.hr.gone.id", False),
        ("id in people.id", True),
        ("(SELECT max(row_count) FROM stats.tables) > 1", False),
        ("no rule at all", False),
    ],
)
def test_result_of_a_rule_is_for_callers_who_see_the_tables_that_it_names(rule, seen):
    tables = {("lake", "s", "t"), ("lake", "s", "other"), ("lake", "hr", "people")}
    for patterns, expected in ((("lake.s.*",), seen), (("lake.*",), "SELECT" not in rule and " in " in rule)):
        sees = Principal("p", frozenset(), patterns).sees
        assert may_see(rule, "lake.s.t", tables.__contains__, sees) == expected


@pytest.fixture(scope="module")
def app():
    with app_in() as app:
        for name, values in TABLES.items():
            at = {"table_catalog": "lake", "table_schema": "s", "table_name": name, "snapshot_id": 1}
            put(app, [at | {"row_count": len(values)}], "stats.tables")
            columns = ((1, "id", "INT"), (2, "code", "STRING"), (3, "bare", "INT"))
            put(
                app,
                [
                    at
                    | {
                        "column_id": i,
                        "column_name": column,
                        "logical_type": type,
                        "row_count": len(values),
                        "null_count": 0,
                        "ndv": float(len(values)),
                    }
                    for i, column, type in columns
                ],
            )
            codes = frequent([b"DE", b"FR", b"x1"], [50, 30, 20], 100, 0)
            for i, role, kind, data in (
                (1, "NDV", THETA, theta(hash_longs(values))),
                (1, "QUANTILES", KLL, kll(values * 1.0)),
                (2, "MCV", FREQUENT_ITEMS, codes),
                (2, "NDV", THETA, theta(hash_longs(values))),
            ):
                put(
                    app,
                    [
                        at
                        | {
                            "target_kind": "COLUMN",
                            "storage_id": of_column(i),
                            "column_id": i,
                            "role": role,
                            "sketch_type": kind,
                            "data": data,
                        }
                    ],
                    "stats.sketches",
                )
        at = {"table_catalog": "lake", "table_schema": "s", "table_name": "few", "snapshot_id": 2}
        put(app, [at | {"row_count": 40, "total_size_bytes": 5000}], "stats.tables")
        put(
            app,
            [
                at
                | {
                    "column_id": 1,
                    "column_name": "id",
                    "logical_type": "INT",
                    "row_count": 40,
                    "null_count": 10,
                    "max": "45",
                    "max_is_exact": True,
                }
            ],
        )
        yield app


@pytest.fixture(scope="module")
def reader(app):
    return LocalReader(app.scanner, ANONYMOUS, lambda statement: app.parts.select(statement, ANONYMOUS))


@pytest.mark.parametrize(
    ("table", "text", "state", "value", "detail"),
    [
        ("all", "id in most.id", UNKNOWN, 1.0, "of a sample of"),
        ("all", "all.id in s.most.id", UNKNOWN, 1.0, "0 are not in s.most.id"),
        ("strangers", "id in all.id", FAILED, 0.2, "40 of 50 values are not in all.id"),
        ("strangers", "20% of id in lake.s.all.id", PASSED, 0.2, ""),
        ("many", "id in most.id", UNKNOWN, 1.0, "0 are not in most.id"),
        ("many", "98% of id in most.id", PASSED, 1.0, "between 0.98"),
        ("shifted", "id in many.id", FAILED, None, "between 0.9"),
        ("all", "id in all.code", FAILED, None, "a INT does not compare with all.code, a STRING"),
        ("all", "id in all.bare", UNKNOWN, None, "no distinct values of all.bare"),
        ("all", 'all.id in "all.v2".id', PASSED, 1.0, '0 of 100 values are not in "all.v2".id'),
        ("all.v2", '"all.v2".id in lake.s."all.v2".id', PASSED, 1.0, "0 of 100 values"),
        ("all", '"id" in most."id"', UNKNOWN, 1.0, '0 are not in most."id"'),
        ("all", "id in nowhere.id", FAILED, None, "there is no column nowhere.id"),
        ("all", "nosuch in most.id", FAILED, None, "no such column"),
    ],
)
def test_reference(reader, table, text, state, value, detail):
    (result,) = check(reader, join_name("lake", "s", table), [rules.parse(text)])
    assert (result.state, detail in result.detail) == (state, True), result
    assert value is None or result.value == pytest.approx(value)


def test_reference_of_another_table_does_not_apply(reader):
    assert check(reader, "lake.s.all", [rules.parse("orders.id in most.id")]) == []


def test_sampled_containment_is_within_its_interval(reader):
    (result,) = check(reader, "lake.s.shifted", [rules.parse("97% of id in many.id")])
    low, high = result.detail.split(";")[0].removeprefix("between ").split(" and ")
    assert float(low) <= 99_001 / 100_000 <= float(high) and result.state is PASSED


@pytest.mark.parametrize(
    ("text", "state", "value"),
    [
        ("code: most_common matches '[A-Z]{2}'", FAILED, "x1"),
        ("code: most_common matches '[A-Z]{2}|x.'", PASSED, "DE"),
        ("code: most_common not matches 'F.*'", FAILED, "FR"),
        ("code: most_common in ('DE', 'FR', 'x1', 'IT')", PASSED, "DE"),
        ("code: most_common in ('DE', 'x1')", FAILED, "FR"),
        ("bare: most_common in (1, 2)", UNKNOWN, None),
    ],
)
def test_most_common_values(reader, text, state, value):
    (result,) = check(reader, "lake.s.all", [rules.parse(text)])
    assert (result.state, result.value) == (state, value), result


@pytest.mark.parametrize(
    ("text", "state", "value"),
    [
        ("(SELECT count(*) FROM stats.columns WHERE table_name = {table_name}) = 3", PASSED, 3),
        ("(SELECT sum(row_count) FROM stats.tables WHERE table_schema = {table_schema}) > 1 ", PASSED, None),
        ("(SELECT max(column_name) FROM stats.columns WHERE table_name = {table_name}) = 'id'", PASSED, "id"),
        ("(SELECT max(mean) FROM stats.columns WHERE table_name = {table_name}) > 0", UNKNOWN, None),
    ],
)
def test_select(reader, text, state, value):
    (result,) = check(reader, "lake.s.all", [rules.parse(text)])
    assert result.state == state and (value is None or result.value == value), result


@pytest.mark.parametrize(
    "statement", ["SELECT * FROM read_csv('/etc/passwd')", "SELECT 1, 2", "SELECT name FROM sys.flights", "SELECT x"]
)
def test_select_is_guarded_and_of_one_value(reader, statement):
    wrong, right = check(reader, "lake.s.all", [rules.parse(f"({statement}) > 0"), rules.parse("row_count >= 0")])
    assert (wrong.state, wrong.value, wrong.pending) == (FAILED, None, False) and wrong.detail
    assert right.state is PASSED


def test_changes_between_two_snapshots(reader):
    before, after = (table_summary.gather(reader, "lake.s.few", at) for at in (1, 2))
    texts = {
        "row_count < -10%": (PASSED, -0.2),
        "row_count < -20%": (FAILED, -0.2),
        "row_count = -10": (PASSED, -10),
        "id: null_count > 5": (PASSED, 10),
        "id: null_count > 5%": (FAILED, None),
        "size_bytes > 0": (UNKNOWN, None),
        "row_count between -30% and -10%": (PASSED, -0.2),
        "id: null_fraction > 0.2": (PASSED, 0.25),
        "schema_changes > 0": (PASSED, 2),
    }
    for text, expected in texts.items():
        (result,) = compare(reader, [rules.parse(text, of_change=True)], before, 1, after, 2)
        assert (result.state, result.value) == expected, result


def test_check_compares_changes_with_a_snapshot(reader):
    (result,) = check(reader, "lake.s.few", [rules.parse("change of row_count >= -15%")], "previous")
    assert (result.state, result.detail) == (FAILED, "50 → 40 (-20%)")
    assert check(reader, "lake.s.all", [rules.parse("change of row_count >= -15%")], "previous") == []


def test_unknown_table_of_a_select_fails_its_rule(reader):
    (result,) = check(reader, "lake.s.all", [rules.parse("(SELECT count(*) FROM nowhere) > 0")])
    assert (result.state, result.value) == (FAILED, None) and "nowhere" in result.detail
