"""What a client says when it does not reach a server, with servers and certificates that are really there."""

from __future__ import annotations

import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_server.client import StatsClient
from flight_server.client.unreachable import NO_PROXY, address_of, explained, proxy_of, without_proxy_on_loopback
from tests.flight_server import certificates

OWN, STRANGER = certificates.make("own"), certificates.make("stranger")
PROXIED = {"http_proxy": "http://user:secret@proxy:3128"}


class _Server(flight.FlightServerBase):
    def do_action(self, context, action):
        return [b"{}"]


@pytest.fixture(scope="module")
def addresses():
    """A server without TLS, one with, one that asks for client certificates, one of HTTP, and one that is none."""
    pairs = [(OWN.cert, OWN.key)]
    plain = _Server("grpc://127.0.0.1:0")
    secured = _Server("grpc+tls://127.0.0.1:0", tls_certificates=pairs)
    mutual = _Server(
        "grpc+tls://127.0.0.1:0", tls_certificates=pairs, verify_client=True, root_certificates=STRANGER.cert
    )
    pages = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
    yield {
        "plain": f"grpc://127.0.0.1:{plain.port}",
        "plain by TLS": f"grpc+tls://127.0.0.1:{plain.port}",
        "secured": f"grpc+tls://127.0.0.1:{secured.port}",
        "secured by nothing": f"grpc://127.0.0.1:{secured.port}",
        "mutual": f"grpc+tls://127.0.0.1:{mutual.port}",
        "pages": f"grpc://127.0.0.1:{pages.server_port}",
        "nobody": f"grpc://127.0.0.1:{nobody}",
    }
    pages.shutdown()
    pages.server_close()
    for server in (plain, secured, mutual):
        server.shutdown()


REFUSED = {
    "untrusted": ("secured", {}, "TLS: the server's certificate is not trusted"),
    "not its authority": ("secured", {"tls_roots": STRANGER.cert}, "TLS: the server's certificate is not trusted"),
    "no PEM": ("secured", {"tls_roots": b"nonsense"}, "TLS: the certificates or the key that the client was given"),
    "no TLS there": ("plain by TLS", {"tls_roots": OWN.cert}, "TLS: the server speaks none"),
    "TLS there": ("secured by nothing", {}, "the server closed the connection; if it requires TLS"),
    "no client certificate": ("mutual", {"tls_roots": OWN.cert}, "TLS: .*requires client certificates"),
    "another protocol": ("pages", {}, "something else than a Flight server"),
}


@pytest.mark.parametrize(("at", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_in_the_way_is_said(addresses, at, options, said):
    with (
        StatsClient(addresses[at], **options) as client,
        pytest.raises(
            flight.FlightUnavailableError, match=rf"^cannot connect to {re.escape(addresses[at])}: {said}"
        ) as raised,
    ):
        client.actions.health()
    assert "\n" not in str(raised.value)


def test_where_nobody_listens_nothing_is_made_up(addresses):
    with StatsClient(addresses["nobody"]) as client, pytest.raises(flight.FlightUnavailableError) as raised:
        client.actions.health()
    assert "cannot connect" not in str(raised.value)


def test_no_proxy_is_used_on_loopback(addresses, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, addresses["nobody"].replace("grpc", "http"))
    monkeypatch.setenv("no_proxy", "")
    with StatsClient(addresses["plain"]) as client:
        assert client.actions.health() == {}


def test_a_choice_of_the_caller_stays():
    chosen = {"generic_options": [("grpc.enable_http_proxy", 1)]}
    assert without_proxy_on_loopback("grpc://127.0.0.1:1", chosen) == chosen
    assert without_proxy_on_loopback("grpc://there:1", {}) == {}
    other = ("grpc.http2.bdp_probe", 0)
    assert without_proxy_on_loopback("grpc://[::1]:1", {"generic_options": [other], "cert_chain": "x"}) == {
        "generic_options": [other, NO_PROXY],
        "cert_chain": "x",
    }


@pytest.mark.parametrize(
    ("address", "environ", "expected"),
    [
        ("grpc://stats:8815", PROXIED, ("http_proxy", "http://proxy:3128")),
        ("grpc+tls://stats:8815", {"https_proxy": "http://p", "http_proxy": "http://q"}, ("https_proxy", "http://p")),
        ("grpc://stats:8815", {}, None),
        ("grpc://127.0.0.1:8815", PROXIED, None),
        ("grpc+unix:///tmp/x", PROXIED, None),
        ("grpc://stats.lan:8815", PROXIED | {"no_proxy": "other, .lan"}, None),
        (
            "grpc://stats.lan:8815",
            PROXIED | {"no_grpc_proxy": "x", "no_proxy": ".lan"},
            ("http_proxy", "http://proxy:3128"),
        ),
    ],
)
def test_the_proxy_of_an_address(address, environ, expected):
    assert proxy_of(address, environ) == expected


def test_a_proxy_is_named_with_how_to_avoid_it():
    said = explained("grpc://stats:8815", "failed to connect: Connection refused\nmore", PROXIED)
    assert said == (
        "cannot connect to grpc://stats:8815: the variable http_proxy sends the connection through the proxy"
        " http://proxy:3128; no_proxy=stats avoids it (failed to connect: Connection refused)"
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("stats:8815", "grpc://stats:8815"),
        (" [::1]:8815 ", "grpc://[::1]:8815"),
        ("grpc+tls://stats:8815", "grpc+tls://stats:8815"),
        ("grpc+unix:///run/stats", "grpc+unix:///run/stats"),
    ],
)
def test_an_address_without_a_scheme_is_a_servers(text, address):
    assert address_of(text) == address


def test_an_address_of_another_kind_is_refused_with_the_right_form():
    with pytest.raises(pa.ArrowInvalid, match=r"is an address of pages.*grpc://host:port"):
        address_of("http://stats:8816")
    with pytest.raises(pa.ArrowInvalid, match=r"unknown scheme tcp.*grpc://host:port"):
        address_of("tcp://stats:8815")
