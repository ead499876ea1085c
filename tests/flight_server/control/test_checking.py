"""Rules of the server: evaluated once captures settle; results stored, changes notified, failures in metrics."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from flight_server.app import App
from flight_server.auth.principal import ANONYMOUS
from flight_server.checks.evaluate import check
from flight_server.checks.rules import parse
from flight_server.config import Settings
from flight_server.control.checking import SETTLE_SECONDS, Checking
from flight_server.present.reader import equal
from flight_server.process.metrics import Metrics
from flight_server.reads.local_reader import LocalReader
from store.errors import InvalidArgument
from tests.flight_server.serving import app_in, put

KEY = {"table_catalog": "lake", "table_schema": "s", "table_name": "t"}
RULES = '[[rule]]\nexpect = "null_fraction <= 0.1"\n[[rule]]\nexpect = "row_count > 500"\nlevel = "warn"\n'


class Notifications(list):
    post = list.append

    def stop(self):
        """Nothing to stop."""


@pytest.fixture
def setup(tmp_path):
    """An app, its rules file, the posted notifications, and a function that puts a snapshot and checks it."""
    (tmp_path / "rules.toml").write_text(RULES)
    with app_in(tmp_path, checks=tmp_path / "rules.toml") as app:
        now, notifications = [0.0], Notifications()
        old = app.checking
        checking = Checking(
            app.database, app.catalog, app.scanner, tmp_path / "rules.toml", old._rules, notifications,
            clock=lambda: now[0],
        )  # fmt: skip
        app.checking = checking

        def snapshot(number: int, nulls: int) -> int:
            at = KEY | {"snapshot_id": number}
            put(app, [at | {"row_count": 100}], "stats.tables")
            put(app, [at | {"column_id": 1, "column_name": "id", "row_count": 100, "null_count": nulls}])
            checking.captured(app.catalog.get("lake.s.t"))
            assert checking.run() == 0  # not settled yet
            now[0] += SETTLE_SECONDS
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


def test_captured_only_skips_rules_on_statistics_not_yet_captured(tmp_path):
    at = KEY | {"snapshot_id": 1}
    rules = [parse(text) for text in ("row_count > 5", "age_seconds < 0", "null_fraction <= 0.1", "nosuch: ndv > 1")]
    with app_in(tmp_path) as app:

        def results(**more):
            found = check(LocalReader(app.scanner, ANONYMOUS), "lake.s.t", rules, **more)
            return {result.rule: (str(result.state), result.detail) for result in found}

        nothing = "nothing captured at the current snapshot"
        put(app, [at | {"row_count": 100, "captured_at": datetime(2026, 1, 1, tzinfo=UTC)}], "stats.tables")
        assert set(results(captured_only=True)) == {"row_count > 5", "age_seconds < 0"}
        assert results()["null_fraction <= 0.1"] == results()["nosuch: ndv > 1"] == ("FAILED", nothing)
        put(app, [at | {"column_id": 1, "column_name": "id", "row_count": 100, "null_count": 0}])
        found = results(captured_only=True)
        assert found["null_fraction <= 0.1"][0] == "PASSED" and found["nosuch: ndv > 1"] == ("FAILED", "no such column")


def test_comparing_rules_use_the_previous_snapshot_or_the_named_one(setup):
    app, path, _, snapshot = setup
    path.write_text('[[rule]]\nexpect = "schema_changes = 0"\n[[rule]]\nexpect = "schema_changes = 0"\nagainst = 1\n')
    snapshot(1, 0)
    assert [row[2] for row in rows(app)] == ["PASSED"]  # no previous snapshot, and snapshot 1 equals itself
    snapshot(2, 0)
    found = LocalReader(app.scanner, ANONYMOUS).read("sys.checks", where=[equal("snapshot_id", 2)]).to_pylist()
    assert {(row["rule"], row["state"]) for row in found} == {
        ("schema_changes = 0", "PASSED"), ("schema_changes = 0 against 1", "PASSED"),
    }  # fmt: skip


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
        App(Settings(db=tmp_path / "stats.duckdb", checks=tmp_path / "rules.toml"))
    assert not (tmp_path / "stats.duckdb").exists()
