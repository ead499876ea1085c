"""An HTTP server over loopback that keeps the requests that it gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    headers: Message
    body: bytes


class Receiver(ThreadingHTTPServer):
    """The requests so far, and the status and content that the next one is answered with."""

    def __init__(self, answer: Callable[[Request], tuple[int, bytes]]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.requests: list[Request] = []
        self.received = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, self.headers, body)
        self.server.requests.append(request)
        status, content = self.server.answer(request)
        self.send_response(status)
        self.send_header("Location", "/elsewhere")  # of statuses that redirect
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.server.received.set()

    do_GET = do_POST = do_PUT = _serve

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def receiving(answer: Callable[[Request], tuple[int, bytes]] = lambda _: (200, b"")) -> Iterator[Receiver]:
    """A server for the length of a block.

    Args:
        answer: Returns the status and the content for a request; called on the server's threads.
    """
    with Receiver(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
