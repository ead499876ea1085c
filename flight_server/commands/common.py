"""What the commands share: their common options, the connection, and how a mistake is worded."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import pyarrow.flight as flight
import typer

from flight_server.client import DEFAULT_URI, StatsClient, reason, split_name

_ON = "Connection"

Server = Annotated[
    str, typer.Option("--server", envvar="STATFLIGHT_SERVER", metavar="URI", help="The server.", rich_help_panel=_ON)
]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="STATFLIGHT_TOKEN", help="Bearer token.", show_default=False, rich_help_panel=_ON),
]
TlsRoots = Annotated[
    Path | None,
    typer.Option("--tls-roots", envvar="STATFLIGHT_TLS_ROOTS", metavar="FILE",
                 help="PEM certificates to check the server's with.", rich_help_panel=_ON),
]  # fmt: skip
SERVER = DEFAULT_URI


class CommandError(Exception):
    """A command could not do what it was asked; the message is all the user needs."""


class UsageError(Exception):
    """The command line itself is wrong."""


def misuse(message: str) -> NoReturn:
    raise UsageError(message)


def say(message: str) -> None:
    """A line for people, on standard error."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def tell(line: str) -> None:
    """A line of data, on standard output."""
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()


def check_server(uri: str) -> None:
    if not re.match(r"grpc(\+tcp|\+tls|\+unix)?://", uri):
        misuse(f"--server {uri!r} is no Flight address; expected {DEFAULT_URI} or grpc+tls://host:port")


def certificates(path: Path | None) -> bytes | None:
    """What `--tls-roots` names, read."""
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        misuse(f"--tls-roots {path}: {error.strerror}")


def own_certificate() -> dict[str, bytes]:
    """The client's certificate and key, for a server that asks for one: files that two variables name."""
    variables = {"tls_cert": "STATFLIGHT_TLS_CLIENT_CERT", "tls_key": "STATFLIGHT_TLS_CLIENT_KEY"}
    paths = {name: path for name, variable in variables.items() if (path := os.environ.get(variable, "").strip())}
    if len(paths) == 1:
        misuse(" and ".join(variables.values()) + " go together")
    try:
        return {name: Path(path).expanduser().read_bytes() for name, path in paths.items()}
    except OSError as error:
        misuse(f"{error.filename}: {error.strerror}")


@contextmanager
def connect(server: str, token: str | None, tls_roots: Path | None) -> Iterator[StatsClient]:
    """A client for the length of a block."""
    check_server(server)
    own = own_certificate()
    try:
        with StatsClient(
            server, token, certificates(tls_roots), tls_cert=own.get("tls_cert"), tls_key=own.get("tls_key")
        ) as client:
            yield client
    except flight.FlightUnavailableError as error:
        message = reason(error)
        # gRPC's own words for a connection that failed have no code; the server's have.
        if not message.startswith("[UNAVAILABLE]"):
            raise
        message = message.removeprefix("[UNAVAILABLE] ")
        raise CommandError(f"no server at {server} ({message}); `statflight serve` starts one") from None


def table_name(name: str) -> str:
    """A full table name, checked before anything is asked of a server."""
    try:
        split_name(name)
    except ValueError as error:
        misuse(str(error))
    return name


def snapshot_of(text: str, *words: str) -> str | int:
    """A snapshot as an option names it: a word of those allowed, or an id."""
    if text in words:
        return text
    try:
        return int(text)
    except ValueError:
        misuse(f"snapshot {text!r}: expected {', '.join(words)}{' or ' if words else ''}an id")


def names_of(text: str | None) -> list[str] | None:
    """The names in `a,b`, or None when the option is absent."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return names or misuse("a list of names is empty")


def debug() -> bool:
    return bool(os.environ.get("STATFLIGHT_DEBUG"))
