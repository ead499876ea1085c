"""The systemd unit, the image and the examples of settings; the drill of a restore."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import flight_server
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.core.config import PREFIX, Settings, load
from flight_server.process import metrics
from flight_server.process.metrics import Metrics
from store.duckdb.commit import Commit
from store.duckdb.database import Database
from store.replication.join import Plan, start_writer
from tests.flight_server.live_server import STATFLIGHT
from tests.flight_server.serving import app_in

DEPLOY = Path(flight_server.__file__).parent / "deploy"
OF_DATA = {"statflight_check_failing", "statflight_table_stale_seconds"}  # there where a table or rule is


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_exposure_level_of_the_systemd_unit_is_low():
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", DEPLOY / "statflight.service"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    found = re.search(r"exposure level for statflight.service: ([\d.]+)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd-analyze has no --offline: {done.stderr[-200:]}")
    assert float(found[1]) <= 3


def test_dashboard_and_alert_rules_are_of_metrics_that_the_server_has(tmp_path):
    yaml = pytest.importorskip("yaml")
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    used = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = [
        rule for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    used += [rule["expr"] for rule in rules]
    with app_in(tmp_path) as app:
        text = Metrics(app, "0", lambda _: ANONYMOUS).exposition(None, "")[2].decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    known = set(types) | {f"{name}_{end}" for name, kind in types.items() for end in ("sum", "count", "total")}
    names = {name for expr in used for name in re.findall(r"\b(?:statflight|process)_\w+", expr)}
    assert names and names <= known | OF_DATA, names - known
    documented = Path(metrics.__file__).read_text()
    assert all(name in documented for name in OF_DATA)
    assert all(
        rule["labels"]["severity"] in ("critical", "warning") and rule["annotations"]["summary"] for rule in rules
    )


def promtool(*arguments: object, text: str | None = None) -> str:
    """Runs the tool of Prometheus, which must succeed, and returns what it prints."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool; the package prometheus has it")
    done = subprocess.run(
        [program, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_prometheus_takes_the_alert_rules_and_the_metrics(tmp_path):
    assert "rules found" in promtool("check", "rules", DEPLOY / "alerts.yaml")
    with app_in(tmp_path) as app:
        text = Metrics(app, "0", lambda _: ANONYMOUS).exposition(None, "")[2].decode()
    assert promtool("check", "metrics", text=text) == ""


STEADY = {"statflight_build_info{version='1'}": "1+0x600"}  # a server is there for ten hours
ALERTS = {
    "StatflightDown": ({}, {"severity": "critical"}),
    "StatflightReadOnly": ({"statflight_store_writable": "0+0x600"}, {"severity": "critical"}),
    "StatflightDiskFillsUp": ({"statflight_store_free_bytes": "1000000-1000x600"}, {"severity": "warning"}),
    "StatflightCheckFails": (
        {
            "statflight_check_failing{table='l.s.t',column='id',rule='unique',level='fail'}": "1+0x600",
            "statflight_check_failing{table='l.s.t',column='',rule='row_count > 5',level='warn'}": "1+0x600",
        },
        {"severity": "warning", "table": "l.s.t", "column": "id", "rule": "unique", "level": "fail"},
    ),
    "StatflightTableStale": (
        {"statflight_table_stale_seconds{table='l.s.t'}": "90000+60x600"},
        {"severity": "warning", "table": "l.s.t"},
    ),
    "StatflightWorkersLost": ({"statflight_lease_expiries_total": "0+1x600"}, {"severity": "warning"}),
    "StatflightJobsWait": (
        {"statflight_jobs{state='QUEUED'}": "3+0x600", "statflight_leases": "0+0x600"},
        {"severity": "warning", "state": "QUEUED"},
    ),
}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_fires_when_it_should_and_alone(tmp_path, name):
    """By Prometheus' own evaluation; the labels are those of the metrics."""
    series, labels = ALERTS[name]
    yaml = pytest.importorskip("yaml")
    (rules,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    summaries = {rule["alert"]: rule["annotations"]["summary"] for rule in rules["rules"]}
    shown = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], summaries[name])
    given = series if name == "StatflightDown" else STEADY | series
    expected = [{"alertname": other, "eval_time": "8h", "exp_alerts": []} for other in summaries if other != name] + [
        {
            "alertname": name,
            "eval_time": "8h",
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": {"summary": shown}}],
        }
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": at, "values": values} for at, values in given.items()],
        "alert_rule_test": expected,
    }
    assert set(ALERTS) == set(summaries)
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(DEPLOY / "alerts.yaml")], "tests": [test]}))
    promtool("test", "rules", file)


def test_image_has_its_own_user_a_health_check_and_known_settings():
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^USER statflight$", text, re.MULTILINE) and "HEALTHCHECK" in text and "/health" in text
    variables = re.findall(rf"{PREFIX}(\w+)=", text)
    assert variables and all(hasattr(Settings(), name.lower()) for name in variables)


@pytest.mark.parametrize("role", ["writer", "standby", "follower"])
def test_settings_of_each_role_are_valid(role):
    settings = load(DEPLOY / f"{role}.toml", {}, {})
    assert (settings.follow is not None, settings.standby) == (role == "follower", role == "standby")
    assert (settings.replicate_to or settings.follow) == "s3://bucket/stats"


def test_compose_file_has_a_server_of_each_role():
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for role, service in services.items():
        names = {name.removeprefix(PREFIX).lower(): value for name, value in service["environment"].items()}
        assert all(hasattr(Settings(), name) for name in names), role
        assert ("follow" in names, "standby" in names) == (role == "follower", role == "standby")
    assert set(services) == {"writer", "standby", "follower"}


def drill(place: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(STATFLIGHT).parent}:{os.environ['PATH']}"
    return subprocess.run(
        [DEPLOY / "restore_drill.sh", place, directory],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PATH": path},
    )


def test_drill_restores_and_checks_and_leaves_nothing(tmp_path):
    place, directory = tmp_path / "replica", tmp_path / "drills"
    directory.mkdir()
    database = Database(tmp_path / "a.duckdb")
    writer = start_writer(Plan(str(place), durable=True), database)
    database.phases = Commit(guard=writer, ship=writer)
    try:
        done = drill(place, directory)
        assert (done.returncode, list(directory.iterdir())) == (0, []), done.stderr
        assert "restored and checked" in done.stdout
        database.write(lambda c: c.execute("INSERT INTO jobs (job_id, state) VALUES ('j', 'LOST')"))
        done = drill(place, directory)
        assert (done.returncode, list(directory.iterdir())) == (1, []), done.stderr
        assert "jobs: unknown state" in done.stdout
    finally:
        writer.close()
        database.close()
