"""The connection to a server: its options, and a client for the length of a block."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from flight_server.faces.commands.output import CommandError, misuse, note
from flight_server.faces.commands.parameters import option

if TYPE_CHECKING:
    from flight_server.client import StatsClient

DEFAULT_URI: Final = "grpc://127.0.0.1:8815"


class ConnectionOptions(NamedTuple):
    """The options of the connection to a server."""

    server: Annotated[str, option("--server", envvar="STATFLIGHT_SERVER", metavar="URI", help="The server.")] = (
        DEFAULT_URI
    )
    token: Annotated[str | None, option("--token", envvar="STATFLIGHT_TOKEN", help="Bearer token.")] = None
    tls_roots: Annotated[
        Path | None,
        option(
            "--tls-roots",
            envvar="STATFLIGHT_TLS_ROOTS",
            metavar="FILE",
            help="PEM certificates to check the server's with.",
        ),
    ] = None

    @property
    def addresses(self) -> list[str]:
        """The addresses, each with its scheme, `grpc://` where it has none."""
        given = [address.strip() for address in self.server.split(",")]
        return [address if "://" in address else f"grpc://{address}" for address in given]

    def credentials(self) -> dict[str, Any]:
        """Arguments of a client besides the address: `token`, `tls_roots`, and for mutual TLS the client's `tls_cert`
        and `tls_key`, from the files that two variables name.

        Raises:
            UsageError: The address is not a Flight address, or a file cannot be read.
        """
        for address in self.addresses:
            if (why := _wrong_with(address)) is not None:
                misuse(
                    f"--server {address!r} is not a Flight address{why}; must be {DEFAULT_URI} or grpc+tls://host:port"
                )
        variables = {"tls_cert": "STATFLIGHT_TLS_CLIENT_CERT", "tls_key": "STATFLIGHT_TLS_CLIENT_KEY"}
        paths = {name: path for name, variable in variables.items() if (path := os.environ.get(variable, "").strip())}
        if len(paths) == 1:
            misuse(" and ".join(variables.values()) + " go together")
        try:
            own = {name: Path(path).expanduser().read_bytes() for name, path in paths.items()}
            roots = None if self.tls_roots is None else self.tls_roots.read_bytes()
        except OSError as error:
            given = self.tls_roots is not None and error.filename == str(self.tls_roots)
            misuse(f"{'--tls-roots ' if given else ''}{error.filename}: {error.strerror}")
        return {"token": self.token, "tls_roots": roots} | own


def _wrong_with(address: str) -> str | None:
    """Why an address is not one of Flight, for the end of a message (empty: nothing more to say); None if it is."""
    scheme, _, place = address.partition("://")
    if scheme in ("http", "https"):
        return "; that is the address of pages"
    if not re.fullmatch(r"grpc(\+tcp|\+tls|\+unix)?", scheme):
        return ""
    if scheme == "grpc+unix":
        return None
    if not place.strip("/"):
        return ": it is empty"
    if re.fullmatch(r":?\d+", place):
        return f": it names no host; for this machine say 127.0.0.1:{place.removeprefix(':')}"
    port = _port_of(address)
    if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        return ": its port is not a number from 1 to 65535"
    return None


def _port_of(address: str) -> str:
    """The port of an address, as it is written; empty if it has none."""
    found = re.fullmatch(r".*://(?:[^/]*@)?(?:\[[^]]*\]|[^:/]*)(?::([^/]*))?/*", address)
    return (found and found[1]) or ""


CONNECTION: Final = ConnectionOptions()


@contextmanager
def connect(connection: ConnectionOptions) -> Iterator[StatsClient]:
    """Opens a client for the length of a block."""
    credentials, server = connection.credentials(), ",".join(connection.addresses)
    from flight_server.process.runtime import hush_grpc, leave_pandas_out, realign_buffers

    leave_pandas_out()
    realign_buffers()
    hush_grpc()
    import pyarrow.flight as flight

    from flight_server.client import StatsClient, reason
    from flight_server.client.errors import UNAVAILABLE

    note(f"server: {server}")
    started = time.monotonic()
    try:
        with StatsClient(server, **credentials) as client:
            yield client
    except flight.FlightUnavailableError as error:
        message = reason(error)
        # gRPC's own connection errors have no code; the server's errors have one.
        if not message.startswith(UNAVAILABLE):
            raise
        raise CommandError(no_server(server, message.removeprefix(UNAVAILABLE).strip())) from None
    note(f"took {time.monotonic() - started:.2f} s")


def no_server(server: str, detail: str) -> str:
    """The message for an unreachable server: what is in the way if that is known, else how to start or name one."""
    from flight_server.client.unreachable import CANNOT

    detail = detail.splitlines()[0]
    if detail.startswith(CANNOT):
        return detail
    if server == DEFAULT_URI:
        return (
            f"no server at {server}. Start one in another terminal: statflight serve --db stats.duckdb\n"
            "or name a running one with --server URI or STATFLIGHT_SERVER; `statflight demo` shows what comes out"
        )
    usual = f"write {server.rstrip('/')}:{_port_of(DEFAULT_URI)} if `serve` has its usual port; "
    lacks_port = "," not in server and not server.startswith("grpc+unix") and not _port_of(server)
    return (
        f"no server at {server} ({detail}); {usual if lacks_port else ''}"
        "check --server, or start one with `statflight serve`"
    )
