"""An HTTP proxy on loopback that counts reads of an object store, and answers some itself with an error.

Pages of listings of S3 have a tenth of their 1,000 keys, so that few keys are more than a page.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.managers import BaseManager, NamespaceProxy
from urllib.parse import urlsplit

_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}


@dataclass
class FaultProxy:
    """What was asked, and what is answered.

    Attributes:
        url: Address of the proxy.
        requests: Method and path of each request.
        error: Status and body of errors; None while there are none.
        once: Only the first request of each method and path is answered by the error.
        delay: Seconds for which each request is held before it is passed on.
        is_mute: Requests are passed on, and their answers lost.
    """

    url: str
    requests: list[str] = field(default_factory=list)
    error: tuple[int, bytes] | None = None
    once: bool = False
    delay: float = 0.0
    is_mute: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, request: str) -> tuple[int, bytes] | None:
        """Records a request; returns the error that answers it."""
        with self.lock:
            seen = request in self.requests
            self.requests.append(request)
            return None if self.once and seen else self.error


class _Proxies(BaseManager):
    """A process with proxies."""


@contextmanager
def fault_proxy_process(target: str) -> Iterator[FaultProxy]:
    """The same in a process of its own, for clients that hold Python's lock until they are answered.

    Attributes are read and set as a whole: what is read is a copy.
    """
    with _Proxies(ctx=get_context("spawn")) as proxies:
        yield proxies.started(target)  # type: ignore[attr-defined]


@contextmanager
def fault_proxy(target: str) -> Iterator[FaultProxy]:
    """A proxy to the server at an http URL."""
    proxy, server, thread = _started(target)
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _started(target: str) -> tuple[FaultProxy, ThreadingHTTPServer, threading.Thread]:
    address = urlsplit(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else None
            if (error := proxy.fault(f"{self.command} {self.path}")) is not None:
                self.reply(error[0], [("Content-Type", "application/xml")], error[1])
                return
            time.sleep(proxy.delay)
            store = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
            try:
                path = self.path.replace("max-keys=1000", "max-keys=100")
                store.request(self.command, path, body, dict(self.headers))
                answer = store.getresponse()
                sent = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
                size = answer.getheader("Content-Length") if self.command == "HEAD" else None
                content = answer.read()
                if proxy.is_mute:
                    self.close_connection = True
                    return
                self.reply(answer.status, sent, content, size)
            finally:
                store.close()

        def reply(self, status: int, headers: list[tuple[str, str]], body: bytes, size: str | None = None) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", size or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that was killed, or a store that has ended."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = FaultProxy(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    return proxy, server, thread


def _proxy(target: str) -> FaultProxy:
    return _started(target)[0]


_Proxies.register("started", callable=_proxy, proxytype=NamespaceProxy)
