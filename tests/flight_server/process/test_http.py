"""The HTTP listener: TLS, certificate renewal, a port in use, slow and many callers."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from flight_server.process import http
from flight_server.process.http import Http, Probes
from flight_server.process.metrics import Metrics
from store.model.errors import InvalidArgument
from tests.flight_server import certificates
from tests.flight_server.live_server import eventually


class Fixed:
    """Metrics of a server without a store."""

    def health(self) -> tuple[int, bytes]:
        return 200, b'{"status": "ok"}'

    exposition = Metrics.exposition


@contextlib.contextmanager
def listening(**options):
    port = Http(Probes(Fixed()), "127.0.0.1", options.pop("port", 0), "http-port", **options)
    try:
        yield port
    finally:
        port.close()


def address(port: Http) -> tuple[str, int]:
    where = urlsplit(port.uri)
    return str(where.hostname), int(where.port or 0)


def presented_name(port: Http) -> str:
    """Common name of the certificate that the server presents."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(address(port), timeout=10) as plain, context.wrap_socket(plain) as tls:
        return certificates.name_of(tls.getpeercert(binary_form=True))


def ask(port: Http, path: str = "health", **options) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(port.uri + path, **options), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


def is_cut(connection: socket.socket) -> bool:
    """Waits until the server ends the connection."""
    connection.settimeout(10)
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_server_certificate_is_presented_and_renewed(tmp_path):
    cert, key = certificates.make("first").write(tmp_path)
    with listening(tls=(cert, key)) as port:
        assert port.uri.startswith("https://") and presented_name(port) == "first"
        certificates.make("second").write(tmp_path)
        for path in (cert, key):
            os.utime(path, ns=(1, 1))
        port.renew()
        assert presented_name(port) == "second"
        cert.write_text("no certificate")
        port.renew()
        assert presented_name(port) == "second"


def test_port_in_use_is_an_invalid_argument():
    with (
        socket.create_server(("127.0.0.1", 0)) as in_use,
        pytest.raises(InvalidArgument, match="http-port"),
        listening(port=in_use.getsockname()[1]),
    ):
        pass


def test_health_and_metrics_accept_get_alone():
    with listening() as port:
        assert [ask(port), ask(port, method="HEAD"), ask(port, method="POST"), ask(port, "other")] == [
            200,
            200,
            405,
            404,
        ]


def test_connection_limit_is_half_of_the_open_file_limit(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert http._connections() == 512
    monkeypatch.setattr("resource.getrlimit", lambda _: (1_000_000, 1_000_000))
    assert http._connections() == http.CONNECTIONS


@pytest.mark.parametrize("limit", ["CONNECTIONS", "CONNECTIONS_OF_ADDRESS"])
def test_oldest_waiting_connection_gives_way_to_a_newer_one(monkeypatch, limit):
    monkeypatch.setattr(http, limit, 3)
    with listening() as port, contextlib.ExitStack() as open_sockets:
        halves = []
        for _ in range(5):
            halves.append(open_sockets.enter_context(socket.create_connection(address(port))))
            halves[-1].sendall(b"GET /health HTTP/1.1\r\n")
        assert all(is_cut(each) for each in halves[:2])
        assert ask(port) == 200
        assert is_cut(halves[2])
        halves[-1].sendall(b"Host: a\r\n\r\n")
        assert halves[-1].recv(12) == b"HTTP/1.1 200"


def test_address_with_most_connections_gives_way_to_another_one(monkeypatch):
    monkeypatch.setattr(http, "CONNECTIONS", 3)
    with listening() as port, contextlib.ExitStack() as open_sockets:

        def connected(source: str) -> socket.socket:
            return open_sockets.enter_context(socket.create_connection(address(port), 10, (source, 0)))

        quiet, first, *_ = connected("127.0.0.2"), connected("127.0.0.1"), connected("127.0.0.1")
        connected("127.0.0.3")
        assert is_cut(first)
        quiet.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert quiet.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\n",
        b"POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET",
    ],
    ids=["nothing", "half a head", "no body", "half a second head"],
)
def test_connection_whose_request_is_late_is_cut(monkeypatch, sent):
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.05)
    with listening() as port, socket.create_connection(address(port), timeout=10) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionError):
            while connection.recv(1000):
                pass


def test_tls_handshake_that_does_not_come_is_cut(monkeypatch, tmp_path):
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.05)
    with (
        listening(tls=certificates.make("a").write(tmp_path)) as port,
        socket.create_connection(address(port)) as connection,
    ):
        assert is_cut(connection)


def test_client_that_does_not_read_its_answers_is_cut(monkeypatch):
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(Fixed, "health", lambda _: (200, bytes(10_000_000)))
    with listening() as port, socket.create_connection(address(port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 9)
        eventually(lambda: not port._server.server_state.connections)
