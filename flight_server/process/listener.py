"""The public address: its TLS files, and their renewal without breaking a stream.

pyarrow's Flight server reads its certificate once, at the start. It exposes neither gRPC's reloading of certificates
nor a second server at the same port (Arrow turns SO_REUSEPORT off). So a renewal replaces the server: the old one
closes its port and finishes its streams, while a new one opens the same port with the new files a millisecond or two
later. A client that connects in between gets UNAVAILABLE, which may be retried; open connections reconnect by
themselves.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from flight_server.core.config import Settings
from flight_server.core.reloading import Reloaded
from store.model.errors import InvalidArgument

log = logging.getLogger("statflight.server")

REOPEN_WITHIN: Final = 10.0  # seconds

Start = Callable[[str, Mapping[str, Any]], flight.FlightServerBase]


class Listener:
    """The server at the public address, and its predecessors that still finish streams."""

    def __init__(self, settings: Settings, start: Start):
        """Starts the first server; `start` makes a server from a location and options.

        Raises:
            InvalidArgument: The TLS files are invalid, or the address is in use or not of this machine.
        """
        self._settings, self._start = settings, start
        self._before: list[threading.Thread] = []
        paths = settings.tls_cert, settings.tls_key, settings.tls_client_ca
        self._files = Reloaded("TLS files", paths, lambda: tls_options(settings))
        options = self._files.value
        self._scheme = "grpc+tls" if options else "grpc"
        try:
            self.server = start(self._at(settings.port), options)
        except (pa.ArrowException, OSError):
            raise InvalidArgument(
                f"cannot listen on {settings.host}:{settings.port}", code="ADDRESS", hint="--port 0 picks a free port"
            ) from None
        self.uri = self._at(self.server.port)

    def _at(self, port: int) -> str:
        host = self._settings.host
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def public_uri(self) -> str:
        """The address that other machines know: with the name of this one if it listens on all addresses."""
        if self._settings.host not in ("0.0.0.0", "::"):  # noqa: S104
            return self.uri
        return f"{self._scheme}://{socket.getfqdn()}:{self.server.port}"

    def renew(self) -> bool:
        """Replaces the server if the TLS files have changed.

        Raises:
            InvalidArgument: The port cannot be opened again, so that no client can connect.
        """
        if not self._files.renew():
            return False
        self._succeed(self._files.value)
        return True

    def _succeed(self, options: Mapping[str, Any]) -> None:
        old, location = self.server, self.uri
        ending = threading.Thread(target=old.shutdown, name="ending", daemon=True)
        ending.start()  # closes the port at once, then waits for the streams
        self._before = [thread for thread in self._before if thread.is_alive()] + [ending]
        until = time.monotonic() + REOPEN_WITHIN
        while True:
            try:
                self.server = self._start(location, options)
                return
            except (pa.ArrowException, OSError):
                if time.monotonic() > until:
                    raise InvalidArgument("the port could not be opened again", code="ADDRESS") from None
                time.sleep(0.001)

    def close(self) -> None:
        """Refuses new calls and waits for the running streams."""
        self.server.shutdown()
        for thread in self._before:
            thread.join()


def tls_options(settings: Settings) -> dict[str, Any]:
    """TLS options of a Flight server; empty without TLS.

    Raises:
        InvalidArgument: A file cannot be read, or certificate and key do not match.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return {}
    try:
        cert, key, client_ca = read = _read(settings)
        # gRPC reports unusable files only at the first handshake
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
        if settings.tls_client_ca is not None:
            context.load_verify_locations(settings.tls_client_ca)
        if _read(settings) != read:
            raise InvalidArgument("the TLS files are being written")
    except ssl.SSLError as error:
        reason = (error.reason or "no PEM").replace("_", " ").lower()
        raise InvalidArgument(
            f"the TLS files are not good: {reason}", hint="a PEM certificate, and its key without a password"
        ) from None
    except OSError as error:
        raise InvalidArgument(f"the TLS files cannot be read: {error.strerror}") from None
    options: dict[str, Any] = {"tls_certificates": [flight.CertKeyPair(cert, key)]}
    if client_ca is not None:
        options |= {"verify_client": True, "root_certificates": client_ca}
    return options


def _read(settings: Settings) -> list[bytes | None]:
    paths = (settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return [None if path is None else path.read_bytes() for path in paths]
