"""Listener of the pages: TLS, certificate renewal, and a port in use."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from flight_server.auth.tokens import Guard
from flight_server.process.metrics import Metrics
from flight_server.web import listener
from flight_server.web.listener import Pages
from store.errors import InvalidArgument
from tests.flight_server import certificates
from tests.flight_server.serving import app_in


def open_pages(app, **settings) -> Pages:
    guard = Guard(None, "internal secret")
    page_settings = replace(app.settings, **({"http_port": 0} | settings))
    return Pages(page_settings, app, guard, Metrics(app, "0", guard.authenticate))


def presented_name(uri: str) -> str:
    """Common name of the certificate that the server presents."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    where = urlsplit(uri)
    with socket.create_connection((where.hostname, where.port), timeout=10) as plain, context.wrap_socket(plain) as tls:
        return certificates.name_of(tls.getpeercert(binary_form=True))


def test_pages_present_the_server_certificate_and_renew_it(tmp_path):
    cert, key = certificates.make("first").write(tmp_path)
    with app_in(tmp_path) as app:
        pages = open_pages(app, tls_cert=cert, tls_key=key)
        try:
            assert pages.uri.startswith("https://") and presented_name(pages.uri) == "first"
            certificates.make("second").write(tmp_path)
            for path in (cert, key):
                os.utime(path, ns=(1, 1))
            pages.renew()
            assert presented_name(pages.uri) == "second"
            cert.write_text("no certificate")
            pages.renew()
            assert presented_name(pages.uri) == "second"
        finally:
            pages.close()


def test_http_port_in_use_is_an_invalid_argument(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as in_use,
        app_in(tmp_path) as app,
        pytest.raises(InvalidArgument, match="http-port"),
    ):
        open_pages(app, http_port=in_use.getsockname()[1])


def test_connection_limit_is_half_of_the_open_file_limit(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    assert listener._connections() == 512
    monkeypatch.setattr("resource.getrlimit", lambda _: (1_000_000, 1_000_000))
    assert listener._connections() == listener.CONNECTIONS
