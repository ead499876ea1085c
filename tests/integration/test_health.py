"""gRPC health checks, called with the client of grpcio-health-checking."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading

import grpc
import pyarrow.flight as flight
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from flight_server.process import health
from tests.flight_server.live_server import LiveServer, file_columns, serving

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


def address(server: LiveServer) -> str:
    found = re.search(r"health on (127\.0\.0\.1:\d+)", server.log.read_text())
    assert found
    return found[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("health"), "--health-port", 0) as server:
        yield server


@pytest.fixture
def stub(server):
    with grpc.insecure_channel(address(server)) as channel:
        yield HealthStub(channel)


def check(stub, service: str = "") -> int:
    return stub.Check(HealthCheckRequest(service=service), timeout=10).status


def test_every_service_is_serving(stub):
    for service in health.SERVICES:
        assert check(stub, service) == SERVING


def test_unknown_service_is_not_found_by_check_and_unknown_to_watch(stub):
    for service in ("nothing", "x" * 1000, "é"):
        with pytest.raises(grpc.RpcError) as refusal:
            check(stub, service)
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        first = next(iter(stub.Watch(HealthCheckRequest(service=service), timeout=10)))
        assert first.status == HealthCheckResponse.SERVICE_UNKNOWN


def test_watchers_above_the_limit_are_rejected_and_checks_still_work():
    service = health.Health(lambda: True)
    port = service.listen("127.0.0.1", 0)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = HealthStub(channel)
        watching = [stub.Watch(HealthCheckRequest(), timeout=30) for _ in range(health.MAX_WATCHERS)]
        assert {next(iter(watch)).status for watch in watching} == {SERVING}
        assert check(stub) == SERVING
        with pytest.raises(grpc.RpcError) as refusal:
            next(iter(stub.Watch(HealthCheckRequest(), timeout=10)))
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    service.close()


def test_draining_server_is_not_serving(tmp_path):
    with serving(tmp_path, "--health-port", 0, env={"STATFLIGHT_CACHE_BYTES": "0"}) as server:
        with server.connect() as client:
            client.put("stats.file_columns", file_columns(60_000))
        # an unfinished stream keeps the server draining
        slow = flight.connect(server.uri, generic_options=[("grpc.http2.bdp_probe", 0)])
        reader = slow.do_get(flight.Ticket(b'{"table": "stats.file_columns"}'))
        reader.read_chunk()
        with grpc.insecure_channel(address(server)) as channel:
            stub = HealthStub(channel)
            updates = iter(stub.Watch(HealthCheckRequest(), timeout=30))
            assert next(updates).status == SERVING
            threading.Timer(0.1, server.process.send_signal, [signal.SIGTERM]).start()
            assert next(updates).status == NOT_SERVING
            assert check(stub) == NOT_SERVING
        assert reader.read_all().num_rows > 0
        slow.close()


def test_error_without_grpcio_names_the_extra():
    # a Python without grpcio, as without the extra
    code = (
        "import sys; sys.modules['grpc'] = None; sys.argv = ['statflight', 'serve', '--health-port', '0'];"
        "from flight_server.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "statflight[health]" in done.stderr and "Traceback" not in done.stderr


def test_importing_the_server_does_not_import_grpc():
    code = "import sys, flight_server.process.serve; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.lower()) is False
