"""The public address: its TLS files, and their renewal without a stream being cut.

pyarrow's Flight server takes its certificate once, when it starts. Neither gRPC's own reloading of certificates nor a
second server at the same port can be had through it (Arrow turns SO_REUSEPORT off). So a renewal is a succession: the
server before closes its port and lets the streams under way go on to their end, while a new one opens at the same port
with the new files, a millisecond or two later. Who connects just in between is refused with UNAVAILABLE, which is there
to be tried again; connections that are open move over by themselves.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from flight_server.config import Settings
from store.errors import InvalidArgument

log = logging.getLogger("statflight.server")

REOPEN_WITHIN: Final = 10.0  # seconds

Start = Callable[[str, Mapping[str, Any]], flight.FlightServerBase]


class Listener:
    """The server at the address that clients know, and those before it that still have streams to end."""

    def __init__(self, settings: Settings, start: Start):
        """Starts the first server; `start` makes one, given its location and options.

        Raises:
            InvalidArgument: The TLS files are not good, or the address is taken or none of this machine.
        """
        self._settings, self._start = settings, start
        self._seen = _stamps(settings)
        self._before: list[threading.Thread] = []
        options = tls_options(settings)
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

    def renew(self) -> bool:
        """Puts a server with the TLS files as they are now in the place of the one there is, if they have changed.

        Files that are not good change nothing: they may be half written, and the certificate in use may do for long.

        Raises:
            InvalidArgument: The port could not be opened again; nobody can connect any more.
        """
        stamps = _stamps(self._settings)
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            options = tls_options(self._settings)
        except InvalidArgument as error:
            log.warning("the TLS files have changed, and those before stay in use: %s", error)
            return False
        self._succeed(options)
        log.info("the TLS files have changed and are in use")
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
        """Refuses what is new and waits for the streams under way."""
        self.server.shutdown()
        for thread in self._before:
            thread.join()


def _stamps(settings: Settings) -> tuple[tuple[int, int] | None, ...]:
    """Stamps that change with the TLS files; links are followed, such as those that Kubernetes renews."""
    stamps: list[tuple[int, int] | None] = []
    for path in (settings.tls_cert, settings.tls_key, settings.tls_client_ca):
        try:
            stat = path.stat() if path is not None else None
        except OSError:
            stat = None
        stamps.append(stat and (stat.st_mtime_ns, stat.st_ino))
    return tuple(stamps)


def tls_options(settings: Settings) -> dict[str, Any]:
    """TLS options of a Flight server; empty without TLS.

    Raises:
        InvalidArgument: A file cannot be read, or they do not belong together.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return {}
    try:
        cert, key, client_ca = read = _read(settings)
        # what gRPC is given and cannot use it only tells at the first handshake
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
