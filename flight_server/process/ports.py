"""The ports of a server: Flight, health, metrics, pages."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from flight_server.core import actions
from flight_server.core.app import App
from flight_server.core.auth.tokens import Guard
from flight_server.core.config import Settings
from flight_server.core.flight_service import StatflightServer
from flight_server.core.part import HttpContext
from flight_server.process.listener import Listener
from store.model.errors import InvalidArgument

if TYPE_CHECKING:
    from flight_server.process.health import Health
    from flight_server.process.http import Http
    from flight_server.process.metrics import Metrics

log = logging.getLogger("statflight.server")

_PACKAGE: Final = __name__.removesuffix("process.ports")


@dataclass
class Ports:
    """What a server listens on.

    Attributes:
        start: Starts a Flight server at a location.
        http: Pages and metrics.
    """

    start: Callable[[str, Mapping[str, Any]], StatflightServer]
    listener: Listener
    health: Health | None = None
    http: list[Http] = field(default_factory=list)

    @classmethod
    def of(cls, settings: Settings, app: App, guard: Guard) -> Ports:
        """Opens the ports that are set; none stays open if one cannot be.

        Raises:
            InvalidArgument: A port is in use, a file is bad, or a library is not installed.
        """
        metrics = None
        if settings.metrics_port is not None or settings.http_port is not None:
            from flight_server.process.metrics import Metrics

            metrics = Metrics(app, actions.release(), guard.authenticate)

        def start(location: str, options: Mapping[str, Any]) -> StatflightServer:
            return StatflightServer(app, guard, location, metrics=metrics, **options)

        ports = cls(start, Listener(settings, start))
        try:
            ports._open_health(settings, app)
            if metrics is not None:
                _serve_http(settings, app, guard, metrics, ports.http)
        except InvalidArgument:
            ports.listener.close()
            raise
        return ports

    def _open_health(self, settings: Settings, app: App) -> None:
        if settings.health_port is None:
            return
        from flight_server.process.health import Health

        self.health = Health(lambda: not app.queue.closing)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        log.info("health on %s:%s", host, self.health.listen(settings.host, settings.health_port))

    def renew(self) -> None:
        """Takes changed TLS files; raises `InvalidArgument` if no client could connect with them."""
        self.listener.renew()
        for port in self.http:
            port.renew()

    def close(self) -> None:
        """Closes all but the listener, which drains before."""
        for port in self.http:
            port.close()
        if self.health is not None:
            self.health.close()


def _serve_http(settings: Settings, app: App, guard: Guard, metrics: Metrics, ports: list[Http]) -> None:
    """Starts the ports of HTTP that are set, and logs their addresses.

    Raises:
        InvalidArgument: A port is in use, or a library is not installed.
    """
    from flight_server.process.http import Http, Probes

    probes = Probes(metrics)
    if settings.metrics_port is not None:
        ports.append(Http(probes, settings.host, settings.metrics_port, "metrics-port"))
        log.info("metrics on %smetrics", ports[-1].uri)
    if settings.http_port is not None:
        mounts: dict[str, Any] = {}
        for part in app.parts.values():
            try:
                mounts |= part.http(mounts, HttpContext(guard, probes))
            except ImportError as missing:
                if str(missing.name).startswith(_PACKAGE):
                    raise InvalidArgument(f"--http-port: {missing.name} is not part of this build") from None
                raise InvalidArgument(
                    f"--http-port needs {missing.name or missing}", hint="pip install 'statflight[server]'"
                ) from None
        if "" not in mounts:
            raise InvalidArgument("--http-port: the pages are not part of this build")
        tls = (settings.tls_cert, settings.tls_key)
        ports.append(Http(mounts[""], settings.host, settings.http_port, "http-port", tls))
        log.info("pages on %s", ports[-1].uri)


def check_ports(settings: Settings) -> None:
    """Raises InvalidArgument if a port is in use, or the host is not of this machine, before anything is created."""
    ports = {
        "port": settings.port,
        "metrics-port": settings.metrics_port,
        "health-port": settings.health_port,
        "http-port": settings.http_port,
    }
    for flag, port in ports.items():
        if port is None:
            continue
        try:
            ((family, kind, protocol, _, address), *_) = socket.getaddrinfo(
                settings.host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: a port in TIME_WAIT is free
                probe.bind(address)
        except OSError as error:
            raise InvalidArgument(
                f"cannot listen on {settings.host}:{port}: {(error.strerror or str(error)).lower()}",
                code="ADDRESS",
                hint=f"--{flag} 0 picks a free port",
            ) from None
