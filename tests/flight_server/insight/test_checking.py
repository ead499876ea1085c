"""Rules of the server: evaluated once captures settle; results stored, changes notified, failures in metrics."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from flight_server.core.app import App
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.config import Settings
from flight_server.core.reads.local_reader import LocalReader
from flight_server.core.views.reader import equal
from flight_server.insight.checking import SETTLE_SECONDS, TIMELY_SECONDS, Checking
from flight_server.insight.evaluate import check
from flight_server.insight.rules import parse
from flight_server.process.metrics import Metrics
from flight_server.process.parts import parts
from store.catalog.discovery import Discovery
from store.duckdb.commit import Guard
from store.model.columns import THETA
from store.model.errors import InvalidArgument, ResourceExhausted
from store.model.sketches import theta
from store.model.sketches.murmur3 import hash_longs
from store.model.target_ids import of_column
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
RULES = '[[rule]]\nexpect = "null_fraction <= 0.1"\n[[rule]]\nexpect = "row_count > 500"\nlevel = "warn"\n'


LATE_SECONDS = 900.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Notifications(list):
    post = list.append

    def flush(self):
        """Nothing is gathered."""

    def stop(self):
        """Nothing to stop."""


@pytest.fixture
def setup(tmp_path):
    """An app, its rules file, the posted notifications, and a function that puts a snapshot and checks it."""
    (tmp_path / "rules.toml").write_text(RULES)
    with app_in(checks=tmp_path / "rules.toml") as app:
        clock, notifications = Clock(), Notifications()
        old = app.parts["insight"].checking
        checking = Checking(
            app.database,
            app.catalog,
            old._reader,
            old._file,
            notifications,
            LATE_SECONDS,
            clock=clock,
        )
        app.parts["insight"].checking = checking

        def snapshot(number: int, nulls: int) -> int:
            at = KEY | {"snapshot_id": number}
            put(app, [at | {"row_count": 100}], "stats.tables")
            put(app, [at | {"column_id": 1, "column_name": "id", "row_count": 100, "null_count": nulls}])
            checking.captured(app.catalog.get("lake.s.t"))
            assert checking.run() == 0  # not settled yet
            clock.now += SETTLE_SECONDS
            return checking.run()

        yield app, tmp_path / "rules.toml", notifications, snapshot


def rows(app, **more):
    found = LocalReader(app.scanner, ANONYMOUS).read("sys.checks").to_pylist()
    return [(row["snapshot_id"], row["column_name"], row["state"], row["value"]) for row in found]


def test_results_are_stored_per_snapshot_and_state_changes_notified(setup):
    app, _, notifications, snapshot = setup
    assert snapshot(1, 0) == 1
    assert rows(app) == [(1, "id", "PASSED", 0.0), (1, None, "WARNED", 100.0)]
    (first,) = notifications
    assert [(change["rule"], change["before"], change["after"]) for change in first["changes"]] == [
        ("row_count > 500", None, "WARNED")
    ]
    snapshot(2, 50)
    assert [row for row in rows(app) if row[0] == 2] == [(2, "id", "FAILED", 0.5), (2, None, "WARNED", 100.0)]
    assert notifications[1]["table"] == "lake.s.t" and notifications[1]["snapshot_id"] == 2
    assert [(change["column"], change["before"], change["after"]) for change in notifications[1]["changes"]] == [
        ("id", "PASSED", "FAILED")
    ]
    snapshot(3, 50)
    assert len(notifications) == 2  # no state changed


def test_results_that_cannot_be_stored_are_found_again(setup, caplog):
    app, _, notifications, snapshot = setup
    refusing = []

    class Full(Guard):
        def check_begin(self) -> None:
            if refusing:
                raise ResourceExhausted("the disk is full")

    app.database.phases = app.database.phases._replace(guard=Full())
    snapshot(1, 0)
    clock = app.parts["insight"].checking._clock
    put(app, [KEY | {"snapshot_id": 1, "column_id": 1, "column_name": "id", "row_count": 100, "null_count": 50}])
    app.parts["insight"].checking.captured(app.catalog.get("lake.s.t"))
    clock.now += SETTLE_SECONDS
    refusing.append(True)
    assert app.parts["insight"].checking.run() == 1 and "the disk is full" in caplog.text
    assert (1, "id", "PASSED", 0.0) in rows(app) and len(notifications) == 1
    refusing.clear()
    clock.now += TIMELY_SECONDS
    assert app.parts["insight"].checking.run() == 0
    clock.now += SETTLE_SECONDS
    assert app.parts["insight"].checking.run() == 1
    assert (1, "id", "FAILED", 0.5) in rows(app)
    assert [change["after"] for change in notifications[1]["changes"]] == ["FAILED"]


def test_results_that_a_capture_may_turn_are_pending():
    at = KEY | {"snapshot_id": 1}
    rules = [parse(text) for text in ("row_count > 5", "age_seconds < 0", "null_fraction <= 0.1", "nosuch: ndv > 1")]
    with app_in() as app:

        def results():
            found = check(LocalReader(app.scanner, ANONYMOUS), "lake.s.t", rules)
            return {result.rule: (str(result.state), result.detail, result.pending) for result in found}

        nothing = "nothing captured at the current snapshot"
        put(app, [at | {"row_count": 100, "captured_at": datetime(2026, 1, 1, tzinfo=UTC)}], "stats.tables")
        found = results()
        assert {rule for rule, (*_, pending) in found.items() if not pending} == {"row_count > 5", "age_seconds < 0"}
        assert found["null_fraction <= 0.1"] == found["nosuch: ndv > 1"] == ("UNKNOWN", nothing, True)
        put(app, [at | {"column_id": 1, "column_name": "id", "row_count": 100, "null_count": 0}])
        found = results()
        assert found["null_fraction <= 0.1"] == ("PASSED", "", False)
        assert found["nosuch: ndv > 1"] == ("FAILED", "no such column", False)


@pytest.fixture
def loads(setup):
    """A lake's table; functions that make snapshots up to a number, that put statistics and check them, and that let
    time pass. The latter two return the states of the rules at the newest checked snapshot."""
    app, path, _, _ = setup
    texts = ("row_count > 5", "id: ndv >= 90", "id: distinct_fraction = 1")
    path.write_text("".join(f'[[rule]]\nexpect = "{text}"\n' for text in texts))
    app.database.write(lambda c: app.catalog.connectors.put(c, "lake", "delta", "file:///nowhere", {}))
    reader = LocalReader(app.scanner, ANONYMOUS)

    def load(number):
        ids = list(range(1, number + 1))
        snapshots = [
            {
                "snapshot_id": i,
                "ordinal": i,
                "schema_hash": "h",
                "parent_snapshot_id": None,
                "sequence_number": None,
                "committed_at": None,
                "operation": None,
            }
            for i in ids
        ]
        found = {
            "schema": "s",
            "name": "t",
            "table_id": "id",
            "location": "x",
            "schema_hash": "h",
            "schemas": {"h": [["id", "INT", True, None]]},
            "current_snapshot_id": number,
            "live_snapshot_ids": ids,
            "snapshots": snapshots,
        }
        app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "delta", [found]))

    def captured(number, rows, ndv=None):
        at = KEY | {"snapshot_id": number, "row_count": rows}
        put(app, [at], "stats.tables")
        column = {"column_id": 1, "column_name": "id", "logical_type": "INT", "null_count": 0}
        put(app, [at | column | ({} if ndv is None else {"ndv": ndv, "ndv_exact": True})])
        app.parts["insight"].checking.captured(app.catalog.get("lake.s.t"))
        return passed(SETTLE_SECONDS)

    def passed(seconds):
        app.parts["insight"].checking._clock.now += seconds
        app.parts["insight"].checking.run()
        found = reader.read("sys.checks").to_pylist()
        newest = max(row["snapshot_id"] for row in found)
        return {row["measure"]: row["state"] for row in found if row["snapshot_id"] == newest}

    return load, captured, passed


def checks_of(app):
    return LocalReader(app.scanner, ANONYMOUS).read("sys.checks").to_pylist()


def test_waiting_is_no_news_and_what_was_before_is_compared_with(setup, loads):
    _, _, notifications, _ = setup
    load, captured, _ = loads
    for snapshot, distinct in ((1, 50.0), (2, 100.0), (3, 300.0)):
        load(snapshot)
        captured(snapshot, 100 * snapshot)
        captured(snapshot, 100 * snapshot, distinct)
    told = [(one["rule"], one["before"], one["after"]) for each in notifications for one in each["changes"]]
    assert {one[1:] for one in told} == {(None, "FAILED"), ("FAILED", "PASSED")}
    assert len(told) == len(set(told))


def test_columns_that_a_rule_judges_are_told(setup):
    app, path, _, snapshot = setup
    path.write_text(
        '[[rule]]\nexpect = "learned"\n[[rule]]\nexpect = "a: mean < 5"\n[[rule]]\nexpect = "row_count > 5"\n'
        '[[rule]]\ntable = "lake.s.t"\ncolumns = ["b*"]\nexpect = "min >= max of c"\n'
    )
    snapshot(1, 0)
    judges = app.parts["insight"].checking.judges
    assert [name for name in ("a", "b1", "c", "d") if judges("lake.s.t", name)] == ["a", "b1", "c"]
    assert judges("lake.s.other", "a") and not judges("lake.s.other", "b1")


def test_rules_wait_for_columns_that_land_after_metadata(setup, loads):
    app, _, notifications, _ = setup
    load, captured, passed = loads
    load(1)
    waiting = {"row_count": "PASSED", "ndv": "WAITING", "distinct_fraction": "WAITING"}
    assert captured(1, 100) == waiting
    assert passed(LATE_SECONDS / 2) == waiting
    all_passed = {"row_count": "PASSED", "ndv": "PASSED", "distinct_fraction": "PASSED"}
    assert captured(1, 100, 100.0) == all_passed
    # A good load of as many rows again: its distinct values are still those of the snapshot before.
    load(2)
    assert captured(2, 200) == waiting
    details = {row["detail"] for row in checks_of(app) if row["state"] == "WAITING"}
    assert details == {"waits for snapshot 2"}
    assert captured(2, 200, 200.0) == all_passed
    assert not [row for row in checks_of(app) if row["state"] == "WAITING"]
    passed(2 * LATE_SECONDS)
    assert notifications == []  # nobody is called


def test_rules_are_late_but_not_failed_when_statistics_do_not_come(setup, loads):
    app, _, notifications, _ = setup
    load, captured, passed = loads
    load(1)
    captured(1, 100)
    late = {"row_count": "PASSED", "ndv": "LATE", "distinct_fraction": "LATE"}
    assert passed(LATE_SECONDS) == late
    (told,) = notifications
    assert {change["after"] for change in told["changes"]} == {"LATE"}
    assert "statflight_check_failing" in (
        body := Metrics(app, "0", lambda _: ANONYMOUS).exposition(None, "")[2].decode()
    )
    assert "} 1.0" not in [line[-5:] for line in body.splitlines() if line.startswith("statflight_check_failing")]
    assert passed(LATE_SECONDS) == captured(1, 100) == late and len(notifications) == 1  # told once
    assert captured(1, 100, 50.0) == {"row_count": "PASSED", "ndv": "FAILED", "distinct_fraction": "FAILED"}
    # Of the next snapshot only metadata is captured: the distinct values before decide nothing.
    load(2)
    assert captured(2, 200) == {"row_count": "PASSED", "ndv": "WAITING", "distinct_fraction": "WAITING"}
    failing = {(result.measure, result.state) for result in app.parts["insight"].checking.results["lake.s.t"]}
    assert failing == {("row_count", "PASSED"), ("ndv", "FAILED"), ("distinct_fraction", "FAILED")}  # still known
    assert passed(LATE_SECONDS) == {"row_count": "PASSED", "ndv": "UNKNOWN", "distinct_fraction": "UNKNOWN"}


def test_comparing_rules_use_the_previous_snapshot_or_the_named_one(setup):
    app, path, _, snapshot = setup
    path.write_text('[[rule]]\nexpect = "schema_changes = 0"\n[[rule]]\nexpect = "schema_changes = 0"\nagainst = 1\n')
    snapshot(1, 0)
    assert [row[2] for row in rows(app)] == ["PASSED"]  # no previous snapshot, and snapshot 1 equals itself
    snapshot(2, 0)
    found = LocalReader(app.scanner, ANONYMOUS).read("sys.checks", where=[equal("snapshot_id", 2)]).to_pylist()
    assert {(row["rule"], row["state"]) for row in found} == {
        ("schema_changes = 0", "PASSED"),
        ("schema_changes = 0 against 1", "PASSED"),
    }


def test_changed_rules_file_is_reloaded_and_an_invalid_one_ignored(setup):
    app, path, _, snapshot = setup
    path.write_text('[[rule]]\nexpect = "row_count > 5"\n')
    snapshot(1, 50)
    assert rows(app) == [(1, None, "PASSED", 100.0)]
    path.write_text("[[rule]]\nexpect = 5\n")
    os.utime(path, ns=(1, 1))
    snapshot(2, 50)
    assert [row[2] for row in rows(app)] == ["PASSED", "PASSED"]


def test_failing_rule_is_exposed_as_a_check_failing_metric(setup):
    app, _, _, snapshot = setup
    snapshot(1, 50)
    body = Metrics(app, "0", lambda _: ANONYMOUS).exposition(None, "")[2].decode()
    labels = 'column="id",level="fail",rule="null_fraction <= 0.1",table="lake.s.t"'
    assert f"statflight_check_failing{{{labels}}} 1.0" in body


def test_invalid_rules_file_fails_startup_before_the_database_exists(tmp_path):
    (tmp_path / "rules.toml").write_text("nonsense")
    with pytest.raises(InvalidArgument, match="rules file"):
        App(Settings(db=tmp_path / "stats.duckdb", checks=tmp_path / "rules.toml"), parts=parts)
    assert not (tmp_path / "stats.duckdb").exists()


def test_value_called_expected_is_kept_by_the_checks_that_follow(setup):
    app, path, _, snapshot = setup
    path.write_text('[[rule]]\nexpect = "row_count > 5"\n')
    os.utime(path, ns=(2, 2))
    snapshot(1, 0)
    app.parts["insight"].checking.expect(app.catalog.get("lake.s.t"), 1, None, "row_count")
    snapshot(1, 0)
    assert sorted(row[2] for row in rows(app)) == ["EXPECTED", "PASSED"]


def test_age_is_looked_at_while_nothing_is_captured(setup):
    app, path, notifications, _ = setup
    path.write_text('[[rule]]\nexpect = "age_seconds <= 1h"\n[[rule]]\nexpect = "row_count > 5"\n')
    os.utime(path, ns=(2, 2))

    def passed(hours, seconds):
        at = KEY | {"snapshot_id": 1, "captured_at": datetime.now(UTC) - timedelta(hours=hours)}
        put(app, [at | {"row_count": 100 + int(10 * hours)}], "stats.tables", "replace_snapshot")
        before = checked()
        app.parts["insight"].checking._clock.now += seconds
        app.parts["insight"].checking.run()
        return sorted((row[1], row[2]) for row in rows(app)), checked() != before

    def checked():
        return LocalReader(app.scanner, ANONYMOUS).read("sys.checks", ["checked_at"]).to_pylist()

    put(app, [KEY | {"snapshot_id": 1, "row_count": 100}], "stats.tables")
    app.parts["insight"].checking.captured(app.catalog.get("lake.s.t"))
    both = [(None, "PASSED"), (None, "PASSED")]
    assert passed(0.5, SETTLE_SECONDS) == (both, True)
    assert passed(0.6, TIMELY_SECONDS) == (both, False)  # nothing has turned, and nothing is written
    assert passed(1.5, TIMELY_SECONDS / 2) == (both, False)  # not yet looked at
    assert passed(1.5, TIMELY_SECONDS / 2) == ([(None, "FAILED"), (None, "PASSED")], True)
    assert [change["rule"] for change in notifications[0]["changes"]] == ["age_seconds <= 1h"]


def test_table_is_checked_again_when_what_it_refers_to_is_captured(setup):
    app, path, _, _ = setup
    path.write_text('[[rule]]\nexpect = "t.id in parents.id"\n')
    os.utime(path, ns=(2, 2))

    def sketch(name, values):
        at = {"table_catalog": "lake", "table_schema": "s", "table_name": name, "snapshot_id": 1}
        put(app, [at | {"column_id": 1, "column_name": "id", "logical_type": "INT", "row_count": len(values)}])
        sketch = {
            "target_kind": "COLUMN",
            "storage_id": of_column(1),
            "column_id": 1,
            "role": "NDV",
            "sketch_type": THETA,
            "data": theta(hash_longs(np.array(values))),
        }
        put(app, [at | sketch], "stats.sketches")

    sketch("t", [1, 2, 3])
    sketch("parents", [1, 2])
    put(app, [KEY | {"snapshot_id": 1, "row_count": 3}], "stats.tables")
    app.parts["insight"].checking.captured(app.catalog.get("lake.s.t"))
    app.parts["insight"].checking._clock.now += SETTLE_SECONDS
    app.parts["insight"].checking.run()
    assert [row[2] for row in rows(app)] == ["FAILED"]
    sketch("parents", [1, 2, 3])
    app.parts["insight"].checking.captured(app.catalog.get("lake.s.parents"))
    app.parts["insight"].checking._clock.now += SETTLE_SECONDS
    app.parts["insight"].checking.run()
    assert [row[2] for row in rows(app)] == ["PASSED"]
