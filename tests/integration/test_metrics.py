"""Metrics, health over HTTP and audit lines of real servers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pyarrow as pa
import pytest

from flight_server.core import audit_log
from flight_server.core.auth.principal import ANONYMOUS
from flight_server.process.parts import parts
from store.catalog.discovery import Discovery
from store.model.targets import Target
from tests.flight_server.live_server import serving

ROW = {"table_catalog": "c", "table_schema": "s", "table_name": "t", "snapshot_id": 1, "row_count": 5}


def fetch(url: str, accept: str = "", token: str = "") -> tuple[int, str, str]:
    headers = {"Accept": accept, "Authorization": f"Bearer {token}"}
    used = {name: value for name, value in headers.items() if value.removeprefix("Bearer ")}
    request = urllib.request.Request(url, headers=used)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.headers["Content-Type"], refusal.read().decode()


def samples(base: str) -> dict[str, float]:
    """Metric with its labels → value."""
    _, _, text = fetch(f"{base}/metrics")
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("metrics"), "--metrics-port", 0, "--log-format", "json") as server:
        yield server


@pytest.fixture(scope="module")
def base(server):
    found = re.search(r"metrics on (http://127\.0\.0\.1:\d+)/metrics", server.log.read_text())
    assert found
    return found[1]


@pytest.fixture
def client(server):
    with server.connect() as client:
        yield client


def audited(server) -> list[dict]:
    events = [json.loads(line) for line in server.log.read_text().splitlines()]  # every line is JSON
    return [event for event in events if event["logger"] == "statflight.audit"]


def test_requests_are_counted_by_outcome(client, base):
    before = samples(base)
    client.read({"table": "sys.flights"})
    with pytest.raises(pa.ArrowKeyError):
        client.info({"table": "sys.nothing"})
    for name in ("no_such_action", "no_other_either"):
        with pytest.raises(pa.ArrowNotImplementedError):
            client.act(name)
    client.act("health")
    after = samples(base)

    def increase(method: str, action: str, code: str) -> float:
        name = f'statflight_requests_total{{action="{action}",code="{code}",method="{method}"}}'
        return after.get(name, 0) - before.get(name, 0)

    assert increase("GetFlightInfo", "", "OK") == increase("DoGet", "", "OK") == 1
    assert increase("GetFlightInfo", "", "UNKNOWN_FLIGHT") == 1
    assert increase("DoAction", "unknown", "UNIMPLEMENTED") == 2
    assert increase("DoAction", "health", "OK") == 1
    assert after['statflight_request_seconds_count{action="health",method="DoAction"}'] >= 1
    assert not any("no_such_action" in name for name in after)
    read = 'statflight_rows_read_total{flight="sys.flights"}'
    assert after[read] - before.get(read, 0) == client.read({"table": "sys.flights"}).num_rows


def test_put_rows_are_counted_by_result(client, base):
    assert samples(base)["statflight_tables"] == 0
    for _ in range(2):
        client.put("stats.tables", pa.Table.from_pylist([ROW]))
    found = samples(base)
    assert found['statflight_rows_put_total{flight="stats.tables",result="created"}'] == 1
    assert found['statflight_rows_put_total{flight="stats.tables",result="unchanged"}'] == 1


def test_table_ages_are_exposed_for_a_bounded_number_of_tables(tmp_path):
    from flight_server.core.app import App
    from flight_server.core.config import Settings
    from flight_server.process.metrics import MAX_TABLES, Metrics
    from store.history import validation
    from store.model.schemas import FLIGHTS
    from store.stats_store import Put

    app = App(Settings(db=tmp_path / "stats.duckdb"), parts=parts)
    try:
        flight = FLIGHTS["stats.tables"]
        rows = [ROW | {"table_name": f"t.{n}", "snapshot_id": s} for n in range(MAX_TABLES + 20) for s in (1, 2)]
        app.store.put([Put(flight.name, validation.prepare(flight, pa.Table.from_pylist(rows)))])
        registry = Metrics(app, "1", lambda _: ANONYMOUS).registry
        found = {s.name + str(s.labels or ""): s.value for m in registry.collect() for s in m.samples}
        ages = [value for name, value in found.items() if name.startswith("statflight_table_age_seconds")]
        assert found["statflight_tables"] == MAX_TABLES + 20
        assert len(ages) == MAX_TABLES
        assert all(0 <= age < 60 for age in ages)
        assert sum(name.startswith("statflight_table_age_seconds{'table': 'c.s.\"t.") for name in found) == len(ages)
    finally:
        app.close()
    assert registry.get_sample_value("statflight_tables") is None  # a scrape of a closed server does not fail


def test_jobs_leases_and_capture_outcomes_are_counted(tmp_path):
    import time

    import pyarrow.parquet as pq

    (tmp_path / "lake" / "t").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "lake" / "t" / "a.parquet")
    flags = ("--metrics-port", 0)
    with serving(tmp_path, *flags, env={"STATFLIGHT_LEASE_SECONDS": "1"}) as server, server.connect() as client:
        base = server.log.read_text().partition("metrics on ")[2].partition("/metrics")[0]
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(tmp_path / "lake")})
        client.act("discover", {"catalog": "lake"})
        request = {"table": "lake.default.t", "mode": "ASYNC"}
        client.act("capture", {"requests": [request]})
        assert samples(base)['statflight_jobs{state="QUEUED"}'] == 1
        client.act("lease_job", {"worker_id": "w", "kinds": ["job"], "wait_seconds": 5})
        found = samples(base)
        assert found['statflight_jobs{state="RUNNING"}'] == found["statflight_leases"] == 1
        until = time.monotonic() + 20
        while not samples(base)["statflight_lease_expiries_total"] and time.monotonic() < until:
            time.sleep(0.1)
        assert samples(base)["statflight_lease_expiries_total"] == 1
        (lease,) = client.act("lease_job", {"worker_id": "w", "kinds": ["job"], "wait_seconds": 5})
        snapshot_id = lease["payload"]["requests"][0]["snapshot_id"]
        outcome = {
            "outcome": "UNCAPTURABLE",
            "engine_id": "e",
            "detail": "",
            "attributes": {},
            "snapshot_id": snapshot_id,
            "storage_id": "table",
        }
        key = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]}
        outcome["attributes"] = {"rows_read": 7, "bytes_read": "many"}
        client.act("finish_job", key | {"outcomes": [outcome]})
        found = samples(base)
        assert found['statflight_capture_read_rows_total{engine="e"}'] == 7
        assert not any(name.startswith("statflight_capture_read_bytes_total") for name in found)
        assert found['statflight_capture_seconds_count{kind="job"}'] == 1
        assert found['statflight_capture_outcomes_total{engine="e",outcome="UNCAPTURABLE"}'] == 1
        assert found['statflight_jobs{state="FAILED"}'] == 1
        assert found["statflight_leases"] == 0


def test_rows_read_and_published_by_captures_are_counted(tmp_path):
    import pyarrow.parquet as pq

    for name in ("a", "b"):
        (tmp_path / "lake" / name).mkdir(parents=True)
        pq.write_table(pa.table({"id": range(30)}), tmp_path / "lake" / name / "f.parquet")
    flags = ("--workers", 1, "--metrics-port", 0)
    with serving(tmp_path, *flags) as server, server.connect() as client:
        base = server.log.read_text().partition("metrics on ")[2].partition("/metrics")[0]
        client.act("register_connector", {"catalog": "lake", "format": "parquet", "uri": str(tmp_path / "lake")})
        client.act("discover", {"catalog": "lake"})
        requests = [{"table": "lake.default.a"}, {"table": "lake.default.a", "target": Target.column(1).to_json()}]
        assert [o["outcome"] for o in client.act("capture", {"requests": requests})] == ["CAPTURED"] * 2
        answers = client.act("resolve", {"requests": [*requests, {"table": "lake.default.b", "mode": "ASYNC"}]})
        assert [a["outcome"] for a in answers] == ["HIT", "HIT", "SKIPPED"]
        found = samples(base)
        assert found['statflight_capture_read_rows_total{engine="local"}'] == 30
        assert found['statflight_capture_read_bytes_total{engine="local"}'] > 0
        assert found['statflight_capture_published_rows_total{flight="stats.tables"}'] == 1
        assert found['statflight_capture_published_bytes_total{flight="stats.tables"}'] > 0
        assert found['statflight_capture_seconds_count{kind="sync"}'] == 1
        assert found['statflight_capture_seconds_sum{kind="sync"}'] > 0
        assert found['statflight_resolve_outcomes_total{outcome="HIT"}'] == 2
        assert found['statflight_resolve_outcomes_total{outcome="SKIPPED"}'] == 1


def test_stale_tables_are_counted_with_their_age(tmp_path):
    from datetime import UTC, datetime, timedelta

    from flight_server.process.metrics import Metrics
    from tests.flight_server.serving import app_in, put

    def discover(app, name: str, age: timedelta | None) -> None:
        at = None if age is None else (datetime.now(UTC) - age).isoformat()
        found = {
            "schema": "s",
            "name": name,
            "table_id": name,
            "location": "x",
            "schema_hash": "h",
            "schemas": {"h": [["a", "INT", True, None]]},
            "current_snapshot_id": 1,
            "live_snapshot_ids": [1],
            "snapshots": [
                {
                    "snapshot_id": 1,
                    "ordinal": 1,
                    "schema_hash": "h",
                    "parent_snapshot_id": None,
                    "sequence_number": None,
                    "committed_at": at,
                    "operation": None,
                }
            ],
        }
        app.database.write(lambda c: Discovery(app.catalog).store(c, "lake", "delta", [found]))

    with app_in(tmp_path) as app:
        discover(app, "captured", timedelta(days=9))
        discover(app, "stale", timedelta(hours=1))
        discover(app, "undated", None)
        key = {"table_catalog": "lake", "table_schema": "s", "snapshot_id": 1, "row_count": 1}
        put(app, [key | {"table_name": "captured"}, key | {"table_name": "external"}], "stats.tables")
        registry = Metrics(app, "1", lambda _: ANONYMOUS).registry
        assert registry.get_sample_value("statflight_stale_tables") == 2
        ages = {
            s.labels["table"]: s.value
            for m in registry.collect()
            for s in m.samples
            if s.name == "statflight_table_stale_seconds"
        }
        assert ages.keys() == {"lake.s.stale"} and 3600 <= ages["lake.s.stale"] < 3700


def test_metrics_require_a_token_if_the_server_does(tmp_path):
    import hashlib

    def entry(name: str, *lines: str) -> str:
        return "\n".join(
            ["[[token]]", f'name = "{name}"', f'sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"', *lines]
        )

    tokens = [
        entry("scraper", 'scopes = ["stats.read"]'),
        entry("writer", 'scopes = ["stats.write"]'),
        entry("some", 'scopes = ["stats.read"]', 'tables = ["lake.sales.*"]'),
    ]
    (tmp_path / "tokens.toml").write_text("\n".join(tokens))
    with serving(tmp_path, "--metrics-port", 0, "--auth", tmp_path / "tokens.toml") as server:
        base = server.log.read_text().partition("metrics on ")[2].partition("/metrics")[0]
        for token, status in (("", 401), ("wrong", 401), ("writer", 403), ("some", 403), ("scraper", 200)):
            actual, _, text = fetch(f"{base}/metrics", token=token)
            assert (actual, "statflight_" in text) == (status, status == 200), token
        assert fetch(f"{base}/health")[0] == 200


def test_endpoints_serve_metrics_and_health(base):
    status, kind, text = fetch(f"{base}/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert 'statflight_build_info{version="' in text
    if sys.platform == "linux":
        assert "process_resident_memory_bytes" in text
    _, kind, text = fetch(f"{base}/metrics", "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text") and text.endswith("# EOF\n")
    status, _, text = fetch(f"{base}/health")
    assert (status, json.loads(text)) == (200, {"status": "ok"})
    assert fetch(f"{base}/other")[0] == 404


def test_importing_the_server_does_not_import_prometheus():
    code = "import sys, flight_server.process.serve; assert 'prometheus_client' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Audit lines.


def test_writes_and_errors_are_audited_and_reads_are_not(server, client):
    before = len(audited(server))
    client.read({"table": "stats.columns"}, x_correlation_id="a-read")
    client.put({"table": "stats.tables", "mode": "upsert"}, pa.Table.from_pylist([ROW]), x_correlation_id="a-put")
    client.act("delete_stats", {"table": "c.s.t", "snapshot": 1}, x_correlation_id="a-delete")
    with pytest.raises(pa.ArrowKeyError):
        client.act("get_job", {"job_id": "none\nsuch"}, x_correlation_id="a-refusal")
    lines = audited(server)[before:]
    put, delete, refusal = lines
    assert (put["event"], put["method"], put["flight"], put["mode"]) == ("write", "DoPut", "stats.tables", "upsert")
    assert (put["correlation_id"], put["caller"], put["received"]) == ("a-put", "anonymous", 1)
    assert (delete["method"], delete["table"], delete["correlation_id"]) == (
        "DoAction/delete_stats",
        "c.s.t",
        "a-delete",
    )
    assert (refusal["event"], refusal["code"], refusal["correlation_id"]) == ("refusal", "UNKNOWN_JOB", "a-refusal")
    assert refusal["peer"]


def test_audited_body_has_no_secrets():
    body = {"catalog": "c", "uri": "s3://u:p@h/x", "options": {"token": "hunter2"}, "requests": [1, 2], "table": ["x"]}
    assert audit_log.of_body(json.dumps(body).encode()) == {"catalog": "c", "requests": 2}
    assert audit_log.of_body(b"") == audit_log.of_body(b"[1]") == audit_log.of_body(b"{") == {}
