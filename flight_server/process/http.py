"""The HTTP listener: uvicorn in a thread of the server's process. Loaded only when one of its ports is set.

`--metrics-port` serves `/metrics` and `/health`, without TLS; `--http-port` serves the pages as well, with the server's
TLS. Anyone may connect, so that a connection has limits of its own: seconds for each request, seconds for its answer,
and a place that it loses to a newer one while the server waits for its client. Whoever sends a whole request is
answered, however many half-sent ones there are.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from flight_server.core.auth.challenge import challenge
from flight_server.core.reloading import Reloaded
from store.model.errors import InvalidArgument

if TYPE_CHECKING:
    from flight_server.process.metrics import Metrics

log = logging.getLogger("statflight.server")

STOPPED_WITHIN: Final = 5.0  # seconds for running answers to finish
REQUEST_SECONDS: Final = 15  # from the connection, or the last answer, to the end of a request; of a TLS handshake
ANSWER_SECONDS: Final = 120  # from the end of a request until its answer is sent
CONNECTIONS: Final = 2_000  # of a port; fewer if the limit of open files is low
CONNECTIONS_OF_ADDRESS: Final = 512  # of one caller, or of the proxy before all of them


class Probes:
    """`/metrics` and `/health` as an ASGI application."""

    def __init__(self, metrics: Metrics):
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(2, "metrics")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        asked = ""
        status, kind, body = 404, "text/plain; charset=utf-8", b"/metrics or /health\n"
        if scope["path"] in ("/metrics", "/health") and scope["method"] not in ("GET", "HEAD"):
            status, body = 405, b"GET or HEAD\n"
        elif scope["path"] == "/health":  # in the event loop, so that nothing can delay it
            (status, body), kind = self._metrics.health(), "application/json"
        elif scope["path"] == "/metrics":
            sent = {name: value.decode("latin-1") for name, value in scope["headers"]}
            asked = challenge(sent.get(b"authorization"))
            status, kind, body = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._metrics.exposition, sent.get(b"authorization"), sent.get(b"accept", "")
            )
        headers = {"WWW-Authenticate": asked} if status == 401 else {}
        await Response(body, status, headers, kind)(scope, receive, send)


class Http:
    """One listening port.

    Args:
        port: Port; 0 picks a free one.
        tls: PEM files of the certificate and its key; None for plain HTTP.

    Raises:
        InvalidArgument: The port is in use, the host is not an address of this machine, or a PEM file is invalid.
    """

    def __init__(
        self, asgi: Any, host: str, port: int, flag: str, tls: tuple[Path | None, Path | None] = (None, None)
    ) -> None:
        cert, key = tls
        config = uvicorn.Config(
            asgi,
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=REQUEST_SECONDS,
            timeout_graceful_shutdown=int(STOPPED_WITHIN),
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
        bare = host.strip("[]")
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        try:
            config.load()
            self._socket = socket.create_server((bare, port), family=family)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(
                f"--{flag} cannot listen on {host}:{port}: {error.strerror or error}",
                code="ADDRESS",
                hint=f"--{flag} 0 picks a free port",
            ) from None
        named = f"[{bare}]" if ":" in bare else bare
        self.uri = f"http{'s' if cert else ''}://{named}:{self._socket.getsockname()[1]}/"
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # no messages about its start or refused callers
        self._files = Reloaded("certificates of the pages", tls, lambda: _load(config.ssl, cert, key))
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name=flag, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(self._server.serve([self._socket]))

    def renew(self) -> None:
        """Loads changed TLS files, for new connections."""
        self._files.renew()

    def close(self) -> None:
        """Lets running answers finish, then stops."""
        self._server.should_exit = True
        self._thread.join(STOPPED_WITHIN + 1)
        self._socket.close()


def _load(context: ssl.SSLContext | None, cert: Path | None, key: Path | None) -> None:
    if context is not None and cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(str(error)) from None


class _Connection(H11Protocol):
    """A connection that is cut when its client is slow, or when a newer one needs its place."""

    _timer: asyncio.TimerHandle | None = None
    _address = ""
    _since = 0.0  # when the server began to wait for the client, in seconds of the loop's clock

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._watch(REQUEST_SECONDS)
        others: Any = self.connections
        counts = Counter(other._address for other in others)
        is_full = len(others) > _connections()
        if is_full or counts[self._address] > CONNECTIONS_OF_ADDRESS:
            waiting = [each for each in others if each._waits and (is_full or each._address == self._address)]
            # the oldest of whoever has most; among them is this one, the newest
            min(waiting, key=lambda each: (-counts[each._address], each._since))._cut()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        waited = self._waits
        super().handle_events()
        if waited and not self._waits:
            self._watch(ANSWER_SECONDS)

    def on_response_complete(self) -> None:
        self._watch(REQUEST_SECONDS)
        super().on_response_complete()

    @property
    def _waits(self) -> bool:
        """True while the client has to send, or to take, more."""
        return self.flow.write_paused or self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _watch(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self._cut)

    def _cut(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


class _Loop(asyncio.SelectorEventLoop):
    """Limits the time of TLS handshakes, which connections have behind them when `_Connection` sees them."""

    async def create_server(self, *args: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = REQUEST_SECONDS
        return await super().create_server(*args, **options)


def _connections() -> int:
    """The maximum number of connections: half of the files that the process may open; the other half is for Flight."""
    try:
        import resource
    except ImportError:  # not on this system
        return CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else min(CONNECTIONS, files // 2)
