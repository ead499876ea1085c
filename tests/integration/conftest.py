"""Servers that the integration tests share, and how their JVMs compile."""

import os
from collections.abc import Iterator

import pytest

from tests.flight_server.live_server import Client, LiveServer, serving
from tests.integration.aws_server import aws, aws_port, nothing_secret_is_logged

__all__ = ["aws", "aws_port", "nothing_secret_is_logged"]

# Short sessions spend half of their processor time on the second compiler, which pays off in long ones, and a tenth of
# the rest on verifying the classes of Spark.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(variable, JAVA)


@pytest.fixture(scope="module")
def lakes_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with one worker for all tests of a module that have no other."""
    with serving(tmp_path_factory.mktemp("server"), "--workers", 1) as running:
        yield running


@pytest.fixture
def client(lakes_server: LiveServer) -> Iterator[Client]:
    """A client of `lakes_server`, which has no lakes and statistics: what the test connects is dropped after it."""
    with lakes_server.connect() as client:
        yield client
        for catalog in client.get({"table": "sys.connectors"})["catalog"].to_pylist():
            client.act("drop_connector", {"catalog": catalog})
        for flight in ("stats.tables", "stats.columns"):
            assert client.get({"table": flight}).num_rows == 0
