"""The server's process: start, upkeep, drain."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flight_server.core import actions
from flight_server.core.app import App, alone
from flight_server.core.auth.tokens import Guard
from flight_server.core.config import Settings
from flight_server.core.control.housekeeping import Housekeeping
from flight_server.core.flight_service import StatflightServer
from flight_server.core.log import configure
from flight_server.core.part import HttpContext
from flight_server.process.certificates import with_tls
from flight_server.process.intake import WAIT_SECONDS, Intake, PathLake
from flight_server.process.listener import Listener, tls_options
from flight_server.process.parts import parts
from flight_server.process.runtime import (
    SERVER_MEMORY,
    FreeMemory,
    allow_open_files,
    freeze_garbage,
    hush_tracebacks,
    keep_files_private,
    realign_buffers,
    reuse_memory,
)
from flight_server.process.signals import Signals
from flight_server.process.workers import Jobs, OwnWorkers, WorkersEndpoint
from store.duckdb.database import Database
from store.model.errors import InvalidArgument
from store.role import Role

if TYPE_CHECKING:
    from flight_server.process.health import Health
    from flight_server.process.http import Http
    from flight_server.process.metrics import Metrics

log = logging.getLogger("statflight.server")

_PACKAGE: Final = __name__.removesuffix("process.serve")
DRAIN_SECONDS: Final = 25.0
RENEWED_WITHIN: Final = 2.0  # seconds until changed TLS files and tokens take effect


def serve(settings: Settings, lakes: Sequence[PathLake] = ()) -> int:
    """Serves until SIGTERM or SIGINT, then drains and ends the process with status 0. Raises errors of the start.

    Args:
        lakes: Lakes to connect; their tables are known when the server says that it listens.
    """
    configure(settings.log_level, settings.log_format)
    keep_files_private()
    hush_tracebacks()
    realign_buffers()
    reuse_memory(SERVER_MEMORY)
    allow_open_files()
    internal = secrets.token_urlsafe(32)
    guard = Guard(settings.auth, internal)
    _check_ports(settings)  # ports in use and bad files are reported before anything is created
    settings = _secured(settings)
    tls_options(settings)
    app = App(settings, actions.functions, _joining(settings), parts)
    try:
        ports = _Ports.of(settings, app, guard)
    except InvalidArgument:
        app.close()
        raise
    listener, queue = ports.listener, app.queue
    app.role.listening(listener.public_uri)
    freeze_garbage()
    signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    inner = WorkersEndpoint(ports.start, listener, settings.host)
    jobs = Jobs(queue.is_waiting, queue.died, queue.workers.have_served)
    children = OwnWorkers(settings, inner.uri, internal, jobs, at_once=app.role.takes_writes)
    queue.workers.has_own = children.is_alive
    if app.role.takes_writes:
        app.start()
    steps = _Steps(settings, app, guard, ports, children, Intake(app, lakes) if lakes else None)
    status = 0
    while (came := signals.next(0.25)) in (None, signal.SIGHUP):
        if reason := steps.run(renews=came == signal.SIGHUP):
            log.error("%s", reason)
            status = 1
            break
    _drain(listener, inner, app, children)
    ports.close()
    sys.stderr.flush()
    # at a normal exit DuckDB's bindings would print objects they take for leaked
    os._exit(status)


@dataclass
class _Ports:
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
    def of(cls, settings: Settings, app: App, guard: Guard) -> _Ports:
        """Opens the ports that are set; none stays open if one cannot be.

        Raises:
            InvalidArgument: A port is in use, a file is bad, or a library is not installed.
        """
        metrics = None
        if settings.metrics_port is not None or settings.http_port is not None:
            from flight_server.process.metrics import Metrics

            metrics = Metrics(app, actions.release(), guard.authenticate)

        def start(location: str, options: Mapping[str, Any]) -> StatflightServer:
            server = StatflightServer(app, guard, location, **options)
            server.metrics = metrics
            return server

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


class _Steps:
    """What the main thread does several times a second.

    Args:
        intake: Connects lakes, after which the server says that it listens; None for none.
    """

    def __init__(
        self, settings: Settings, app: App, guard: Guard, ports: _Ports, children: OwnWorkers, intake: Intake | None
    ):
        self._app, self._guard, self._ports, self._intake = app, guard, ports, intake
        self._workers = Housekeeping({"starting workers": children.keep})
        self._upkeep = Housekeeping(
            {
                "taking back leases": app.queue.sweep,
                "counting reads": app.usage.flush,
                "auto-analyze": app.auto.look_later,
                "freeing memory": FreeMemory(),
            }
        )
        self._takeover = Housekeeping({"taking over": lambda: app.take_over(ports.listener.public_uri)})
        self._upkeep_seconds = min(1.0, settings.lease_seconds / 4)
        self._started = self._kept_up = self._renewed = time.monotonic()
        self._waits = intake is not None
        if intake is None:
            _announce(ports.listener)
        else:
            intake.start()

    def run(self, *, renews: bool) -> str:
        """Does what is due.

        Args:
            renews: Takes changed files and tokens at once.

        Returns:
            The reason why the process must exit, so that a supervisor restarts it; empty to go on.
        """
        if reason := self._renew(at_once=renews) or self._announce_in_time() or self._over():
            return reason
        self._takeover.run()
        if self._app.role.takes_writes:
            self._workers.run()
            if time.monotonic() - self._kept_up > self._upkeep_seconds:
                self._kept_up = time.monotonic()
                self._upkeep.run()
        return ""

    def _renew(self, *, at_once: bool) -> str:
        if not at_once and time.monotonic() - self._renewed <= RENEWED_WITHIN:
            return ""
        self._renewed = time.monotonic()
        self._guard.renew()
        try:
            self._ports.renew()
        except InvalidArgument as error:  # no client can connect
            return str(error)
        return ""

    def _announce_in_time(self) -> str:
        """Says that the server listens once its lakes are connected, or they take too long."""
        if self._intake is None:
            return ""
        if self._waits and (self._intake.is_over or time.monotonic() - self._started > WAIT_SECONDS):
            self._waits = False
            if not self._intake.error:
                _announce(self._ports.listener)
        return self._intake.error

    def _over(self) -> str:
        """The reason why the database can be used no longer; empty while it can."""
        app = self._app
        if app.database.is_invalidated:  # it can neither be read nor written
            return app.database.trouble()
        return app.role.over or (app.role.successor or app.role).over


def _announce(listener: Listener) -> None:
    """Tells the address on standard output, once clients may call."""
    sys.stdout.write(f"listening on {listener.uri}\n")
    sys.stdout.flush()


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


def _joining(settings: Settings) -> Callable[[Path], tuple[Database, Role]]:
    """The function that opens the database: alone, or with a role in `store.replication`."""
    if settings.replicate_to is None and settings.follow is None:
        return alone
    from store.replication.join import Plan, join

    plan = Plan(
        settings.replicate_to or settings.follow or "",
        settings.replicate_seconds,
        settings.durability == "replicated",
        settings.writer_lease_seconds,
        settings.replica_keep,
    )
    return lambda path: join(plan, path, follow=settings.follow is not None, standby=settings.standby)


def _drain(listener: Listener, inner: WorkersEndpoint, app: App, children: OwnWorkers) -> None:
    """Refuses new calls and lets streams finish, until the deadline at the latest."""
    children.stop()  # first, because their refused polls would fill the log
    app.queue.close()
    late = threading.Timer(DRAIN_SECONDS, lambda: os._exit(0))
    late.daemon = True
    late.start()
    inner.close()
    listener.close()
    app.close()
    late.cancel()


def _secured(settings: Settings) -> Settings:
    """Adds TLS to the settings of a networked server unless `insecure` is set."""
    secured = with_tls(settings)
    if secured is not settings:
        log.warning("TLS by a certificate of the server's own; clients need --tls-roots %s", secured.tls_cert)
    elif settings.insecure and not settings.is_loopback:
        log.warning("insecure: anyone on the network can read what is sent, tokens included")
    return secured


def _check_ports(settings: Settings) -> None:
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
