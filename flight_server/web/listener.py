"""The pages' HTTP server: uvicorn in threads of the server's process."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from typing import TYPE_CHECKING

from store.errors import InvalidArgument

if TYPE_CHECKING:
    from flight_server.app import App
    from flight_server.auth.tokens import Guard
    from flight_server.config import Settings
    from flight_server.process.metrics import Metrics

log = logging.getLogger("statflight.server")

STOPPED_WITHIN = 5.0  # seconds for running answers to finish
CONNECTIONS = 2_000  # beyond these, callers get 503; fewer if the limit of open files is low
IDLE_SECONDS = 15  # until an idle connection is closed


class Pages:
    """The running HTTP server of the pages."""

    def __init__(self, settings: Settings, app: App, guard: Guard, metrics: Metrics):
        try:
            import uvicorn

            from flight_server.web.site import Site
        except ImportError as missing:
            raise InvalidArgument(
                f"--http-port needs {missing.name or missing}", hint="pip install 'statflight[web]'"
            ) from None
        secure = settings.tls_cert is not None
        site = Site(app, guard, metrics, secure, _names(settings))
        config = uvicorn.Config(
            site.asgi, log_config=None, access_log=False, lifespan="off",
            server_header=False, proxy_headers=False, ws="none", http="h11", loop="asyncio",
            limit_concurrency=_connections(), timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=int(STOPPED_WITHIN), ssl_certfile=settings.tls_cert, ssl_keyfile=settings.tls_key,
        )  # fmt: skip
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            config.load()
            self._socket = socket.create_server((settings.host.strip("[]"), settings.http_port or 0), family=family)
        except (OSError, ssl.SSLError) as error:
            raise InvalidArgument(
                f"pages cannot be served on {settings.host}:{settings.http_port}: {error.strerror or error}",
                code="ADDRESS", hint="--http-port 0 picks a free port",
            ) from None  # fmt: skip
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.uri = f"http{'s' if secure else ''}://{host}:{self._socket.getsockname()[1]}/"
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # no messages about its start or refused callers
        self._tls, self._files = config.ssl, (settings.tls_cert, settings.tls_key)
        self._seen = self._stamp()
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="pages", daemon=True
        )
        self._thread.start()

    def renew(self) -> None:
        """Loads changed TLS files, for new connections; invalid files change nothing."""
        cert, key = self._files
        if self._tls is None or cert is None or (stamp := self._stamp()) == self._seen:
            return
        self._seen = stamp
        try:
            self._tls.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            log.warning("the pages keep the certificate they have: %s", error)

    def _stamp(self) -> tuple[int, ...]:
        try:
            return tuple(path.stat().st_mtime_ns for path in self._files if path is not None)
        except OSError:  # the files are being replaced
            return ()

    def close(self) -> None:
        """Lets running answers finish, then stops."""
        self._server.should_exit = True
        self._thread.join(STOPPED_WITHIN + 1)
        self._socket.close()


def _names(settings: Settings) -> frozenset[str]:
    """The host names of an open server on the loopback; none if it needs tokens or listens on a network."""
    if settings.auth is not None or not settings.is_loopback:
        return frozenset()
    host = settings.host.strip("[]").lower()
    return frozenset({"localhost", "127.0.0.1", "[::1]", f"[{host}]" if ":" in host else host})


def _connections() -> int:
    """The maximum number of connections: half of the files that the process may open; the other half is for Flight."""
    try:
        import resource
    except ImportError:  # not on this system
        return CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else min(CONNECTIONS, files // 2)


def start(settings: Settings, app: App, guard: Guard, metrics: Metrics | None) -> Pages | None:
    """Starts the pages if their port is set, and logs the address.

    Raises:
        InvalidArgument: The port is in use, or the extra `web` is not installed.
    """
    if settings.http_port is None or metrics is None:
        return None
    pages = Pages(settings, app, guard, metrics)
    log.info("pages on %s", pages.uri)
    return pages
