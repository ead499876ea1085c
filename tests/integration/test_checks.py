"""Rules checked after captures, and the webhook called when the state of a rule changes."""

from __future__ import annotations

import hashlib
import hmac
import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.flight_server.live_server import eventually, serving
from tests.http_receiver import receiving


@pytest.fixture
def receiver():
    with receiving() as server:
        yield server


def test_webhook_receives_a_signed_change_when_a_rule_fails(tmp_path, receiver):
    lake = tmp_path / "lake" / "orders"
    write_deltalake(lake, pa.table({"id": list(range(100))}))
    (tmp_path / "rules.toml").write_text('[[rule]]\ntable = "lake.*"\nexpect = "null_fraction <= 0"\n')
    secret = {"STATFLIGHT_WEBHOOK_SECRET": "secret"}
    flags = ("--workers", "1", "--checks", tmp_path / "rules.toml", "--webhook", receiver.url)
    with serving(tmp_path, *flags, env=secret) as server, server.connect() as client:
        client.timeout = 120.0
        connector = {"catalog": "lake", "format": "delta", "uri": str(tmp_path / "lake"), "options": {}}
        client.act("register_connector", connector)
        client.act("discover", {"catalog": "lake"})

        def capture() -> None:
            target = {"target": {"kind": "COLUMN", "column_id": 1}, "mode": "SYNC", "snapshot": "current"}
            (outcome,) = client.act("capture", {"requests": [{"table": "lake.default.orders", **target}]})
            assert outcome["outcome"] == "CAPTURED"

        def states() -> list[tuple[int, str]]:
            rows = client.read({"table": "sys.checks"}).to_pylist()
            return [(row["snapshot_id"], row["state"]) for row in rows]

        capture()
        assert eventually(states) == [(0, "PASSED")]
        assert not receiver.requests
        write_deltalake(lake, pa.table({"id": pa.array([None, 5], pa.int64())}), mode="append")
        client.act("discover", {"catalog": "lake"})
        capture()
        assert eventually(lambda: [row for row in states() if row[0] == 1]) == [(1, "FAILED")]
        *_, headers, body = eventually(lambda: receiver.requests)[0]
        assert headers["X-Statflight-Signature"] == "sha256=" + hmac.new(b"secret", body, hashlib.sha256).hexdigest()
        (change,) = json.loads(body)["changes"]
        assert (change["column"], change["before"], change["after"]) == ("id", "PASSED", "FAILED")
