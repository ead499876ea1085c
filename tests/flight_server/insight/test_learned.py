"""The rule `learned` against stored statistics: what is judged, what is silent, and feedback."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.views import loads
from flight_server.faces.web import column_page
from flight_server.insight import rules
from flight_server.insight.evaluate import check
from flight_server.insight.results import State
from store.catalog.checks import CheckStore
from store.catalog.discovery import Discovery
from store.model.columns import KLL
from store.model.sketches import kll
from store.model.target_ids import of_column
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
NAME, FIRST, COUNT = "lake.s.t", datetime(2026, 1, 5, tzinfo=UTC), 13
NOW = FIRST + timedelta(days=COUNT, hours=6)
LEARNED = [rules.parse("learned")]


@pytest.fixture(scope="module")
def app():
    """A table with a snapshot a day, of about 1,000 rows each more; in the last the column `amount` has moved."""
    random = np.random.default_rng(7)
    with app_in() as app:
        ids = list(range(1, COUNT + 1))
        found = {
            "schema": "s",
            "name": "t",
            "table_id": "id",
            "location": "x",
            "schema_hash": "h",
            "schemas": {"h": [["amount", "DOUBLE", True, None]]},
            "current_snapshot_id": COUNT,
            "live_snapshot_ids": ids,
            "snapshots": [
                {
                    "snapshot_id": i,
                    "ordinal": i,
                    "schema_hash": "h",
                    "parent_snapshot_id": None,
                    "sequence_number": i,
                    "committed_at": (FIRST + timedelta(days=i)).isoformat(),
                    "operation": None,
                }
                for i in ids
            ],
        }
        app.database.write(lambda c: app.catalog.connectors.put(c, "lake", "delta", "file:///nowhere", {}))
        app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "delta", [found]))
        rows, tables, columns, sketches = 0, [], [], []
        for i in ids:
            rows += 1000 + int(random.integers(-30, 30))
            at, moved = KEY | {"snapshot_id": i, "row_count": rows}, i == COUNT
            tables.append(at | {"total_size_bytes": rows * 8})
            columns.append(
                at
                | {
                    "column_id": 1,
                    "column_name": "amount",
                    "logical_type": "DOUBLE",
                    "ndv": rows * 0.5,
                    "null_count": rows // 50,
                    "mean": 50.0 + random.normal(0, 0.2) + 20 * moved,
                    "stddev": 10.0,
                }
            )
            values = np.sort(random.normal(70.0 if moved else 50.0, 10, 2000))
            sketch = {
                "target_kind": "COLUMN",
                "storage_id": of_column(1),
                "column_id": 1,
                "role": "QUANTILES",
                "sketch_type": KLL,
                "data": kll(values),
            }
            sketches.append(KEY | {"snapshot_id": i} | sketch)
        for flight, given in (("stats.tables", tables), ("stats.columns", columns), ("stats.sketches", sketches)):
            put(app, given, flight)
        yield app


def states(app, now=NOW, **more):
    found = check(LocalReader(app.scanner, ANONYMOUS), NAME, more.pop("rules", LEARNED), now=now, **more)
    return {result.measure: (result.state, result.column) for result in found}


PASSED, FAILED = State.PASSED, State.FAILED
TABLE = {"row_count": (PASSED, None), "size_bytes": (PASSED, None), "commit_gap": (PASSED, None)}
COLUMN = {
    "null_fraction": (PASSED, "amount"),
    "distinct_fraction": (PASSED, "amount"),
    "mean": (FAILED, "amount"),
    "drift": (FAILED, "amount"),
}


def test_each_measure_is_judged_by_its_history(app):
    assert states(app) == TABLE | COLUMN
    assert states(app, rules=[rules.parse("amount: learned")]) == COLUMN
    assert states(app, rules=[rules.parse("other: learned")]) == {}
    warned = states(app, rules=[rules.parse("learned", rules.Level.WARN)])
    assert warned["mean"] == (State.WARNED, "amount")


def test_result_says_what_was_expected(app):
    reader = LocalReader(app.scanner, ANONYMOUS)
    (mean,) = [one for one in check(reader, NAME, LEARNED, now=NOW) if one.measure == "mean"]
    assert mean.rule == "learned mean" and "by 11 snapshots" in mean.detail
    assert mean.detail.startswith("of the rows that were added: expected 35") and mean.value > 200


def test_missing_commit_is_noticed_by_time_alone(app):
    assert states(app, only_timely=True) == {"commit_gap": (PASSED, None)}
    later = NOW + timedelta(days=3)
    assert states(app, later, only_timely=True) == {"commit_gap": (FAILED, None)}


def test_page_draws_what_was_expected(app):
    history = column_page.column(LocalReader(app.scanner, ANONYMOUS), NAME, "amount")["history"]
    low, high = history[-1]["expected"]["mean"]
    assert low < 50 < high < history[-1]["mean"] and history[0]["expected"] == {}
    assert history[-1]["expected"].keys() == {"row_count", "null_share", "mean"}


def test_value_called_expected_passes(app):
    table = app.catalog.get(NAME)
    CheckStore(app.database).expect(table.table_key, COUNT, "amount", "learned mean", "mean")
    assert states(app)["mean"] == (PASSED, "amount") and states(app)["drift"] == (FAILED, "amount")


@pytest.mark.parametrize("of_sample", [True, False])
def test_samples_are_judged_by_samples_and_all_rows_by_all_rows(of_sample):
    with app_in() as app:
        for i in range(1, 22):
            is_sample = (i % 2 == 1) == of_sample
            at = {"snapshot_id": i, "row_count": 1000, "completeness": "PARTIAL" if is_sample else "COMPLETE"}
            column = {
                "column_id": 1,
                "column_name": "x",
                "logical_type": "INT",
                "null_count": 0,
                "stddev": 10.0,
                "ndv": 100.0 if is_sample else 900.0,
                "mean": 20.0 if is_sample else 50.0,
            }
            put(app, [KEY | at | column])
        found = check(LocalReader(app.scanner, ANONYMOUS), NAME, LEARNED, now=NOW)
        told = {one.measure: (one.state, one.detail) for one in found if one.measure in ("mean", "distinct_fraction")}
        assert {state for state, _ in told.values()} == {PASSED} and len(told) == 2
        assert all(detail.endswith("by 10 snapshots") for _, detail in told.values())
        history = column_page.column(LocalReader(app.scanner, ANONYMOUS), NAME, "x")["history"]
        low, high = history[-1]["expected"]["mean"]
        assert low < history[-1]["mean"] < high and high - low < 20 and "mean" not in history[-2]["expected"]


def test_loads_of_a_table_that_only_grows_are_judged_without_it():
    """Four loads with 90 % nulls are 2 % more of the table's each; none of them is learned."""
    rows = nulls = 0
    told = []
    with app_in() as app:
        for i in range(1, 35):
            bad = i > 30
            rows, nulls = rows + 100, nulls + (90 if bad else 2 + i % 3)
            at = {"snapshot_id": i, "row_count": rows, "null_count": nulls, "column_id": 1, "column_name": "x"}
            put(app, [KEY | at | {"logical_type": "STRING"}])
            if i >= 30:
                (one,) = check(LocalReader(app.scanner, ANONYMOUS), NAME, LEARNED, now=NOW)
                told.append((one.measure, one.state, round(one.value, 6)))
        history = column_page.column(LocalReader(app.scanner, ANONYMOUS), NAME, "x")["history"]
    assert told == [("null_fraction", PASSED, 0.02)] + [("null_fraction", FAILED, 0.9)] * 4
    assert history[-1]["load"] == {"null_share": 0.9} and history[-1]["null_share"] < 0.2 and not history[0]["load"]


def test_tables_that_lose_rows_are_judged_as_a_whole():
    counted = [{"row_count": 100 * i, "null_count": i, "mean": 1.0, "snapshot_id": i} for i in (1, 2, 3, 2)]
    assert loads.values("null_fraction", counted) is None
    assert loads.values("null_fraction", counted[:1] * 3) is None  # nothing was added
    assert loads.values("null_fraction", counted[:3]) == [(1, 0.01), (2, 0.01)]


def test_learned_rules_are_silent_while_little_is_known():
    with app_in() as app:
        put(app, [KEY | {"snapshot_id": 1, "row_count": 5}], "stats.tables")
        assert states(app) == {}
