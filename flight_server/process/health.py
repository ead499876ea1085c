"""gRPC health checking (`grpc.health.v1.Health`) on its own port. Loaded only when that port is set.

pyarrow's Flight server accepts no service beside Flight, and no other dependency brings a gRPC server, so the extra
`health` does. The two messages are small enough to be encoded here; grpcio-health-checking, which has them, would tie
the version of protobuf to that of grpcio.

The port has the server's host, no TLS (Kubernetes probes cannot use it), and no authentication.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from threading import BoundedSemaphore
from typing import Any, Final

from store.model.errors import InvalidArgument

SERVICES: Final = ("", "arrow.flight.protocol.FlightService")
MAX_WATCHERS: Final = 32  # each holds a thread
CHECKERS: Final = 4
_LOOK_EVERY: Final = 0.2  # seconds
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"  # HealthCheckResponse{status}


def check_installed() -> None:
    """Refuses a health port without grpcio; finds the package without importing it, which is slow."""
    if find_spec("grpc") is None:
        raise InvalidArgument("health-port needs grpcio", hint="pip install 'statflight[health]'")


def _request(service: str) -> bytes:
    """HealthCheckRequest{service}; the names are shorter than 128 bytes."""
    return b"\x0a" + bytes([len(service)]) + service.encode()


_KNOWN: Final = frozenset({b"", *map(_request, SERVICES)})


class Health:
    """The health service of one server: SERVING while `is_serving()` is true."""

    def __init__(self, is_serving: Callable[[], bool]):
        self._is_serving = is_serving
        self._watchers = BoundedSemaphore(MAX_WATCHERS)
        self._server: Any = None

    def listen(self, host: str, port: int) -> int:
        """Starts serving in background threads; returns the port.

        Raises:
            InvalidArgument: The address is in use, or is not an address of this machine.
        """
        import grpc

        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_WATCHERS + CHECKERS, "health"),
            handlers=[grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)],
            options=[("grpc.so_reuseport", 0)],  # a port in use must be an error
        )
        try:
            bound = int(self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
        except RuntimeError:
            raise InvalidArgument(
                f"health checks cannot listen on {host}:{port}",
                code="ADDRESS",
                hint="--health-port 0 picks a free port",
            ) from None
        self._server.start()
        return bound

    def close(self) -> None:
        """Stops serving."""
        if self._server is not None:
            self._server.stop(None)

    def _status(self, request: bytes) -> bytes:
        if request not in _KNOWN:
            return _SERVICE_UNKNOWN
        return _SERVING if self._is_serving() else _NOT_SERVING

    def _check(self, request: bytes, context: Any) -> bytes:
        import grpc

        status = self._status(request)
        if status == _SERVICE_UNKNOWN:
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return status

    def _watch(self, request: bytes, context: Any) -> Iterator[bytes]:
        """Streams the status, then each change of it until the caller leaves."""
        import grpc

        if not self._watchers.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} callers watch already")
        try:
            sent = b""
            while context.is_active():
                if (status := self._status(request)) != sent:
                    yield status
                    sent = status
                time.sleep(_LOOK_EVERY)
        finally:
            self._watchers.release()
