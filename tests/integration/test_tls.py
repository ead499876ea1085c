"""TLS: certificates of the server and of clients, and files of certificates and tokens renewed while it runs."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq
import pytest

from flight_server.client import StatsClient
from flight_server.core.config import Settings
from flight_server.process.listener import tls_options
from store.model.errors import InvalidArgument
from tests.flight_server import certificates
from tests.flight_server.live_server import STATFLIGHT, LiveServer, eventually, file_columns, serving

FIRST, SECOND, CLIENT, STRANGER = (certificates.make(name) for name in ("first", "second", "client", "stranger"))
ROOTS = FIRST.cert + SECOND.cert
WITHIN = 20.0  # seconds


def flags_of(directory: Path, pair: certificates.Pair) -> list[object]:
    cert, key = pair.write(directory)
    return ["--tls-cert", cert, "--tls-key", key]


def certificate_name(server: LiveServer) -> str:
    """The name in the server's certificate, as a new connection receives it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    where = urlsplit(server.uri)
    with socket.create_connection((where.hostname, where.port), 10) as plain, context.wrap_socket(plain) as secured:
        return certificates.name_of(secured.getpeercert(True) or b"")


def until(holds: Callable[[], Any]) -> None:
    # A handshake during the change may be cut off (OSError); clients retry, and so does this.
    eventually(holds, WITHIN, (OSError, pa.ArrowException))


def test_certificate_renewal_keeps_open_streams(tmp_path):
    count = 60_000
    flags = flags_of(tmp_path, FIRST)
    with serving(tmp_path, *flags, env={"STATFLIGHT_CACHE_BYTES": "0"}) as server:
        with StatsClient(server.uri, tls_roots=ROOTS) as client:
            client.put("stats.file_columns", file_columns(count))
            slow = flight.connect(server.uri, tls_root_certs=ROOTS, generic_options=[("grpc.http2.bdp_probe", 0)])
            reader = slow.do_get(flight.Ticket(b'{"table": "stats.file_columns"}'))
            read = reader.read_chunk().data.num_rows
            assert certificate_name(server) == "first"
            SECOND.write(tmp_path)
            until(lambda: certificate_name(server) == "second")
            until(lambda: client.actions.health()["status"] == "ok")  # a connection opened before
            with StatsClient(server.uri, tls_roots=SECOND.cert) as fresh:
                assert fresh.read("stats.file_columns", ["column_id"]).num_rows == count
            # the stream began with the previous certificate, and most of it was not sent yet
            assert read < count / 2
            assert read + reader.read_all().num_rows == count
            slow.close()
        assert "are in use" in server.log.read_text()


def test_mismatched_tls_files_leave_the_previous_ones_in_use(tmp_path):
    with serving(tmp_path, *flags_of(tmp_path, FIRST)) as server:
        (tmp_path / "server.pem").write_bytes(SECOND.cert)  # the key is still the first one's
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "stay in use" in server.log.read_text())
        assert certificate_name(server) == "first"
        (tmp_path / "server.key").write_bytes(SECOND.key)
        until(lambda: certificate_name(server) == "second")


@pytest.mark.parametrize("spoil", ["cert", "key", "ca", "pair", "missing"])
def test_invalid_tls_files_are_rejected_without_naming_their_path(tmp_path, spoil):
    cert, key = FIRST.write(tmp_path)
    authority = tmp_path / "ca.pem"
    authority.write_bytes(CLIENT.cert)
    settings = Settings(tls_cert=cert, tls_key=key, tls_client_ca=authority)
    assert tls_options(settings)["verify_client"]
    match spoil:
        case "pair":
            key.write_bytes(SECOND.key)
        case "missing":
            key.unlink()
        case _:
            {"cert": cert, "key": key, "ca": authority}[spoil].write_bytes(b"-----BEGIN NOTHING-----")
    with pytest.raises(InvalidArgument, match="TLS files") as refusal:
        tls_options(settings)
    assert str(tmp_path) not in str(refusal.value)


def test_client_certificate_is_required_except_of_own_workers(tmp_path):
    (tmp_path / "lake" / "t").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "lake" / "t" / "a.parquet")
    (tmp_path / "ca.pem").write_bytes(CLIENT.cert)
    flags = [*flags_of(tmp_path, FIRST), "--tls-client-ca", tmp_path / "ca.pem"]
    with serving(tmp_path, *flags) as server:
        with StatsClient(server.uri, tls_roots=ROOTS, tls_cert=CLIENT.cert, tls_key=CLIENT.key, timeout=30) as client:
            lake = {"catalog": "lake", "format": "parquet", "uri": str(tmp_path / "lake"), "options": {}}
            client.actions.call("register_connector", lake)
            (found,) = client.actions.call("discover", {"catalog": "lake"})
            assert found["table"] == "lake.default.t"
        cert, key = CLIENT.write(tmp_path, "client")
        (tmp_path / "roots.pem").write_bytes(ROOTS)
        variables = {"STATFLIGHT_TLS_CLIENT_CERT": str(cert), "STATFLIGHT_TLS_CLIENT_KEY": str(key)}
        command = [STATFLIGHT, "query", "sys.flights", "--server", server.uri, "--tls-roots", tmp_path / "roots.pem"]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "stats.columns" in done.stdout, done.stderr
        del variables["STATFLIGHT_TLS_CLIENT_KEY"]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "go together" in done.stderr
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "requires client certificates" in done.stderr
        for certificate in ({}, {"tls_cert": STRANGER.cert, "tls_key": STRANGER.key}):
            with (
                StatsClient(server.uri, tls_roots=ROOTS, timeout=5, **certificate) as stranger,
                pytest.raises((flight.FlightUnavailableError, flight.FlightTimedOutError)),
            ):
                stranger.actions.health()
        with pytest.raises(flight.FlightUnavailableError):
            flight.connect(server.uri.replace("+tls", "")).do_get(flight.Ticket(b"{}")).read_all()


def token_file(path: Path, token: str) -> None:
    digest = hashlib.sha256(token.encode()).hexdigest()
    fresh = path.with_suffix(".new")
    fresh.write_text(f'[[token]]\nname = "{token}"\nsha256 = "{digest}"\nscopes = ["stats.read"]\n')
    fresh.replace(path)


def test_sighup_reloads_tokens_unless_the_file_is_invalid(tmp_path):
    tokens = tmp_path / "tokens.toml"
    token_file(tokens, "old")
    with serving(tmp_path, "--auth", tokens) as server:

        def accepts(token: str) -> bool:
            with StatsClient(server.uri, token) as client:
                try:
                    return client.read("sys.flights").num_rows > 0
                except flight.FlightUnauthenticatedError:
                    return False

        assert accepts("old") and not accepts("new")
        tokens.write_text("[[token")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "stay in use" in server.log.read_text())
        assert accepts("old")
        token_file(tokens, "new")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: accepts("new"))
        assert not accepts("old")
