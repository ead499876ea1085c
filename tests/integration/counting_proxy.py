"""A TCP proxy on the loopback that counts the bytes of each direction."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class CountingProxy:
    """Relays connections to a server; `received` and `sent` are bytes as its clients see them."""

    def __init__(self, host: str, port: int):
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.received = self.sent = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._open += [client, server]
                threading.Thread(target=self._relay, args=(client, server, "sent"), daemon=True).start()
                threading.Thread(target=self._relay, args=(server, client, "received"), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, counter: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, counter, getattr(self, counter) + len(data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@contextmanager
def counting_proxy(uri: str) -> Iterator[CountingProxy]:
    """A proxy to the server at `grpc://host:port`."""
    host, _, port = uri.removeprefix("grpc://").rpartition(":")
    proxy = CountingProxy(host, int(port))
    try:
        yield proxy
    finally:
        proxy.close()
