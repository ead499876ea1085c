"""Rules checked after captures, and the webhook called when the state of a rule changes."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.flight_server.live_server import eventually, serving


@pytest.fixture
def receiver():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.received.append((self.headers["X-Statflight-Signature"], body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.received = []
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def test_webhook_receives_a_signed_change_when_a_rule_fails(tmp_path, receiver):
    lake = tmp_path / "lake" / "orders"
    write_deltalake(lake, pa.table({"id": list(range(100))}))
    (tmp_path / "rules.toml").write_text('[[rule]]\ntable = "lake.*"\nexpect = "null_fraction <= 0"\n')
    hook = f"http://127.0.0.1:{receiver.server_port}/"
    secret = {"STATFLIGHT_WEBHOOK_SECRET": "secret"}
    flags = ("--workers", "1", "--checks", tmp_path / "rules.toml", "--webhook", hook)
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
        assert not receiver.received
        write_deltalake(lake, pa.table({"id": pa.array([None, 5], pa.int64())}), mode="append")
        client.act("discover", {"catalog": "lake"})
        capture()
        assert eventually(lambda: [row for row in states() if row[0] == 1]) == [(1, "FAILED")]
        signature, body = eventually(lambda: receiver.received)[0]
        assert signature == "sha256=" + hmac.new(b"secret", body, hashlib.sha256).hexdigest()
        (change,) = json.loads(body)["changes"]
        assert (change["column"], change["before"], change["after"]) == ("id", "PASSED", "FAILED")
