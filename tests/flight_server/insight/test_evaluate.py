"""Rules evaluated against stored statistics."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.local_reader import LocalReader
from flight_server.faces.present import check_results
from flight_server.insight import rules, suggest
from flight_server.insight.evaluate import check
from flight_server.insight.results import State
from store.catalog.discovery import Discovery
from store.model.columns import THETA
from store.model.errors import InvalidArgument
from store.model.sketches import frequent, kll, theta
from store.model.sketches.murmur3 import hash_longs
from store.model.target_ids import of_column
from tests.flight_server.serving import app_in, put

NAME = "lake.s.t"
KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
KLL = "apache-datasketches-kll-doubles-v1"
COLUMNS = [
    {
        "column_id": 1,
        "column_name": "id",
        "logical_type": "INT",
        "min": "0",
        "max": "9007199254740993",
        "min_is_exact": True,
        "max_is_exact": True,
        "ndv": 100.0,
        "ndv_exact": True,
        "null_count": 0,
        "mean": 49.5,
        "stddev": 29.01,
    },
    {
        "column_id": 2,
        "column_name": "name",
        "logical_type": "STRING",
        "min": "a",
        "max": "z",
        "min_is_exact": True,
        "max_is_exact": True,
        "ndv": 7.0,
        "ndv_exact": False,
        "null_count": 1,
        "mean": None,
        "stddev": None,
    },
    {
        "column_id": 3,
        "column_name": "blank",
        "logical_type": "DOUBLE",
        "min": None,
        "max": None,
        "min_is_exact": None,
        "max_is_exact": None,
        "ndv": None,
        "ndv_exact": None,
        "null_count": None,
        "mean": None,
        "stddev": None,
    },
]


@pytest.fixture(scope="module")
def reader():
    with app_in() as app:
        for snapshot, rows in ((1, 50), (2, 100)):
            at = KEY | {"snapshot_id": snapshot}
            captured = {"captured_at": datetime.now(UTC)}
            table = {"row_count": rows, "data_file_count": 3, "total_size_bytes": 5000}
            put(app, [at | table | captured], "stats.tables")
            put(app, [at | {"row_count": 100} | column for column in COLUMNS])
            values = np.arange(100.0) + (50 if snapshot == 2 else 0)
            sketch = {
                "target_kind": "COLUMN",
                "storage_id": of_column(1),
                "column_id": 1,
                "role": "QUANTILES",
                "sketch_type": KLL,
                "data": kll(values),
            }
            put(app, [at | sketch], "stats.sketches")
        yield LocalReader(app.scanner, ANONYMOUS)


def results(reader, *texts, against=None, **more):
    return check(reader, NAME, [rules.parse(text, **more) for text in texts], against)


def states(reader, text, **more):
    return {result.column: (result.state, result.value) for result in results(reader, text, **more)}


PASSED, UNKNOWN, FAILED = State.PASSED, State.UNKNOWN, State.FAILED


@pytest.mark.parametrize(
    ("text", "state", "value"),
    [
        ("row_count >= 100", PASSED, 100),
        ("row_count > 100", FAILED, 100),
        ("file_count = 3", PASSED, 3),
        ("size_bytes < 5000", FAILED, 5000),
        ("age_seconds < 3600", PASSED, None),
        ("age_seconds < 0", FAILED, None),
    ],
)
def test_table_measures_are_evaluated(reader, text, state, value):
    (result,) = results(reader, text)
    assert (result.state, result.column) == (state, None)
    assert value is None or result.value == value


def test_rule_without_a_column_applies_to_each_column(reader):
    found = states(reader, "null_fraction <= 0.005")
    assert found == {"id": (PASSED, 0), "name": (FAILED, 0.01), "blank": (UNKNOWN, None)}


def test_numeric_measures_skip_text_columns_unless_named(reader):
    assert set(states(reader, "mean < 50")) == {"id", "blank"}
    assert states(reader, "id: mean < 50")["id"] == (PASSED, 49.5)
    (result,) = results(reader, "name: mean < 50")
    assert result.state is FAILED and "STRING has no mean" in result.detail


def test_bounds_are_compared_exactly(reader):
    assert states(reader, "id: max <= 9007199254740992")["id"][0] is FAILED  # as floats they are equal
    assert states(reader, "id: max <= 9007199254740993")["id"][0] is PASSED
    assert states(reader, "id: min >= 0")["id"][0] is PASSED


def test_rule_for_an_unknown_column_fails(reader):
    (result,) = results(reader, "nosuch: ndv > 1")
    assert result.state is FAILED and "no such column" in result.detail


def test_failed_rule_of_level_warn_is_warned(reader):
    assert results(reader, "row_count > 1000", level=rules.Level.WARN)[0].state is State.WARNED


def test_drift_is_measured_against_a_snapshot(reader):
    (first, blank) = results(reader, "drift <= 0.4", against="previous")
    assert (first.column, first.state, first.value) == ("id", FAILED, 0.5) and "against 1" in first.detail
    assert blank.state is UNKNOWN and "no quantile sketch" in blank.detail
    assert results(reader, "id: drift <= 0.5", against=1)[0].state is PASSED
    assert results(reader, "id: drift <= 0", against=2)[0].value == 0
    with pytest.raises(InvalidArgument, match="--against"):
        results(reader, "drift <= 0.4")


@pytest.fixture(scope="module")
def partial_reader():
    """Columns with partial sketches at snapshot 2: c1 of 90 of 100 rows, c2 of an unknown share."""
    parts = {1: {"rows": 100, "rows_seen": 90}, 2: {}}
    with app_in() as app:
        for snapshot in (1, 2):
            for i, part in parts.items():
                at = KEY | {"snapshot_id": snapshot}
                put(app, [at | {"column_id": i, "column_name": f"c{i}", "logical_type": "INT", "row_count": 100}])
                params = json.dumps({"completeness": "PARTIAL"} | part) if snapshot == 2 else None
                sketch = {
                    "target_kind": "COLUMN",
                    "storage_id": of_column(i),
                    "column_id": i,
                    "role": "QUANTILES",
                    "sketch_type": KLL,
                    "data": kll(np.arange(100.0 if snapshot == 1 else 90.0)),
                    "params": params,
                }
                put(app, [at | sketch], "stats.sketches")
        yield LocalReader(app.scanner, ANONYMOUS)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("c1: drift <= 0.15", UNKNOWN),
        ("c1: drift <= 0.25", PASSED),
        ("c1: drift >= 0.5", FAILED),
        ("c2: drift <= 0.99", UNKNOWN),
    ],
)
def test_drift_of_a_partial_sketch_passes_only_if_unseen_rows_cannot_matter(partial_reader, text, state):
    (result,) = results(partial_reader, text, against=1)
    assert (result.state, result.value) == (state, pytest.approx(0.1)) and result.detail.startswith("between 0 and ")
    assert "the sketch of the current snapshot is of a part of the rows" in result.detail
    assert "without sampling" in result.detail


def discovered(app, current, parents=None):
    """A table of the snapshots 1, 2 and 3, of which one is current."""
    found = {
        "schema": "s",
        "name": "t",
        "table_id": "id",
        "location": "x",
        "schema_hash": "h",
        "schemas": {"h": [["id", "INT", True, None]]},
        "current_snapshot_id": current,
        "live_snapshot_ids": [1, 2, 3],
        "snapshots": [
            {
                "snapshot_id": i,
                "ordinal": i,
                "schema_hash": "h",
                "parent_snapshot_id": (parents or {}).get(i),
                "sequence_number": None,
                "committed_at": None,
                "operation": None,
            }
            for i in (1, 2, 3)
        ],
    }
    app.database.write(lambda c: app.catalog.connectors.put(c, "lake", "delta", "file:///nowhere", {}))
    app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "delta", [found]))


@pytest.mark.parametrize(
    ("current", "parents", "previous"),
    [(3, {3: 2, 2: 1}, 20), (3, {3: 1, 2: 1}, 10), (2, {2: 1, 3: 2}, 10), (3, {}, 20)],
    ids=["line", "branch", "taken back", "no parents"],
)
def test_previous_goes_by_parents_where_the_format_has_them(current, parents, previous):
    with app_in() as app:
        discovered(app, current, parents)
        put(app, [KEY | {"snapshot_id": i, "row_count": 10 * i} for i in (1, 2, 3)], "stats.tables")
        rule = f"row_count = {1000 * current // previous}% of previous"
        (result,) = results(LocalReader(app.scanner, ANONYMOUS), rule)
    assert (result.state, result.value) == (PASSED, 10 * current)


@pytest.mark.parametrize(
    ("captured", "text", "against", "detail"),
    [
        ((1, 3), "drift <= 0.1", 2, "against 2; the sketch of snapshot 2 is inherited from 1"),
        ((1, 2), "drift <= 0.1", 1, "against 1; inherited from 2"),
        (
            (1,),
            f"id in {KEY['table_name']}.id",
            None,
            "0 of 9 values are not in t.id; t.id as of its snapshot 1; inherited from 1",
        ),
    ],
)
def test_detail_names_an_inherited_sketch(captured, text, against, detail):
    with app_in() as app:
        discovered(app, current=3)
        put(app, [KEY | {"snapshot_id": 3, "column_id": 1, "column_name": "id", "logical_type": "INT", "row_count": 9}])
        for at in captured:
            common = {"snapshot_id": at, "target_kind": "COLUMN", "storage_id": of_column(1), "column_id": 1}
            for role, kind, data in (
                ("QUANTILES", KLL, kll(np.arange(9.0))),
                ("NDV", THETA, theta(hash_longs(np.arange(9)))),
            ):
                put(app, [KEY | common | {"role": role, "sketch_type": kind, "data": data}], "stats.sketches")
        (result,) = results(LocalReader(app.scanner, ANONYMOUS), text, against=against)
    told, _, why = result.detail.rpartition("; ")
    assert told.endswith(detail) and result.snapshot_id == max(captured)
    assert result.state is UNKNOWN and "another snapshot" in why


def test_each_rule_may_set_its_own_snapshot(reader, tmp_path):
    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nexpect = "id: drift <= 0.4"\nagainst = 2\n'
        '[[rule]]\nexpect = "id: drift <= 0.4"\nagainst = "1"\n'
        '[[rule]]\nexpect = "id: drift <= 0.4"\nagainst = "previous"\n'
        '[[rule]]\nexpect = "schema_changes = 0"\nagainst = 99\n'
    )
    found = check(reader, NAME, rules.load(tmp_path / "rules.toml").rules)
    assert [(result.rule, result.state, result.value) for result in found] == [
        ("id: drift <= 0.4 against 2", PASSED, 0),
        ("id: drift <= 0.4 against 1", FAILED, 0.5),
        ("id: drift <= 0.4 against previous", FAILED, 0.5),
        ("schema_changes = 0 against 99", FAILED, None),
    ]
    assert found[3].detail == "snapshot 99 does not exist"


def test_drift_of_a_text_column_fails_and_suggests_ndv(reader):
    (result,) = results(reader, "name: drift <= 0.4", against="previous")
    assert result.state is FAILED and "STRING has none; use ndv, " in result.detail


def test_comparing_rules_are_skipped_at_the_first_snapshot():
    with app_in() as app:
        put(app, [KEY | {"snapshot_id": 1, "row_count": 100}], "stats.tables")
        put(app, [KEY | {"snapshot_id": 1, "row_count": 100} | COLUMNS[0]])
        texts = ("drift <= 0.1", "schema_changes = 0", "row_count = 100")
        found = results(LocalReader(app.scanner, ANONYMOUS), *texts, against="previous")
    assert [(result.rule, result.state) for result in found] == [("row_count = 100", PASSED)]


def test_unchanged_schema_has_no_schema_changes(reader):
    assert results(reader, "schema_changes = 0", against="previous")[0].state is PASSED


def test_column_that_was_not_captured_is_no_change_of_the_schema():
    with app_in() as app:
        snapshots = [
            {
                "snapshot_id": i,
                "ordinal": i,
                "parent_snapshot_id": None,
                "sequence_number": None,
                "committed_at": None,
                "operation": None,
                "schema_hash": "old" if i < 3 else "new",
            }
            for i in (1, 2, 3)
        ]
        columns = [["id", "INT", True, 1], ["name", "STRING", True, 2], ["tags", "ARRAY", True, 3]]
        described = {
            "schema": "s",
            "name": "t",
            "table_id": "i",
            "location": "l",
            "schema_hash": "new",
            "schemas": {"new": [*columns, ["added", "DATE", True, 4]], "old": columns},
        }

        def changes(current, *captured):
            discovered = described | {"current_snapshot_id": current, "snapshots": snapshots[:current]}
            app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "iceberg", [discovered]))
            row = KEY | {"snapshot_id": current, "row_count": 100, "schema_hash": snapshots[current - 1]["schema_hash"]}
            put(app, [row], "stats.tables")
            put(app, [row | column for column in captured])
            found = results(LocalReader(app.scanner, ANONYMOUS), "schema_changes = 0", against="previous")
            return [(result.value, result.detail) for result in found]

        assert changes(1, COLUMNS[0]) == []
        assert changes(2, *COLUMNS[:2]) == [(0, "")], "of the same schema"
        assert changes(3, COLUMNS[0]) == [(1, "added")], "the name is still there, and a list need not be captured"


def test_unknown_table_is_an_error(reader):
    with pytest.raises(pa.ArrowKeyError, match="UNKNOWN_TABLE"):
        check(reader, "lake.s.nosuch", [rules.parse("row_count > 0")])


def test_age_is_measured_from_the_capture_without_a_commit_time(reader):
    later = datetime.now(UTC) + timedelta(hours=2)
    (result,) = check(reader, NAME, [rules.parse("age_seconds < 3600")], now=later)
    assert result.state is FAILED and 7100 < result.value < 7400 and "capture" in result.detail


def test_suggested_rules_pass(reader, tmp_path):
    text = suggest.to_toml(reader, NAME)
    assert len(tomllib.loads(text)["rule"]) >= 3
    (tmp_path / "rules.toml").write_text(text)
    found = check(reader, NAME, rules.load(tmp_path / "rules.toml").rules)
    assert found and all(result.state is PASSED for result in found)


def test_rule_suggested_for_a_column_with_a_star_is_about_it_alone(tmp_path):
    """As a pattern, its name would stand for others, which have nulls."""
    columns = enumerate({"*": 0, "id": 5, "count(*)": 0, "count(x)": 5}.items(), 1)
    with app_in() as app:
        put(
            app,
            [
                KEY | {"snapshot_id": 1, "row_count": 9, "column_id": at, "column_name": name, "null_count": nulls}
                for at, (name, nulls) in columns
            ],
        )
        reader = LocalReader(app.scanner, ANONYMOUS)
        (tmp_path / "rules.toml").write_text(suggest.to_toml(reader, NAME))
        found = check(reader, NAME, rules.load(tmp_path / "rules.toml").rules)
        assert {result.column: result.state for result in found} == {"*": PASSED, "count(*)": PASSED}
        assert states(reader, "null_fraction <= 0", columns=["count(*)"])["count(x)"][0] is FAILED


# Reports.


def test_json_and_junit_reports_have_equal_counts(reader):
    found = results(reader, "null_fraction <= 0.005", "row_count > 0")
    report = json.loads(check_results.to_json(found, {"lake.s.bad\x00": "gone"}))
    root = ElementTree.fromstring(check_results.to_junit(found, {"lake.s.bad\x00": "gone"}))
    assert not report["passed"] and sum(result["state"] == "FAILED" for result in report["results"]) == 1
    assert sum(int(suite.get("failures")) for suite in root) == len(list(root.iter("failure"))) == 1
    assert sum(int(suite.get("skipped")) for suite in root) == len(list(root.iter("skipped"))) == 1
    strict = ElementTree.fromstring(check_results.to_junit(found, {}, strict=True))
    assert len(list(strict.iter("failure"))) == 2 and not list(strict.iter("skipped"))
    assert len(list(root.iter("testcase"))) == len(found) + 1 and len(list(root.iter("error"))) == 1


def test_hostile_names_are_escaped_in_junit(reader):
    found = [
        result.__class__(**(result.to_json() | {"table": '"><x/>\x1b', "column": "</testcase>&\ud800"}))
        for result in results(reader, "null_fraction <= 0.005")
    ]
    root = ElementTree.fromstring(check_results.to_junit(found, {}))
    assert {element.tag for element in root.iter()} == {"testsuites", "testsuite", "testcase", "failure", "skipped"}


@pytest.fixture(scope="module")
def grown():
    """A table with ten snapshots of 100, 110, … 190 rows, whose `at` ends a day later in each."""
    with app_in() as app:
        for snapshot in range(1, 11):
            at = KEY | {"snapshot_id": snapshot}
            rows = 90 + 10 * snapshot
            put(app, [at | {"row_count": rows}], "stats.tables")
            put(
                app,
                [
                    at | {"row_count": rows, "null_count": 0} | column
                    for column in (
                        {
                            "column_id": 1,
                            "column_name": "id",
                            "logical_type": "INT",
                            "ndv": float(rows),
                            "ndv_exact": True,
                            "min": "0",
                            "max": str(rows - 1),
                            "mean": 150.0 if snapshot == 10 else 50.0 + snapshot % 3,
                        },
                        {
                            "column_id": 2,
                            "column_name": "at",
                            "logical_type": "TIMESTAMP(6)",
                            "ndv": None,
                            "ndv_exact": None,
                            "min": "2026-01-01T00:00:00.000000",
                            "max": f"2026-01-{snapshot:02}T12:00:00.000000",
                            "mean": None,
                        },
                        {
                            "column_id": 3,
                            "column_name": "due",
                            "logical_type": "TIMESTAMP(6)",
                            "ndv": None,
                            "ndv_exact": None,
                            "min": "2026-01-02T00:00:00.000000",
                            "max": "2026-01-31T00:00:00.000000",
                            "mean": None,
                        },
                    )
                ],
            )
        yield LocalReader(app.scanner, ANONYMOUS)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("row_count >= 105% of previous", PASSED),
        ("row_count >= 106% of previous", FAILED),
        ("row_count > last 9", PASSED),
        ("row_count <= 135% of last 9", FAILED),
        ("row_count <= 136% of last 9", PASSED),
        ("row_count within 3 sigma of last 9", PASSED),
        ("row_count within 0.5 sigma of last 9", FAILED),
        ("id: mean within 3 sigma of last 14", FAILED),
        ("row_count = ndv of id", PASSED),
        ("id: ndv >= row_count", PASSED),
        ("id: max < 50% of row_count", FAILED),
        ("at: max <= max of due", PASSED),
        ("at: min > min of due", FAILED),
        ("id: max >= min", PASSED),
        ("at: max = '2026-01-10 12:00:00'", PASSED),
        ("at: max < 2026-01-10", FAILED),
        ("at: max between '2026-01-10' and '2026-01-11'", PASSED),
        ("at: max < 'soon'", FAILED),
        ("at: max < 7", FAILED),
        ("id: max < 'z'", FAILED),
        ("id: ndv >= ndv of nobody", FAILED),
    ],
)
def test_limits_of_other_values(grown, text, state):
    (result,) = check(grown, NAME, [rules.parse(text)])
    assert result.state == state, result


def test_limits_and_texts_are_said(grown):
    (result,) = check(grown, NAME, [rules.parse("row_count >= 90% of previous")])
    assert (result.value, result.detail) == (190, "compared with 162")
    (result,) = check(grown, NAME, [rules.parse("at: max < '2027-01-01'")])
    assert (result.state, result.value, result.detail) == (PASSED, "2026-01-10T12:00:00.000000", "")


def test_rule_waits_for_the_history_that_it_compares_with(reader):
    assert results(reader, "row_count within 3 sigma of last 9") == []
    assert results(reader, "row_count > previous")[0].state is PASSED


def test_text_limits_skip_columns_of_other_types(grown):
    assert {result.column for result in check(grown, NAME, [rules.parse("max >= '2026-01-01'")])} == {"at", "due"}


def odd(app, snapshot, **values):
    at = KEY | {"table_name": "odd", "snapshot_id": snapshot, "row_count": 1000, "null_count": 0}
    known = {"completeness": "COMPLETE", "schema_hash": "h"}
    unknown = dict.fromkeys(["min", "max", "mean", "ndv", "ndv_lower", "ndv_upper", "rows_scanned"])
    put(app, [at | {"column_id": 1, "column_name": "x", "logical_type": "DOUBLE"} | known | unknown | values])


def odd_results(app, *texts, against=None):
    reader = LocalReader(app.scanner, ANONYMOUS, lambda _: pa.table({"one": [1]}))
    found = check(reader, "lake.s.odd", [rules.parse(text) for text in texts], against)
    return [(one.state, one.value, one.detail) for one in found]


def test_infinite_values_are_no_shares_and_have_no_differences():
    with app_in() as app:
        for snapshot in (1, 2, 3, 4):
            odd(app, snapshot, mean=float("inf"), max="Infinity")
        texts = ("mean >= 50% of previous", "mean within 3 sigma of last 3", "mean <= 50% of max", "change of max != 5")
        found = odd_results(app, *texts, against=3)
        assert [(state, value) for state, value, _ in found] == [(FAILED, None)] * 4
        passed = odd_results(app, "max > 1e308", "max = max", "max >= 1e400")
        assert [state for state, _, _ in passed] == [PASSED] * 3
        assert odd_results(app, "max <= 1e400")[0][0] is FAILED


def test_numbers_do_not_compare_with_texts():
    with app_in() as app:
        odd(app, 1, max="5.0")
        for text in ("(SELECT 1) = 'a'", "(SELECT 1) < 'a'", "(SELECT 1) matches 'a'"):
            assert odd_results(app, text) == [(FAILED, None, "1 does not compare with a")]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("max <= 20", PASSED),
        ("max <= 15", UNKNOWN),
        ("max <= 9", FAILED),
        ("max >= 10", PASSED),
        ("max >= 15", UNKNOWN),
        ("max > 20", FAILED),
        ("max != 15", UNKNOWN),
        ("max != 25", PASSED),
        ("max = 20", UNKNOWN),
        ("max = 21", FAILED),
        ("max in (9, 21)", FAILED),
        ("max in (9, 20)", UNKNOWN),
        ("max not in (9, 25)", PASSED),
        ("max between 10 and 20", PASSED),
        ("max between 15 and 20", UNKNOWN),
        ("max between 21 and 22", FAILED),
        ("max between 1 and 9", FAILED),
        ("min >= 10", PASSED),
        ("min <= 10", UNKNOWN),
    ],
)
def test_rule_that_an_inexact_bound_leaves_open_is_unknown(text, state):
    with app_in() as app:
        odd(app, 1, min="10.0", max="20.0", min_is_exact=False, max_is_exact=False)
        assert odd_results(app, text)[0][0] is state


def test_sample_passes_no_rule_that_other_rows_could_break():
    with app_in() as app:
        of_sample = {
            "completeness": "PARTIAL",
            "rows_scanned": 10,
            "nan_count": 0,
            "mean": 5.0,
            "ndv": 900.0,
            "ndv_lower": 10.0,
            "ndv_upper": 1000.0,
        }
        odd(app, 1, **of_sample)
        texts = ("mean < 9", "ndv > 500", "distinct_fraction > 0.5", "ndv >= 10", "ndv <= 1000", "row_count = 1000")
        states = [UNKNOWN, UNKNOWN, UNKNOWN, PASSED, PASSED, PASSED]
        assert [state for state, _, _ in odd_results(app, *texts)[:-1]] == states[:-1]
        assert odd_results(app, "mean < 9")[0] == (UNKNOWN, 5, "of a sample; capture without sampling")
        assert odd_results(app, "nan_count = 0")[0][:2] == (UNKNOWN, 0)
        assert odd_results(app, "mean > 9")[0][:2] == (UNKNOWN, 5)
        assert odd_results(app, "ndv > 1000")[0][:2] == (FAILED, 900)
        odd(app, 2, min="1.0", max="9.0")  # an inherited distribution is still that of a sample
        reader = LocalReader(app.scanner, ANONYMOUS)
        found = check(reader, "lake.s.odd", [rules.parse(text) for text in texts[:-1]], allow_inherited=True)
        assert [one.state for one in found] == states[:-1]
        assert odd_results(app, "change of mean = 0", against=1)[0][:2] == (UNKNOWN, None)


def test_samples_are_no_earlier_values_to_compare_with():
    with app_in() as app:
        odd(app, 1, mean=9.0, completeness="PARTIAL", rows_scanned=10)
        odd(app, 2, mean=5.0)
        texts = ("mean >= 80% of previous", "mean <= 80% of last 2")
        assert (
            odd_results(app, *texts)
            == [(UNKNOWN, None, "the mean of earlier snapshots is of a sample; capture without sampling")] * 2
        )
        assert odd_results(app, "null_count <= 80% of previous")[0][:2] == (PASSED, 0)  # of all rows in a sample, too
        odd(app, 3, mean=1.0, completeness="PARTIAL", rows_scanned=10)
        odd(app, 4, mean=1.0)
        assert odd_results(app, *texts) == [(FAILED, 1, "compared with 4"), (PASSED, 1, "compared with 4")]
        assert odd_results(app, "mean within 3 sigma of last 3")[0][:2] == (UNKNOWN, None)


def test_inexact_bounds_are_no_earlier_values_to_compare_with():
    with app_in() as app:
        odd(app, 1, min="1.0", max="50.0")
        odd(app, 2, min="1.0", max="90.0", max_is_exact=False)
        odd(app, 3, min="1.0", max="60.0", max_is_exact=True)
        assert odd_results(app, "max <= 100% of previous")[0] == (FAILED, 60, "compared with 50")
        assert odd_results(app, "max <= 100% of last 2")[0][:2] == (FAILED, 60)
        assert odd_results(app, "change of max <= 0", against=2)[0][:2] == (UNKNOWN, -30)
        assert odd_results(app, "change of max <= 100", against=2)[0][:2] == (PASSED, -30)
        assert odd_results(app, "change of max < -30", against=2)[0][:2] == (FAILED, -30)
        assert odd_results(app, "change of max <= 10", against=1)[0][:2] == (PASSED, 10)
        assert odd_results(app, "change of min = 0", against=2)[0][:2] == (PASSED, 0)


def test_inherited_value_has_no_change_since_its_own_snapshot():
    with app_in() as app:
        odd(app, 1, mean=5.0, ndv=9.0)
        odd(app, 2, min="1.0", max="9.0", null_count=3)
        texts = ("change of mean = 0", "change of null_count = 3")
        found = odd_results(app, *texts, against=1)
        assert [(state, value) for state, value, _ in found] == [(UNKNOWN, None), (PASSED, 3)]
        assert found[0][2] == "both are of snapshot 1"
        found = odd_results(app, "ndv >= 80% of previous", "null_count >= 80% of previous", "ndv <= 9")
        assert [(state, value) for state, value, _ in found] == [(PASSED, 3), (UNKNOWN, 9)]


def test_inherited_value_is_judged_as_at_its_own_snapshot():
    with app_in() as app:
        odd(app, 1, mean=2.0, ndv=20.0, ndv_exact=True)
        odd(app, 2, mean=5.0, ndv=9.0, ndv_exact=True)
        odd(app, 3, min="1.0", max="9.0", null_count=3)
        counted = {"table_name": "odd", "row_count": 1000, "schema_hash": "h"}
        put(app, [KEY | counted | {"snapshot_id": snapshot} for snapshot in (1, 2, 3)], "stats.tables")
        texts = ("ndv >= 80% of previous", "change of mean <= 1", "change of mean <= 3")
        assert {state for state, _, _ in odd_results(app, *texts, against="previous")} == {UNKNOWN}
        reader = LocalReader(app.scanner, ANONYMOUS)
        given = [rules.parse(text) for text in texts]
        found = check(reader, "lake.s.odd", given, "previous", allow_inherited=True)
        assert [(one.state, one.value, one.detail) for one in found] == [
            (FAILED, 9, "compared with 16; inherited from 2"),
            (FAILED, 3, "2 → 5 (+150%); inherited from 2"),
            (PASSED, 3, "2 → 5 (+150%); inherited from 2"),
        ]


def test_inherited_most_common_values_are_labelled():
    with app_in() as app:
        key = KEY | {"table_name": "common", "column_id": 1}
        schema = {"column_name": "x", "logical_type": "STRING", "row_count": 100, "schema_hash": "h"}
        put(app, [key | schema | {"snapshot_id": 1, "ndv": 1.0, "ndv_exact": True}])
        sketch = {
            "target_kind": "COLUMN",
            "storage_id": of_column(1),
            "role": "MCV",
            "sketch_type": "apache-datasketches-frequent-items-utf8-v1",
            "data": frequent([b"a"], [100], 100, 0),
        }
        put(app, [key | sketch | {"snapshot_id": 1}], "stats.sketches")
        put(app, [key | schema | {"snapshot_id": 2, "null_count": 0}])
        reader = LocalReader(app.scanner, ANONYMOUS)
        (one,) = check(reader, "lake.s.common", [rules.parse("x: most_common = 'a'")])
        assert (one.state, one.snapshot_id) == (UNKNOWN, 1) and "inherited from 1" in one.detail
        (one,) = check(reader, "lake.s.common", [rules.parse("x: most_common = 'a'")], allow_inherited=True)
        assert (one.state, one.snapshot_id) == (PASSED, 1) and "inherited from 1" in one.detail
        (one,) = check(reader, "lake.s.common", [rules.parse("x: most_common < 5")])
        assert (one.state, one.value) == (FAILED, None) and "does not compare" in one.detail


def test_column_without_common_values_is_skipped_and_says_so_where_it_is_named():
    with app_in() as app:
        odd(app, 1)
        sketch = {
            "target_kind": "COLUMN",
            "storage_id": of_column(1),
            "role": "MCV",
            "column_id": 1,
            "snapshot_id": 1,
            "sketch_type": "apache-datasketches-frequent-items-utf8-v1",
            "data": frequent([], [], 1000, 4),
        }
        put(app, [KEY | {"table_name": "odd"} | sketch], "stats.sketches")
        assert odd_results(app, "most_common matches '.*'") == []
        ((state, value, detail),) = odd_results(app, "x: most_common matches '.*'")
        assert (state, value, detail) == (FAILED, None, "this DOUBLE column has no values that are common")


def test_snapshots_that_were_rolled_back_are_not_earlier():
    with app_in() as app:
        discovered(app, current=2)
        for snapshot, rows in ((1, 50), (2, 100), (3, 900)):
            put(app, [KEY | {"snapshot_id": snapshot, "row_count": rows}], "stats.tables")
        texts = ("row_count >= 80% of previous", "change of row_count = 50")
        for result in results(LocalReader(app.scanner, ANONYMOUS), *texts, against="previous"):
            assert result.state is PASSED, result


class Reading(LocalReader):
    """A reader that notes the columns which are read, and finds that none is unique."""

    def __init__(self, *arguments):
        super().__init__(*arguments, unique=self.note)
        self.read_columns = []

    def note(self, table, column_id, snapshot):
        self.read_columns.append((table, column_id, snapshot))
        return False


@pytest.mark.parametrize(
    ("values", "state", "is_read"),
    [
        ({"ndv": 1000.0, "ndv_exact": True}, PASSED, False),
        ({"ndv": 999.0, "ndv_exact": True}, FAILED, False),
        ({"ndv": 999.0, "ndv_exact": True, "null_count": 1}, PASSED, False),
        ({"null_count": 999}, PASSED, False),
        ({"ndv": 1000.0, "ndv_exact": False}, FAILED, True),
        ({"ndv": 1000.0, "ndv_exact": True, "producer": "UPSTREAM_METADATA_DERIVED"}, FAILED, True),
        ({"ndv": 1000.0, "ndv_exact": True, "completeness": "PARTIAL"}, FAILED, True),
        ({}, FAILED, True),
    ],
)
def test_column_is_read_where_its_counts_do_not_tell_whether_it_is_unique(values, state, is_read):
    with app_in() as app:
        odd(app, 1, **values)
        reader = Reading(app.scanner, ANONYMOUS)
        (one,) = check(reader, "lake.s.odd", [rules.parse("x: unique")])
        assert (one.state, one.value) == (state, int(state is PASSED))
        assert reader.read_columns == ([("lake.s.odd", 1, "current")] if is_read else [])


def test_unique_is_unknown_where_no_column_can_be_read():
    with app_in() as app:
        odd(app, 1)
        assert odd_results(app, "x: unique") == [
            (UNKNOWN, None, "the column cannot be read: columns are not read here")
        ]


def test_share_is_of_the_counts_that_belong_to_it():
    with app_in() as app:
        odd(app, 1, ndv=1000.0, ndv_exact=True)
        odd(app, 2, min="1.0", max="9.0", row_count=2000)
        ((state, value, detail),) = odd_results(app, "distinct_fraction >= 0.9")
        assert (state, value) == (UNKNOWN, 1) and "inherited from 1" in detail
        reader = LocalReader(app.scanner, ANONYMOUS)
        (one,) = check(reader, "lake.s.odd", [rules.parse("distinct_fraction >= 0.9")], allow_inherited=True)
        assert (one.state, one.value, one.detail) == (PASSED, 1, "inherited from 1")
