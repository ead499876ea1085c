"""The server's process: start, upkeep, drain."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from flight_server.core import actions
from flight_server.core.app import App
from flight_server.core.auth.tokens import Guard
from flight_server.core.config import Settings
from flight_server.core.control.housekeeping import Housekeeping
from flight_server.core.log import configure
from flight_server.process.certificates import with_tls
from flight_server.process.intake import WAIT_SECONDS, Intake, PathLake
from flight_server.process.joining import joining
from flight_server.process.listener import Listener, tls_options
from flight_server.process.parts import parts
from flight_server.process.ports import Ports, check_ports
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
from store.model.errors import InvalidArgument

log = logging.getLogger("statflight.server")

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
    check_ports(settings)  # ports in use and bad files are reported before anything is created
    settings = _secured(settings)
    tls_options(settings)
    children = OwnWorkers(settings)
    app = App(settings, actions.functions, joining(settings), parts, children.is_alive)
    try:
        ports = Ports.of(settings, app, guard)
    except InvalidArgument:
        app.close()
        raise
    listener, queue = ports.listener, app.queue
    app.role.listening(listener.public_uri)
    freeze_garbage()
    signals = Signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    inner = WorkersEndpoint(ports.start, listener, settings.host)
    jobs = Jobs(queue.is_waiting, queue.died, queue.workers.have_served)
    children.open(inner.uri, internal, jobs, at_once=app.role.takes_writes)
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


class _Steps:
    """What the main thread does several times a second.

    Args:
        intake: Connects lakes, after which the server says that it listens; None for none.
    """

    def __init__(
        self, settings: Settings, app: App, guard: Guard, ports: Ports, children: OwnWorkers, intake: Intake | None
    ):
        self._app, self._guard, self._ports, self._intake = app, guard, ports, intake
        self._workers = Housekeeping({"starting workers": children.keep})
        self._upkeep = Housekeeping(
            {
                "taking back leases": app.queue.sweep,
                "taking over jobs": app.take_over_jobs,
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
